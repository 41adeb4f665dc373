//! What the tests put into the database, by the names of architecture §2.

use shared::ids::{self, Incarnation};
use shared::store::leases::{self, Lease};
use shared::store::{Database, Role, Session};
use time::OffsetDateTime;
use uuid::Uuid;

/// The one tenant of most tests.
pub(crate) const TENANT: i32 = 7;

/// The database's clock.
pub(crate) async fn now(session: &Session) -> OffsetDateTime {
    let row = session
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap();
    row.get(0)
}

/// A million rows and the like. A worker's or the API's connection that is silent for so long counts as lost.
pub(crate) async fn fill(database: &Database, sql: &str) {
    let session = database.connect(Role::Maintenance).await.unwrap();
    session.batch_execute(sql).await.unwrap();
}

/// A worker that is alive.
pub(crate) async fn incarnation(session: &Session) -> Incarnation {
    let id = Uuid::new_v4();
    let insert = "INSERT INTO workers (id, expires_at) VALUES ($1, now() + interval '10 s')";
    session.execute(insert, &[&id]).await.unwrap();
    Incarnation(id)
}

/// What the others do with a worker that no longer renews.
pub(crate) async fn declare_dead(session: &Session, incarnation: Incarnation) {
    let delete = "DELETE FROM workers WHERE id = $1";
    assert_eq!(session.execute(delete, &[&incarnation.0]).await.unwrap(), 1);
}

/// The lease of a job, held by a worker of its own; free again when the test ends.
pub(crate) async fn lease(session: &Session) -> Lease {
    lease_of(session, "test").await
}

/// As [`lease`], of another job.
pub(crate) async fn lease_of(session: &Session, job: &'static str) -> Lease {
    let owner = incarnation(session).await;
    leases::acquire(session, job, owner).await.unwrap().unwrap()
}

/// An event of that time; the payload is its id as text.
pub(crate) async fn event(session: &Session, at: OffsetDateTime) -> Uuid {
    let id = ids::new_v7(at);
    let payload = id.to_string().into_bytes();
    let insert = "INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
                  VALUES ($1, $2, 1, $3, '{}', '{}')";
    session
        .execute(insert, &[&id, &TENANT, &payload])
        .await
        .unwrap();
    id
}

/// A delivery of an event, as a row of `table`; its id is returned.
pub(crate) async fn delivery(session: &Session, table: &str, event: Uuid) -> Uuid {
    let id = ids::new_v7(ids::created_at(event));
    let insert = match table {
        "ready" => {
            "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
             VALUES (1, $1, 1, $2, $3)"
        }
        "retry" => {
            "INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at)
             VALUES (1, $1, 1, $2, $3, now())"
        }
        "ready_ordered" => {
            "INSERT INTO ready_ordered
               (slot, tenant_id, endpoint_id, id, event_id, order_key, order_seq)
             VALUES (1, $1, 1, $2, $3, 1, 1)"
        }
        "dead_letters" => {
            "INSERT INTO dead_letters
               (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
             VALUES ($1, $2, 1, $3, 1, 5, 0, $2)"
        }
        other => unreachable!("no delivery lives in {other}"),
    };
    session
        .execute(insert, &[&TENANT, &id, &event])
        .await
        .unwrap();
    id
}

/// A count from the test's own point of view.
pub(crate) async fn count(session: &Session, from: &str) -> i64 {
    let row = session
        .query_one(&format!("SELECT count(*) FROM {from}"), &[])
        .await
        .unwrap();
    row.get(0)
}
