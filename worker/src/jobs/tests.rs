//! The jobs against a real database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector as _;
use shared::ids::{EndpointId, Incarnation};
use shared::runtime::clock::{DatabaseClock, boot_time, wall_time};
use shared::store::leases::{self, Lease};
use shared::store::{Session, partitions};
use shared::testing::{TestDatabase, eventually};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Job as _, Jobs, backlog, gauges, maintenance, pauses};
use crate::lease::Ownerships;
use crate::metrics::{Installation, Standing};
use shared::store::retention::RetentionSettings;

const DEADLINE: Duration = Duration::from_secs(20);
const RETENTION: RetentionSettings = RetentionSettings {
    events: Duration::from_secs(30 * 86_400),
    attempts: Duration::from_secs(30 * 86_400),
    dead_letters: Duration::from_secs(90 * 86_400),
    audit_log: Duration::from_secs(365 * 86_400),
};

async fn life(session: &Session) -> Ownerships {
    let id = Uuid::new_v4();
    let insert = "INSERT INTO workers (id, expires_at) VALUES ($1, now() + interval '10 s')";
    session.execute(insert, &[&id]).await.unwrap();
    Ownerships {
        incarnation: Some(Incarnation(id)),
        slots: HashSet::new(),
    }
}

/// The lives of a process whose lease was renewed just now.
fn standing(owned: watch::Receiver<Ownerships>) -> Standing {
    let clock = Arc::new(DatabaseClock::new());
    clock.measured(boot_time(), boot_time(), wall_time());
    Standing {
        clock,
        owned,
        ttl: Duration::from_secs(600),
    }
}

async fn lease(session: &Session) -> Lease {
    let owner = life(session).await.incarnation.unwrap();
    leases::acquire(session, "backlog", owner)
        .await
        .unwrap()
        .unwrap()
}

/// A tenant that may have `max_pending` deliveries waiting.
async fn tenant(session: &Session, max_pending: i32) -> i32 {
    let insert = "INSERT INTO tenants (public_id, name, max_pending)
                  VALUES (gen_random_uuid(), 't', $1) RETURNING id";
    session
        .query_one(insert, &[&max_pending])
        .await
        .unwrap()
        .get(0)
}

/// An endpoint with a limit of its own.
async fn endpoint(session: &Session, tenant: i32, max_pending: i32) -> i64 {
    let insert = "INSERT INTO endpoints (public_id, tenant_id, slot, url, settings)
                  VALUES (gen_random_uuid(), $1, 3, 'https://example.com',
                          jsonb_build_object('max_pending', $2::int4)) RETURNING id";
    session
        .query_one(insert, &[&tenant, &max_pending])
        .await
        .unwrap()
        .get(0)
}

/// Deliveries that wait, half of them for their first attempt and half for another.
async fn wait(session: &Session, tenant: i32, endpoint: i64, count: i32) {
    let ready = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
                 SELECT 3, $1, $2, gen_random_uuid(), gen_random_uuid()
                 FROM generate_series(1, $3)";
    let retry = "INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at)
                 SELECT 3, $1, $2, gen_random_uuid(), gen_random_uuid(), now()
                 FROM generate_series(1, $3)";
    let half = count / 2;
    session
        .execute(ready, &[&tenant, &endpoint, &(count - half)])
        .await
        .unwrap();
    session
        .execute(retry, &[&tenant, &endpoint, &half])
        .await
        .unwrap();
}

async fn nothing_waits(session: &Session, left: i32) {
    let delete = format!(
        "TRUNCATE retry; DELETE FROM ready WHERE ctid NOT IN (SELECT ctid FROM ready LIMIT {left})"
    );
    session.batch_execute(&delete).await.unwrap();
}

/// The endpoints that turn deliveries away.
async fn full(session: &Session) -> Vec<i64> {
    let select = "SELECT id FROM endpoints WHERE backlog_full ORDER BY id";
    let rows = session.query(select, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn config_version(session: &Session, tenant: i32) -> i64 {
    let select = "SELECT config_version FROM tenants WHERE id = $1";
    session.query_one(select, &[&tenant]).await.unwrap().get(0)
}

#[tokio::test]
async fn an_endpoint_over_its_limit_is_full_until_under_80_percent_of_it_wait() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let lease = lease(&session).await;
    let tenant = tenant(&session, 1_000_000).await;
    let busy = endpoint(&session, tenant, 100).await;
    let calm = endpoint(&session, tenant, 100).await;
    wait(&session, tenant, busy, 101).await;
    wait(&session, tenant, calm, 100).await;

    backlog::look(&session, &lease).await.unwrap();
    assert_eq!(full(&session).await, [busy]);
    assert_eq!(config_version(&session, tenant).await, 2);

    backlog::look(&session, &lease).await.unwrap();
    assert_eq!(config_version(&session, tenant).await, 2, "nothing changed");

    let delete = "DELETE FROM ready WHERE endpoint_id = $1 AND ctid IN
                  (SELECT ctid FROM ready WHERE endpoint_id = $1 LIMIT $2)";
    session.execute(delete, &[&busy, &21_i64]).await.unwrap();
    backlog::look(&session, &lease).await.unwrap();
    assert_eq!(full(&session).await, [busy], "80 wait");

    session.execute(delete, &[&busy, &1_i64]).await.unwrap();
    backlog::look(&session, &lease).await.unwrap();
    assert_eq!(full(&session).await, Vec::<i64>::new(), "79 wait");
    assert_eq!(config_version(&session, tenant).await, 3);
}

#[tokio::test]
async fn a_tenant_over_its_limit_has_all_its_endpoints_full_and_nobody_elses() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let lease = lease(&session).await;
    let (many, few) = (tenant(&session, 100).await, tenant(&session, 100).await);
    let busy = endpoint(&session, many, 1_000).await;
    let silent = endpoint(&session, many, 1_000).await;
    let other = endpoint(&session, few, 1_000).await;
    wait(&session, many, busy, 101).await;
    wait(&session, few, other, 90).await;

    backlog::look(&session, &lease).await.unwrap();
    assert_eq!(full(&session).await, [busy, silent]);
    assert_eq!(config_version(&session, few).await, 1, "S3");

    nothing_waits(&session, 0).await;
    backlog::look(&session, &lease).await.unwrap();
    assert_eq!(full(&session).await, Vec::<i64>::new());
}

#[tokio::test]
async fn a_leader_that_was_replaced_changes_no_endpoint() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let stale = lease(&session).await;
    let delete = "DELETE FROM workers WHERE id = $1";
    session.execute(delete, &[&stale.owner.0]).await.unwrap();
    lease(&session).await;
    let tenant = tenant(&session, 100).await;
    let busy = endpoint(&session, tenant, 1).await;
    wait(&session, tenant, busy, 10).await;

    let refused = backlog::look(&session, &stale).await;

    assert!(
        matches!(refused, Err(shared::store::StoreError::NotOwner)),
        "{refused:?}"
    );
    assert_eq!(full(&session).await, Vec::<i64>::new());
    assert_eq!(config_version(&session, tenant).await, 1);
}

#[tokio::test]
async fn the_jobs_begin_at_once_and_follow_their_process_into_its_next_life() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let now = partitions::database_time(&session).await.unwrap();
    let last = partitions::list(&session).await.unwrap().pop().unwrap();
    session
        .batch_execute(&format!("DROP TABLE {}", last.name()))
        .await
        .unwrap();
    let (owned, ownerships) = watch::channel(Ownerships::default());
    let jobs = Jobs::new(&database.database(), standing(ownerships), RETENTION);
    let shutdown = CancellationToken::new();
    let job = maintenance::Maintenance::new(jobs.retention);
    let loop_of_the_job = jobs.lead(job, shutdown.clone());

    let story = async {
        let holder = "SELECT owner FROM leases WHERE name = 'maintenance' AND owner IS NOT NULL";
        for epoch in 1..=2 {
            let life = life(&session).await;
            let incarnation = life.incarnation.unwrap();
            if epoch == 2 {
                session
                    .execute("DELETE FROM workers WHERE id <> $1", &[&incarnation.0])
                    .await
                    .unwrap();
            }
            owned.send_replace(life);
            eventually(DEADLINE, || async {
                let row = session.query_opt(holder, &[]).await.unwrap();
                row.filter(|row| row.get::<_, Uuid>(0) == incarnation.0)
            })
            .await;
            eventually(DEADLINE, || async {
                let days = partitions::ahead(&session, now).await.unwrap();
                (days == i64::from(partitions::DAYS_AHEAD)).then_some(())
            })
            .await;
        }
        shutdown.cancel();
    };
    tokio::join!(loop_of_the_job, story);
}

// ## Pauses

/// A pause of this type that ended so many seconds ago, or ends then.
async fn pause(session: &Session, tenant: i32, event_type: &str, ended_seconds_ago: i32) {
    let insert = "INSERT INTO pauses (tenant_id, event_type, until, reason)
                  VALUES ($1, $2, now() - $3 * interval '1 s', 'x')";
    let ago = f64::from(ended_seconds_ago);
    session
        .execute(insert, &[&tenant, &event_type, &ago])
        .await
        .unwrap();
}

async fn parked(session: &Session, tenant: i32, endpoint: i64) {
    let insert = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
                  VALUES (3 - 256, $1, $2, gen_random_uuid(), gen_random_uuid())";
    session
        .execute(insert, &[&tenant, &endpoint])
        .await
        .unwrap();
}

/// Endpoints with rows that their owner finds.
async fn found(session: &Session) -> Vec<i64> {
    let select = "SELECT endpoint_id FROM ready WHERE slot = 3 ORDER BY endpoint_id";
    let rows = session.query(select, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_is_parked_goes_back_when_its_pause_is_over_or_was_never_there() {
    let database = TestDatabase::new().await;
    let mut session = database.session().await;
    let lease = lease(&session).await;
    let mut endpoints = Vec::new();
    for _ in 0..4 {
        let tenant = tenant(&session, 100).await;
        let endpoint = endpoint(&session, tenant, 100).await;
        parked(&session, tenant, endpoint).await;
        endpoints.push((tenant, endpoint));
    }
    let [held, over, unpaused, disabled] = endpoints[..] else {
        unreachable!("there are four")
    };
    pause(&session, held.0, "a", -60).await;
    // Two, one of them over: what the other still means is parked again by its owner.
    pause(&session, over.0, "a", -60).await;
    pause(&session, over.0, "b", 1).await;
    pause(&session, disabled.0, "a", -60).await;
    let disable = "UPDATE endpoints SET state = 2 WHERE id = $1";
    session.execute(disable, &[&disabled.1]).await.unwrap();

    let again = pauses::Resume.step(&mut session, &lease).await.unwrap();

    assert_eq!(found(&session).await, [over.1, unpaused.1, disabled.1]);
    assert_eq!(again, Duration::from_secs(1), "while there is a pause");
}

#[tokio::test]
async fn a_pause_is_forgotten_half_a_minute_after_its_end() {
    let database = TestDatabase::new().await;
    let mut session = database.session().await;
    let lease = lease(&session).await;
    let tenant = tenant(&session, 100).await;
    pause(&session, tenant, "long.over", 31).await;
    pause(&session, tenant, "just.over", 20).await;

    pauses::Resume.step(&mut session, &lease).await.unwrap();

    let left = session.query("SELECT event_type FROM pauses", &[]).await;
    let left: Vec<String> = left.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["just.over"]);
}

// ## Gauges

/// A process that holds a lease, and what it shows.
struct Leader {
    lease: Lease,
    installation: Installation,
    standing: Standing,
    _owned: watch::Sender<Ownerships>,
}

impl Leader {
    async fn new(session: &Session) -> Self {
        let lease = lease(session).await;
        let (owned, ownerships) = watch::channel(Ownerships {
            incarnation: Some(lease.owner),
            slots: HashSet::new(),
        });
        Self {
            lease,
            installation: Installation::default(),
            standing: standing(ownerships),
            _owned: owned,
        }
    }

    /// Everything that is shown: name, label and value.
    fn shows(&self) -> HashMap<(String, String), f64> {
        let families = self.installation.collect();
        let values = families.iter().flat_map(|family| {
            family.get_metric().iter().map(|metric| {
                let label = metric.get_label().first().map(|pair| pair.value());
                let name = family.name().trim_start_matches("postrider_");
                let key = (name.to_owned(), label.unwrap_or_default().to_owned());
                (key, metric.get_gauge().get_value())
            })
        });
        values.collect()
    }
}

fn value(shown: &HashMap<(String, String), f64>, name: &str, label: &str) -> f64 {
    let key = (name.to_owned(), label.to_owned());
    *shown
        .get(&key)
        .unwrap_or_else(|| panic!("no {key:?} in {shown:?}"))
}

/// Dead letters of these classes in turn.
async fn die(session: &Session, count: i32, classes: &[i16]) {
    let insert = "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
                  SELECT 1, gen_random_uuid(), 1, gen_random_uuid(), ($2::int2[])[1 + g % cardinality($2)], 1, 0, gen_random_uuid()
                  FROM generate_series(1, $1) g";
    session.execute(insert, &[&count, &classes]).await.unwrap();
}

#[tokio::test]
async fn the_leader_shows_what_waits_and_who_is_slow() {
    let database = TestDatabase::new().await;
    let mut session = database.session().await;
    let leader = Leader::new(&session).await;
    let tenant = tenant(&session, 100).await;
    let mut endpoints = Vec::new();
    for _ in 0..25 {
        endpoints.push(endpoint(&session, tenant, 100).await);
    }
    wait(&session, tenant, endpoints[0], 7).await;
    die(&session, 5, &[1, 1, 5]).await;
    let facts = "
        INSERT INTO endpoint_runtime (endpoint_id, slot, breaker, opened_at, next_probe_at)
          SELECT id, 3, 1, now(), now() + (CASE WHEN id % 2 = 0 THEN -1 ELSE 60 END) * interval '1 s' FROM endpoints WHERE id <= 5;
        INSERT INTO endpoint_stats (endpoint_id, tenant_id, computed_at, since, samples, p50_ms, p95_ms, p99_ms, slow_since, degrading_since)
          SELECT id, 1, now(), now(), 30, 1, id * 100, 1, CASE WHEN id > 20 THEN now() END, CASE WHEN id = 3 THEN now() END FROM endpoints;
        UPDATE endpoints SET state = 3 WHERE id = 25;
        UPDATE workers SET in_flight = ARRAY[gen_random_uuid(), gen_random_uuid()]";
    session.batch_execute(facts).await.unwrap();

    let (installation, standing) = (leader.installation.clone(), leader.standing.clone());
    let mut job = gauges::Gauges::new(installation.clone(), standing.clone());
    let other = Lease {
        name: "gauges",
        ..leader.lease
    };
    let again = job.step(&mut session, &other).await.unwrap();
    let mut counting = backlog::Backlog {
        installation,
        standing,
    };
    counting.step(&mut session, &leader.lease).await.unwrap();

    let shown = leader.shows();
    let of = |name, label| value(&shown, name, label);
    assert_eq!(of("deliveries", "pending"), 4.0);
    assert_eq!(of("deliveries", "failed"), 3.0);
    assert_eq!(of("deliveries", "in_flight"), 2.0);
    assert_eq!(of("deliveries", "dead_letter"), 5.0);
    assert_eq!(of("dead_letters", "transient"), 3.0);
    assert_eq!(of("dead_letters", "internal"), 2.0);
    assert_eq!(of("dead_letters", "expired"), 0.0);
    assert_eq!(of("breaker_endpoints", "closed"), 19.0);
    assert_eq!(of("breaker_endpoints", "open"), 3.0);
    assert_eq!(of("breaker_endpoints", "half_open"), 2.0);
    assert_eq!(of("slow_endpoints", ""), 4.0, "the fifth is deleted");
    assert_eq!(of("degrading_endpoints", ""), 1.0);
    assert!(of("oldest_pending_seconds", "breaker") > 0.0);
    assert_eq!(of("oldest_pending_seconds", "admissible"), 0.0);
    assert!(again >= Duration::from_secs(15), "{again:?}");
    let select = "SELECT public_id FROM endpoints WHERE id = 24";
    let id: Uuid = session.query_one(select, &[]).await.unwrap().get(0);
    let slowest = EndpointId(id).to_string();
    assert_eq!(of("endpoint_p95_seconds", &slowest), 2.4);
    let top = shown.keys().filter(|key| key.0 == "endpoint_p95_seconds");
    assert_eq!(top.count(), 20);
}

#[tokio::test]
async fn dead_letters_are_counted_range_by_range_and_shown_when_all_were() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    die(&session, 150_000, &[1, 2, 3]).await;
    let mut counted = gauges::DeadLetters::default();

    counted.count(&session, Duration::ZERO).await.unwrap();
    assert_eq!(counted.total(), None, "only the last range was counted");
    counted.count(&session, DEADLINE).await.unwrap();
    let all = [50_000, 50_000, 50_000, 0, 0, 0, 0];
    assert_eq!(counted.total(), Some(all));

    die(&session, 10, &[5]).await;
    counted.count(&session, Duration::ZERO).await.unwrap();
    let more = [50_000, 50_000, 50_000, 0, 10, 0, 0];
    assert_eq!(counted.total(), Some(more), "new ones are at the end");

    let replay = "UPDATE dead_letters SET replayed_as = gen_random_uuid() WHERE class = 2";
    session.execute(replay, &[]).await.unwrap();
    counted.count(&session, DEADLINE).await.unwrap();
    assert_eq!(counted.total(), Some([50_000, 0, 50_000, 0, 10, 0, 0]));

    session
        .batch_execute("TRUNCATE dead_letters")
        .await
        .unwrap();
    counted.count(&session, Duration::ZERO).await.unwrap();
    assert_eq!(counted.total(), Some([0; 7]));
}
