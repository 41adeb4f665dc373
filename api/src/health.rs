//! Whether this process can do its work, by trying it.
//!
//! Ready means: the database took a write-capable round trip lately, its schema is ours, partitions
//! for the coming days exist, our clock is near the database's, and a writer is connected. Or, where there is a journal with
//! room: the database was there once, and does not answer just now. Events are accepted all the same.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::runtime::clock::{BootTime, DatabaseClock, boot_time};
use shared::store::pool::within;
use shared::store::{Database, Pool, StoreError, health, migrate, partitions};
use tokio_util::sync::CancellationToken;

use crate::ingest::writer;
use crate::journal::Journal;

/// How often the database is tried.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long one try may take.
const BUDGET: Duration = Duration::from_secs(5);
/// How old the last good try may be.
const RECENT: Duration = Duration::from_secs(10);
/// The most that our clock may differ from the database's.
const MOST_OFFSET: time::Duration = time::Duration::seconds(5);
/// Days after today that must have their partitions.
const DAYS_AHEAD: i64 = 2;
/// Schema and partitions change rarely: every so many tries.
const SLOW_CHECKS: u32 = 15;

/// What the last tries showed.
pub(crate) struct Health {
    pool: Pool,
    database: Database,
    clock: Arc<DatabaseClock>,
    writers: Arc<writer::Shared>,
    journal: Option<Arc<Journal>>,
    last: Mutex<Result<BootTime, Failure>>,
}

/// Why a try failed.
#[derive(Debug, Clone)]
struct Failure {
    why: String,
    /// The database did not answer: all else may be well.
    away: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self {
            why: error.to_string(),
            away: error.is_transient(),
        }
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, away: false }
    }
}

impl Health {
    pub(crate) fn new(
        pool: Pool,
        database: Database,
        clock: Arc<DatabaseClock>,
        writers: Arc<writer::Shared>,
        journal: Option<Arc<Journal>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pool,
            database,
            clock,
            writers,
            journal,
            last: Mutex::new(Err("the database was not tried yet".to_owned().into())),
        })
    }

    /// Why this process cannot do its work, if it cannot.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if let Err(failure) = self.answers()
            && !(failure.away && self.accepts_without_database())
        {
            return Err(failure.why);
        }
        let offset = self.clock.wall_offset();
        if offset.abs() > MOST_OFFSET {
            return Err(format!(
                "this machine's clock is {} s off the database's: check NTP",
                offset.whole_seconds()
            ));
        }
        Ok(())
    }

    /// What is wrong with the database, as far as the last tries showed.
    fn answers(&self) -> Result<(), Failure> {
        let away = |why: String| Failure { why, away: true };
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let good = last.clone()?;
        drop(last);
        let age = boot_time().since(good);
        if age > RECENT {
            let seconds = age.as_secs();
            return Err(away(format!("the database last answered {seconds} s ago")));
        }
        if !self.writers.connected.load(Ordering::Relaxed) {
            let why = "the writer of events has no connection to the database";
            return Err(away(why.to_owned()));
        }
        Ok(())
    }

    fn accepts_without_database(&self) -> bool {
        let journal = self.journal.as_ref();
        self.clock.measured_ago().is_some() && journal.is_some_and(|journal| journal.has_room())
    }

    /// Tries until shutdown.
    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        let mut tries = 0_u32;
        while !shutdown.is_cancelled() {
            let result = self.try_once(tries.is_multiple_of(SLOW_CHECKS)).await;
            // After a failure everything is checked again.
            tries = if result.is_ok() {
                tries.wrapping_add(1)
            } else {
                0
            };
            if let Err(Failure { why, .. }) = &result {
                tracing::warn!(%why, "not ready");
            }
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = result;
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn try_once(&self, thorough: bool) -> Result<BootTime, Failure> {
        let sent = boot_time();
        within(BUDGET, self.round_trip(thorough)).await??;
        if thorough {
            migrate::check_version(&self.database)
                .await
                .map_err(|error| error.to_string())?;
        }
        Ok(sent)
    }

    /// The outer error is the database's, the inner one says what is wrong with it.
    async fn round_trip(&self, thorough: bool) -> Result<Result<(), String>, StoreError> {
        let client = self.pool.get().await?;
        let sent = boot_time();
        let now = health::write_round_trip(&**client).await?;
        self.clock.measured(sent, boot_time(), now);
        if thorough {
            let ahead = partitions::ahead(&client, now).await?;
            if ahead < DAYS_AHEAD {
                return Ok(Err(format!(
                    "partitions reach {ahead} days ahead, at least {DAYS_AHEAD} are needed: \
                     is a worker running?"
                )));
            }
        }
        Ok(Ok(()))
    }
}
