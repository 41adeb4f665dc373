//! Statistics as clients see them; how they are computed is tested where they are.

use serde_json::{Value, json};
use shared::ids::{DeliveryId, EndpointId};
use shared::store::Session;

use crate::app::{Tenant, text, world};

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
    refused.problem(400, "invalid_parameter");
}

#[tokio::test]
async fn the_pipeline_is_counted_by_where_deliveries_are_and_only_what_may_go_is_admissible() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let limited =
        json!({ "rate_limit": { "per_second": 1, "burst": 1 }, "event_types": ["slow.one"] });
    let limited = text(&tenant.endpoint(limited).await["id"]);
    let run = async |sql: &str, delivery: &str| {
        let id = delivery.parse::<DeliveryId>().unwrap().0;
        let changed = session.execute(sql, &[&id]).await.unwrap();
        assert_eq!(changed, 1, "{sql}");
    };
    let empty = tenant.get("/v1/stats/pipeline").await.expect(200);
    let mut deliveries = Vec::new();
    for _ in 0..5 {
        let event = tenant.publishes("a.b", &json!({"n": 1})).await;
        deliveries.push(text(&event["deliveries"][0]["id"]));
    }
    let [oldest, retried, delivered, dead, flying] = deliveries.as_slice() else {
        panic!("five deliveries");
    };
    let attempt = |outcome: i16, last: &str| {
        format!("INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, final_status, applied)
                 SELECT tenant_id, id, 1, 1, now(), endpoint_id, event_id, 1, 50, {outcome}, {last}, true FROM ready WHERE id = $1")
    };
    run(&attempt(2, "NULL"), retried).await;
    run("WITH gone AS (DELETE FROM ready WHERE id = $1 RETURNING slot, tenant_id, endpoint_id, id, event_id)
         INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, attempts_made, attempts_charged, due_at)
         SELECT *, 1, 1, now() + interval '1 hour' FROM gone", retried).await;
    run(&attempt(1, "3"), delivered).await;
    run("DELETE FROM ready WHERE id = $1", delivered).await;
    run(&attempt(2, "5"), dead).await;
    run("WITH gone AS (DELETE FROM ready WHERE id = $1 RETURNING tenant_id, endpoint_id, id, event_id)
         INSERT INTO dead_letters (tenant_id, endpoint_id, id, event_id, class, reason, attempts_made, kind, root_id)
         SELECT *, 3, 'HTTP 400', 1, 0, id FROM gone", dead).await;
    run("INSERT INTO workers (id, expires_at, in_flight) VALUES (gen_random_uuid(), now() + interval '1 hour', ARRAY[$1::uuid])", flying).await;

    let found = tenant.get("/v1/stats/pipeline").await.expect(200);

    assert_eq!(
        (
            &empty["pending"],
            &empty["oldest_pending"],
            &empty["avg_delivery_ms_last_hour"]
        ),
        (&json!(0), &Value::Null, &Value::Null)
    );
    let counts = [
        "pending",
        "awaiting_retry",
        "in_flight",
        "dead_letter",
        "delivered_last_hour",
        "failed_last_hour",
    ];
    assert_eq!(
        counts.map(|name| found[name].as_u64().unwrap()),
        [1, 1, 1, 1, 1, 2]
    );
    for name in counts {
        assert_eq!(
            found[format!("{name}_is_lower_bound")],
            json!(false),
            "{name}"
        );
    }
    assert_eq!(found["avg_delivery_ms_last_hour"], json!(50.0));
    let created_at = tenant
        .get(&format!("/v1/deliveries/{oldest}"))
        .await
        .expect(200)["created_at"]
        .clone();
    assert_eq!(found["oldest_pending"], created_at);
    assert_eq!(found["oldest_admissible"], created_at);

    // What a breaker, a limit that is being used, or a pause holds back is not admissible.
    let key = format!(
        "(SELECT id FROM endpoints WHERE public_id = '{}')",
        endpoint.parse::<EndpointId>().unwrap().0
    );
    let open = format!("INSERT INTO endpoint_runtime (endpoint_id, breaker) VALUES ({key}, 1)");
    session.batch_execute(&open).await.unwrap();
    let event = tenant.publishes("slow.one", &json!({})).await;
    let theirs = event["deliveries"].as_array().unwrap();
    let of_limited = theirs
        .iter()
        .find(|it| it["endpoint_id"] == limited.as_str())
        .unwrap();
    let waits = tenant.get("/v1/stats/pipeline").await.expect(200);
    run(&attempt(1, "NULL"), of_limited["id"].as_str().unwrap()).await;
    let held = tenant.get("/v1/stats/pipeline").await.expect(200);

    assert_eq!(
        waits["oldest_admissible"],
        tenant
            .get(&format!("/v1/events/{}", text(&event["id"])))
            .await
            .expect(200)["created_at"],
        "nothing was sent to it yet: it waits for us"
    );
    assert_eq!(held["oldest_admissible"], Value::Null);
    assert_eq!(held["oldest_pending"], created_at);
}
