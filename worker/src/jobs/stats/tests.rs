//! The statistics against what PostgreSQL says of the same attempts.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use shared::ids::{self, Incarnation};

use shared::testing::TestDatabase;
use time::macros::datetime;
use uuid::Uuid;

use super::*;

const TENANT: i32 = 1;
const HOUR: time::Duration = time::Duration::HOUR;

/// Attempts of an endpoint: when they started, in seconds before now, and how long they took.
type Samples = Vec<(f64, i32)>;

struct World {
    session: Session,
    now: OffsetDateTime,
    _test: TestDatabase,
}

impl World {
    async fn start() -> Self {
        let test = TestDatabase::new().await;
        let session = test.database().connect(Role::Worker).await.unwrap();
        let insert = "INSERT INTO tenants (public_id, name) VALUES (gen_random_uuid(), 't')";
        session.execute(insert, &[]).await.unwrap();
        let now = partitions::database_time(&session).await.unwrap();
        // Attempts of two days lie in partitions of their own.
        for day in 1..=3 {
            let at = now - time::Duration::days(day);
            partitions::ensure(&session, at, 0).await.unwrap();
        }
        Self {
            session,
            now,
            _test: test,
        }
    }

    async fn endpoint(&self) -> EndpointKey {
        let insert = "INSERT INTO endpoints (public_id, tenant_id, slot, url, settings)
                      VALUES (gen_random_uuid(), $1, 3, 'https://example.com/', '{}') RETURNING id";
        let row = self.session.query_one(insert, &[&TENANT]).await.unwrap();
        EndpointKey(row.get(0))
    }

    async fn attempts(&self, endpoint: EndpointKey, samples: &Samples) {
        self.attempts_of(endpoint, samples, Uuid::new_v4()).await;
    }

    async fn attempts_of(&self, endpoint: EndpointKey, samples: &Samples, event: Uuid) {
        let started: Vec<OffsetDateTime> = samples
            .iter()
            .map(|(ago, _)| self.now - time::Duration::seconds_f64(*ago))
            .collect();
        let took: Vec<i32> = samples.iter().map(|(_, ms)| *ms).collect();
        let insert = "
            INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, applied)
            SELECT $1, gen_random_uuid(), 1, 1, u.at, $2, $3, 1, u.ms, 1 + (u.ms % 2), true
            FROM unnest($4::timestamptz[], $5::int4[]) u(at, ms)";
        self.session
            .execute(insert, &[&TENANT, &endpoint.0, &event, &started, &took])
            .await
            .unwrap();
    }

    /// What PostgreSQL says of the same window, without any of our code.
    async fn asked(&self, endpoint: EndpointKey, now: OffsetDateTime) -> (i64, Option<Vec<f64>>) {
        let ask = "
            SELECT count(*), percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY total_ms)
            FROM attempts WHERE endpoint_id = $1 AND started_at >= date_trunc('minute', $2::timestamptz) - interval '24 hours' AND started_at < $2";
        let row = self
            .session
            .query_one(ask, &[&endpoint.0, &now])
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }

    async fn stored(&self, endpoint: EndpointKey) -> (i64, Option<Vec<f64>>) {
        let ask =
            "SELECT samples, CASE WHEN p50_ms IS NOT NULL THEN ARRAY[p50_ms, p95_ms, p99_ms] END
                   FROM endpoint_stats WHERE endpoint_id = $1";
        let row = self.session.query_one(ask, &[&endpoint.0]).await.unwrap();
        (row.get(0), row.get(1))
    }

    async fn compute(&mut self, stats: &mut Stats, now: OffsetDateTime) {
        let step = Step { lease: None, now };
        stats.compute(&mut self.session, &step).await.unwrap();
    }

    async fn judge(&mut self, now: OffsetDateTime) {
        let step = Step { lease: None, now };
        judge_all(&mut self.session, &step).await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        self.session.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn keys(&self, sql: &str) -> Vec<i64> {
        let row = self.session.query_one(sql, &[]).await.unwrap();
        row.get::<_, Option<Vec<i64>>>(0).unwrap_or_default()
    }
}

fn bits((samples, found): (i64, Option<Vec<f64>>)) -> (i64, Option<Vec<u64>>) {
    (
        samples,
        found.map(|it| it.into_iter().map(f64::to_bits).collect()),
    )
}

/// From an hour beyond the window to now, more at its edges; ties, and values far apart.
fn samples(most: usize) -> impl Strategy<Value = Samples> {
    let ago = prop_oneof![
        4 => 0.0..90_000.0_f64,
        1 => 86_340.0..86_520.0_f64,
        1 => 0.0..120.0_f64,
    ];
    let ms = prop_oneof![4 => 1..40_i32, 2 => 0..20_000_i32, 1 => Just(7)];
    proptest::collection::vec((ago, ms), 1..most)
}

#[test]
fn what_is_stored_is_percentile_cont_to_the_last_bit_kept_in_memory_or_not() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(World::start());
    let world = std::sync::Mutex::new(world);
    let mut runner = TestRunner::new(Config {
        cases: 24,
        ..Config::default()
    });
    let ran = runner.run(
        &(samples(400), samples(60), 1..4_i64),
        |(before, late, later)| {
            let mut world = world.lock().unwrap();
            let (kept, sorted) = runtime.block_on(async {
                let endpoints = (world.endpoint().await, world.endpoint().await);
                let now = world.now;
                let mut stats = Stats::default();
                for endpoint in [endpoints.0, endpoints.1] {
                    world.attempts(endpoint, &before).await;
                }
                // As if it had too many samples to be sorted.
                stats.keep(endpoints.0, now);
                world.compute(&mut stats, now).await;
                let first = (endpoints.0, endpoints.1);
                let same = (
                    bits(world.stored(first.0).await) == bits(world.asked(first.0, now).await),
                    bits(world.stored(first.1).await) == bits(world.asked(first.1, now).await),
                );
                assert!(same.0 && same.1, "the first step: {same:?}");
                // Minutes pass; what started in the last ones before is recorded only now.
                let late: Samples = late.iter().map(|(ago, ms)| (ago % 240.0, *ms)).collect();
                for endpoint in [endpoints.0, endpoints.1] {
                    world.attempts(endpoint, &late).await;
                }
                let now = now + time::Duration::minutes(later);
                world.compute(&mut stats, now).await;
                let pairs = |stored, asked| (bits(stored), bits(asked));
                (
                    pairs(
                        world.stored(endpoints.0).await,
                        world.asked(endpoints.0, now).await,
                    ),
                    pairs(
                        world.stored(endpoints.1).await,
                        world.asked(endpoints.1, now).await,
                    ),
                )
            });
            prop_assert_eq!(kept.0, kept.1);
            prop_assert_eq!(sorted.0, sorted.1);
            Ok(())
        },
    );
    ran.unwrap();
}

impl Stats {
    /// Keeps an endpoint in memory although it has few samples.
    fn keep(&mut self, endpoint: EndpointKey, now: OffsetDateTime) {
        let window = Step { lease: None, now }.window();
        let mut rolling = Rolling::default();
        // Something in the window, or it would be forgotten at once.
        let pair = shared::policy::percentiles::Minute {
            counts: vec![(1, 1)],
        };
        rolling.replace(minute(window.1), pair);
        let kept = Kept {
            rolling,
            counted_to: minute(window.0),
        };
        self.kept.insert(endpoint, kept);
    }
}

#[tokio::test]
async fn many_samples_are_kept_and_a_restart_finds_them_again() {
    let mut world = World::start().await;
    let endpoint = world.endpoint().await;
    let most = i32::try_from(MOST_SORTED).unwrap();
    let samples: Samples = (0..=most)
        .map(|n| (f64::from(n % 80_000), n % 977))
        .collect();
    world.attempts(endpoint, &samples).await;
    let now = world.now + time::Duration::seconds(1);
    let mut stats = Stats::default();

    world.compute(&mut stats, now).await;
    let first = world.stored(endpoint).await;
    let kept = stats.kept.len();
    let later = now + time::Duration::minutes(3);
    let mut restarted = Stats::default();
    world.attempts(endpoint, &vec![(0.0, 19_000)]).await;
    world.compute(&mut stats, later).await;
    let second = world.stored(endpoint).await;
    world.compute(&mut restarted, later).await;

    assert_eq!(kept, 1, "more than {MOST_SORTED} samples");
    assert_eq!(first.0, i64::from(most) + 1);
    assert_eq!(bits(second), bits(world.asked(endpoint, later).await));
    assert_eq!(
        bits(world.stored(endpoint).await),
        bits(world.asked(endpoint, later).await)
    );
}

#[tokio::test]
async fn attempts_that_were_recorded_much_too_late_are_noticed_and_counted() {
    let mut world = World::start().await;
    let endpoint = world.endpoint().await;
    world
        .attempts(endpoint, &vec![(7_200.0, 5), (10.0, 6)])
        .await;
    let mut stats = Stats::default();
    stats.keep(endpoint, world.now);
    let now = world.now;
    world.compute(&mut stats, now).await;
    stats.keep_whatever(endpoint, &mut world, now).await;

    world.attempts(endpoint, &vec![(3_600.0, 900)]).await;
    for minutes in 1..=3 {
        let now = now + time::Duration::minutes(minutes);
        world
            .attempts(
                endpoint,
                &vec![(-60.0 * f64::from(i32::try_from(minutes).unwrap()) + 1.0, 5)],
            )
            .await;
        world.compute(&mut stats, now).await;
    }

    let now = now + time::Duration::minutes(3);
    assert_eq!(
        bits(world.stored(endpoint).await),
        bits(world.asked(endpoint, now).await)
    );
}

impl Stats {
    /// Has it in memory as it is now, few samples or not.
    async fn keep_whatever(
        &mut self,
        endpoint: EndpointKey,
        world: &mut World,
        now: OffsetDateTime,
    ) {
        self.keep(endpoint, now);
        let mut kept = self.kept.remove(&endpoint).unwrap();
        let window = Step { lease: None, now }.window();
        kept.count(&world.session, endpoint, window, &Tests::new())
            .await
            .unwrap();
        self.kept.insert(endpoint, kept);
    }
}

#[tokio::test]
async fn attempts_of_test_events_are_no_samples_and_an_endpoint_that_fell_silent_loses_its_own() {
    let mut world = World::start().await;
    let endpoint = world.endpoint().await;
    let tested = world.endpoint().await;
    let event = ids::new_v7(world.now - HOUR);
    let insert = "
        WITH t AS (INSERT INTO event_types (tenant_id, name) VALUES (1, 'postrider.test') RETURNING id)
        INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
        SELECT $1::uuid, 1, id, '', ARRAY[$2::int8], ARRAY[$1::uuid] FROM t";
    world
        .session
        .execute(insert, &[&event, &tested.0])
        .await
        .unwrap();
    world.attempts_of(tested, &vec![(60.0, 9_000)], event).await;
    world.attempts(tested, &vec![(60.0, 10), (70.0, 20)]).await;
    world.attempts(endpoint, &vec![(60.0, 30)]).await;
    let mut stats = Stats::default();
    stats.keep(tested, world.now);
    let now = world.now;

    world.compute(&mut stats, now).await;
    let kept = world.stored(tested).await;
    world.compute(&mut Stats::default(), now).await;
    let sorted = world.stored(tested).await;
    world.compute(&mut stats, now + 25 * HOUR).await;

    assert_eq!((kept.0, kept.1.unwrap()[0]), (2, 15.0));
    assert_eq!((sorted.0, sorted.1.unwrap()[0]), (2, 15.0));
    assert_eq!(world.stored(endpoint).await, (0, None));
}

#[tokio::test]
async fn who_becomes_slow_is_flagged_and_told_once_and_who_is_very_slow_has_its_breaker_lowered() {
    let mut world = World::start().await;
    let slow = world.endpoint().await;
    let very_slow = world.endpoint().await;
    let few = world.endpoint().await;
    let listener = world.endpoint().await;
    let subscribe =
        "UPDATE endpoints SET event_types = ARRAY['postrider.endpoint.slow'] WHERE id = $1";
    world
        .session
        .execute(subscribe, &[&listener.0])
        .await
        .unwrap();
    let twenty =
        |ms: i32| -> Samples { (0..20).map(|n| (f64::from(n) * 60.0 + 1.0, ms)).collect() };
    world.attempts(slow, &twenty(2_001)).await;
    world.attempts(very_slow, &twenty(5_001)).await;
    world.attempts(few, &twenty(9_000)[..19].to_vec()).await;
    world.attempts(listener, &twenty(5)).await;
    let now = world.now;

    let mut stats = Stats::default();
    world.compute(&mut stats, now).await;
    world.judge(now).await;
    world.judge(now + time::Duration::minutes(15)).await;

    let flagged = "SELECT array_agg(endpoint_id ORDER BY endpoint_id) FROM endpoint_stats WHERE slow_since IS NOT NULL";
    assert_eq!(world.keys(flagged).await, [slow.0, very_slow.0]);
    assert_eq!(
        world
            .number("SELECT count(*) FROM notices WHERE event_id IS NOT NULL AND count = 1")
            .await,
        2
    );
    let told = "SELECT count(*) FROM ready WHERE kind = 3 OR endpoint_id IS NOT NULL";
    assert_eq!(
        world.number(told).await,
        2,
        "one delivery to the listener for each"
    );
    let lowered = "SELECT array_agg(endpoint_id) FROM endpoint_runtime WHERE p95_ms > 5000";
    assert_eq!(world.keys(lowered).await, [very_slow.0]);
    let commands = "SELECT count(*) FROM commands WHERE verb = 1";
    assert_eq!(world.number(commands).await, 1, "its owner is told, once");

    // A day without a sample later.
    let later = now + 25 * HOUR;
    world.compute(&mut stats, later).await;
    world.judge(later).await;

    assert!(world.keys(flagged).await.is_empty());
    assert!(world.keys(lowered).await.is_empty());
    assert_eq!(world.number(commands).await, 2, "and told again");
}

#[tokio::test]
async fn three_times_the_percentile_of_the_day_before_is_degrading() {
    let mut world = World::start().await;
    let endpoint = world.endpoint().await;
    let now = world.now;
    let of_a_day_ago: Samples = (0..20)
        .map(|n| (86_400.0 + 7_200.0 + f64::from(n), 100))
        .collect();
    let of_today: Samples = (0..20).map(|n| (f64::from(n) + 1.0, 300)).collect();
    world.attempts(endpoint, &of_a_day_ago).await;
    world.attempts(endpoint, &of_today).await;

    let yesterday = now - 24 * HOUR;
    world.compute(&mut Stats::default(), yesterday).await;
    let step = Step {
        lease: None,
        now: yesterday,
    };
    Stats::default()
        .keep_hour(&mut world.session, &step)
        .await
        .unwrap();
    world.compute(&mut Stats::default(), now).await;
    world.judge(now).await;

    let flagged = "SELECT count(*) FROM endpoint_stats WHERE degrading_since IS NOT NULL AND slow_since IS NULL";
    assert_eq!(world.number(flagged).await, 1);
}

#[tokio::test]
async fn d3_a_leader_that_was_replaced_stores_nothing() {
    let mut world = World::start().await;
    let endpoint = world.endpoint().await;
    world.attempts(endpoint, &vec![(60.0, 30)]).await;
    let stale = Lease {
        name: "stats",
        owner: Incarnation(Uuid::new_v4()),
        epoch: ids::Epoch(1),
    };
    let now = world.now;
    let step = Step {
        lease: Some(&stale),
        now,
    };

    let refused = Stats::default().compute(&mut world.session, &step).await;

    assert!(matches!(refused, Err(StoreError::NotOwner)), "{refused:?}");
    assert_eq!(world.number("SELECT count(*) FROM endpoint_stats").await, 0);
}

#[test]
fn the_window_begins_at_a_full_minute_a_day_ago() {
    let step = Step {
        lease: None,
        now: datetime!(2026-11-30 12:34:56.789 UTC),
    };
    assert_eq!(step.window().0, datetime!(2026-11-29 12:34:00 UTC));
    assert_eq!(full_hour(step.now), datetime!(2026-11-30 12:00:00 UTC));
}
