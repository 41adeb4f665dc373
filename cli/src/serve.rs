//! `postrider api` and `postrider worker`: the same code as the programs of those names.

use shared::runtime::program::Failure;
use shared::runtime::settings::{ConfigErrors, Settings};
use shared::store::StoreError;
use shared::store::migrate::MigrateError;
use tokio_util::sync::CancellationToken;

use crate::store::{migrate_failure, store_failure};

pub(crate) async fn api(settings: &Settings, shutdown: CancellationToken) -> Result<(), Failure> {
    let config = api::Config::from_settings(settings)?;
    let running = api::start(config, shutdown).await.map_err(start_failure)?;
    running.finished().await.map_err(Failure::Failed)
}

pub(crate) async fn worker(
    settings: &Settings,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let config = worker::Config::from_settings(settings)?;
    let running = worker::start(config, shutdown)
        .await
        .map_err(start_failure)?;
    running.finished().await.map_err(Failure::Failed)
}

/// What a server that cannot start tells whoever started it, and its exit code.
pub(crate) fn start_failure(error: anyhow::Error) -> Failure {
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
