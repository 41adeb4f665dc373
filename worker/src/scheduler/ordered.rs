//! What the scheduler knows of an endpoint's lines: the keys that have a row in memory or on the wire, those
//! whose next row is to be fetched, and how far a walk over all others came.
//!
//! The order itself is in the database: only heads are loaded, and a head stays one until its record is
//! committed (`shared::store::queue`). So a retry holds back its key without any state here.
//!
//! # Invariants
//! - At most one row of a key is in memory or on the wire: the next one is taken only after the record of the
//!   one before was acknowledged. A load that saw the next head before that acknowledgement came leaves it.
//! - D8 whatever is not asked for by its key is found by a walk that began after the last hint or scan.

use std::collections::BTreeSet;

use shared::domain::order::OrderKey;
use uuid::Uuid;

use super::Map;

/// Keys whose next rows are asked for at a time.
const MOST_KEYS: usize = 256;
/// Keys that a walk looks at for each head that it is to find: what keys that wait for their retry cost.
const KEYS_PER_HEAD: usize = 4;

/// What to load of an endpoint's lines.
#[derive(Debug, Clone)]
pub struct LinesRequest {
    /// The heads of these keys.
    pub keys: Vec<OrderKey>,
    /// Rows that were tried, the one due first first; 0: none.
    pub due_limit: usize,
    /// A walk over the keys after this one ...
    pub after: OrderKey,
    /// ... until so many heads that may go are found, or so many keys seen; 0: no walk.
    pub limit: usize,
    /// See `limit`.
    pub most_keys: usize,
    /// Whether a dead letter blocks its key, as far as the configuration is known.
    pub block: bool,
}

#[derive(Debug)]
pub(super) struct Lines {
    /// Whether the endpoint is ordered, once that is known.
    ordered: Option<bool>,
    /// A scan saw lines: there may be some of an endpoint that is not ordered any more.
    seen: bool,
    busy: Map<OrderKey, Uuid>,
    held: Map<Uuid, OrderKey>,
    /// Their last row was recorded.
    next: BTreeSet<OrderKey>,
    /// A walk is owed, from here.
    more: bool,
    after: OrderKey,
    /// Something came in since the walk began: it must begin anew when it is at the end.
    again: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            ordered: None,
            seen: false,
            busy: Map::default(),
            held: Map::default(),
            next: BTreeSet::new(),
            more: false,
            after: OrderKey::START,
            again: false,
        }
    }
}

impl Lines {
    /// The configuration was read.
    pub(super) fn configured(&mut self, ordered: bool) {
        // While it was not known, lines were asked for.
        let new = ordered && self.ordered == Some(false);
        self.ordered = Some(ordered);
        if new {
            self.hinted();
        }
        if !self.in_use() {
            self.nothing_left();
        }
    }

    /// Whether the endpoint has lines, as far as is known.
    pub(super) fn in_use(&self) -> bool {
        self.seen || self.ordered.unwrap_or(true)
    }

    /// There may be heads that no walk has seen.
    pub(super) fn hinted(&mut self) {
        self.more |= self.in_use();
        self.again |= self.more;
    }

    /// A scan saw lines. One that is being walked is not walked anew for it: the next scan tells again.
    pub(super) fn scanned(&mut self) {
        self.seen = true;
        if !self.more {
            self.hinted();
        }
    }

    /// Whether a load would help.
    pub(super) fn wants_load(&self) -> bool {
        self.in_use() && (self.more || !self.next.is_empty())
    }

    /// What to ask for, to get `wanted` new rows or some more. `retries`: those that were tried as well.
    pub(super) fn ask(&mut self, wanted: usize, retries: bool, open: bool) -> Option<LinesRequest> {
        if !(self.wants_load() || retries && self.in_use()) {
            return None;
        }
        // Behind an open breaker one row is wanted, to probe with, and any will do: a walk finds it.
        if open && !self.next.is_empty() {
            self.next.clear();
            self.hinted();
        }
        let keys: Vec<_> = self.next.iter().copied().take(MOST_KEYS).collect();
        for key in &keys {
            self.next.remove(key);
        }
        // Keys that were asked for by name leave the others half of the room, or those would starve.
        let others = wanted.saturating_sub(keys.len()).max(wanted / 2).max(1);
        let limit = if self.more {
            others + self.busy.len()
        } else {
            0
        };
        let begins = self.more && self.after == OrderKey::START;
        self.again &= !begins;
        Some(LinesRequest {
            keys,
            due_limit: if retries || begins {
                wanted + self.busy.len()
            } else {
                0
            },
            after: self.after,
            limit,
            most_keys: KEYS_PER_HEAD * limit,
            block: false,
        })
    }

    /// A walk came to this key; [`OrderKey::START`]: to the end.
    pub(super) fn walked(&mut self, to: OrderKey) {
        self.after = to;
        if to == OrderKey::START {
            self.more = std::mem::take(&mut self.again);
        }
    }

    pub(super) fn is_busy(&self, key: OrderKey) -> bool {
        self.busy.contains_key(&key)
    }

    /// A row of this key was loaded.
    pub(super) fn take(&mut self, key: OrderKey, delivery: Uuid) {
        debug_assert!(!self.is_busy(key), "two rows of a key");
        self.busy.insert(key, delivery);
        self.held.insert(delivery, key);
    }

    /// A row is neither in memory nor on the wire any more.
    pub(super) fn free(&mut self, delivery: Uuid) -> Option<OrderKey> {
        let key = self.held.remove(&delivery)?;
        self.busy.remove(&key);
        Some(key)
    }

    /// It came to its end, so there is a new head.
    pub(super) fn ended(&mut self, delivery: Uuid) {
        let key = self.free(delivery);
        self.next.extend(key);
    }

    /// Nothing is left in the database.
    pub(super) fn nothing_left(&mut self) {
        self.next.clear();
        self.more = false;
        self.again = false;
        self.after = OrderKey::START;
    }
}
