//! The jobs against a real database.

use std::collections::HashSet;
use std::time::Duration;

use shared::ids::Incarnation;
use shared::store::leases::{self, Lease};
use shared::store::{Session, partitions};
use shared::testing::{TestDatabase, eventually};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Job as _, Jobs, backlog, maintenance, pauses};
use crate::lease::Ownerships;
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
    let jobs = Jobs::new(&database.database(), ownerships, RETENTION);
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
