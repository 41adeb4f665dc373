//! How long ago the database's horizon was the present: what was deleted since cannot be cleaned by VACUUM.
//!
//! PostgreSQL tells the horizon as a transaction id. When that id was the next one is remembered here; a look tells
//! how far back an id lies, [`KEPT`] at most. A database in which nothing is written has no age, however long a snapshot
//! stays open: there is nothing to clean.

use std::collections::VecDeque;
use std::time::Duration;

use shared::runtime::clock::BootTime;
use shared::store::gauges::Horizon;

/// How far back ids are remembered.
const KEPT: Duration = Duration::from_secs(6 * 3_600);

/// Ids that were the next one, and when. One for each look: 1,440 at most.
#[derive(Debug, Default)]
pub(super) struct Horizons(VecDeque<(BootTime, i64)>);

impl Horizons {
    /// How old the horizon is that was seen now.
    pub(super) fn age(&mut self, now: BootTime, seen: Horizon) -> Duration {
        self.0.push_back((now, seen.next));
        // The last one that is older than all that has to be told apart stays.
        while self.0.get(1).is_some_and(|(at, _)| now.since(*at) >= KEPT) {
            self.0.pop_front();
        }
        // The horizon was the present at this look, or after it; or before the first one.
        let looks = self.0.iter().rev();
        let since = looks.clone().find(|(_, next)| *next <= seen.oldest);
        let (since, _) = since.or(self.0.front()).copied().unwrap_or((now, 0));
        now.since(since).max(seen.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 15;

    /// A look in seconds after the first, with the ids that it found.
    fn look(horizons: &mut Horizons, seconds: u64, next: i64, oldest: i64) -> u64 {
        let now = BootTime(Duration::from_secs(1_000_000 + seconds));
        let seen = Horizon {
            next,
            oldest,
            open: Duration::ZERO,
        };
        horizons.age(now, seen).as_secs()
    }

    #[test]
    fn an_id_is_as_old_as_the_last_look_before_it() {
        let mut horizons = Horizons::default();
        for step in 0..10 {
            let (next, seconds) = (1_000 + 100 * i64::try_from(step).unwrap(), STEP * step);
            assert_eq!(
                look(&mut horizons, seconds, next, next),
                0,
                "nothing is held"
            );
        }

        // 1,450 came between the looks at 60 and 75 s.
        assert_eq!(look(&mut horizons, 150, 2_000, 1_450), 90);
        assert_eq!(look(&mut horizons, 165, 2_100, 1_450), 105);
        assert_eq!(look(&mut horizons, 180, 2_200, 2_200), 0, "let go");
    }

    #[test]
    fn what_was_held_before_the_first_look_is_as_old_as_that_at_least() {
        let mut horizons = Horizons::default();
        assert_eq!(look(&mut horizons, 0, 1_000, 10), 0);
        assert_eq!(look(&mut horizons, 600, 2_000, 10), 600);
    }

    #[test]
    fn a_transaction_that_can_be_seen_is_as_old_as_it_says() {
        let seen = Horizon {
            next: 5,
            oldest: 5,
            open: Duration::from_secs(900),
        };
        let age = Horizons::default().age(BootTime(Duration::from_secs(77)), seen);
        assert_eq!(age, Duration::from_secs(900));
    }

    #[test]
    fn a_database_without_writes_has_nothing_to_clean() {
        let mut horizons = Horizons::default();
        for step in 0..100 {
            assert_eq!(look(&mut horizons, STEP * step, 1_000, 1_000), 0);
        }
    }

    #[test]
    fn six_hours_are_remembered_and_no_more() {
        let mut horizons = Horizons::default();
        let day = 24 * 3_600;
        for seconds in (0..day).step_by(15) {
            look(&mut horizons, seconds, i64::try_from(seconds).unwrap(), 0);
        }
        assert!(horizons.0.len() <= 1_441 + 1, "{}", horizons.0.len());
        let age = look(&mut horizons, day, i64::try_from(day).unwrap(), 0);
        assert_eq!(age, KEPT.as_secs());
    }
}
