//! What an endpoint keeps of its past: its health, its URLs, and how it starts again.

use serde_json::{Value, json};
use shared::ids::{DeliveryId, EndpointId};
use shared::store::Session;

use crate::app::{Server, Tenant, text, world};

/// An endpoint, and the session of somebody who plays its worker.
struct Bench<'a> {
    tenant: &'a Tenant<'a>,
    session: Session,
    path: String,
    id: uuid::Uuid,
}

impl<'a> Bench<'a> {
    async fn new(tenant: &'a Tenant<'a>, session: Session) -> Self {
        let id = text(&tenant.endpoint(json!({})).await["id"]);
        Self {
            tenant,
            session,
            path: format!("/v1/endpoints/{id}"),
            id: id.parse::<EndpointId>().unwrap().0,
        }
    }

    async fn act(&self, verb: &str) -> Value {
        let path = format!("{}/{verb}", self.path);
        self.tenant.post(&path, &json!({})).await.expect(200)
    }

    async fn health(&self) -> Value {
        let path = format!("{}/health", self.path);
        self.tenant.get(&path).await.expect(200)
    }

    async fn patch(&self, server: &Server, patch: Value) {
        server
            .patch(&self.path, &self.tenant.key, &patch)
            .await
            .expect(200);
    }

    /// Attempts with these outcomes, one a second, the last one now.
    async fn attempts(&self, outcomes: &[i16]) {
        let sql = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id,
                     endpoint_version, total_ms, outcome, applied)
                   SELECT e.tenant_id, gen_random_uuid(), 1, 1, now() - (cardinality($2) - u.ord) * interval '1 s',
                     e.id, gen_random_uuid(), e.version, 1, u.outcome, true
                   FROM endpoints e, unnest($2::int2[]) WITH ORDINALITY u(outcome, ord) WHERE e.public_id = $1";
        self.session
            .execute(sql, &[&self.id, &outcomes])
            .await
            .unwrap();
    }

    /// Breaker, cooldown in seconds; whether opened, probe and enabling are of one instant of the last
    /// minute; whether nothing is left of earlier failures.
    async fn runtime(&self) -> Vec<(i16, f64, bool, bool)> {
        let sql = "SELECT r.breaker, extract(epoch FROM r.cooldown)::float8,
                          r.opened_at = r.next_probe_at AND r.opened_at = r.enabled_at
                            AND r.opened_at > now() - interval '1 minute',
                          r.failing_since IS NULL AND r.refusing_since IS NULL
                   FROM endpoint_runtime r JOIN endpoints e
                     ON e.id = r.endpoint_id AND e.slot = r.slot AND e.tenant_id = r.tenant_id
                   WHERE e.public_id = $1";
        let rows = self.session.query(sql, &[&self.id]).await.unwrap();
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
            .collect()
    }

    async fn version(&self) -> i32 {
        let sql = "SELECT version FROM endpoints WHERE public_id = $1";
        self.session
            .query_one(sql, &[&self.id])
            .await
            .unwrap()
            .get(0)
    }
}

#[tokio::test]
async fn an_endpoint_that_is_enabled_again_starts_with_a_probe() {
    // B1
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, database.session().await).await;
    assert_eq!(bench.runtime().await, [], "a new one just starts");

    bench.act("disable").await;
    assert_eq!(bench.runtime().await, []);
    bench.act("enable").await;
    assert_eq!(bench.runtime().await, [(1, 300.0, true, true)]);

    let failing = "UPDATE endpoint_runtime SET breaker = 0, opened_at = NULL, failing_since = now() - interval '5 days',
                     refusing_since = now() - interval '5 days'";
    bench.session.execute(failing, &[]).await.unwrap();
    let patch = json!({"enabled": false, "breaker": {"cooldown_seconds": 60}});
    bench.patch(&server, patch).await;
    bench.patch(&server, json!({"enabled": true})).await;
    assert_eq!(bench.runtime().await, [(1, 60.0, true, true)]);
}

#[tokio::test]
async fn enabling_an_enabled_endpoint_changes_nothing() {
    // F45
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, database.session().await).await;
    let before = tenant.get(&bench.path).await.expect(200);

    assert_eq!(bench.act("enable").await, before);
    bench.patch(&server, json!({"enabled": true})).await;

    assert_eq!(tenant.get(&bench.path).await.expect(200), before);
    assert_eq!(bench.version().await, 1);
    assert_eq!(bench.runtime().await, []);
    let commands = "SELECT count(*) FROM commands";
    let count: i64 = bench.session.query_one(commands, &[]).await.unwrap().get(0);
    assert_eq!(count, 0);
}

#[tokio::test]
async fn an_attempt_shows_the_url_that_it_used() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, database.session().await).await;
    let event = tenant.publishes("a", &json!(1)).await;
    let delivery = text(&event["deliveries"][0]["id"]);
    let id = delivery.parse::<DeliveryId>().unwrap().0;
    let attempt = async |number: i16, version: i32| {
        let sql = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id,
                     endpoint_version, total_ms, outcome, applied)
                   SELECT tenant_id, id, $2, 1, now(), endpoint_id, event_id, $3, 12, 2, true FROM ready WHERE id = $1";
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&id, &number, &version];
        assert_eq!(bench.session.execute(sql, &params).await.unwrap(), 1);
    };

    let original = tenant.get(&bench.path).await.expect(200)["url"].clone();
    bench.patch(&server, json!({"description": "x"})).await;
    bench
        .patch(&server, json!({"url": "http://127.0.0.2/new"}))
        .await;
    bench.patch(&server, json!({"timeout_ms": 1_000})).await;
    for (number, version) in (1..).zip(1..=4) {
        attempt(number, version).await;
    }

    let attempts = tenant
        .get(&format!("/v1/deliveries/{delivery}/attempts"))
        .await
        .expect(200);
    let urls: Vec<&Value> = attempts["data"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|attempt| &attempt["url"])
        .collect();
    let new = json!("http://127.0.0.2/new");
    assert_eq!(urls, [&original, &original, &new, &new]);
    let kept = "SELECT count(*) FROM endpoint_urls";
    let count: i64 = bench.session.query_one(kept, &[]).await.unwrap().get(0);
    assert_eq!(count, 2, "only changes of the URL");
}

#[tokio::test]
async fn health_tells_of_the_breaker_and_of_the_last_attempts() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, database.session().await).await;
    assert_eq!(
        bench.health().await,
        json!({
            "state": "closed", "consecutive_failures": 0, "failure_threshold": 10, "opened_at": null,
            "cooldown_seconds": null, "next_probe_at": null, "failing_since": null, "p50_ms": null,
            "p95_ms": null, "p99_ms": null, "sample_count": 0, "slow": false, "degrading": false,
            "last_success_at": null, "last_failure_at": null
        })
    );

    // Failures before and after a success; throttled, permanent and internal ones count for nothing.
    bench.attempts(&[2, 2, 1, 2, 4, 3, 5, 7]).await;
    let health = bench.health().await;
    assert_eq!(health["consecutive_failures"], 2);
    assert!(text(&health["last_success_at"]) < text(&health["last_failure_at"]));

    let open = "INSERT INTO endpoint_runtime (endpoint_id, breaker, opened_at, cooldown, next_probe_at, failing_since, p95_ms)
                SELECT id, 1, now(), interval '600 s', now() + interval '600 s', now(), 5001 FROM endpoints";
    bench.session.execute(open, &[]).await.unwrap();
    let health = bench.health().await;
    assert_eq!(health["state"], "open");
    assert_eq!(health["cooldown_seconds"], 600);
    assert_eq!(health["failure_threshold"], 5);
    assert_eq!(
        (&health["slow"], &health["p95_ms"]),
        (&json!(false), &Value::Null),
        "how fast it is, the statistics say"
    );
    for instant in ["opened_at", "next_probe_at", "failing_since"] {
        assert!(health[instant].is_string(), "{instant}");
    }

    let due = "UPDATE endpoint_runtime SET next_probe_at = now() - interval '1 s'";
    bench.session.execute(due, &[]).await.unwrap();
    assert_eq!(bench.health().await["state"], "half_open");

    bench.act("disable").await;
    bench.act("enable").await;
    let health = bench.health().await;
    assert_eq!(
        health["consecutive_failures"], 0,
        "what was before counts no more"
    );
    assert!(health["last_failure_at"].is_string());
}
