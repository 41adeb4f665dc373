//! The keys that are known, and since when.
//!
//! A known key is believed for [`FRESH`], asked about again in the background before that ends, and,
//! when the database is away, believed for a minute in all ([`BELIEVED`]): an outage of a minute locks nobody
//! out. With a journal, which is for longer outages, one that was confirmed within a minute before the outage is
//! believed until its end. One that ends by itself ends then too, by the database's clock as it was last read.
//!
//! # Invariants
//! - A revocation holds within two seconds while the database answers.
//! - Bounded: each cache starts anew at [`MOST_ENTRIES`]. Keys that are not known are looked up two at a
//!   time, and an address that tries many that do not exist waits ([`super::failures`]): guessing is no
//!   storm of look-ups. What cannot be a key is not looked up at all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use actix_web::HttpRequest;
use arc_swap::ArcSwap;
use shared::domain::limits::{KeyRate, Limits};
use shared::runtime::clock::{BootTime, DatabaseClock, boot_time};
use shared::runtime::spawn_driver;
use shared::store::StoreError;
use shared::store::keys::{self, FoundKey, KeyHash, KeyOwner};
use shared::store::pool::within;
use time::OffsetDateTime;
use uuid::Uuid;

use super::failures::Failures;
use super::rate::Rate;
use super::{KeyRef, Scope, unauthorized};
use crate::connections::Connections;
use crate::problem::{ApiError, Kind};

/// How long a key is believed without asking. With the time that asking takes, under two seconds.
const FRESH: Duration = Duration::from_millis(1_500);
/// From this age on, the next use asks again in the background.
const AGEING: Duration = Duration::from_millis(750);
/// How long a key is believed while the database cannot be asked.
pub(crate) const BELIEVED: Duration = Duration::from_secs(60);
/// After a failure to ask, the pause before the next attempt: an outage is not a storm of lookups.
const ASK_PAUSE: Duration = Duration::from_millis(500);
/// How long one look-up may take.
const LOOKUP_BUDGET: Duration = Duration::from_secs(2);
/// How long the first look-up of a key may take, with the wait for its turn and for a database that is
/// away: half of a request's deadline.
const FIRST_LOOKUP_BUDGET: Duration = Duration::from_secs(5);
/// How long noting which keys were used may take: less than a process has to stop.
const NOTE_BUDGET: Duration = Duration::from_secs(4);
/// How long a key that does not exist is refused without asking.
const REFUSED: Duration = Duration::from_secs(1);
/// How many keys that are not known may be looked up at once, and how many may wait for that.
const LOOKUPS: usize = 2;
const MOST_LOOKUPS_WAITING: usize = 500;
/// The length of a key: `prk_` or `pro_` and 43 characters.
const KEY_LENGTH: usize = 47;
/// The most entries of each cache; at the limit it starts anew.
pub(super) const MOST_ENTRIES: usize = 20_000;

/// A key that is known, and since when.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) owner: KeyOwner,
    pub(super) key: KeyRef,
    pub(super) scopes: u8,
    /// What the tenant or the organization may, as far as that is set.
    pub(super) limits: Limits,
    pub(super) rate: Option<Arc<Rate>>,
    /// The rate that is set for this key alone.
    pub(super) own_rate: Option<KeyRate>,
    pub(super) expires_at: Option<OffsetDateTime>,
    /// When the question was sent whose answer this is.
    confirmed: BootTime,
}

impl Known {
    /// `before`: what was known of it, whose bucket it keeps while the limit is the same.
    fn new(found: &FoundKey, confirmed: BootTime, default: Limits, before: Option<&Self>) -> Self {
        let limit = found.rate.or(default.rate_limit);
        let kept = before.and_then(|before| before.rate.clone());
        let rate = limit.map(|limit| {
            kept.filter(|rate| rate.limit == limit)
                .unwrap_or_else(|| Arc::new(Rate::new(limit)))
        });
        let scopes = Scope::ALL
            .into_iter()
            .filter(|scope| found.scopes.iter().any(|name| name == scope.name()))
            .fold(0, |bits, scope| bits | scope.bit());
        Self {
            owner: found.owner,
            key: KeyRef::new(found.id, &found.hint),
            scopes,
            limits: found.limits.or(default),
            rate,
            own_rate: found.own_rate,
            expires_at: found.expires_at,
            confirmed,
        }
    }

    /// What it may, as a text of no meaning.
    pub(super) fn scopes_text(&self) -> String {
        format!("{:02x}", self.scopes)
    }

    pub(super) const fn has(&self, scope: Scope) -> bool {
        self.scopes & scope.bit() != 0
    }

    pub(super) fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.has(scope) {
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

/// How long what was confirmed counts while the database cannot be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Belief {
    /// [`BELIEVED`], but for tests.
    pub(crate) length: Duration,
    /// With a journal: what was confirmed so shortly before the database went away counts until it is back.
    pub(crate) through_outages: bool,
}

/// Knows keys. Shared by all requests of a process.
pub(super) struct Keys {
    connections: Connections,
    clock: Arc<DatabaseClock>,
    default: Limits,
    belief: Belief,
    entries: RwLock<HashMap<KeyHash, Arc<Entry>>>,
    refused: Mutex<HashMap<KeyHash, BootTime>>,
    failures: Failures,
    lookups: tokio::sync::Semaphore,
    lookups_waiting: AtomicUsize,
}

impl Keys {
    pub(super) fn new(
        connections: Connections,
        clock: Arc<DatabaseClock>,
        default: Limits,
        belief: Belief,
    ) -> Arc<Self> {
        Arc::new(Self {
            connections,
            clock,
            default,
            belief,
            entries: RwLock::default(),
            refused: Mutex::default(),
            failures: Failures::default(),
            lookups: tokio::sync::Semaphore::new(LOOKUPS),
            lookups_waiting: AtomicUsize::new(0),
        })
    }

    /// Notes in the database which keys were used since the last call that could.
    pub(super) async fn note_used(&self) -> Result<(), StoreError> {
        let used: Vec<Arc<Entry>> = read(&self.entries)
            .values()
            .filter(|entry| entry.used.swap(false, Ordering::Relaxed))
            .map(Arc::clone)
            .collect();
        if used.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = used.iter().map(|entry| entry.id).collect();
        // Waits for a connection: the last call of a process is not made again.
        let noted = within(NOTE_BUDGET, async {
            let client = self.connections.get().await?;
            keys::touch(&**client, &ids).await
        });
        noted.await.inspect_err(|_| {
            for entry in &used {
                entry.used.store(true, Ordering::Relaxed);
            }
        })
    }

    /// The last answer about a key, while there is no other: it says when the key ends.
    fn last_answer(&self, known: Arc<Known>) -> Result<Arc<Known>, ApiError> {
        let has_ended = known.expires_at.is_some_and(|at| at <= self.clock.now());
        if has_ended {
            Err(unknown_key())
        } else {
            Ok(known)
        }
    }

    /// What is known of the key with this text.
    pub(super) async fn key(
        self: &Arc<Self>,
        text: &str,
        request: &HttpRequest,
    ) -> Result<Arc<Known>, ApiError> {
        let hash = keys::hash(text);
        let entry = read(&self.entries).get(&hash).cloned();
        let Some(entry) = entry else {
            let peer = peer(request);
            self.may_try(&hash, peer)?;
            if !is_well_formed(text) {
                self.failed(hash, peer, boot_time());
                return Err(unknown_key());
            }
            return self.first_use(hash, peer).await;
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

    /// Refuses what was refused just now, and an address that tried many keys that do not exist.
    pub(super) fn may_try(&self, hash: &KeyHash, peer: IpAddr) -> Result<(), ApiError> {
        let refused = lock(&self.refused).get(hash).copied();
        let now = boot_time();
        if refused.is_some_and(|at| now.since(at) <= REFUSED) {
            return Err(unknown_key());
        }
        if self.failures.is_full(peer, now) {
            let detail = "this address has sent many keys that do not exist; try again in a moment";
            return Err(ApiError::new(Kind::TooManyFailures, detail));
        }
        Ok(())
    }

    /// Remembers a key that does not exist, and who tried it.
    pub(super) fn failed(&self, hash: KeyHash, peer: IpAddr, asked: BootTime) {
        self.failures.count(peer, boot_time());
        self.refuse(hash, asked);
    }

    async fn first_use(&self, hash: KeyHash, peer: IpAddr) -> Result<Arc<Known>, ApiError> {
        let waiting = self.lookups_waiting.fetch_add(1, Ordering::Relaxed);
        let _place = Place(&self.lookups_waiting);
        if waiting >= MOST_LOOKUPS_WAITING {
            let detail = "many keys are being looked up; try again in a moment";
            return Err(ApiError::new(Kind::Overloaded, detail));
        }
        let looked_up = within(FIRST_LOOKUP_BUDGET, async {
            let permit = self.lookups.acquire().await;
            let _permit =
                permit.map_err(|_closed| StoreError::Other("no look-ups any more".to_owned()))?;
            // Others may have waited for the same key, or the address failed meanwhile.
            if let Some(entry) = read(&self.entries).get(&hash) {
                return Ok(Err(entry.known.load_full()));
            }
            let asked = boot_time();
            let client = self.connections.get().await?;
            Ok::<_, StoreError>(Ok((keys::find(&**client, &hash).await?, asked)))
        });
        let (found, asked) = match looked_up.await? {
            Ok(found) => found,
            Err(known) => return Ok(known),
        };
        let Some(found) = found else {
            self.failed(hash, peer, asked);
            return Err(unknown_key());
        };
        let known = Arc::new(Known::new(&found, asked, self.default, None));
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
        let believed = self.is_believed(age);
        if failed.is_some_and(|at| boot_time().since(at) <= ASK_PAUSE) {
            // Those who waited for the one that asked do not ask again, one after the other.
            return if believed {
                self.last_answer(known)
            } else {
                Err(StoreError::Unavailable("keys cannot be checked".to_owned()).into())
            };
        }
        let asked = boot_time();
        match self.find(&hash).await {
            Ok(Some(found)) => {
                let known = Arc::new(Known::new(&found, asked, self.default, Some(&known)));
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
                self.last_answer(known)
            }
            Err(error) => {
                *failed = Some(boot_time());
                Err(error.into())
            }
        }
    }

    /// Whether a key that was confirmed so long ago counts while the database cannot be asked. What is revoked in an
    /// outage is not known here: events that a journal accepts are the price of accepting any.
    pub(super) fn is_believed(&self, age: Duration) -> bool {
        let Belief {
            length,
            through_outages,
        } = self.belief;
        if !through_outages {
            return age <= length;
        }
        // Health checks and commits measure the clock every few seconds, as long as the database answers.
        let away = self.clock.measured_ago().unwrap_or_default();
        age.saturating_sub(away) <= length
    }

    async fn find(&self, hash: &KeyHash) -> Result<Option<FoundKey>, StoreError> {
        within(LOOKUP_BUDGET, async {
            let client = self.connections.try_get().await?;
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

/// A request that waits for a look-up.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whom a request comes from: behind a proxy, the proxy.
pub(super) fn peer(request: &HttpRequest) -> IpAddr {
    request
        .peer_addr()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())
}

/// Whether a text could be a key at all.
fn is_well_formed(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.len() == KEY_LENGTH
        && (text.starts_with("prk_") || text.starts_with("pro_"))
        && text.bytes().all(legal)
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

#[cfg(test)]
mod tests {
    use super::*;
    use shared::store::Role;
    use shared::store::keys::OwnerKey;
    use shared::store::tenants;
    use shared::testing::TestCluster;

    #[tokio::test]
    async fn a_use_that_could_not_be_noted_is_noted_by_the_next_call() {
        let mut cluster = TestCluster::new().await;
        let pool = cluster
            .database()
            .pool(Role::Api, 1, Duration::from_secs(3));
        let connections = Connections::new(pool.unwrap(), Duration::from_secs(1));
        let clock = Arc::new(DatabaseClock::new());
        let belief = Belief {
            length: BELIEVED,
            through_outages: false,
        };
        let all = Keys::new(connections.clone(), clock, Limits::default(), belief);
        let client = connections.get().await.unwrap();
        let made = tenants::create_organization(&**client, "a").await.unwrap();
        let owner = OwnerKey::Organization(made.key);
        let (info, key) = keys::create(&**client, owner, "", &[], None).await.unwrap();
        drop(client);
        let request = actix_web::test::TestRequest::default().to_http_request();
        assert!(all.key(key.reveal(), &request).await.is_ok());

        cluster.stop().await.unwrap();
        assert!(all.note_used().await.is_err());
        cluster.start().await.unwrap();
        all.note_used().await.unwrap();

        let client = connections.get().await.unwrap();
        let found = keys::find_for_update(&**client, owner, info.id)
            .await
            .unwrap();
        assert!(found.unwrap().last_used_at.is_some());
    }
}
