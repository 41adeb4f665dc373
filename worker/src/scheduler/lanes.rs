//! The loaded rows of one endpoint that wait for a turn, in three lanes: what was due first and what came
//! in since an outage ended, which take turns, and replays, which come when neither waits.
//!
//! # Invariants
//! - After an outage new events wait behind the backlog for at most two requests, whatever its length.
//! - O1 replays wait behind live events, and at most [`MOST_PASSED`] of these pass one that could go: whoever
//!   asks for a replay of an endpoint that is always busy gets a fifth of it.
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
/// Live events that go before a replay which waits.
const MOST_PASSED: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: [VecDeque<LiveRow>; LANES],
    /// New events had the last turn of those that are not replays.
    fresh_was_last: bool,
    /// Live events that went since the last replay, while one waited.
    passed: usize,
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

    /// Rows that are no replays.
    pub(super) fn live(&self) -> usize {
        self.of(Lane::Due).len() + self.of(Lane::Fresh).len()
    }

    /// Whether replays wait, and were passed as often as they may be.
    pub(super) fn replay_is_overdue(&self) -> bool {
        self.passed >= MOST_PASSED && self.replay_waits()
    }

    pub(super) fn replay_waits(&self) -> bool {
        !self.of(Lane::Replay).is_empty()
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
        self.of(self.choose(replays_allowed)?).front()
    }

    pub(super) fn pop(&mut self, replays_allowed: bool) -> Option<LiveRow> {
        let lane = self.choose(replays_allowed)?;
        match lane {
            Lane::Replay => self.passed = 0,
            Lane::Due | Lane::Fresh => {
                self.fresh_was_last = lane == Lane::Fresh;
                self.passed += usize::from(self.replay_waits());
            }
        }
        let lane = self.lanes.get_mut(lane.index())?;
        let row = lane.pop_front();
        // An endpoint that had a backlog once does not keep its room: there may be 100,000 of them.
        if lane.is_empty() {
            *lane = VecDeque::new();
        }
        row
    }

    fn choose(&self, replays_allowed: bool) -> Option<Lane> {
        let live = if self.fresh_was_last {
            [Lane::Due, Lane::Fresh]
        } else {
            [Lane::Fresh, Lane::Due]
        };
        let live = live.into_iter().find(|lane| !self.of(*lane).is_empty());
        let replay = (replays_allowed && self.replay_waits()).then_some(Lane::Replay);
        if self.replay_is_overdue() {
            replay.or(live)
        } else {
            live.or(replay)
        }
    }

    fn of(&self, lane: Lane) -> &VecDeque<LiveRow> {
        let [due, fresh, replay] = &self.lanes;
        match lane {
            Lane::Due => due,
            Lane::Fresh => fresh,
            Lane::Replay => replay,
        }
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
    fn o1_a_live_event_goes_before_replays_and_a_replay_is_passed_four_times_at_most() {
        let mut lanes = Lanes::default();
        for number in 0..100 {
            lanes.push(Lane::Replay, row(1_000 + number));
        }
        lanes.push(Lane::Due, row(1));
        assert_eq!(lanes.pop(true).map(|row| row.id.as_u128()), Some(1));
        for number in 2..=100 {
            lanes.push(Lane::Due, row(number));
        }

        let order = order(&mut lanes, true);

        let replays = order.iter().map(|id| *id >= 1_000).collect::<Vec<_>>();
        assert_eq!(replays[..4], [false, false, false, true]);
        for five in replays[4..100].chunks_exact(5) {
            assert_eq!(five.iter().filter(|it| **it).count(), 1, "{order:?}");
        }
        assert_eq!(order.len(), 199);
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
