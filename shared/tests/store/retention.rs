//! Forgetting: what is owed stays, what is not is gone, whatever interrupts; and it costs little (field report F70):
//! partitions are dropped and not emptied, what is kept of them is copied in batches, writers do not wait, and a run with
//! nothing to do is short.

use std::time::Duration;

use shared::ids;
use shared::store::partitions::State;
use shared::store::retention::{Report, RetentionSettings, run, sweep_kept};
use shared::store::{Session, StoreError, leases, partitions};
use shared::testing::{TestDatabase, eventually};
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use crate::world;

const DEADLINE: Duration = Duration::from_secs(20);
const LIVE_AND_DEAD: [&str; 4] = ["ready", "retry", "ready_ordered", "dead_letters"];

fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

fn settings() -> RetentionSettings {
    RetentionSettings {
        events: days(30),
        attempts: days(30),
        dead_letters: days(90),
        audit_log: Duration::from_secs(365 * 86_400),
    }
}

/// An instant past the retention, with its partitions.
async fn long_ago(session: &Session) -> OffsetDateTime {
    let at = world::now(session).await - days(40);
    partitions::ensure(session, at, 0).await.unwrap();
    at
}

async fn payload(session: &Session, table: &str, event: Uuid) -> Option<Vec<u8>> {
    let select = format!("SELECT payload FROM {table} WHERE id = $1");
    let row = session.query_opt(&select, &[&event]).await.unwrap();
    row.map(|row| row.get(0))
}

async fn forget(session: &Session) -> Report {
    let lease = world::lease(session).await;
    let now = world::now(session).await;
    run(session, &lease, &settings(), now).await.unwrap()
}

#[tokio::test]
async fn what_a_delivery_or_dead_letter_owes_survives_and_the_rest_is_gone() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let old = long_ago(&session).await;
    let unowed = world::event(&session, old).await;
    let mut owed = Vec::new();
    for table in LIVE_AND_DEAD {
        let event = world::event(&session, old).await;
        world::delivery(&session, table, event).await;
        owed.push(event);
    }
    let young = world::event(&session, world::now(&session).await).await;

    let report = forget(&session).await;

    assert_eq!(report.kept, 4);
    assert_eq!(
        report.dropped.len(),
        6,
        "two days of three tables: {report:?}"
    );
    for event in owed {
        assert_eq!(payload(&session, "events", event).await, None);
        let kept = payload(&session, "events_kept", event).await;
        assert_eq!(kept.unwrap(), event.to_string().into_bytes(), "P1");
    }
    assert_eq!(payload(&session, "events", unowed).await, None);
    assert_eq!(payload(&session, "events_kept", unowed).await, None);
    assert!(payload(&session, "events", young).await.is_some());
    let floor = "SELECT replay_floor FROM retention";
    let floor: OffsetDateTime = session.query_one(floor, &[]).await.unwrap().get(0);
    assert!(floor > old && floor <= old + time::Duration::DAY);
    let left = partitions::list(&session).await.unwrap();
    assert!(left.iter().all(|p| p.ends_at() > old + time::Duration::DAY));
}

/// F70
#[tokio::test]
async fn more_than_one_batch_is_copied() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let old = long_ago(&session).await;
    let from = ids::lower_bound(old).to_string();
    // Ids of one instant, told apart by their last digits.
    session
        .batch_execute(&format!(
            "CREATE TABLE made AS SELECT (left('{from}', 24) || lpad(to_hex(i), 12, '0'))::uuid AS id
               FROM generate_series(1, 2500) i;
             INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
               SELECT id, 7, 1, 'x', '{{}}', '{{}}' FROM made;
             INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
               SELECT 1, 7, 1, id, id FROM made"
        ))
        .await
        .unwrap();

    let report = forget(&session).await;

    assert_eq!(report.kept, 2_500);
    assert_eq!(world::count(&session, "events_kept").await, 2_500);
}

#[tokio::test]
async fn an_interrupted_detach_is_finished_by_the_next_run() {
    let database = TestDatabase::new().await;
    let (session, doomed) = (database.session().await, database.session().await);
    let mut reader = database.session().await;
    let old = long_ago(&session).await;
    let event = world::event(&session, old).await;
    world::delivery(&session, "retry", event).await;
    let lease = world::lease(&session).await;
    let now = world::now(&session).await;
    let reading = reader.transaction().await.unwrap();
    reading.query("SELECT FROM events", &[]).await.unwrap();

    let kill = async {
        let find = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event = 'virtualxid'";
        eventually(DEADLINE, || async {
            session.query_opt(find, &[]).await.unwrap()
        })
        .await
    };
    let settings = settings();
    let (killed, _row) = tokio::join!(run(&doomed, &lease, &settings, now), kill);
    assert!(killed.is_err());
    let left = partitions::list(&session).await.unwrap();
    let half = left.iter().find(|p| p.state == State::Detaching).unwrap();
    world::event(&session, now).await;
    reading.commit().await.unwrap();

    let report = run(&session, &lease, &settings, now).await.unwrap();

    assert_eq!(report.dropped.first().unwrap(), &half.name());
    let left = partitions::list(&session).await.unwrap();
    assert!(
        left.iter()
            .all(|p| p.state == State::Attached && p.begins_at() > old)
    );
    assert!(payload(&session, "events_kept", event).await.is_some());
}

/// F70
#[tokio::test]
async fn ingest_goes_on_while_a_partition_waits_for_a_reader() {
    let database = TestDatabase::new().await;
    let (session, writer) = (database.session().await, database.session().await);
    let mut reader = database.session().await;
    long_ago(&session).await;
    let now = world::now(&session).await;
    let reading = reader.transaction().await.unwrap();
    reading
        .query("SELECT FROM events, closed, attempts", &[])
        .await
        .unwrap();

    let inserting = async {
        let waits = "pg_stat_activity
                     WHERE datname = current_database() AND wait_event = 'virtualxid'";
        let mut slowest = Duration::ZERO;
        let mut inserted_meanwhile = 0;
        while inserted_meanwhile < 200 {
            let before = Instant::now();
            world::event(&writer, now).await;
            slowest = slowest.max(before.elapsed());
            inserted_meanwhile += world::count(&writer, waits).await;
        }
        reading.commit().await.unwrap();
        slowest
    };
    let (report, slowest) = tokio::join!(forget(&session), inserting);

    assert_eq!(report.dropped.len(), 6, "{report:?}");
    assert!(
        slowest < Duration::from_millis(1_500),
        "an insert took {slowest:?}"
    );
}

#[tokio::test]
async fn a_leader_that_was_replaced_forgets_nothing() {
    let database = TestDatabase::new().await;
    let mut session = database.session().await;
    let old = long_ago(&session).await;
    world::event(&session, old).await;
    let stale = world::lease(&session).await;
    world::declare_dead(&session, stale.owner).await;
    let successor = world::incarnation(&session).await;
    leases::acquire(&session, stale.name, successor)
        .await
        .unwrap()
        .unwrap();
    let now = world::now(&session).await;
    let before = partitions::list(&session).await.unwrap();

    let refused = run(&session, &stale, &settings(), now).await;
    let swept = sweep_kept(&mut session, &stale).await;

    assert!(matches!(refused, Err(StoreError::NotOwner)), "{refused:?}");
    assert!(matches!(swept, Err(StoreError::NotOwner)), "{swept:?}");
    assert_eq!(partitions::list(&session).await.unwrap(), before);
    assert_eq!(
        world::count(&session, "retention WHERE isfinite(replay_floor)").await,
        0
    );
}

#[tokio::test]
async fn a_kept_event_goes_when_nobody_owes_it_any_more() {
    let database = TestDatabase::new().await;
    let mut session = database.session().await;
    let old = long_ago(&session).await;
    let mut owed = Vec::new();
    for table in LIVE_AND_DEAD {
        let event = world::event(&session, old).await;
        world::delivery(&session, table, event).await;
        owed.push(event);
    }
    let paid = world::event(&session, old).await;
    let delivered = world::delivery(&session, "ready", paid).await;
    assert_eq!(forget(&session).await.kept, 5);
    let delete = "DELETE FROM ready WHERE id = $1";
    session.execute(delete, &[&delivered]).await.unwrap();
    let lease = world::lease_of(&session, "sweep").await;

    let swept = sweep_kept(&mut session, &lease).await.unwrap();

    assert_eq!(swept, 1);
    assert_eq!(payload(&session, "events_kept", paid).await, None);
    for event in owed {
        assert!(payload(&session, "events_kept", event).await.is_some());
    }
}

#[tokio::test]
async fn dead_letters_and_idempotency_keys_go_at_their_age() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    session
        .batch_execute(
            "INSERT INTO dead_letters
               (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, dead_at)
               SELECT 7, gen_random_uuid(), 1, gen_random_uuid(), 1, 5, 0, gen_random_uuid(),
                      now() - interval '89 d' - i * interval '1 min'
               FROM generate_series(1, 7 * 1440) i;
             INSERT INTO idempotency_keys (tenant_id, key, body_hash, expires_at)
               SELECT 7, i::text, '', now() + interval '1 h' * CASE WHEN i > 12000 THEN 1 ELSE -1 END
               FROM generate_series(1, 12010) i",
        )
        .await
        .unwrap();

    let report = forget(&session).await;

    assert_eq!(report.idempotency_keys, 12_000);
    assert_eq!(world::count(&session, "idempotency_keys").await, 10);
    assert!(
        (6 * 1440 - 1..=6 * 1440 + 1).contains(&report.dead_letters),
        "{report:?}"
    );
    let young = "dead_letters WHERE dead_at < now() - interval '90 d 1 min'";
    assert_eq!(world::count(&session, young).await, 0);
}

#[tokio::test]
async fn a_replay_goes_with_its_reasons_when_it_ended_as_long_ago_as_dead_letters_are_kept() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    // Ended a day too long ago, a day less than that, and never: a hundred days old, and it waits behind a breaker.
    session
        .batch_execute(
            "INSERT INTO replays (public_id, tenant_id, statuses, missing, fingerprint, per_second, status, created_at, finished_at)
               SELECT gen_random_uuid(), 7, '{5}', false, status::text::bytea, 100, status, now() - interval '100 d', ended
               FROM (VALUES (2, now() - interval '91 d'), (3, now() - interval '91 d'), (2, now() - interval '89 d'), (1, NULL))
                 r(status, ended);
             INSERT INTO replay_parts (replay_id, endpoint_id, phase, cursor)
               SELECT id, 1, 3, gen_random_uuid() FROM replays WHERE status = 1;
             INSERT INTO replay_skips (replay_id, reason, count, first)
               SELECT id, 1, 1, ARRAY[gen_random_uuid()] FROM replays;
             INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id, replay_id)
               SELECT 7, (lpad(to_hex((extract(epoch FROM now() - age) * 1000)::int8), 12, '0') || repeat('7', 20))::uuid, 1,
                      gen_random_uuid(), 1
               FROM unnest('{121 d,119 d}'::interval[]) age",
        )
        .await
        .unwrap();

    let report = forget(&session).await;

    assert_eq!(report.replays, 2);
    let kept = "replays WHERE finished_at IS NULL OR finished_at > now() - interval '90 d'";
    assert_eq!(world::count(&session, kept).await, 2);
    assert_eq!(world::count(&session, "replays").await, 2);
    let reasons = "replay_skips s JOIN replays r ON r.id = s.replay_id";
    assert_eq!(world::count(&session, reasons).await, 2);
    assert_eq!(world::count(&session, "replay_skips").await, 2);
    assert_eq!(world::count(&session, "replay_parts").await, 1);
    assert_eq!(world::count(&session, "replayed").await, 1);
}

#[tokio::test]
async fn the_audit_log_finished_removals_and_counted_events_go_at_their_age() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let now = world::now(&session).await;
    for (age, entries) in [(364, 3), (366, 5_500)] {
        let id = ids::lower_bound(now - days(age)).to_string();
        session
            .batch_execute(&format!(
                "INSERT INTO audit_log (id, tenant_id, actor, action, object_type, changed)
                   SELECT (left('{id}', 24) || lpad(to_hex(i), 12, '0'))::uuid, 7, 1, 'x', 'x', '{{}}'
                   FROM generate_series(1, {entries}) i;
                 INSERT INTO removals (public_id, kind, tenant_id, object_id, finished_at)
                   VALUES (gen_random_uuid(), 3, 7, gen_random_uuid(), now() - interval '{age} d')"
            ))
            .await
            .unwrap();
    }
    session
        .batch_execute(
            "INSERT INTO removals (public_id, kind, tenant_id, object_id, created_at)
               VALUES (gen_random_uuid(), 3, 7, gen_random_uuid(), now() - interval '400 d');
             INSERT INTO event_counts (tenant_id, day, events)
               SELECT 7, (now() AT TIME ZONE 'UTC')::date - i, 1 FROM generate_series(0, 60) i",
        )
        .await
        .unwrap();

    let report = forget(&session).await;

    assert_eq!((report.audit_log, report.removals), (5_500, 1));
    assert_eq!(world::count(&session, "audit_log").await, 3);
    let running = "removals WHERE finished_at IS NULL";
    assert_eq!(world::count(&session, running).await, 1);
    assert_eq!(world::count(&session, "removals").await, 2);
    // A month and what is before its beginning: no quota asks for more.
    assert_eq!(report.event_counts, 20);
    assert_eq!(world::count(&session, "event_counts").await, 41);
}

#[tokio::test]
async fn a_delivery_of_an_old_event_is_remembered_for_as_long_as_its_attempts() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let now = world::now(&session).await;
    // Attempts are kept for longer than dead letters here.
    let settings = RetentionSettings {
        attempts: days(100),
        ..settings()
    };
    let insert = "INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id) VALUES (7, $1, 1, $1)";
    let remembered = ids::new_v7(now - days(129));
    for id in [remembered, ids::new_v7(now - days(131))] {
        session.execute(insert, &[&id]).await.unwrap();
    }
    let lease = world::lease(&session).await;

    run(&session, &lease, &settings, now).await.unwrap();

    let left = session.query("SELECT delivery_id FROM replayed", &[]).await;
    let left: Vec<Uuid> = left.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(left, [remembered]);
}

/// F70
#[tokio::test]
async fn a_run_with_nothing_to_forget_is_short() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let lease = world::lease(&session).await;
    let now = world::now(&session).await;
    run(&session, &lease, &settings(), now).await.unwrap();

    // The quickest of a few: the other tests use the machine as well.
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let before = Instant::now();
        let report = run(&session, &lease, &settings(), now).await.unwrap();
        quickest = quickest.min(before.elapsed());
        assert_eq!(report, Report::default());
    }
    assert!(quickest < Duration::from_millis(100), "{quickest:?}");
}

#[tokio::test]
async fn kept_events_have_the_columns_of_events() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let columns = "SELECT string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum)
                   FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0
                   AND NOT attisdropped";

    let of_events = session.query_one(columns, &[&"events"]).await.unwrap();
    let of_kept = session.query_one(columns, &[&"events_kept"]).await.unwrap();

    let (events, kept): (String, String) = (of_events.get(0), of_kept.get(0));
    assert_eq!(events, kept);
}

#[tokio::test]
async fn todays_and_yesterdays_partitions_stay_whatever_the_settings() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let lease = world::lease(&session).await;
    let now = world::now(&session).await;
    let before = partitions::list(&session).await.unwrap();
    let nothing = RetentionSettings {
        events: Duration::ZERO,
        attempts: Duration::ZERO,
        dead_letters: Duration::ZERO,
        audit_log: Duration::from_secs(365 * 86_400),
    };

    let report = run(&session, &lease, &nothing, now).await.unwrap();

    assert_eq!(report, Report::default());
    assert_eq!(partitions::list(&session).await.unwrap(), before);
}
