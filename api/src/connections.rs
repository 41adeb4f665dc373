//! Connections for everything but ingest: whoever asks while the database is away waits for it, within a
//! deadline, instead of failing at once. A restart of a few seconds is then no error for anyone.
//! A database that takes connections and says nothing is away as well: what a path without a timer of its own
//! (`crate::patience`) asks goes through [`Connections::bounded`].
//!
//! Bounded: at most [`MOST_WAITING`] requests wait (their bodies are at most 256 KiB each); further ones
//! are answered 503 at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::runtime::jitter;
use shared::store::pool::within;
use shared::store::{Pool, Pooled, StoreError};

/// The most requests that wait for a connection at once: 64 MiB of bodies.
const MOST_WAITING: usize = 256;
/// Pauses between attempts while the database is away: up to twice this, so that requests come back
/// spread out.
const PAUSE: Duration = Duration::from_millis(100);

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: Pool,
    patience: Duration,
    waiting: Arc<AtomicUsize>,
}

/// One that waits; given back when it ends or goes away.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    /// Whoever asks waits so long at most.
    pub(crate) fn new(pool: Pool, patience: Duration) -> Self {
        Self {
            pool,
            patience,
            waiting: Arc::default(),
        }
    }

    /// A connection. Give it back before anything but the database is waited for.
    pub(crate) async fn get(&self) -> Result<Pooled, StoreError> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _place = Place(&self.waiting);
        if waiting >= MOST_WAITING {
            let text = format!("{MOST_WAITING} requests wait for a connection already");
            return Err(StoreError::Unavailable(text));
        }
        let deadline = boot_time().after(self.patience);
        loop {
            let left = deadline.since(boot_time());
            let error = match within(left, self.pool.get()).await {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            let pause = PAUSE.mul_f64(1.0 + jitter::fraction());
            if !error.is_transient() || boot_time().after(pause) >= deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// All that is asked of the database in one go, the wait for a connection included, within the same deadline.
    pub(crate) async fn bounded<T, E: From<StoreError>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match tokio::time::timeout(self.patience, asked).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(StoreError::Timeout(self.patience).into()),
        }
    }

    /// A connection, or none for now: for what is done again anyway.
    pub(crate) async fn try_get(&self) -> Result<Pooled, StoreError> {
        Ok(self.pool.get().await?)
    }
}
