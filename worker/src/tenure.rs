//! Tenure: what one life of a worker holds, and what it should do about it. The decisions of the
//! lease without its IO: `lease` asks the database and carries out, `tests/model` drives this same code
//! through lost answers, pauses and outages.
//!
//! # Invariants
//! - What the database says is what is owned. Each look at the slots is compared with what this life
//!   believes, so that a take-over or hand-over whose answer was lost leaves no slot without anybody who
//!   works on it (D8), and a slot that was lost unseen is worked on for at most one renewal.
//! - Others are declared dead only after this session has been healthy for a whole TTL: after an outage
//!   of the database the first one back must not take everything from those who come back just behind
//!   it. A worker that was itself stopped for a TTL counts as just back.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::ids::{Epoch, Slot};
use shared::runtime::budgets::RENEW_INTERVAL;
use shared::runtime::clock::BootTime;

/// How long free slots are left to those who lack some: each of them looks once per renewal, and twice
/// in this. Looks themselves do not measure it: every hand-over causes one, and who gave slots up would
/// take them back before anybody else has seen them.
const LEFT_TO_OTHERS: Duration = RENEW_INTERVAL.saturating_mul(2);
/// Between two renewals at least: one whose death is due and who cannot be declared dead is no reason to ask
/// without a pause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub struct Tenure {
    ttl: Duration,
    healthy_since: BootTime,
    renewed_at: BootTime,
    held: BTreeMap<Slot, Epoch>,
    /// The renewal at which free slots were first seen that are free ever since.
    free_since: Option<BootTime>,
    /// When the first of the others can be declared dead, unless it renews its lease.
    first_death: Option<BootTime>,
}

/// Where belief and database differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// Held no more, whatever the reason: forgotten here already, the scheduler must be told.
    pub lost: Vec<(Slot, Epoch)>,
    /// Ours, and nobody here knows: to be taken anew, under the next epoch.
    pub unknown: Vec<(Slot, Epoch)>,
}

/// What to do about the spread of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balance {
    /// Nothing.
    Keep,
    /// Give up so many.
    Release(usize),
    /// Take at most so many.
    Acquire(usize),
}

impl Tenure {
    /// A life that begins now, on a new session.
    #[must_use]
    pub const fn new(ttl: Duration, now: BootTime) -> Self {
        Self {
            ttl,
            healthy_since: now,
            renewed_at: now,
            held: BTreeMap::new(),
            free_since: None,
            first_death: None,
        }
    }

    /// What is held now.
    #[must_use]
    pub const fn held(&self) -> &BTreeMap<Slot, Epoch> {
        &self.held
    }

    /// The session is a new one.
    pub const fn connected(&mut self, now: BootTime) {
        self.healthy_since = now;
    }

    /// The lease was renewed by a statement sent at this instant.
    pub fn renewed(&mut self, sent_at: BootTime) {
        if sent_at.since(self.renewed_at) >= self.ttl {
            self.healthy_since = sent_at;
        }
        self.renewed_at = sent_at;
        // Looked up anew after each renewal; a worker that leaves does not, and buries nobody.
        self.first_death = None;
    }

    /// Whether others whose lease ran out may be declared dead.
    #[must_use]
    pub fn may_declare_dead(&self, now: BootTime) -> bool {
        now.since(self.healthy_since) >= self.ttl
    }

    /// The first of the others can be declared dead after so long, unless it renews its lease.
    pub fn first_death_in(&mut self, length: Option<Duration>, now: BootTime) {
        self.first_death = length.map(|length| now.after(length));
    }

    /// How long to wait until the next renewal: less when a lease runs out before, so that nobody's deliveries
    /// wait for the next round after it.
    #[must_use]
    pub fn pause(&self, now: BootTime) -> Duration {
        let death = self
            .first_death
            .filter(|death| self.may_declare_dead(*death))
            .map_or(RENEW_INTERVAL, |death| death.since(now));
        death.clamp(SHORTEST_PAUSE, RENEW_INTERVAL)
    }

    /// Compares with what the database says is ours.
    pub fn compare(&mut self, mine: &[(Slot, Epoch)]) -> Differences {
        let mine: BTreeMap<Slot, Epoch> = mine.iter().copied().collect();
        let differ = |these: &BTreeMap<Slot, Epoch>, those: &BTreeMap<Slot, Epoch>| {
            let other = |(slot, epoch): &(Slot, Epoch)| those.get(slot) != Some(epoch);
            these
                .iter()
                .map(|(slot, epoch)| (*slot, *epoch))
                .filter(other)
                .collect::<Vec<_>>()
        };
        let differences = Differences {
            lost: differ(&self.held, &mine),
            unknown: differ(&mine, &self.held),
        };
        self.held
            .retain(|slot, epoch| mine.get(slot) == Some(epoch));
        differences
    }

    /// What to do, when `free` of `all` slots have no living owner and `workers` share them.
    ///
    /// Each takes up to its even share. Slots that stay free for [`LEFT_TO_OTHERS`] are taken beyond it:
    /// a worker that is counted and takes nothing (stuck, or about to die) leaves none unowned. Nobody
    /// gives up slots while there are free ones for those who lack some.
    pub fn balance(&mut self, all: usize, workers: usize, free: usize) -> Balance {
        let workers = workers.max(1);
        let share = all.div_ceil(workers);
        let own = self.held.len();
        let first_seen = self.free_since.unwrap_or(self.renewed_at);
        self.free_since = (free > 0).then_some(first_seen);
        let still_free = free > 0 && self.renewed_at.since(first_seen) >= LEFT_TO_OTHERS;
        if own < share && free > 0 {
            Balance::Acquire(share - own)
        } else if still_free {
            Balance::Acquire(free.div_ceil(workers))
        } else if own > share && free == 0 {
            Balance::Release(own - share)
        } else {
            Balance::Keep
        }
    }

    /// Slots were taken.
    pub fn took(&mut self, slots: &[(Slot, Epoch)]) {
        self.held.extend(slots.iter().copied());
    }

    /// Which of the slots that the scheduler gives up are held: one may be of an earlier life, or lost.
    #[must_use]
    pub fn still_held(&self, leaving: Vec<(Slot, Epoch)>) -> Vec<(Slot, Epoch)> {
        let held = |(slot, epoch): &(Slot, Epoch)| self.held.get(slot) == Some(epoch);
        leaving.into_iter().filter(held).collect()
    }

    /// Slots were handed over, or nobody knows whether they were: the next comparison tells.
    pub fn gave(&mut self, slots: &[(Slot, Epoch)]) {
        for (slot, epoch) in slots {
            if self.held.get(slot) == Some(epoch) {
                self.held.remove(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootTime {
        BootTime(Duration::from_secs(seconds))
    }

    fn holding(slots: &[(i16, i64)]) -> Tenure {
        let mut tenure = Tenure::new(TTL, at(100));
        tenure.took(&pairs(slots));
        tenure
    }

    fn pairs(slots: &[(i16, i64)]) -> Vec<(Slot, Epoch)> {
        slots
            .iter()
            .map(|(slot, epoch)| (Slot(*slot), Epoch(*epoch)))
            .collect()
    }

    #[test]
    fn others_are_declared_dead_only_after_a_healthy_ttl() {
        let mut tenure = Tenure::new(TTL, at(100));
        assert!(!tenure.may_declare_dead(at(109)));
        assert!(tenure.may_declare_dead(at(110)));

        tenure.connected(at(120));
        assert!(!tenure.may_declare_dead(at(129)));
        assert!(tenure.may_declare_dead(at(130)));
    }

    #[test]
    fn it_looks_again_when_the_first_lease_runs_out_and_never_without_a_pause() {
        let mut tenure = Tenure::new(TTL, at(100));
        assert_eq!(tenure.pause(at(120)), RENEW_INTERVAL);
        for (now, death_in, expected) in [
            (120, 9_000, RENEW_INTERVAL),
            (120, 1_300, Duration::from_millis(1_300)),
            (120, 0, SHORTEST_PAUSE),
            // Not healthy for a TTL then: it is not this one that may do it.
            (105, 1_300, RENEW_INTERVAL),
            (109, 1_000, Duration::from_secs(1)),
        ] {
            tenure.first_death_in(Some(Duration::from_millis(death_in)), at(now));
            assert_eq!(tenure.pause(at(now)), expected, "{now} {death_in}");
        }
        tenure.first_death_in(None, at(120));
        assert_eq!(tenure.pause(at(120)), RENEW_INTERVAL);

        // Not known since: a worker that drains does not ask every tenth of a second for the rest of its life.
        tenure.first_death_in(Some(Duration::from_secs(9)), at(120));
        tenure.renewed(at(122));
        assert_eq!(tenure.pause(at(140)), RENEW_INTERVAL);
    }

    #[test]
    fn a_worker_that_was_stopped_for_a_ttl_waits_as_if_it_had_just_come() {
        let mut tenure = Tenure::new(TTL, at(100));
        tenure.renewed(at(102));
        tenure.renewed(at(150));

        assert!(!tenure.may_declare_dead(at(150)));
        assert!(tenure.may_declare_dead(at(160)));
    }

    #[test]
    fn a_slot_taken_without_an_answer_is_unknown_and_one_lost_unseen_is_lost() {
        let mut tenure = holding(&[(1, 5), (2, 7), (3, 1)]);

        let found = tenure.compare(&pairs(&[(1, 5), (2, 8), (4, 2)]));

        assert_eq!(found.lost, pairs(&[(2, 7), (3, 1)]));
        assert_eq!(found.unknown, pairs(&[(2, 8), (4, 2)]));
        assert_eq!(tenure.held().keys().copied().collect::<Vec<_>>(), [Slot(1)]);
        assert_eq!(tenure.compare(&pairs(&[(1, 5)])), Differences::default());
    }

    #[test]
    fn only_what_is_held_under_that_epoch_is_handed_over() {
        let mut tenure = holding(&[(1, 5), (2, 7)]);

        let leaving = tenure.still_held(pairs(&[(1, 4), (2, 7), (3, 1)]));
        tenure.gave(&pairs(&[(1, 4), (2, 7)]));

        assert_eq!(leaving, pairs(&[(2, 7)]));
        assert_eq!(tenure.held().keys().copied().collect::<Vec<_>>(), [Slot(1)]);
    }

    #[test]
    fn slots_are_shared_evenly_and_none_stays_free() {
        let many: Vec<(i16, i64)> = (0..128).map(|slot| (slot, 1)).collect();
        let cases: [(usize, usize, usize, Balance); 5] = [
            (0, 1, 256, Balance::Acquire(256)),
            (0, 2, 128, Balance::Acquire(128)),
            (128, 2, 0, Balance::Keep),
            (128, 4, 0, Balance::Release(64)),
            (128, 4, 64, Balance::Keep),
        ];
        for (own, workers, free, expected) in cases {
            let mut tenure = holding(&many[..own]);
            assert_eq!(
                tenure.balance(256, workers, free),
                expected,
                "{own} {workers} {free}"
            );
        }
    }

    #[test]
    fn free_slots_are_left_to_the_others_for_two_renewals_and_then_taken() {
        let many: Vec<(i16, i64)> = (0..128).map(|slot| (slot, 1)).collect();
        let mut tenure = holding(&many);
        let mut look = |at_second, free| {
            tenure.renewed(at(at_second));
            tenure.balance(256, 2, free)
        };

        assert_eq!(look(102, 100), Balance::Keep, "the other's share");
        assert_eq!(look(102, 100), Balance::Keep, "however often it is seen");
        assert_eq!(look(104, 100), Balance::Keep);
        assert_eq!(look(106, 100), Balance::Acquire(50), "which nobody took");
        assert_eq!(look(108, 0), Balance::Keep);
        assert_eq!(look(110, 1), Balance::Keep, "free again");
    }
}
