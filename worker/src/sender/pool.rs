//! Connections that wait for their next request.
//!
//! Plain data: the caller gives the time and drops what it is handed back, outside of any lock. Not
//! here: opening connections (`connect`) and using them (`exchange`).
//!
//! Two kinds wait here. A connection of HTTP/1 serves one request at a time, so it is taken out and
//! put back. One of HTTP/2 is shared: it stays, and is handed out as long as it has room. One that has to
//! make room is not offered any more; what is under way on it goes on.
//!
//! # Invariants
//! - B1 both kinds together are never more than [`Limits`] says, in all and for one origin.
//! - B2 the one unused for longest makes room, whichever kind it is; a newcomer always finds some.
//!
//! # Why
//! A general-purpose pool has no age: a busy connection is never idle, so it would talk to an address
//! that its name left hours ago. And it keeps as many as there are hosts.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::origin::Origin;

/// How many shared connections may be put back into the line before one has to go. To note every use would
/// cost every request; so when one comes up, it is asked for its last use, and goes to where that belongs. The
/// bound is for the case that all are in use.
const SECOND_CHANCES: usize = 8;

/// How many connections wait at most, both kinds together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// For one origin.
    pub(super) per_origin: usize,
    /// In all.
    pub(super) in_all: usize,
}

/// See the module. `One` serves one request at a time, `Many` is shared.
pub(super) struct Shelves<One, Many> {
    limits: Limits,
    origins: HashMap<Arc<Origin>, Waiting<One, Many>>,
    /// All of them by last use, as far as it is known: the first is unused for longest.
    order: BTreeMap<Place, Arc<Origin>>,
    next: u64,
    /// Callers ask the time before they wait for the lock: here it never goes back.
    now: Instant,
}

/// When a connection was used last, and a number that no other one has.
type Place = (Instant, u64);

/// What has to go: single ones, and shared ones.
pub(super) type Spent<One, Many> = (Vec<One>, Vec<Many>);

struct Waiting<One, Many> {
    /// The last one was used last. With the time until which it is good.
    single: VecDeque<(Place, Instant, One)>,
    shared: Vec<(Place, Many)>,
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
    /// When it was used last: `now`, where a request is under way.
    fn last_use(&self, now: Instant) -> Instant;
}

impl<One, Many: Shared> Waiting<One, Many> {
    fn len(&self) -> usize {
        self.single.len() + self.shared.len()
    }

    /// The place of the one unused for longest.
    fn oldest(&self, now: Instant) -> Option<Place> {
        let single = self.single.front().map(|(place, ..)| (place.0, *place));
        let shared = self.shared.iter();
        let shared = shared
            .map(|(place, many)| (many.last_use(now), *place))
            .min();
        let oldest = single.into_iter().chain(shared).min();
        oldest.map(|(_last_use, place)| place)
    }

    /// Takes out the one with this place.
    fn remove(&mut self, place: Place, spent: &mut Spent<One, Many>) {
        if self
            .single
            .front()
            .is_some_and(|(first, ..)| *first == place)
        {
            spent
                .0
                .extend(self.single.pop_front().map(|(_, _, one)| one));
        } else if let Some(found) = self.shared.iter().position(|(it, _)| *it == place) {
            spent.1.push(self.shared.swap_remove(found).1);
        }
    }

    /// Where a shared one belongs that was used since it got this place.
    fn moved(&mut self, place: Place, now: Instant) -> Option<Place> {
        let (before, many) = self.shared.iter_mut().find(|(it, _)| *it == place)?;
        let last_use = many.last_use(now);
        (last_use > place.0).then(|| {
            *before = (last_use, place.1);
            *before
        })
    }
}

impl<One, Many: Shared> Shelves<One, Many> {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            origins: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            now,
        }
    }

    /// A shared connection with room.
    pub(super) fn join(&self, origin: &Origin, now: Instant) -> Option<Many> {
        let shared = &self.origins.get(origin)?.shared;
        let (_, found) = shared.iter().find(|(_, one)| one.has_room(now))?;
        Some(found.clone())
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
        while let Some((place, good_until, one)) = waiting.single.pop_back() {
            self.order.remove(&place);
            if now < good_until {
                return Some(one);
            }
            spent.push(one);
        }
        None
    }

    /// Keeps a connection, used until now, until `good_until`. What has to make room for it is handed back.
    pub(super) fn put(
        &mut self,
        origin: &Arc<Origin>,
        now: Instant,
        good_until: Instant,
        one: One,
    ) -> Spent<One, Many> {
        let place = self.place(now);
        let waiting = self.origins.entry(Arc::clone(origin)).or_default();
        waiting.single.push_back((place, good_until, one));
        self.order.insert(place, Arc::clone(origin));
        self.make_room(origin)
    }

    /// Offers a connection to others. What has to make room for it is handed back.
    pub(super) fn share(
        &mut self,
        origin: &Arc<Origin>,
        now: Instant,
        many: Many,
    ) -> Spent<One, Many> {
        let place = self.place(now);
        let waiting = self.origins.entry(Arc::clone(origin)).or_default();
        waiting.shared.push((place, many));
        self.order.insert(place, Arc::clone(origin));
        self.make_room(origin)
    }

    fn place(&mut self, now: Instant) -> Place {
        self.now = self.now.max(now);
        self.next += 1;
        (self.now, self.next)
    }

    /// B1, B2.
    fn make_room(&mut self, newcomer: &Arc<Origin>) -> Spent<One, Many> {
        let mut spent = (Vec::new(), Vec::new());
        if let Some(waiting) = self.origins.get_mut(newcomer)
            && waiting.len() > self.limits.per_origin
            && let Some(place) = waiting.oldest(self.now)
        {
            self.order.remove(&place);
            waiting.remove(place, &mut spent);
        }
        let mut chances = SECOND_CHANCES;
        while self.order.len() > self.limits.in_all {
            let Some((place, origin)) = self.order.pop_first() else {
                break;
            };
            let Some(waiting) = self.origins.get_mut(&origin) else {
                continue;
            };
            if chances > 0
                && let Some(later) = waiting.moved(place, self.now)
            {
                chances -= 1;
                self.order.insert(later, origin);
            } else {
                waiting.remove(place, &mut spent);
            }
        }
        spent
    }

    /// Takes out all that is not good any more.
    pub(super) fn sweep(&mut self, now: Instant) -> Spent<One, Many> {
        let (mut single, mut shared) = (Vec::new(), Vec::new());
        for waiting in self.origins.values_mut() {
            let over = waiting.shared.extract_if(.., |(_, one)| one.is_over(now));
            for (place, one) in over {
                self.order.remove(&place);
                shared.push(one);
            }
            let (good, spent): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut waiting.single)
                .into_iter()
                .partition(|(_, good_until, _)| now < *good_until);
            waiting.single = good;
            for (place, _, one) in spent {
                self.order.remove(&place);
                single.push(one);
            }
        }
        self.origins.retain(|_, waiting| waiting.len() > 0);
        (single, shared)
    }

    /// How many wait: those for one request, and shared ones.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let shared = self.origins.values().map(|it| it.shared.len()).sum();
        (self.order.len() - shared, shared)
    }
}

#[cfg(test)]
mod tests;
