//! The loaded rows of one endpoint that wait for a turn, in three lanes that take turns: what was due
//! first, what came in since an outage ended, and replays.
//!
//! # Invariants
//! - While several lanes wait, each gets every second or third turn: after an outage new events wait
//!   behind the backlog for at most two requests, whatever the backlog's length.
//! - Replays hold at most half of the endpoint's permits, and at least one.

use std::collections::VecDeque;

use shared::domain::delivery::Kind;

use crate::job::LiveRow;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The oldest first.
    Due,
    /// What came in while the backlog of an outage is worked off.
    Fresh,
    /// Deliveries that were asked for anew, by a person or by a recovery.
    Replay,
}

const LANES: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: [VecDeque<LiveRow>; LANES],
    /// The lane that had the last turn.
    last: usize,
}

impl Lane {
    const fn index(self) -> usize {
        match self {
            Self::Due => 0,
            Self::Fresh => 1,
            Self::Replay => 2,
        }
    }

    pub(super) const fn is_replay(kind: Kind) -> bool {
        match kind {
            Kind::Replay | Kind::AutoReplay => true,
            Kind::Live | Kind::Test | Kind::Notice => false,
        }
    }
}

impl Lanes {
    pub(super) fn push(&mut self, lane: Lane, row: LiveRow) {
        if let Some(lane) = self.lanes.get_mut(lane.index()) {
            lane.push_back(row);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LiveRow> {
        self.lanes.iter().flatten()
    }

    /// Whether a row could be taken now.
    pub(super) fn has_next(&self, replays_allowed: bool) -> bool {
        self.choose(replays_allowed).is_some()
    }

    /// The row that would be taken now.
    pub(super) fn peek(&self, replays_allowed: bool) -> Option<&LiveRow> {
        let lane = self.choose(replays_allowed)?;
        self.lanes.get(lane)?.front()
    }

    pub(super) fn pop(&mut self, replays_allowed: bool) -> Option<LiveRow> {
        let lane = self.choose(replays_allowed)?;
        self.last = lane;
        self.lanes.get_mut(lane)?.pop_front()
    }

    fn choose(&self, replays_allowed: bool) -> Option<usize> {
        (1..=LANES)
            .map(|step| (self.last + step) % LANES)
            .filter(|lane| replays_allowed || *lane != Lane::Replay.index())
            .find(|lane| self.lanes.get(*lane).is_some_and(|rows| !rows.is_empty()))
    }

    pub(super) fn take_all(&mut self) -> Vec<LiveRow> {
        self.lanes.iter_mut().flat_map(std::mem::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use shared::ids::TenantKey;
    use uuid::Uuid;

    use super::*;

    fn row(number: u128) -> LiveRow {
        LiveRow {
            id: Uuid::from_u128(number),
            event_id: Uuid::from_u128(number),
            tenant: TenantKey(1),
            attempts_made: 0,
            attempts_charged: 0,
            kind: Kind::Live,
            due_at: None,
            first_at: None,
            order: None,
            event: None,
        }
    }

    fn order(lanes: &mut Lanes, replays_allowed: bool) -> Vec<u128> {
        std::iter::from_fn(|| lanes.pop(replays_allowed))
            .map(|row| row.id.as_u128())
            .collect()
    }

    #[test]
    fn a_new_event_waits_behind_a_backlog_for_at_most_two_requests() {
        let mut lanes = Lanes::default();
        for number in 0..100 {
            lanes.push(Lane::Due, row(number));
            lanes.push(Lane::Replay, row(1_000 + number));
        }
        lanes.push(Lane::Fresh, row(500));

        let order = order(&mut lanes, true);

        let place = order.iter().position(|id| *id == 500).unwrap();
        assert!(place <= 2, "{place}");
        assert_eq!(order.len(), 201);
    }

    #[test]
    fn replays_wait_while_they_hold_their_share() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Replay, row(1));
        lanes.push(Lane::Due, row(2));

        assert!(lanes.has_next(false));
        assert_eq!(order(&mut lanes, false), [2]);
        assert!(!lanes.has_next(false) && lanes.has_next(true));
        assert_eq!(order(&mut lanes, true), [1]);
        assert_eq!(lanes.len(), 0);
    }
}
