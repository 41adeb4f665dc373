//! What waits to be written about endpoints: of each only its latest state, so that what is kept while the
//! database is away is bounded by the endpoints that changed meanwhile.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::domain::notice::NoticeKind;
use shared::ids::{EndpointKey, Slot, TenantKey};
use shared::policy::notice::Facts;
use shared::store::endpoint_runtime::Runtime;
use time::OffsetDateTime;
use tokio::sync::Notify;

use crate::job::Ownership;

/// Endpoints that may wait; some 500 bytes each. Past it the database has been away for long: a state that
/// is lost here is found again by the next take-over, from the attempts and dead letters.
const MOST_WAITING: usize = 100_000;

/// What changed about one endpoint.
#[derive(Debug, Clone)]
pub struct Change {
    /// Under which ownership; a stale one changes nothing (D3).
    pub owner: Ownership,
    /// Which endpoint.
    pub endpoint: EndpointKey,
    /// Whose.
    pub tenant: TenantKey,
    /// What is stored of it now.
    pub runtime: Option<Runtime>,
    /// What its tenant is told, and the facts. Never of a delivery that is itself a notice.
    pub notices: Vec<(NoticeKind, Facts)>,
    /// It has failed for so long that it is to be disabled, if the attempts bear that out.
    pub disable: Option<DisableFailing>,
}

/// An endpoint that has failed for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisableFailing {
    /// The version that failed.
    pub version: i32,
    /// The first failure since the last success.
    pub failing_since: OffsetDateTime,
}

impl Change {
    /// Something more to tell; what is to be told already stays as it is.
    pub(super) fn tell(&mut self, kind: NoticeKind, facts: Facts) {
        if !self.notices.iter().any(|(other, _)| *other == kind) {
            self.notices.push((kind, facts));
        }
    }

    /// Nothing of it is to be done.
    pub(super) fn forget(&mut self) {
        self.runtime = None;
        self.disable = None;
        self.notices.clear();
    }

    /// Whether nothing of it is left to be done.
    pub(super) fn is_nothing(&self) -> bool {
        self.runtime.is_none() && self.disable.is_none() && self.notices.is_empty()
    }

    /// This one, and what an earlier one left to be done. Nothing is left of what another owner wanted.
    fn after(&mut self, earlier: Self) {
        if earlier.owner != self.owner {
            return;
        }
        self.runtime = self.runtime.take().or(earlier.runtime);
        self.disable = self.disable.take().or(earlier.disable);
        for (kind, facts) in earlier.notices {
            self.tell(kind, facts);
        }
    }
}

/// See the module. Cheap to put into; never waits.
#[derive(Debug, Default)]
pub struct Changes {
    state: Mutex<State>,
    /// Something waits, or nothing more will.
    some: Notify,
    /// States of a batch were saved.
    saved: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<EndpointKey, Change>,
    /// Slots of the batch under way, until its states are saved.
    saving: HashSet<Slot>,
    closed: bool,
    full: bool,
}

impl State {
    fn is_settled(&self, slots: &[Slot]) -> bool {
        let unsaved = self.waiting.values().filter(|it| it.runtime.is_some());
        let mut unsaved = unsaved.map(|it| it.owner.slot);
        !unsaved.any(|slot| slots.contains(&slot))
            && !slots.iter().any(|slot| self.saving.contains(slot))
    }
}

impl Changes {
    /// Puts a change in; it takes the place of an earlier one of the same endpoint, whose notices and
    /// request to disable stay.
    pub fn put(&self, change: Change) {
        let mut state = self.lock();
        let room = state.waiting.len() < MOST_WAITING;
        match state.waiting.entry(change.endpoint) {
            Entry::Occupied(mut waiting) => {
                let earlier = waiting.insert(change);
                waiting.get_mut().after(earlier);
            }
            Entry::Vacant(place) if room => {
                place.insert(change);
            }
            Entry::Vacant(_) => {
                if !std::mem::replace(&mut state.full, true) {
                    tracing::error!(
                        "too many changes of endpoints wait for the database; further ones are lost"
                    );
                }
            }
        }
        drop(state);
        self.some.notify_one();
    }

    /// Nothing more will be put in: what waits is written, and then the task ends.
    pub fn close(&self) {
        self.lock().closed = true;
        self.some.notify_one();
    }

    /// Waits until every state that changed under these slots is saved, at most so long; whether it is so.
    /// Before a slot is handed over; the engine puts nothing in for it any more.
    pub async fn settled(&self, slots: &[Slot], at_most: Duration) -> bool {
        let settling = async {
            loop {
                // Before looking, or a batch that ends in between would be missed.
                let saved = self.saved.notified();
                tokio::pin!(saved);
                saved.as_mut().enable();
                if self.lock().is_settled(slots) {
                    return;
                }
                saved.await;
            }
        };
        tokio::time::timeout(at_most, settling).await.is_ok()
    }

    /// Waits for changes and takes some. `None`: closed, and none is left. One at a time, each followed by
    /// [`Changes::saved`], if it came so far, and [`Changes::left`].
    pub(super) async fn take(&self, at_most: usize) -> Option<Vec<Change>> {
        loop {
            {
                let mut state = self.lock();
                let keys: Vec<_> = state.waiting.keys().take(at_most).copied().collect();
                let batch: Vec<Change> = keys
                    .iter()
                    .filter_map(|key| state.waiting.remove(key))
                    .collect();
                if !batch.is_empty() {
                    state.full = false;
                    state.saving = batch.iter().map(|change| change.owner.slot).collect();
                    return Some(batch);
                }
                if state.closed {
                    return None;
                }
            }
            self.some.notified().await;
        }
    }

    /// The states of the batch that was taken are saved.
    pub(super) fn saved(&self) {
        self.lock().saving.clear();
        self.saved.notify_waiters();
    }

    /// The batch that was taken is done, but for what is `left` of it.
    pub(super) fn left(&self, left: Vec<Change>) {
        let mut state = self.lock();
        state.saving.clear();
        for earlier in left {
            match state.waiting.entry(earlier.endpoint) {
                Entry::Occupied(mut later) => later.get_mut().after(earlier),
                Entry::Vacant(place) => {
                    place.insert(earlier);
                }
            }
        }
        drop(state);
        self.saved.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
