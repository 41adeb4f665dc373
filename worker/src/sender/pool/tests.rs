use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use url::Host;

use super::*;

/// Seconds after which it is over (0: full from the start), since when, and when it was used last.
#[derive(Debug, Clone, PartialEq)]
struct Line(u64, Instant, Rc<Cell<Instant>>);

impl Line {
    fn new(life: u64, now: Instant) -> Self {
        Self(life, now, Rc::new(Cell::new(now)))
    }
}

impl Shared for Line {
    fn has_room(&self, now: Instant) -> bool {
        now < self.1 + Duration::from_secs(self.0)
    }

    fn is_over(&self, now: Instant) -> bool {
        !self.has_room(now)
    }

    fn last_use(&self, _now: Instant) -> Instant {
        self.2.get()
    }
}

const LIMITS: Limits = Limits {
    per_origin: 3,
    in_all: 5,
};

fn shelves() -> Shelves<u32, Line> {
    Shelves::new(LIMITS, Instant::now())
}

fn origin(name: &str) -> Arc<Origin> {
    Arc::new(Origin {
        secure: true,
        host: Host::Domain(name.to_owned()),
        port: 443,
        identity: None,
    })
}

fn nothing(spent: &Spent<u32, Line>) -> bool {
    spent.0.is_empty() && spent.1.is_empty()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test]
async fn the_one_used_last_is_taken_first_and_only_for_its_own_origin() {
    let (mut shelves, now, mut spent) = (shelves(), Instant::now(), Vec::new());
    let (a, b) = (origin("a"), origin("b"));
    for number in 1..=2 {
        assert!(nothing(&shelves.put(&a, now, now + seconds(4), number)));
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
    shelves.put(&a, now, now + seconds(30), 1);
    shelves.put(&a, now, now + seconds(4), 2);

    assert_eq!(shelves.take(&a, now + seconds(4), &mut spent), Some(1));
    assert_eq!(spent, [2]);

    shelves.put(&a, now, now + seconds(4), 3);
    shelves.put(&a, now, now + seconds(6), 4);
    assert_eq!(shelves.sweep(now + seconds(5)), (vec![3], Vec::new()));
    assert_eq!(shelves.counts(), (1, 0));
}

#[tokio::test]
async fn the_one_unused_for_longest_makes_room() {
    let (mut shelves, now, mut spent) = (shelves(), Instant::now(), Vec::new());
    let names = [origin("a"), origin("b"), origin("c")];
    for number in 1..=3 {
        shelves.put(&names[0], now, now + seconds(4), number);
    }
    assert_eq!(
        shelves.put(&names[0], now, now + seconds(4), 4).0,
        [1],
        "per origin"
    );
    assert!(nothing(&shelves.put(&names[1], now, now + seconds(4), 5)));
    assert!(nothing(&shelves.put(&names[2], now, now + seconds(4), 6)));
    let gone = shelves.put(&names[2], now, now + seconds(4), 7);
    assert_eq!(gone.0, [2], "in all");
    assert_eq!(shelves.take(&names[0], now, &mut spent), Some(4));
}

#[tokio::test]
async fn a_shared_one_is_joined_until_it_is_over() {
    let (mut shelves, now) = (shelves(), Instant::now());
    let (a, b) = (origin("a"), origin("b"));
    let [full, free] = [0, 10].map(|life| Line::new(life, now));
    for line in [&full, &free] {
        assert!(nothing(&shelves.share(&a, now, line.clone())));
    }

    assert_eq!(shelves.join(&a, now).as_ref(), Some(&free), "one is full");
    assert_eq!(shelves.join(&b, now), None);
    assert_eq!(shelves.sweep(now).1, [full]);
    assert_eq!(shelves.join(&a, now + seconds(10)), None);
    assert_eq!(shelves.sweep(now + seconds(10)).1, [free]);
    assert_eq!(shelves.counts(), (0, 0));
    assert!(shelves.origins.is_empty() && shelves.order.is_empty());
}

/// B1, B2: whatever is there already keeps no newcomer out.
#[tokio::test]
async fn shared_ones_are_bounded_and_a_newcomer_finds_room() {
    let (mut shelves, now) = (shelves(), Instant::now());
    let (a, b) = (origin("a"), origin("b"));
    for number in 0..8 {
        let at = now + seconds(number);
        shelves.share(&a, at, Line::new(100, at));
        assert!(shelves.counts().1 <= LIMITS.per_origin);
    }
    for number in 8..16 {
        let at = now + seconds(number);
        let newcomer = Line::new(100, at);
        let gone = shelves.share(&b, at, newcomer.clone()).1;
        assert!(!gone.contains(&newcomer));
        assert!(shelves.counts().1 <= LIMITS.in_all);
    }
    let times = |shelves: &Shelves<u32, Line>, origin| {
        let waiting = &shelves.origins[origin];
        let times = waiting
            .shared
            .iter()
            .map(|(_, line)| line.1.duration_since(now).as_secs());
        let mut times: Vec<u64> = times.collect();
        times.sort_unstable();
        times
    };
    assert_eq!(times(&shelves, &a), [6, 7]);
    assert_eq!(times(&shelves, &b), [13, 14, 15]);
}

/// B2 over both kinds: the time of the last use counts, not that of the first.
#[tokio::test]
async fn whichever_kind_is_unused_for_longest_makes_room() {
    let (mut shelves, now) = (shelves(), Instant::now());
    let [a, b, c] = ["a", "b", "c"].map(origin);
    let (used, unused) = (Line::new(100, now), Line::new(100, now));
    shelves.share(&a, now, used.clone());
    shelves.share(&b, now, unused.clone());
    for number in 1..=3 {
        shelves.put(
            &c,
            now + seconds(number),
            now + seconds(9),
            u32::try_from(number).unwrap(),
        );
    }
    used.2.set(now + seconds(2));

    let next = |shelves: &mut Shelves<u32, Line>, number: u32| {
        let at = now + seconds(number.into());
        let newcomer = origin(&format!("d{number}"));
        shelves.put(&newcomer, at, at + seconds(9), number)
    };
    assert_eq!(next(&mut shelves, 4), (vec![], vec![unused]));
    assert_eq!(next(&mut shelves, 5), (vec![1], vec![]));
    let both = [next(&mut shelves, 6), next(&mut shelves, 7)];
    assert!(both.contains(&(vec![], vec![used])), "{both:?}");
    assert!(both.contains(&(vec![2], vec![])), "{both:?}");
}

/// Of one origin too.
#[tokio::test]
async fn an_origin_makes_room_for_its_own_by_last_use() {
    let (mut shelves, now) = (shelves(), Instant::now());
    let a = origin("a");
    let (used, unused) = (Line::new(100, now), Line::new(100, now));
    for line in [&used, &unused] {
        shelves.share(&a, now, line.clone());
    }
    used.2.set(now + seconds(3));
    shelves.put(&a, now + seconds(1), now + seconds(9), 1);

    let gone = shelves.put(&a, now + seconds(2), now + seconds(9), 2);
    assert_eq!(gone, (vec![], vec![unused]));
    let gone = shelves.share(&a, now + seconds(4), Line::new(100, now + seconds(4)));
    assert_eq!(gone, (vec![1], vec![]));
}

/// Where all are in use there is no right one, and finding that out is no long search.
#[tokio::test]
async fn the_bounds_hold_where_all_are_in_use() {
    #[derive(Clone)]
    struct Busy;
    impl Shared for Busy {
        fn has_room(&self, _: Instant) -> bool {
            false
        }
        fn is_over(&self, _: Instant) -> bool {
            false
        }
        fn last_use(&self, now: Instant) -> Instant {
            now
        }
    }
    let limits = Limits {
        per_origin: 1,
        in_all: 50,
    };
    let now = Instant::now();
    let mut shelves: Shelves<u32, Busy> = Shelves::new(limits, now);
    let mut gone = 0;
    for number in 0..200 {
        let origin = origin(&format!("h{number}"));
        gone += shelves.share(&origin, now + seconds(number), Busy).1.len();
        assert!(shelves.counts().1 <= limits.in_all);
    }
    assert_eq!(gone, 150);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Nothing is lost, nothing is handed out twice, and the bounds hold, whatever is done.
    #[test]
    fn every_connection_is_handed_back_once(
        steps in proptest::collection::vec((0_u8..5, 0_u64..4, 0_u64..10), 0..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        let (mut shelves, start) = (shelves(), Instant::now());
        let names = ["a", "b", "c", "d"].map(origin);
        let (mut now, mut put, mut shared) = (start, 0, 0);
        let (mut back, mut lines) = (Vec::new(), Vec::new());
        for (step, name, wait) in steps {
            let name = &names[usize::try_from(name).unwrap()];
            let spent = match step {
                0 => {
                    put += 1;
                    shelves.put(name, now, now + seconds(wait), put - 1)
                }
                1 => {
                    let taken = shelves.take(name, now, &mut back);
                    (taken.into_iter().collect(), Vec::new())
                }
                2 => {
                    shared += 1;
                    shelves.share(name, now, Line::new(wait, now))
                }
                3 => {
                    if let Some(line) = shelves.join(name, now) {
                        line.2.set(now);
                    }
                    continue;
                }
                _ => {
                    now += seconds(wait);
                    shelves.sweep(now)
                }
            };
            back.extend(spent.0);
            lines.extend(spent.1);
            let (single, many) = shelves.counts();
            prop_assert!(single + many <= LIMITS.in_all);
            prop_assert!(shelves.origins.values().all(|it| it.len() <= LIMITS.per_origin));
        }
        let rest = shelves.sweep(now + seconds(100));
        back.extend(rest.0);
        back.sort_unstable();
        prop_assert_eq!(back, (0..put).collect::<Vec<u32>>());
        prop_assert_eq!(lines.len() + rest.1.len(), shared);
        prop_assert!(shelves.order.is_empty());
    }
}
