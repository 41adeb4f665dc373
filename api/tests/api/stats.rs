//! Statistics as clients see them; how they are computed is tested where they are.

use serde_json::{Value, json};
use shared::ids::EndpointId;
use shared::store::Session;

use crate::app::{Tenant, text, world};
use crate::deliveries::{TO_DEAD, TO_FLIGHT, TO_NOWHERE, TO_RETRY, Worker, delivery_of};

/// What the statistics job stores.
async fn measured(session: &Session, endpoint: &str, samples: i64, p95_ms: f64) {
    let put = "
        INSERT INTO endpoint_stats (endpoint_id, tenant_id, computed_at, since, samples, p50_ms, p95_ms, p99_ms, slow_since)
        SELECT id, tenant_id, now(), now() - interval '1 day', $2, 10.5, $3, 9000, CASE WHEN $3::float8 > 2000 THEN now() END
        FROM endpoints WHERE public_id = $1";
    let id = endpoint.parse::<EndpointId>().unwrap().0;
    let stored = session.execute(put, &[&id, &samples, &p95_ms]).await;
    assert_eq!(stored.unwrap(), 1);
}

async fn endpoints(tenant: &Tenant<'_>, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(text(&tenant.endpoint(json!({})).await["id"]));
    }
    ids
}

fn ids(list: &Value) -> Vec<String> {
    let rows = list["data"].as_array().unwrap();
    rows.iter().map(|row| text(&row["endpoint_id"])).collect()
}

#[tokio::test]
async fn a_tenant_reads_the_percentiles_of_its_endpoints_page_by_page_and_which_are_slow() {
    let (database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("other").await);
    let session = database.session().await;
    let mine = endpoints(&tenant, 4).await;
    for (endpoint, samples, p95_ms) in [
        (&mine[0], 20, 2_500.5),
        (&mine[1], 20, 3_000.0),
        (&mine[2], 19, 9_000.0),
    ] {
        measured(&session, endpoint, samples, p95_ms).await;
    }

    let first = tenant.get("/v1/stats/endpoints?limit=2").await.expect(200);
    let cursor = text(&first["next_cursor"]);
    let second = format!("/v1/stats/endpoints?limit=2&cursor={cursor}");
    let second = tenant.get(&second).await.expect(200);
    let slow = tenant.get("/v1/stats/slow-endpoints").await.expect(200);
    let slower = "/v1/stats/slow-endpoints?p95_threshold_ms=2999";
    let slower = tenant.get(slower).await.expect(200);
    let health = format!("/v1/endpoints/{}/health", mine[0]);
    let health = tenant.get(&health).await.expect(200);

    assert_eq!(
        ids(&first),
        [mine[2].clone(), mine[1].clone()],
        "newest first; one without attempts is not there"
    );
    assert_eq!(ids(&second), [mine[0].clone()]);
    assert_eq!(second["next_cursor"], Value::Null);
    assert_eq!(
        ids(&slow),
        [mine[1].clone(), mine[0].clone()],
        "the slowest first; 19 attempts say nothing"
    );
    assert_eq!(ids(&slower), [mine[1].clone()]);
    let row = &second["data"][0];
    assert_eq!(
        (
            &row["p50_ms"],
            &row["p95_ms"],
            &row["p99_ms"],
            &row["sample_count"],
            &row["slow"]
        ),
        (
            &json!(10.5),
            &json!(2_500.5),
            &json!(9_000.0),
            &json!(20),
            &json!(true)
        )
    );
    assert_eq!(
        (&health["p95_ms"], &health["slow"]),
        (&json!(2_500.5), &json!(true))
    );
    // S3
    let theirs = other.get("/v1/stats/endpoints").await.expect(200);
    assert_eq!(theirs["data"], json!([]));
    let theirs = other.get("/v1/stats/slow-endpoints").await.expect(200);
    assert_eq!(theirs["data"], json!([]));
    let refused = tenant
        .get("/v1/stats/slow-endpoints?p95_threshold_ms=-1")
        .await;
    refused.problem(400, "invalid-parameter");
}

async fn pipeline(tenant: &Tenant<'_>) -> Value {
    tenant.get("/v1/stats/pipeline").await.expect(200)
}

async fn created_at(tenant: &Tenant<'_>, delivery: &str) -> Value {
    let path = format!("/v1/deliveries/{delivery}");
    tenant.get(&path).await.expect(200)["created_at"].clone()
}

#[tokio::test]
async fn the_pipeline_is_counted_by_where_deliveries_are() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let worker = Worker::new(&database).await;
    tenant.endpoint(json!({})).await;
    let empty = pipeline(&tenant).await;
    let mut deliveries = Vec::new();
    for _ in 0..5 {
        deliveries.push(delivery_of(&tenant).await);
    }
    let [_pending, retried, delivered, dead, flying] = deliveries.as_slice() else {
        panic!("five deliveries");
    };
    worker.attempt(retried, 1, 503, (None, true)).await;
    worker.run(TO_RETRY, retried).await;
    worker.attempt(delivered, 1, 200, (Some(3), true)).await;
    worker.run(TO_NOWHERE, delivered).await;
    worker.attempt(dead, 1, 400, (Some(5), true)).await;
    worker.run(TO_DEAD, dead).await;
    worker.run(TO_FLIGHT, flying).await;

    let found = pipeline(&tenant).await;

    let counts = [
        "pending",
        "awaiting_retry",
        "in_flight",
        "dead_letter",
        "delivered_last_hour",
        "failed_last_hour",
    ];
    let of = |document: &Value| counts.map(|name| document[name].as_u64().unwrap());
    assert_eq!(of(&empty), [0; 6]);
    assert_eq!(of(&found), [1, 1, 1, 1, 1, 2]);
    for name in counts {
        assert_eq!(found[format!("{name}_is_lower_bound")], json!(false));
    }
    let average = "avg_delivery_ms_last_hour";
    assert_eq!(
        (&empty[average], &found[average]),
        (&Value::Null, &json!(12.0))
    );
}

#[tokio::test]
async fn only_what_nothing_holds_back_is_admissible() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let worker = Worker::new(&database).await;
    let broken = json!({ "event_types": ["a.b"] });
    let broken = text(&tenant.endpoint(broken).await["id"]);
    let oldest = delivery_of(&tenant).await;
    let limited =
        json!({ "rate_limit": { "per_second": 1, "burst": 1 }, "event_types": ["slow.one"] });
    tenant.endpoint(limited).await;
    let oldest_at = created_at(&tenant, &oldest).await;

    let free = pipeline(&tenant).await;
    let id = broken.parse::<EndpointId>().unwrap().0;
    let open = "INSERT INTO endpoint_runtime (endpoint_id, breaker) SELECT id, 1 FROM endpoints WHERE public_id = $1";
    worker.session.execute(open, &[&id]).await.unwrap();
    let behind_a_breaker = pipeline(&tenant).await;
    let event = tenant.publishes("slow.one", &json!({})).await;
    let second = text(&event["deliveries"][0]["id"]);
    let not_sent_to = pipeline(&tenant).await;
    worker.attempt(&second, 1, 200, (None, true)).await;
    let paced = pipeline(&tenant).await;

    assert_eq!(free["oldest_admissible"], oldest_at);
    assert_eq!(behind_a_breaker["oldest_admissible"], Value::Null);
    let second_at = created_at(&tenant, &second).await;
    assert_eq!(
        not_sent_to["oldest_admissible"], second_at,
        "a limit that nobody uses holds nothing back: it waits for us"
    );
    assert_eq!(paced["oldest_admissible"], Value::Null);
    for document in [&free, &behind_a_breaker, &not_sent_to, &paced] {
        assert_eq!(document["oldest_pending"], oldest_at);
    }
}
