//! Replays and dead letters, as clients ask for and see them. What the job does is shown in `shared/tests/store`.

use serde_json::{Value, json};
use shared::ids::DeliveryId;
use shared::store::Session;

use crate::app::{Tenant, text, world};

/// A dead letter of a new event to the tenant's only endpoint; its id.
async fn dead_letter(
    tenant: &Tenant<'_>,
    sql: &Session,
    event_type: &str,
    how: (i16, i16),
) -> String {
    let event = tenant.publishes(event_type, &json!({})).await;
    let id = text(&event["deliveries"][0]["id"]);
    let (class, status) = how;
    let dies = "WITH gone AS (DELETE FROM ready WHERE id = $1 RETURNING tenant_id, endpoint_id, id, event_id)
        INSERT INTO dead_letters (tenant_id, endpoint_id, id, event_id, class, outcome, status, reason, fingerprint, attempts_made, kind, root_id)
        SELECT *, $2, 2, $3::int2, 'HTTP ' || $3::int2, 7, 3, 0, id FROM gone";
    let delivery = id.parse::<DeliveryId>().unwrap().0;
    assert_eq!(
        sql.execute(dies, &[&delivery, &class, &status])
            .await
            .unwrap(),
        1
    );
    id
}

async fn listed(tenant: &Tenant<'_>, filter: &str) -> Vec<String> {
    let path = format!("/v1/dead-letters{filter}");
    let list = tenant.get(&path).await.expect(200);
    let rows = list["data"].as_array().unwrap();
    rows.iter().map(|row| text(&row["id"])).collect()
}

#[tokio::test]
async fn dead_letters_are_listed_by_endpoint_class_type_and_time_page_by_page() {
    let (database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("other").await);
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let sql = database.session().await;
    let mut ids = Vec::new();
    for (event_type, how) in [("a", (1, 503)), ("a", (3, 422)), ("b", (1, 503))] {
        ids.push(dead_letter(&tenant, &sql, event_type, how).await);
    }
    ids.sort();
    ids.reverse();

    assert_eq!(listed(&tenant, "").await, ids);
    assert_eq!(
        listed(&tenant, &format!("?endpoint_id={endpoint}")).await,
        ids
    );
    assert_eq!(listed(&tenant, "?class=permanent").await.len(), 1);
    assert_eq!(listed(&tenant, "?event_type=a").await.len(), 2);
    assert_eq!(
        listed(&tenant, "?event_type=a&class=transient").await.len(),
        1
    );
    assert_eq!(
        listed(&tenant, "?since=2100-01-01T00:00:00Z").await.len(),
        0
    );
    let first = tenant.get("/v1/dead-letters?limit=2").await.expect(200);
    let next = text(&first["next_cursor"]);
    let rest = listed(&tenant, &format!("?limit=2&cursor={next}")).await;
    assert_eq!(rest, ids[2..]);
    tenant
        .get("/v1/dead-letters?class=bad")
        .await
        .problem(400, "invalid-parameter");

    let shown = tenant
        .get(&format!("/v1/dead-letters/{}", ids[0]))
        .await
        .expect(200);
    assert_eq!(shown["event_type"], "b");
    assert_eq!(shown["class"], "transient");
    assert_eq!(shown["last_status_code"], 503);
    assert_eq!(shown["fingerprint"], "7");
    assert_eq!(shown["replayed_as"], Value::Null);
    // S3
    assert_eq!(listed(&other, "").await.len(), 0);
    for path in [
        format!("/v1/dead-letters/{}", ids[0]),
        format!("/v1/dead-letters?endpoint_id={endpoint}"),
    ] {
        other.get(&path).await.problem(404, "not-found");
    }
}

#[tokio::test]
async fn the_analysis_tells_what_broke_and_what_to_do_and_keeps_our_own_faults_apart() {
    let (database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("other").await);
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let sql = database.session().await;
    for _ in 0..6 {
        dead_letter(&tenant, &sql, "a", (1, 503)).await;
    }
    dead_letter(&tenant, &sql, "a", (2, 401)).await;
    dead_letter(&tenant, &sql, "a", (5, 0)).await;

    let analysis = tenant.get("/v1/dead-letters/analysis").await.expect(200);

    let row = &analysis["data"][0];
    assert_eq!(row["endpoint_id"], endpoint);
    assert_eq!(row["endpoint_url"], "http://127.0.0.1/hook");
    assert_eq!(row["dead_count"], 7);
    assert_eq!(row["primary_status_code"], 503);
    assert_eq!(row["primary_error"], "HTTP 503");
    assert_eq!(row["pattern"], "burst");
    assert_eq!(row["avg_attempts"], 3.0);
    assert!(text(&row["advice"]).contains("replay"));
    assert_eq!(analysis["internal"][0]["dead_count"], 1);
    assert_eq!(analysis["endpoint_count"], 1);
    assert_eq!(analysis["endpoint_count_is_lower_bound"], false);
    let theirs = other
        .get("/v1/dead-letters/analysis?hours=48")
        .await
        .expect(200);
    assert_eq!(
        (&theirs["data"], &theirs["hours"]),
        (&json!([]), &json!(48))
    );
    for hours in ["0", "2161", "x"] {
        let path = format!("/v1/dead-letters/analysis?hours={hours}");
        tenant.get(&path).await.problem(400, "invalid-parameter");
    }
    let old = "UPDATE dead_letters SET dead_at = dead_at - interval '2 hours', status = 429 WHERE class <> 5";
    sql.batch_execute(old).await.unwrap();
    let recent = tenant
        .get("/v1/dead-letters/analysis?hours=1")
        .await
        .expect(200);
    assert_eq!(recent["data"], json!([]));
    let all = tenant
        .get("/v1/dead-letters/analysis?hours=3")
        .await
        .expect(200);
    assert_eq!(all["data"][0]["pattern"], "auth_or_throttle");
}

#[tokio::test]
async fn a_replay_is_shown_listed_refused_twice_and_cancelled() {
    let (database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("other").await);
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let sql = database.session().await;
    let dead = dead_letter(&tenant, &sql, "a", (1, 503)).await;
    let path = format!("/v1/endpoints/{endpoint}/replay");
    let body = json!({"since": "2026-01-01T00:00:00Z", "status": ["skipped", "dead_letter"], "missing": true});

    let replay = tenant.post(&path, &body).await.expect(202);
    assert_eq!(replay["status"], "running");
    assert_eq!(replay["endpoint_id"], endpoint);
    assert_eq!(replay["rate_per_second"], 100.0);
    assert_eq!(
        replay["filter"]["status"],
        json!(["dead_letter", "skipped"])
    );
    let id = text(&replay["id"]);
    let same = json!({"since": "2026-01-01T00:00:00Z", "status": ["dead_letter", "skipped"], "missing": true, "rate_per_second": 5});
    let problem = tenant.post(&path, &same).await.problem(409, "conflict");
    assert!(text(&problem["detail"]).contains(&id), "{problem}");

    let of_ids = json!({"ids": [dead], "class": ["transient"]});
    let second = tenant
        .post("/v1/dead-letters/replay", &of_ids)
        .await
        .expect(202);
    assert_eq!(second["filter"]["id_count"], 1);
    let list = tenant.get("/v1/replays?limit=1").await.expect(200);
    assert_eq!(list["data"][0]["id"], second["id"]);
    let next = format!("/v1/replays?limit=1&cursor={}", text(&list["next_cursor"]));
    assert_eq!(tenant.get(&next).await.expect(200)["data"][0]["id"], id);

    let one = format!("/v1/replays/{id}");
    // S3
    other.get(&one).await.problem(404, "not-found");
    other
        .post(&format!("{one}/cancel"), &json!({}))
        .await
        .problem(404, "not-found");
    other
        .post(&path, &json!({}))
        .await
        .problem(404, "not-found");
    let theirs = json!({"endpoint_id": endpoint});
    other
        .post("/v1/dead-letters/replay", &theirs)
        .await
        .problem(404, "not-found");
    let cancelled = tenant
        .post(&format!("{one}/cancel"), &json!({}))
        .await
        .expect(200);
    assert_eq!(cancelled["status"], "cancelled");
    tenant
        .post(&format!("{one}/cancel"), &json!({}))
        .await
        .problem(409, "conflict");
    assert_eq!(tenant.get(&one).await.expect(200)["status"], "cancelled");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_for_a_replay_is_named() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let path = format!("/v1/endpoints/{endpoint}/replay");
    for (path, body, pointer) in [
        (&*path, json!({"status": ["pending"]}), "/status"),
        (&path, json!({"status": []}), "/status"),
        (&path, json!({"status": "dead_letter"}), "/status"),
        (&path, json!({"since": "yesterday"}), "/since"),
        (
            &path,
            json!({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}),
            "/until",
        ),
        (&path, json!({"rate_per_second": 0}), "/rate_per_second"),
        (&path, json!({"rate_per_second": 1001}), "/rate_per_second"),
        (&path, json!({"class": ["transient"]}), "/class"),
        (
            "/v1/dead-letters/replay",
            json!({"class": ["bad"]}),
            "/class",
        ),
        ("/v1/dead-letters/replay", json!({"ids": ["evt_x"]}), "/ids"),
        ("/v1/dead-letters/replay", json!({"ids": []}), "/ids"),
        (
            "/v1/dead-letters/replay",
            json!({"endpoint_id": "x"}),
            "/endpoint_id",
        ),
        (
            "/v1/dead-letters/replay",
            json!({"event_type": "a\u{0}"}),
            "/event_type",
        ),
    ] {
        let problem = tenant
            .post(path, &body)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
    }
    let disable = format!("/v1/endpoints/{endpoint}/disable");
    tenant.post(&disable, &json!({})).await.expect(200);
    let problem = tenant
        .post(&path, &json!({}))
        .await
        .problem(409, "conflict");
    assert!(text(&problem["detail"]).contains("enable"), "{problem}");
    // With nothing to send, it is over at once.
    let none = tenant
        .post("/v1/dead-letters/replay", &json!({}))
        .await
        .expect(202);
    assert_eq!(
        (&none["status"], &none["total"]),
        (&json!("finished"), &json!(0))
    );
}
