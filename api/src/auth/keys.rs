//! The keys that are known, and since when.
//!
//! A known key is believed for [`FRESH`], asked about again in the background before that ends, and,
//! when the database is away, believed for [`BELIEVED`] in all: an outage of a minute locks nobody
//! out.
//!
//! # Invariants
//! - A revocation holds within two seconds while the database answers.
//! - Bounded: each cache starts anew at [`MOST_ENTRIES`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use deadpool_postgres::Pool;
use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::spawn_driver;
use shared::store::StoreError;
use shared::store::keys::{self, FoundKey, KeyHash, KeyOwner};
use shared::store::pool::within;
use uuid::Uuid;

use super::{Scope, unauthorized};
use crate::problem::{ApiError, Kind};

/// How long a key is believed without asking. With the time that asking takes, under two seconds.
const FRESH: Duration = Duration::from_millis(1_500);
/// From this age on, the next use asks again in the background.
const AGEING: Duration = Duration::from_millis(750);
/// How long a key is believed while the database cannot be asked.
const BELIEVED: Duration = Duration::from_secs(60);
/// After a failure to ask, the pause before the next attempt: an outage is not a storm of lookups.
const ASK_PAUSE: Duration = Duration::from_millis(500);
/// How long one look-up may take.
const LOOKUP_BUDGET: Duration = Duration::from_secs(2);
/// How long a key that does not exist is refused without asking.
const REFUSED: Duration = Duration::from_secs(1);
/// The most entries of each cache; at the limit it starts anew.
pub(super) const MOST_ENTRIES: usize = 20_000;

/// A key that is known, and since when.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) owner: KeyOwner,
    scopes: u8,
    /// When the question was sent whose answer this is.
    confirmed: BootTime,
}

impl Known {
    fn new(found: &FoundKey, confirmed: BootTime) -> Self {
        let scopes = Scope::ALL
            .into_iter()
            .filter(|scope| found.scopes.iter().any(|name| name == scope.name()))
            .fold(0, |bits, scope| bits | scope.bit());
        Self {
            owner: found.owner,
            scopes,
            confirmed,
        }
    }

    /// What it may, as a text of no meaning.
    pub(super) fn scopes(&self) -> String {
        format!("{:02x}", self.scopes)
    }

    pub(super) fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes & scope.bit() != 0 {
            return Ok(());
        }
        Err(ApiError::new(
            Kind::MissingScope,
            format!("this needs a key with the scope `{}`", scope.name()),
        ))
    }
}

#[derive(Debug)]
struct Entry {
    id: Uuid,
    known: ArcSwap<Known>,
    /// Held by the one request that asks again; when it last failed.
    asking: tokio::sync::Mutex<Option<BootTime>>,
    used: AtomicBool,
}

/// Knows keys. Shared by all requests of a process.
pub(super) struct Keys {
    pool: Pool,
    entries: RwLock<HashMap<KeyHash, Arc<Entry>>>,
    refused: Mutex<HashMap<KeyHash, BootTime>>,
}

impl Keys {
    pub(super) fn new(pool: Pool) -> Arc<Self> {
        Arc::new(Self {
            pool,
            entries: RwLock::default(),
            refused: Mutex::default(),
        })
    }

    /// Notes in the database which keys were used since the last call.
    pub(super) async fn note_used(&self) -> Result<(), StoreError> {
        let used: Vec<Uuid> = read(&self.entries)
            .values()
            .filter(|entry| entry.used.swap(false, Ordering::Relaxed))
            .map(|entry| entry.id)
            .collect();
        if used.is_empty() {
            return Ok(());
        }
        let client = self.pool.get().await?;
        keys::touch(&**client, &used).await
    }

    /// What is known of the key with this text.
    pub(super) async fn key(self: &Arc<Self>, text: &str) -> Result<Arc<Known>, ApiError> {
        let hash = keys::hash(text);
        let entry = read(&self.entries).get(&hash).cloned();
        let Some(entry) = entry else {
            return self.first_use(hash).await;
        };
        entry.used.store(true, Ordering::Relaxed);
        let known = entry.known.load_full();
        let age = boot_time().since(known.confirmed);
        if age <= AGEING {
            return Ok(known);
        }
        if age > FRESH {
            return self.ask_again(hash, &entry).await;
        }
        if entry.asking.try_lock().is_ok() {
            let all = Arc::clone(self);
            // Ends by itself: the look-up has a budget.
            drop(spawn_driver(async move {
                if let Err(error) = all.ask_again(hash, &entry).await {
                    tracing::debug!(%error, "a key was not confirmed");
                }
            }));
        }
        Ok(known)
    }

    async fn first_use(&self, hash: KeyHash) -> Result<Arc<Known>, ApiError> {
        let refused = lock(&self.refused).get(&hash).copied();
        if refused.is_some_and(|at| boot_time().since(at) <= REFUSED) {
            return Err(unknown_key());
        }
        let asked = boot_time();
        let Some(found) = self.find(&hash).await? else {
            self.refuse(hash, asked);
            return Err(unknown_key());
        };
        let known = Arc::new(Known::new(&found, asked));
        let entry = Arc::new(Entry {
            id: found.id,
            known: ArcSwap::new(Arc::clone(&known)),
            asking: tokio::sync::Mutex::default(),
            used: AtomicBool::new(true),
        });
        let mut keys = write(&self.entries);
        if keys.len() >= MOST_ENTRIES {
            keys.clear();
        }
        keys.insert(hash, entry);
        Ok(known)
    }

    /// Asks the database about a known key, one request at a time; the others wait for its answer.
    async fn ask_again(&self, hash: KeyHash, entry: &Entry) -> Result<Arc<Known>, ApiError> {
        let mut failed = entry.asking.lock().await;
        let known = entry.known.load_full();
        let age = boot_time().since(known.confirmed);
        if age <= AGEING {
            return Ok(known);
        }
        let believed = age <= BELIEVED;
        if believed && failed.is_some_and(|at| boot_time().since(at) <= ASK_PAUSE) {
            return Ok(known);
        }
        let asked = boot_time();
        match self.find(&hash).await {
            Ok(Some(found)) => {
                let known = Arc::new(Known::new(&found, asked));
                entry.known.store(Arc::clone(&known));
                *failed = None;
                Ok(known)
            }
            Ok(None) => {
                write(&self.entries).remove(&hash);
                self.refuse(hash, asked);
                Err(unknown_key())
            }
            Err(error) if believed && error.is_transient() => {
                *failed = Some(boot_time());
                tracing::warn!(%error, "keys cannot be checked; the last answer counts");
                Ok(known)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn find(&self, hash: &KeyHash) -> Result<Option<FoundKey>, StoreError> {
        within(LOOKUP_BUDGET, async {
            let client = self.pool.get().await?;
            keys::find(&**client, hash).await
        })
        .await
    }

    fn refuse(&self, hash: KeyHash, asked: BootTime) {
        let mut refused = lock(&self.refused);
        if refused.len() >= MOST_ENTRIES {
            refused.clear();
        }
        refused.insert(hash, asked);
    }
}

fn unknown_key() -> ApiError {
    unauthorized("this key does not exist, has expired or was revoked")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
