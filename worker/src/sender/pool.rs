//! Connections that wait for their next request.
//!
//! Plain data: the caller gives the time and drops what it is handed back, outside of any lock. Not
//! here: opening connections (`connect`) and using them (`exchange`).
//!
//! Two kinds wait here. A connection of HTTP/1 serves one request at a time, so it is taken out and
//! put back. One of HTTP/2 is shared: it stays, and is handed out as long as it has room.
//!
//! # Why
//! A general-purpose pool has no age: a busy connection is never idle, so it would talk to an address
//! that its name left hours ago. And it keeps as many as there are hosts; here the one unused for
//! longest goes first when there are too many.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::origin::Origin;

/// How many connections wait at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// For one origin.
    pub(super) per_origin: usize,
    /// In all; of each kind.
    pub(super) in_all: usize,
}

/// See the module. `One` serves one request at a time, `Many` is shared.
pub(super) struct Shelves<One, Many> {
    limits: Limits,
    origins: HashMap<Arc<Origin>, Waiting<One, Many>>,
    /// The waiting ones by the order they came in: the first is unused for longest.
    order: BTreeMap<u64, Arc<Origin>>,
    next: u64,
    shared: usize,
}

struct Waiting<One, Many> {
    /// The last one was used last.
    single: VecDeque<(u64, Instant, One)>,
    shared: Vec<Many>,
}

impl<One, Many> Default for Waiting<One, Many> {
    fn default() -> Self {
        Self {
            single: VecDeque::new(),
            shared: Vec::new(),
        }
    }
}

/// What a shared connection must say of itself.
pub(super) trait Shared: Clone {
    /// Whether it takes another request now.
    fn has_room(&self, now: Instant) -> bool;
    /// Whether it is of no more use once its requests have ended.
    fn is_over(&self, now: Instant) -> bool;
}

impl<One, Many: Shared> Shelves<One, Many> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            origins: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            shared: 0,
        }
    }

    /// A shared connection with room.
    pub(super) fn join(&self, origin: &Origin, now: Instant) -> Option<Many> {
        let waiting = self.origins.get(origin)?;
        waiting.shared.iter().find(|one| one.has_room(now)).cloned()
    }

    /// The connection that was used last, if it is still good: the longer one waits, the likelier its
    /// server is closing it. Those that are not good any more go into `spent`.
    pub(super) fn take(
        &mut self,
        origin: &Origin,
        now: Instant,
        spent: &mut Vec<One>,
    ) -> Option<One> {
        let waiting = self.origins.get_mut(origin)?;
        while let Some((number, good_until, one)) = waiting.single.pop_back() {
            self.order.remove(&number);
            if now < good_until {
                return Some(one);
            }
            spent.push(one);
        }
        None
    }

    /// Keeps a connection until `good_until`. What has to make room for it is handed back.
    pub(super) fn put(&mut self, origin: &Arc<Origin>, good_until: Instant, one: One) -> Vec<One> {
        let number = self.next;
        self.next += 1;
        let waiting = self.origins.entry(Arc::clone(origin)).or_default();
        waiting.single.push_back((number, good_until, one));
        self.order.insert(number, Arc::clone(origin));
        let mut spent = Vec::new();
        if waiting.single.len() > self.limits.per_origin
            && let Some((number, _, oldest)) = waiting.single.pop_front()
        {
            self.order.remove(&number);
            spent.push(oldest);
        }
        while self.order.len() > self.limits.in_all {
            let Some((_, origin)) = self.order.pop_first() else {
                break;
            };
            let oldest = self
                .origins
                .get_mut(&origin)
                .and_then(|waiting| waiting.single.pop_front());
            spent.extend(oldest.map(|(_, _, one)| one));
        }
        spent
    }

    /// Offers a connection to others; not when there are as many as may be.
    pub(super) fn share(&mut self, origin: &Arc<Origin>, many: Many) -> bool {
        let waiting = self.origins.entry(Arc::clone(origin)).or_default();
        let fits =
            waiting.shared.len() < self.limits.per_origin && self.shared < self.limits.in_all;
        if fits {
            waiting.shared.push(many);
            self.shared += 1;
        }
        fits
    }

    /// Takes out all that is not good any more.
    pub(super) fn sweep(&mut self, now: Instant) -> (Vec<One>, Vec<Many>) {
        let (mut single, mut shared) = (Vec::new(), Vec::new());
        for waiting in self.origins.values_mut() {
            let over = waiting.shared.extract_if(.., |one| one.is_over(now));
            shared.extend(over);
            let (good, spent): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut waiting.single)
                .into_iter()
                .partition(|(_, good_until, _)| now < *good_until);
            waiting.single = good;
            for (number, _, one) in spent {
                self.order.remove(&number);
                single.push(one);
            }
        }
        self.shared -= shared.len();
        self.origins
            .retain(|_, waiting| !waiting.single.is_empty() || !waiting.shared.is_empty());
        (single, shared)
    }

    /// How many wait: those for one request, and shared ones.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.order.len(), self.shared)
    }
}

#[cfg(test)]
mod tests;
