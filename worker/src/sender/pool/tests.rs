use std::time::Duration;

use proptest::prelude::*;
use url::Host;

use super::*;

/// Seconds after which it is over; 0: full from the start.
#[derive(Debug, Clone, PartialEq)]
struct Line(u64, Instant);

impl Shared for Line {
    fn has_room(&self, now: Instant) -> bool {
        now < self.1 + Duration::from_secs(self.0)
    }

    fn is_over(&self, now: Instant) -> bool {
        !self.has_room(now)
    }
}

const LIMITS: Limits = Limits {
    per_origin: 3,
    in_all: 5,
};

fn shelves() -> Shelves<u32, Line> {
    Shelves::new(LIMITS)
}

fn origin(name: &str) -> Arc<Origin> {
    Arc::new(Origin {
        secure: true,
        host: Host::Domain(name.to_owned()),
        port: 443,
        identity: None,
    })
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test]
async fn the_one_used_last_is_taken_first_and_only_for_its_own_origin() {
    let (mut shelves, now, mut spent) = (shelves(), Instant::now(), Vec::new());
    let (a, b) = (origin("a"), origin("b"));
    for number in 1..=2 {
        assert!(shelves.put(&a, now + seconds(4), number).is_empty());
    }

    assert_eq!(shelves.take(&b, now, &mut spent), None);
    assert_eq!(shelves.take(&a, now, &mut spent), Some(2));
    assert_eq!(shelves.take(&a, now, &mut spent), Some(1));
    assert_eq!(shelves.take(&a, now, &mut spent), None);
    assert!(spent.is_empty());
    assert_eq!(shelves.counts(), (0, 0));
}

#[tokio::test]
async fn one_that_waited_too_long_is_handed_back_and_not_used() {
    let (mut shelves, now, mut spent) = (shelves(), Instant::now(), Vec::new());
    let a = origin("a");
    shelves.put(&a, now + seconds(30), 1);
    shelves.put(&a, now + seconds(4), 2);

    assert_eq!(shelves.take(&a, now + seconds(4), &mut spent), Some(1));
    assert_eq!(spent, [2]);

    shelves.put(&a, now + seconds(4), 3);
    shelves.put(&a, now + seconds(6), 4);
    assert_eq!(shelves.sweep(now + seconds(5)), (vec![3], Vec::new()));
    assert_eq!(shelves.counts(), (1, 0));
}

#[tokio::test]
async fn the_one_unused_for_longest_makes_room() {
    let (mut shelves, now, mut spent) = (shelves(), Instant::now(), Vec::new());
    let names = [origin("a"), origin("b"), origin("c")];
    for number in 1..=3 {
        shelves.put(&names[0], now + seconds(4), number);
    }
    assert_eq!(
        shelves.put(&names[0], now + seconds(4), 4),
        [1],
        "per origin"
    );
    assert!(shelves.put(&names[1], now + seconds(4), 5).is_empty());
    assert!(shelves.put(&names[2], now + seconds(4), 6).is_empty());
    assert_eq!(shelves.put(&names[2], now + seconds(4), 7), [2], "in all");
    assert_eq!(shelves.take(&names[0], now, &mut spent), Some(4));
}

#[tokio::test]
async fn a_shared_one_is_joined_until_it_is_over() {
    let (mut shelves, now) = (shelves(), Instant::now());
    let (a, b) = (origin("a"), origin("b"));
    for life in [0, 10] {
        assert!(shelves.share(&a, Line(life, now)));
    }

    assert_eq!(shelves.join(&a, now), Some(Line(10, now)), "one is full");
    assert_eq!(shelves.join(&b, now), None);
    assert_eq!(shelves.sweep(now).1, [Line(0, now)]);
    assert_eq!(shelves.join(&a, now + seconds(10)), None);
    assert_eq!(shelves.sweep(now + seconds(10)).1, [Line(10, now)]);
    assert_eq!(shelves.counts(), (0, 0));
    assert!(shelves.origins.is_empty());
}

#[tokio::test]
async fn shared_ones_are_bounded_too() {
    let (mut shelves, now) = (shelves(), Instant::now());
    let kept = |name: &str, shelves: &mut Shelves<u32, Line>| {
        (0..4)
            .filter(|_| shelves.share(&origin(name), Line(9, now)))
            .count()
    };
    assert_eq!(kept("a", &mut shelves), LIMITS.per_origin);
    assert_eq!(kept("b", &mut shelves), LIMITS.in_all - LIMITS.per_origin);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Nothing is lost, nothing is handed out twice, and the bounds hold, whatever is done.
    #[test]
    fn every_connection_is_handed_back_once(
        steps in proptest::collection::vec((0_u8..3, 0_u64..4, 0_u64..10), 0..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        let (mut shelves, start) = (shelves(), Instant::now());
        let names = ["a", "b", "c", "d"].map(origin);
        let (mut now, mut put, mut back) = (start, 0, Vec::new());
        for (step, name, wait) in steps {
            let name = &names[usize::try_from(name).unwrap()];
            match step {
                0 => {
                    back.extend(shelves.put(name, now + seconds(wait), put));
                    put += 1;
                }
                1 => {
                    let taken = shelves.take(name, now, &mut back);
                    back.extend(taken);
                }
                _ => {
                    now += seconds(wait);
                    back.extend(shelves.sweep(now).0);
                }
            }
            prop_assert!(shelves.counts().0 <= LIMITS.in_all);
        }
        back.extend(shelves.sweep(now + seconds(100)).0);
        back.sort_unstable();
        prop_assert_eq!(back, (0..put).collect::<Vec<u32>>());
    }
}
