//! What a failed call means to whoever started a program, and which exit code it has.

use super::StoreError;
use super::migrate::MigrateError;
use crate::runtime::program::Failure;
use crate::runtime::settings::ConfigErrors;

/// What a failed call means to whoever typed the command.
#[must_use]
pub fn store_failure(error: StoreError) -> Failure {
    match error {
        StoreError::Configuration(text) => Failure::Configuration(text),
        StoreError::Unavailable(_) | StoreError::Timeout(_) => Failure::Failed(format!(
            "{error}\n  is PostgreSQL running where DATABASE_URL points, may this machine reach \
             it, and are user and password right?"
        )),
        StoreError::Contention(_)
        | StoreError::Conflict(_)
        | StoreError::BadData(_)
        | StoreError::NotOwner
        | StoreError::Decode(_)
        | StoreError::Other(_) => Failure::Failed(error.to_string()),
    }
}

/// As [`store_failure`], for migrations.
#[must_use]
pub fn migrate_failure(error: MigrateError) -> Failure {
    match error {
        MigrateError::Store(error) => store_failure(error),
        MigrateError::Newer { .. }
        | MigrateError::Behind { .. }
        | MigrateError::Changed { .. }
        | MigrateError::Busy(_)
        | MigrateError::Failed { .. } => Failure::Failed(error.to_string()),
    }
}

/// What a server that cannot start tells whoever started it, and its exit code.
#[must_use]
pub fn start_failure(error: anyhow::Error) -> Failure {
    let error = match error.downcast::<MigrateError>() {
        Ok(error) => return migrate_failure(error),
        Err(error) => error,
    };
    let error = match error.downcast::<StoreError>() {
        Ok(error) => return store_failure(error),
        Err(error) => error,
    };
    let text = format!("{error:#}");
    if error.is::<ConfigErrors>() {
        Failure::Configuration(text)
    } else {
        Failure::Failed(text)
    }
}
