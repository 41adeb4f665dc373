//! The database of `dev`: a private PostgreSQL, or the one that `DATABASE_URL` names.

use std::path::Path;

use shared::embedded_postgres::{EmbeddedError, EmbeddedPostgres, Options, SUPERUSER};
use shared::runtime::clock::boot_time;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::pool::{CONNECT_TIMEOUT, within};
use shared::store::{Database, Role, StoreError, migrate, slots};

use super::state::State;
use crate::output::note;
use crate::store::{migrate_failure, store_failure};

/// A database that runs while this lives.
pub(super) struct DevDatabase {
    url: String,
    embedded: Option<EmbeddedPostgres>,
}

impl DevDatabase {
    pub(super) async fn start(settings: &Settings, state: &State) -> Result<Self, Failure> {
        if let Some(url) = settings.get("DATABASE_URL") {
            note("PostgreSQL   the one that DATABASE_URL names");
            return Ok(Self {
                url: url.to_owned(),
                embedded: None,
            });
        }
        let options = Options {
            durable: true,
            ..match state.postgres_dir() {
                Some(dir) => Options::kept(dir),
                None => Options::throw_away(),
            }
        };
        note("PostgreSQL   starting a private one …");
        let began = boot_time();
        let embedded = EmbeddedPostgres::start(options).await.map_err(failure)?;
        note(&format!(
            "PostgreSQL   up after {:.1} s, in {}",
            boot_time().since(began).as_secs_f64(),
            shown(embedded.data_dir())
        ));
        Ok(Self {
            url: embedded.url(SUPERUSER),
            embedded: Some(embedded),
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The URL to show: a private database has no password in it, another one may.
    pub(super) fn embedded_url(&self) -> Option<&str> {
        self.embedded.as_ref().map(|_private| self.url.as_str())
    }

    /// Brings it to our schema.
    pub(super) async fn migrate(&self) -> Result<Database, Failure> {
        let database = Database::new(&self.url).map_err(store_failure)?;
        let applied = migrate::migrate(&database).await.map_err(migrate_failure)?;
        note(&match applied.len() {
            0 => format!("schema       at version {}", migrate::SCHEMA_VERSION),
            count => format!(
                "schema       {count} migrations applied, at version {}",
                migrate::SCHEMA_VERSION
            ),
        });
        if self.embedded.is_some() {
            bury(&database).await.map_err(store_failure)?;
        }
        Ok(database)
    }

    /// Waits until a private database ends although nobody stopped it, and says why.
    pub(super) async fn ended(&mut self) -> String {
        match &mut self.embedded {
            Some(embedded) => embedded.unexpected_end().await,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn stop(self) -> Result<(), Failure> {
        match self.embedded {
            Some(embedded) => embedded.stop().await.map_err(failure),
            None => Ok(()),
        }
    }
}

/// A run that was killed left its worker's lease behind; on a database of our own nobody need wait for
/// it to run out.
async fn bury(database: &Database) -> Result<(), StoreError> {
    let session = database.connect(Role::Worker).await?;
    let dead = within(CONNECT_TIMEOUT, slots::declare_all_dead(&session)).await?;
    if dead > 0 {
        note("worker       the last run was killed; its slots are free again");
    }
    Ok(())
}

/// A path from here, if it is below.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    match here.and_then(|here| path.strip_prefix(here).ok()) {
        Some(below) => format!("./{}", below.display()),
        None => path.display().to_string(),
    }
}

fn failure(error: EmbeddedError) -> Failure {
    Failure::Failed(error.to_string())
}
