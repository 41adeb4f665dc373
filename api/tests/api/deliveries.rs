//! Deliveries: a status is the table that the row is in.

use serde_json::{Value, json};
use shared::ids::DeliveryId;
use shared::store::Session;
use shared::testing::TestDatabase;

use crate::app::{Tenant, text, world};

/// Plays the worker's part: moves rows as `record.sql` does.
pub(crate) struct Worker {
    pub(crate) session: Session,
}

impl Worker {
    pub(crate) async fn new(database: &TestDatabase) -> Self {
        Self {
            session: database.session().await,
        }
    }

    pub(crate) async fn run(&self, sql: &str, delivery: &str) {
        let id = delivery.parse::<DeliveryId>().unwrap().0;
        let changed = self.session.execute(sql, &[&id]).await.unwrap();
        assert_eq!(changed, 1, "{sql}");
    }

    pub(crate) async fn attempt(
        &self,
        delivery: &str,
        number: i16,
        http: i16,
        end: (Option<i16>, bool),
    ) {
        let (last, applied) = end;
        let id = delivery.parse::<DeliveryId>().unwrap().0;
        let outcome: i16 = if http == 200 { 1 } else { 2 };
        let sql = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                     total_ms, outcome, status, final_status, applied, error, response)
                   SELECT tenant_id, id, $2, 1, now(), endpoint_id, event_id, 1, 12, $3, $4, $5, $6, $7, 'body'
                   FROM ready WHERE id = $1";
        let error = (http != 200).then_some("it said no");
        self.session
            .execute(
                sql,
                &[&id, &number, &outcome, &http, &last, &applied, &error],
            )
            .await
            .unwrap();
    }
}

pub(crate) const TO_RETRY: &str = "
WITH gone AS (DELETE FROM ready WHERE id = $1 RETURNING slot, tenant_id, endpoint_id, id, event_id)
INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, attempts_made, attempts_charged, due_at)
SELECT *, 1, 1, now() + interval '1 minute' FROM gone";
pub(crate) const TO_DEAD: &str = "
WITH gone AS (DELETE FROM ready WHERE id = $1 RETURNING tenant_id, endpoint_id, id, event_id)
INSERT INTO dead_letters (tenant_id, endpoint_id, id, event_id, class, reason, attempts_made, kind, root_id)
SELECT *, 3, 'HTTP 400', 1, 0, id FROM gone";
pub(crate) const TO_NOWHERE: &str = "DELETE FROM ready WHERE id = $1";
pub(crate) const TO_FLIGHT: &str = "
INSERT INTO workers (id, expires_at, in_flight) VALUES (gen_random_uuid(), now() + interval '1 hour', ARRAY[$1::uuid])";

pub(crate) async fn delivery_of(tenant: &Tenant<'_>) -> String {
    let event = tenant.publishes("a.b", &json!({"n": 1})).await;
    text(&event["deliveries"][0]["id"])
}

async fn show(tenant: &Tenant<'_>, id: &str) -> Value {
    tenant
        .get(&format!("/v1/deliveries/{id}"))
        .await
        .expect(200)
}

async fn listed(tenant: &Tenant<'_>, filter: &str) -> Vec<String> {
    let list = tenant
        .get(&format!("/v1/deliveries{filter}"))
        .await
        .expect(200);
    list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| text(&row["id"]))
        .collect()
}

#[tokio::test]
async fn each_status_is_shown_and_listed_where_its_row_is() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let worker = Worker::new(&database).await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(delivery_of(&tenant).await);
    }
    let [pending, failed, delivered, dead, cancelled, flying] = ids.as_slice() else {
        panic!("six deliveries");
    };
    worker.attempt(failed, 1, 503, (None, true)).await;
    worker.run(TO_RETRY, failed).await;
    worker.attempt(delivered, 1, 503, (None, true)).await;
    worker.attempt(delivered, 2, 200, (Some(3), true)).await;
    worker.run(TO_NOWHERE, delivered).await;
    worker.attempt(dead, 1, 400, (Some(5), true)).await;
    worker.run(TO_DEAD, dead).await;
    worker.run(TO_FLIGHT, flying).await;
    tenant
        .post(&format!("/v1/deliveries/{cancelled}/cancel"), &json!({}))
        .await
        .expect(200);
    tenant
        .post(&format!("/v1/endpoints/{endpoint}/disable"), &json!({}))
        .await
        .expect(200);
    let skipped = &delivery_of(&tenant).await;

    for (id, status) in [
        (pending, "pending"),
        (failed, "failed"),
        (delivered, "delivered"),
        (dead, "dead_letter"),
        (cancelled, "cancelled"),
        (flying, "in_flight"),
        (skipped, "skipped"),
    ] {
        assert_eq!(show(&tenant, id).await["status"], status);
        assert_eq!(
            listed(&tenant, &format!("?status={status}")).await,
            std::slice::from_ref(id),
            "{status}"
        );
        let both = format!("?status={status}&endpoint_id={endpoint}");
        assert_eq!(
            listed(&tenant, &both).await,
            std::slice::from_ref(id),
            "{status}"
        );
    }
    let mut all = ids.clone();
    all.push(skipped.clone());
    all.sort();
    all.reverse();
    assert_eq!(listed(&tenant, "").await, all);
    let shown = show(&tenant, skipped).await;
    assert_eq!(shown["close_reason"], "endpoint_disabled");
}

#[tokio::test]
async fn a_delivery_tells_how_its_last_attempt_went() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let worker = Worker::new(&database).await;
    let (failed, delivered, dead) = (
        delivery_of(&tenant).await,
        delivery_of(&tenant).await,
        delivery_of(&tenant).await,
    );
    worker.attempt(&failed, 1, 503, (None, true)).await;
    worker.run(TO_RETRY, &failed).await;
    worker.attempt(&delivered, 1, 503, (None, true)).await;
    worker.attempt(&delivered, 2, 200, (Some(3), true)).await;
    worker.run(TO_NOWHERE, &delivered).await;
    worker.attempt(&dead, 1, 400, (Some(5), true)).await;
    worker.run(TO_DEAD, &dead).await;

    let (failed, delivered, dead) = (
        show(&tenant, &failed).await,
        show(&tenant, &delivered).await,
        show(&tenant, &dead).await,
    );

    assert_eq!(failed["attempt_count"], 1);
    assert!(failed["next_attempt_at"].is_string() && failed["delivered_at"].is_null());
    assert_eq!(failed["last_error"], "it said no");
    assert_eq!(failed["last_status_code"], 503);
    assert_eq!(delivered["attempt_count"], 2);
    assert_eq!(delivered["max_attempts"], 5);
    assert_eq!(delivered["last_status_code"], 200);
    assert_eq!(delivered["last_response_ms"], 12);
    assert!(delivered["delivered_at"].is_string() && delivered["last_error"].is_null());
    assert_eq!(dead["dead_letter_class"], "permanent");
    assert_eq!(dead["dead_letter_reason"], "HTTP 400");
    assert!(dead["ended_at"].is_string());
}

#[tokio::test]
async fn an_attempt_of_a_fenced_worker_never_counts() {
    // D3
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let worker = Worker::new(&database).await;
    let id = delivery_of(&tenant).await;
    worker.attempt(&id, 1, 200, (Some(3), false)).await;

    assert_eq!(show(&tenant, &id).await["status"], "pending");
    assert!(listed(&tenant, "?status=delivered").await.is_empty());

    let attempts = tenant
        .get(&format!("/v1/deliveries/{id}/attempts"))
        .await
        .expect(200);
    assert_eq!(attempts["data"][0]["applied"], false);
}

#[tokio::test]
async fn attempts_are_listed_newest_first_and_page_by_page() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let worker = Worker::new(&database).await;
    let id = delivery_of(&tenant).await;
    for number in 1..=5 {
        worker.attempt(&id, number, 503, (None, true)).await;
    }

    let mut numbers = Vec::new();
    let mut path = format!("/v1/deliveries/{id}/attempts?limit=2");
    loop {
        let page = tenant.get(&path).await.expect(200);
        let rows = page["data"].as_array().unwrap().clone();
        numbers.extend(rows.iter().map(|row| row["number"].as_i64().unwrap()));
        assert_eq!(rows[0]["response"], "body");
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/deliveries/{id}/attempts?limit=2&cursor={cursor}");
    }

    assert_eq!(numbers, [5, 4, 3, 2, 1]);
}

#[tokio::test]
async fn cancel_closes_what_waits_and_refuses_what_is_final_or_on_the_wire() {
    // D6
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let worker = Worker::new(&database).await;
    let (waiting, retrying, flying) = (
        delivery_of(&tenant).await,
        delivery_of(&tenant).await,
        delivery_of(&tenant).await,
    );
    worker.run(TO_RETRY, &retrying).await;
    worker.run(TO_FLIGHT, &flying).await;
    let cancel = async |id: &str| {
        tenant
            .post(&format!("/v1/deliveries/{id}/cancel"), &json!({}))
            .await
    };

    for id in [&waiting, &retrying] {
        let cancelled = cancel(id).await.expect(200);
        assert_eq!(cancelled["status"], "cancelled");
        assert_eq!(cancelled["close_reason"], "cancelled");
        let problem = cancel(id).await.problem(409, "conflict");
        assert!(text(&problem["detail"]).contains("cancelled"));
    }
    let problem = cancel(&flying).await.problem(409, "conflict");
    assert!(text(&problem["detail"]).contains("on the wire"));
    let row = worker
        .session
        .query_one("SELECT (SELECT count(*) FROM ready), (SELECT count(*) FROM retry), (SELECT count(*) FROM closed)", &[])
        .await
        .unwrap();
    assert_eq!(
        (
            row.get::<_, i64>(0),
            row.get::<_, i64>(1),
            row.get::<_, i64>(2)
        ),
        (1, 0, 2)
    );
}

#[tokio::test]
async fn retry_leaves_a_command_for_the_owner_of_the_slot() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let worker = Worker::new(&database).await;
    let (retrying, flying) = (delivery_of(&tenant).await, delivery_of(&tenant).await);
    worker.run(TO_RETRY, &retrying).await;
    worker.run(TO_FLIGHT, &flying).await;
    let retry = async |id: &str| {
        tenant
            .post(&format!("/v1/deliveries/{id}/retry"), &json!({}))
            .await
    };

    assert_eq!(retry(&retrying).await.expect(202)["id"], retrying);
    retry(&flying).await.problem(409, "conflict");

    let rows = worker
        .session
        .query("SELECT c.delivery_id FROM commands c JOIN endpoints e ON e.id = c.endpoint_id AND e.slot = c.slot WHERE c.verb = 2", &[])
        .await
        .unwrap();
    let commands: Vec<uuid::Uuid> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(commands, [retrying.parse::<DeliveryId>().unwrap().0]);
}

#[tokio::test]
async fn an_events_deliveries_are_listed_by_the_fan_out_it_had() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for _ in 0..5 {
        tenant.endpoint(json!({})).await;
    }
    let event = tenant.publishes("a", &json!(1)).await;
    tenant.endpoint(json!({})).await;

    let mut seen = pages(
        &tenant,
        &format!("/v1/events/{}/deliveries?limit=2", text(&event["id"])),
    )
    .await;

    seen.sort();
    let mut expected: Vec<_> = event["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| text(&row["id"]))
        .collect();
    expected.sort();
    assert_eq!(seen, expected);
    assert_eq!(seen.len(), 5);
}

/// The ids of all pages.
async fn pages(tenant: &Tenant<'_>, path: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut next = path.to_owned();
    loop {
        let page = tenant.get(&next).await.expect(200);
        ids.extend(
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| text(&row["id"])),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            return ids;
        };
        next = format!("{path}&cursor={cursor}");
    }
}

/// Retries a delivery that ended; the new one.
async fn again(tenant: &Tenant<'_>, id: &str) -> Value {
    tenant
        .post(&format!("/v1/deliveries/{id}/retry"), &json!({}))
        .await
        .expect(202)
}

#[tokio::test]
async fn a_retry_of_whatever_ended_is_a_new_delivery_of_the_same_event_to_the_same_endpoint() {
    // D6
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let worker = Worker::new(&database).await;
    let (delivered, dead, cancelled) = (
        delivery_of(&tenant).await,
        delivery_of(&tenant).await,
        delivery_of(&tenant).await,
    );
    worker.attempt(&delivered, 1, 200, (Some(3), true)).await;
    worker.run(TO_NOWHERE, &delivered).await;
    worker.run(TO_DEAD, &dead).await;
    tenant
        .post(&format!("/v1/deliveries/{cancelled}/cancel"), &json!({}))
        .await
        .expect(200);

    for (id, status) in [
        (&delivered, "delivered"),
        (&dead, "dead_letter"),
        (&cancelled, "cancelled"),
    ] {
        let before = show(&tenant, id).await;
        assert_eq!(before["status"], status);
        let new = again(&tenant, id).await;
        assert_ne!(new["id"], *id);
        assert_eq!(new["status"], "pending");
        assert_eq!(new["event_id"], before["event_id"]);
        assert_eq!(new["endpoint_id"], endpoint);
        assert_eq!(new["attempt_count"], 0);
        assert_eq!(new["replay_of"], *id);
        assert_eq!(show(&tenant, id).await, before, "what ended stays");
        // Field report F81: as often as it is asked for.
        assert_ne!(again(&tenant, id).await["id"], new["id"]);
    }
    let marked =
        "SELECT count(*) FROM dead_letters d JOIN ready r ON r.id = d.replayed_as AND r.kind = 1";
    let row = worker.session.query_one(marked, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
}

#[tokio::test]
async fn a_retry_of_what_cannot_be_sent_again_says_why() {
    let (database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("evil").await);
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let worker = Worker::new(&database).await;
    let retry = async |tenant: &Tenant<'_>, id: &str| {
        tenant
            .post(&format!("/v1/deliveries/{id}/retry"), &json!({}))
            .await
    };
    let dead = delivery_of(&tenant).await;
    worker.run(TO_DEAD, &dead).await;

    // S3
    retry(&other, &dead).await.problem(404, "not-found");
    // Past its retention: retention raises the floor, and then drops what nobody owes.
    let event = show(&tenant, &dead).await;
    let event = text(&event["event_id"])
        .parse::<shared::ids::EventId>()
        .unwrap()
        .0;
    let floor = "UPDATE retention SET replay_floor = now() + interval '1 day'";
    worker.session.batch_execute(floor).await.unwrap();
    let problem = retry(&tenant, &dead).await.problem(422, "not-replayable");
    assert!(text(&problem["detail"]).contains("retention"), "{problem}");
    let keep = "INSERT INTO events_kept SELECT * FROM events WHERE id = $1";
    worker.session.execute(keep, &[&event]).await.unwrap();
    retry(&tenant, &dead).await.expect(202);

    let late = "UPDATE events_kept SET deliver_before = now() - interval '1 s' WHERE id = $1";
    worker.session.execute(late, &[&event]).await.unwrap();
    let problem = retry(&tenant, &dead).await.problem(422, "not-replayable");
    assert!(
        text(&problem["detail"]).contains("deliver_before"),
        "{problem}"
    );

    let path = format!("/v1/endpoints/{endpoint}");
    tenant
        .post(&format!("{path}/disable"), &json!({}))
        .await
        .expect(200);
    let problem = retry(&tenant, &dead).await.problem(409, "conflict");
    assert!(text(&problem["detail"]).contains("enable"), "{problem}");
    server.delete(&path, &tenant.key).await.expect(204);
    let problem = retry(&tenant, &dead).await.problem(409, "conflict");
    assert!(text(&problem["detail"]).contains("deleted"), "{problem}");
}
