//! Since when the oldest delivery of an installation waits, and for what.

use std::time::Duration;

use shared::ids::{Slot, TenantKey, new_v7};
use shared::runtime::clock::boot_time;
use shared::store::gauges;
use shared::store::oldest::{self, Oldest};
use shared::store::{Role, Session};
use shared::testing::TestDatabase;
use time::OffsetDateTime;
use tokio_postgres::IsolationLevel;
use uuid::Uuid;

use crate::world::{TENANT, fill, now};

const SLOT: i16 = 3;

struct World {
    session: Session,
    now: OffsetDateTime,
    database: TestDatabase,
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let session = database.database().connect(Role::Worker).await.unwrap();
        let now = now(&session).await;
        Self {
            // As the database stores it in an id: milliseconds.
            now: now
                .replace_nanosecond(now.nanosecond() / 1_000_000 * 1_000_000)
                .unwrap(),
            session,
            database,
        }
    }

    async fn endpoint(&self, settings: &str) -> i64 {
        let insert = "INSERT INTO endpoints (public_id, tenant_id, slot, url, settings)
                      VALUES (gen_random_uuid(), $1, $2, 'https://example.com', $3::text::jsonb) RETURNING id";
        let row = self
            .session
            .query_one(insert, &[&TENANT, &SLOT, &settings])
            .await;
        row.unwrap().get(0)
    }

    fn ago(&self, seconds: i64) -> OffsetDateTime {
        self.now - time::Duration::seconds(seconds)
    }

    async fn ready(&self, endpoint: i64, made_ago: i64) {
        self.ready_in(SLOT, endpoint, made_ago).await;
    }

    async fn ready_in(&self, slot: i16, endpoint: i64, made_ago: i64) {
        let insert = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id) VALUES ($1, $2, $3, $4, $4)";
        let id = new_v7(self.ago(made_ago));
        self.session
            .execute(insert, &[&slot, &TENANT, &endpoint, &id])
            .await
            .unwrap();
    }

    /// A delivery that was tried; its id.
    async fn retry(&self, endpoint: i64, due_ago: i64) -> Uuid {
        let insert = "INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at) VALUES ($1, $2, $3, $4, $4, $5)";
        let id = new_v7(self.ago(86_400));
        let due = self.ago(due_ago);
        self.session
            .execute(insert, &[&SLOT, &TENANT, &endpoint, &id, &due])
            .await
            .unwrap();
        id
    }

    async fn in_line(
        &self,
        endpoint: i64,
        (key, number): (i64, i64),
        made_ago: i64,
        due_ago: Option<i64>,
    ) {
        let insert = "INSERT INTO ready_ordered (slot, tenant_id, endpoint_id, order_key, order_seq, id, event_id, due_at)
                      VALUES ($1, $2, $3, $4, $5, $6, $6, $7)";
        let id = new_v7(self.ago(made_ago));
        let due = due_ago.map(|ago| self.ago(ago));
        self.session
            .execute(
                insert,
                &[&SLOT, &TENANT, &endpoint, &key, &number, &id, &due],
            )
            .await
            .unwrap();
    }

    async fn attempt(&self, endpoint: i64, delivery: Uuid, ago: i64, status: i16) {
        let insert = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                                            total_ms, outcome, status, applied)
                      VALUES ($1, $2, 1, 1, $3, $4, $2, 1, 5, 2, $5, true)";
        let at = self.ago(ago);
        self.session
            .execute(insert, &[&TENANT, &delivery, &at, &endpoint, &status])
            .await
            .unwrap();
    }

    async fn run(&self, sql: &str) {
        self.session.batch_execute(sql).await.unwrap();
    }

    async fn oldest(&self) -> Oldest {
        let slots: Vec<Slot> = (0..256).map(Slot).collect();
        let found = oldest::of_slots(&*self.session, &slots, self.now)
            .await
            .unwrap();
        // Asked for the tenant that they all are of.
        let of_tenant = oldest::of_tenant(&*self.session, TenantKey(TENANT), self.now).await;
        assert_eq!(of_tenant.unwrap(), found);
        found
    }

    /// Waits since so many seconds, or not.
    fn waits(&self, since: Oldest) -> [Option<i64>; 4] {
        [
            since.admissible,
            since.breaker,
            since.rate_limited,
            since.ordered,
        ]
        .map(|since| since.map(|since| (self.now - since).whole_seconds()))
    }
}

#[tokio::test]
async fn nothing_waits_in_an_empty_queue() {
    let world = World::new().await;

    assert_eq!(world.oldest().await, Oldest::default());
}

#[tokio::test]
async fn a_delivery_waits_since_it_was_made_or_was_due_again() {
    let world = World::new().await;
    let (one, other) = (world.endpoint("{}").await, world.endpoint("{}").await);
    world.ready(one, 100).await;
    world.ready(one, 90).await;
    world.retry(other, -60).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [Some(100), None, None, None]
    );

    world.retry(one, 200).await;
    world.retry(one, 150).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [Some(200), None, None, None]
    );
}

#[tokio::test]
async fn what_a_breaker_a_limit_or_the_receiver_holds_back_is_not_admissible() {
    let world = World::new().await;
    let broken = world.endpoint("{}").await;
    world.ready(broken, 5_000).await;
    world
        .run(&format!("INSERT INTO endpoint_runtime (endpoint_id, breaker, opened_at) VALUES ({broken}, 1, now())"))
        .await;
    assert_eq!(
        world.waits(world.oldest().await),
        [None, Some(5_000), None, None]
    );

    let limited = world
        .endpoint(r#"{"rate_limit": {"per_second": 1, "burst": 1}}"#)
        .await;
    world.ready(limited, 4_000).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [Some(4_000), Some(5_000), None, None],
        "a limit that is not used"
    );
    world.attempt(limited, Uuid::new_v4(), 30, 200).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [None, Some(5_000), Some(4_000), None]
    );

    let asked = world.endpoint("{}").await;
    world.ready(asked, 4_500).await;
    let refused = world.retry(asked, -600).await;
    world.attempt(asked, refused, 60, 429).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [None, Some(5_000), Some(4_500), None]
    );
    world.attempt(asked, Uuid::new_v4(), 50, 200).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [Some(4_500), Some(5_000), Some(4_000), None],
        "it was sent to since"
    );
    world
        .run(&format!("INSERT INTO endpoint_runtime (endpoint_id, parked_until) VALUES ({asked}, now() + interval '1 h')"))
        .await;
    assert_eq!(
        world.waits(world.oldest().await),
        [None, Some(5_000), Some(4_500), None]
    );
}

#[tokio::test]
async fn what_a_pause_or_a_disabled_endpoint_holds_back_does_not_wait() {
    let world = World::new().await;
    let (paused, disabled) = (world.endpoint("{}").await, world.endpoint("{}").await);
    world.ready_in(SLOT - 256, paused, 1_000).await;
    world.ready(disabled, 1_000).await;
    world
        .run(&format!(
            "UPDATE endpoints SET state = 2 WHERE id = {disabled}"
        ))
        .await;

    assert_eq!(world.oldest().await, Oldest::default());
}

#[tokio::test]
async fn only_the_first_of_a_line_is_admissible_and_only_when_no_dead_letter_blocks_it() {
    let world = World::new().await;
    let line = world.endpoint("{}").await;
    world.in_line(line, (1, 1), 300, Some(-60)).await;
    world.in_line(line, (1, 2), 290, None).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [None, None, None, Some(290)],
        "its turn comes in a minute"
    );
    world.in_line(line, (2, 3), 200, None).await;
    assert_eq!(
        world.waits(world.oldest().await),
        [Some(200), None, None, Some(290)]
    );

    world
        .run(&format!(
            "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, order_key, order_seq)
             VALUES ({TENANT}, gen_random_uuid(), {line}, gen_random_uuid(), 1, 1, 0, gen_random_uuid(), 2, 1)"
        ))
        .await;
    assert_eq!(
        world.waits(world.oldest().await),
        [Some(200), None, None, Some(290)],
        "released"
    );
    world
        .run(&format!(
            "UPDATE endpoints SET settings = '{{\"on_dead_letter\": \"block\"}}' WHERE id = {line}"
        ))
        .await;
    assert_eq!(
        world.waits(world.oldest().await),
        [None, None, None, Some(290)],
        "blocked"
    );
}

#[tokio::test]
async fn an_endpoint_with_thousands_of_lines_hides_no_other_endpoint() {
    let world = World::new().await;
    let (many, next) = (world.endpoint("{}").await, world.endpoint("{}").await);
    world
        .run(&format!(
            "INSERT INTO ready_ordered (slot, tenant_id, endpoint_id, order_key, order_seq, id, event_id)
             SELECT {SLOT}, {TENANT}, {many}, g, g, ('01980000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, gen_random_uuid()
             FROM generate_series(1001, 5000) g"
        ))
        .await;
    for key in 1..=1_000 {
        world.in_line(many, (key, key), 40, None).await;
    }
    world.in_line(next, (1, 1), 60, None).await;

    assert_eq!(
        world.waits(world.oldest().await),
        [Some(60), None, None, None]
    );
}

/// Statistics of empty tables, as in `plans`.
#[tokio::test]
async fn the_oldest_admissible_is_found_behind_a_million_of_an_open_breaker_and_among_50_000_endpoints()
 {
    let world = World::new().await;
    world
        .run(
            "ANALYZE ready; ANALYZE retry; ANALYZE endpoints; ANALYZE endpoint_runtime; ANALYZE attempts",
        )
        .await;
    let broken = world.endpoint("{}").await;
    let filling = format!(
            "INSERT INTO endpoint_runtime (endpoint_id, breaker, opened_at) VALUES ({broken}, 1, now());
             INSERT INTO endpoints (public_id, tenant_id, slot, url)
               SELECT gen_random_uuid(), {TENANT}, g % 256, 'https://example.com' FROM generate_series(1, 50000) g;
             INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
               SELECT {SLOT}, {TENANT}, {broken}, ('01980000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, '{}'
               FROM generate_series(1, 1000000) g;
             INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
               SELECT slot, {TENANT}, id, ('01990000-0000-7000-8000-' || lpad(to_hex(id), 12, '0'))::uuid, '{}'
               FROM endpoints WHERE id <> {broken}",
            Uuid::nil(),
            Uuid::nil()
        );
    fill(&world.database.database(), &filling).await;
    let slots: Vec<Slot> = (0..256).map(Slot).collect();

    let mut quickest = Duration::MAX;
    let mut found = Oldest::default();
    for _ in 0..3 {
        let before = boot_time();
        found = Oldest::default();
        for some in slots.chunks(32) {
            found = found.or(oldest::of_slots(&*world.session, some, world.now)
                .await
                .unwrap());
        }
        quickest = quickest.min(boot_time().since(before));
    }
    println!("the oldest of 1,050,000 at 50,001 endpoints: {quickest:?}");

    let made = |prefix: &str| {
        let id: Uuid = format!("{prefix}-0000-7000-8000-000000000000")
            .parse()
            .unwrap();
        Some(shared::ids::created_at(id))
    };
    assert_eq!(
        (found.admissible, found.breaker),
        (made("01990000"), made("01980000"))
    );
    assert!(quickest < Duration::from_secs(6), "{quickest:?}");
}

#[tokio::test]
async fn a_snapshot_that_stays_open_is_the_horizon_until_it_ends() {
    let database = TestDatabase::new().await;
    let (asking, mut holding) = (database.session().await, database.session().await);
    let write = "CREATE TABLE scratch (n int)";
    let snapshot = holding
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .unwrap();
    snapshot.query("SELECT 1 FROM slots", &[]).await.unwrap();
    asking.batch_execute(write).await.unwrap();
    asking.batch_execute("DROP TABLE scratch").await.unwrap();

    let held = gauges::horizon(&asking).await.unwrap();
    assert!(held.oldest <= held.next - 2, "{held:?}");
    assert!(held.open > Duration::ZERO, "{held:?}");
    snapshot.rollback().await.unwrap();

    // Others of this cluster may hold snapshots, of other databases.
    let free = gauges::horizon(&asking).await.unwrap();
    assert_eq!(free.oldest, free.next, "{free:?}");
    assert_eq!(free.open, Duration::ZERO);
}
