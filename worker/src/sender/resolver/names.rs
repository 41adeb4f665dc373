//! What is known of names, and which are being looked up: one look-up per name at a time, whose
//! reply all who ask meanwhile wait for.
//!
//! # Invariants
//! - O2 both are bounded in number, whoever makes up names.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use shared::runtime::clock::BootTime;
use tokio::sync::watch;

use super::LookupFailed;
use super::entry::{Entry, Given, Reply};
use super::host_name::HostName;

/// Look-ups that are under way or wait for their turn. Far above what a worker's requests in flight
/// can ask for: each ends within seconds.
const MOST_UNDER_WAY: usize = 16_384;

/// Where the reply of a look-up will be.
pub(super) type Awaited = watch::Receiver<Option<Given>>;

/// What one who asks has to do.
pub(super) enum Asked {
    /// Nothing.
    Known(Given),
    /// Wait for a look-up, and meanwhile make do with what DNS said before, if it did.
    UnderWay {
        awaited: Awaited,
        usable: Option<Arc<[IpAddr]>>,
        /// For whoever is the first to ask: has to look the name up, and tell.
        first: Option<watch::Sender<Option<Given>>>,
    },
}

/// See the module.
pub(super) struct Names(Mutex<State>);

struct State {
    known: LruCache<HostName, Entry>,
    under_way: HashMap<HostName, Awaited>,
}

impl Names {
    pub(super) fn new(most_known: NonZeroUsize) -> Self {
        Self(Mutex::new(State {
            known: LruCache::new(most_known),
            under_way: HashMap::new(),
        }))
    }

    pub(super) fn ask(&self, name: &HostName, now: BootTime) -> Asked {
        let mut state = self.state();
        let entry = state.known.get(name);
        if let Some(given) = entry.and_then(|entry| entry.fresh(now)) {
            return Asked::Known(given);
        }
        let usable = entry.and_then(|entry| entry.usable(now));
        // One that still stands here though its sender is gone has panicked.
        let under_way = state.under_way.get(name);
        if let Some(awaited) = under_way.filter(|awaited| awaited.has_changed().is_ok()) {
            return Asked::UnderWay {
                awaited: awaited.clone(),
                usable,
                first: None,
            };
        }
        if state.under_way.len() >= MOST_UNDER_WAY {
            let overloaded = Given::Failed(LookupFailed::Overloaded);
            return Asked::Known(usable.map_or(overloaded, Given::Stale));
        }
        let (first, awaited) = watch::channel(None);
        state.under_way.insert(name.clone(), awaited.clone());
        Asked::UnderWay {
            awaited,
            usable,
            first: Some(first),
        }
    }

    /// Remembers what a look-up gave; what to give to those who wait for it.
    pub(super) fn keep(&self, name: &HostName, reply: Reply, now: BootTime) -> Given {
        let mut state = self.state();
        let before = state.known.pop(name);
        let entry = Entry::after(before, reply, now);
        let given = entry.given(now);
        state.known.put(name.clone(), entry);
        state.under_way.remove(name);
        given
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
