//! Endpoints whose owner changes them, or that fail for days (field reports F42 to F49): who is disabled
//! and who is not, what brings an endpoint back, and with which of its settings a request is made.

use std::time::Duration;

use serde_json::{Value, json};
use shared::ids::{DeliveryId, EndpointId};
use shared::policy::signing::{Secret, Signed, verify_standard};
use shared::runtime::clock::boot_time;
use shared::sealing::MasterKeys;
use shared::store::{Session, partitions};
use shared::testing::{TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::{Answer, Arrival};
use crate::world::{AtRisk, World};

/// The contract: what a tenant changes holds so soon after the reply.
const IN_FORCE: Duration = Duration::from_secs(2);

/// Two attempts within a second.
fn quick() -> Value {
    json!({ "max_attempts": 2, "backoff": { "base_seconds": 1, "max_seconds": 1 } })
}

async fn act(world: &World, endpoint: &Endpoint, verb: &str) -> Value {
    let path = format!("/v1/endpoints/{}/{verb}", endpoint.id);
    world.ask("POST", &path, &Value::Null).await
}

async fn patch(world: &World, endpoint: &Endpoint, patch: Value) {
    let path = format!("/v1/endpoints/{}", endpoint.id);
    world.ask("PATCH", &path, &patch).await;
}

async fn shown(world: &World, endpoint: &Endpoint, what: &str) -> Value {
    let path = format!("/v1/endpoints/{}{what}", endpoint.id);
    world.ask("GET", &path, &Value::Null).await
}

/// What the endpoint of these notices was told of another one: the kinds, oldest first.
fn told(world: &World, listener: &Endpoint, about: &Endpoint) -> Vec<String> {
    let arrivals = world.receiver.at(&listener.path);
    let about = |arrival: &&Arrival| {
        let body: Value = serde_json::from_slice(arrival.request.body()).unwrap();
        body["endpoint_id"] == about.id
    };
    let kind = |arrival: &Arrival| arrival.request.header("postrider-event-type").unwrap();
    arrivals.iter().filter(about).map(kind).collect()
}

/// Attempts over the last `days`, one every few minutes to hours, of which each `nth` failed; the endpoint
/// is known to fail for as long, which for one with successes only a crash could have left behind.
async fn past(sql: &Session, endpoint: &Endpoint, days: f64, attempts: i32, nth: i32) {
    let history = "
        INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                              total_ms, outcome, applied)
        SELECT e.tenant_id, gen_random_uuid(), 1, 0, now() - $2::float8 * interval '1 day' * n / $3::int4, e.id,
               gen_random_uuid(), 1, 1000, CASE WHEN n % $4::int4 = 0 THEN 2 ELSE 1 END, true
        FROM endpoints e, generate_series(1, $3::int4) n WHERE e.id = $1";
    let failing = "
        INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, failing_since)
        SELECT id, slot, tenant_id, now() - $2::float8 * interval '1 day' FROM endpoints WHERE id = $1";
    let key = endpoint.key;
    let rows = sql.execute(history, &[&key, &days, &attempts, &nth]).await;
    assert_eq!(rows.unwrap(), u64::try_from(attempts).unwrap());
    assert_eq!(sql.execute(failing, &[&key, &days]).await.unwrap(), 1);
}

/// F42, F43, F44, F46. Three endpoints with a past: one has only failed for six days, one for three, one
/// has failed in 1.5 % of its many attempts and fails just now. The first is disabled, once, and nothing
/// follows; the second one's owner is warned; the third goes on. One call brings the first one back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn who_fails_for_days_is_disabled_once_and_back_by_one_call_and_who_is_busy_is_left_alone() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let sql = world.sql().await;
    let listener = world.endpoint("postrider.*", json!({})).await;
    let mut settings = quick();
    settings["breaker"] = json!({ "failures": 1_000 });
    let dead = world.endpoint("dead", settings.clone()).await;
    let half = world.endpoint("half", settings.clone()).await;
    let busy = world.endpoint("busy", settings).await;
    let now = partitions::database_time(&sql).await.unwrap();
    partitions::ensure(&sql, now - Duration::from_secs(6 * 86_400), 8)
        .await
        .unwrap();
    past(&sql, &dead, 6.0, 20, 1).await;
    past(&sql, &half, 3.0, 20, 1).await;
    past(&sql, &busy, 6.0, 20_000, 67).await;
    world.receiver.answers("/dead", &[Answer::now(503)]);
    world.receiver.answers("/half", &[Answer::now(503)]);
    let answers = [Answer::now(503), Answer::now(200)];
    world.receiver.answers("/busy", &answers);
    let _workers = world.workers(2).await;

    world.publish(&half).await;
    let poster = world.post(60, &[dead.clone(), busy.clone()]);
    let disabled = format!(
        "SELECT count(*) FROM endpoints WHERE state = 2 AND state_reason IS NOT NULL AND id = {}",
        dead.key
    );
    eventually(PATIENCE, || async {
        (world.count(&disabled).await == 1).then_some(())
    })
    .await;
    let since = boot_time();
    let heard = || async {
        let dead = told(&world, &listener, &dead);
        let half = told(&world, &listener, &half);
        let dead = dead.iter().any(|it| it == "postrider.endpoint.disabled");
        let half = half
            .iter()
            .any(|it| it == "postrider.endpoint.disabling_soon");
        (dead && half && boot_time().since(since) > IN_FORCE).then_some(())
    };
    eventually(PATIENCE, heard).await;
    poster.stop().await.all_accepted();
    world.finished(&[]).await;

    let count = |about: &Endpoint, kind: &str| {
        let told = told(&world, &listener, about);
        told.iter().filter(|it| *it == kind).count()
    };
    assert_eq!(count(&dead, "postrider.endpoint.disabled"), 1);
    assert_eq!(count(&half, "postrider.endpoint.disabling_soon"), 1);
    assert_eq!(count(&half, "postrider.endpoint.disabled"), 0);
    assert_eq!(told(&world, &listener, &busy), [""; 0]);
    for (endpoint, enabled) in [(&dead, false), (&half, true), (&busy, true)] {
        assert_eq!(shown(&world, endpoint, "").await["enabled"], enabled);
    }
    let while_failing = world.receiver.at("/dead");
    let last = while_failing.last().unwrap().at.since(since);
    assert!(last <= IN_FORCE, "a request {last:?} after it was disabled");
    let skipped = format!(
        "SELECT count(*) FROM closed WHERE status = 7 AND reason = 1 AND endpoint_id = {}",
        dead.key
    );
    let skipped_before = world.count(&skipped).await;
    assert!(skipped_before > 0, "events came while it was disabled");

    world.receiver.answers("/dead", &[Answer::now(200)]);
    act(&world, &dead, "enable").await;
    for _ in 0..10 {
        world.publish(&dead).await;
    }
    world.finished(&[]).await;
    let after = world.receiver.at("/dead").split_off(while_failing.len());
    assert_eq!(after.len(), 10, "what came since, and nothing else");
    assert!(
        after[0].answered.unwrap() <= after[1].at,
        "a probe goes first, alone"
    );
    assert_eq!(world.count(&skipped).await, skipped_before);
    assert_eq!(shown(&world, &dead, "/health").await["state"], "closed");
}

/// F45: only a delivery that succeeds, or disabling and enabling, starts the count of failures anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_its_owner_edits_resets_the_failures_of_an_endpoint() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let settings = json!({
        "max_attempts": 100, "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 10, "cooldown_seconds": 3_600 },
    });
    let endpoint = world.endpoint("fails", settings).await;
    world.receiver.answers("/fails", &[Answer::now(503)]);
    world.receiver.answers("/elsewhere", &[Answer::now(503)]);
    let edit = async |round: u32| {
        let url = world.receiver.url("/elsewhere");
        patch(
            &world,
            &endpoint,
            json!({ "description": round.to_string() }),
        )
        .await;
        patch(&world, &endpoint, json!({ "url": url })).await;
        let headers = json!({ "headers": { "x-round": round.to_string() } });
        patch(&world, &endpoint, headers).await;
        patch(&world, &endpoint, json!({ "max_in_flight": 10 + round })).await;
        patch(&world, &endpoint, json!({ "enabled": true })).await;
        act(&world, &endpoint, "enable").await;
        let commands = "SELECT count(*) FROM commands";
        eventually(PATIENCE, || async {
            (world.count(commands).await == 0).then_some(())
        })
        .await;
    };

    world.publish(&endpoint).await;
    let sent = async |count| {
        let enough = || async { (world.receiver.count() >= count).then_some(()) };
        eventually(PATIENCE, enough).await;
    };
    sent(6).await;
    edit(1).await;
    let opened = "SELECT count(*) FROM endpoint_runtime WHERE breaker = 1";
    eventually(PATIENCE, || async {
        (world.count(opened).await == 1).then_some(())
    })
    .await;
    let requests = world.receiver.count();
    assert!(
        (10..=13).contains(&requests),
        "opened after {requests} failures, not ten"
    );

    let health = shown(&world, &endpoint, "/health").await;
    edit(2).await;
    assert_eq!(shown(&world, &endpoint, "/health").await, health);
    assert_eq!(health["state"], "open");
    assert_eq!(world.receiver.count(), requests, "it was left alone");

    act(&world, &endpoint, "disable").await;
    act(&world, &endpoint, "enable").await;
    world.receiver.answers("/elsewhere", &[Answer::now(200)]);
    world.publish(&endpoint).await;
    world.finished(&[]).await;
    let health = shown(&world, &endpoint, "/health").await;
    assert_eq!(
        (&health["state"], &health["consecutive_failures"]),
        (&json!("closed"), &json!(0))
    );
}

/// F48: under load, each request is of one version as a whole: URL, headers and secret; and the attempt
/// shows the URL that was used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_never_mixes_two_versions_of_its_endpoint() {
    const VERSIONS: usize = 8;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(2).await;
    let endpoint = world.endpoint("v", json!({})).await;
    let mut sql = world.sql().await;
    let mut secrets = Vec::new();
    let poster = world.post(100, std::slice::from_ref(&endpoint));
    for version in 0..VERSIONS {
        let secret = Secret::from_bytes(&[u8::try_from(version).unwrap(); 32]).unwrap();
        let url = world.receiver.url(&format!("/v{version}"));
        rewrite(&mut sql, &endpoint, &url, &version.to_string(), &secret).await;
        secrets.push(secret);
        let path = format!("/v{version}");
        let some = || async { (world.receiver.at(&path).len() >= 10).then_some(()) };
        eventually(PATIENCE, some).await;
    }
    let accepted = poster.stop().await.all_accepted();
    world.finished(&accepted).await;

    let arrivals = world.receiver.all();
    assert_eq!(AtRisk::default().excuse(&arrivals), 0, "repetitions");
    for arrival in arrivals.iter().filter(|it| it.path != "/v") {
        let version: usize = arrival.path.trim_start_matches("/v").parse().unwrap();
        let own = arrival.request.header("x-version").unwrap();
        assert_eq!(own, version.to_string(), "headers at {}", arrival.path);
        assert!(
            signed_with(arrival, &secrets[version]),
            "secret at {}",
            arrival.path
        );
        assert!(!signed_with(arrival, &secrets[(version + 1) % VERSIONS]));
    }
    let used = "
        SELECT a.delivery_id, u.url FROM attempts a CROSS JOIN LATERAL (
          SELECT url FROM endpoint_urls u WHERE u.endpoint_id = a.endpoint_id AND u.version <= a.endpoint_version
          ORDER BY u.version DESC LIMIT 1) u";
    let rows = sql.query(used, &[]).await.unwrap();
    assert_eq!(rows.len(), arrivals.len());
    for row in rows {
        let delivery: uuid::Uuid = row.get(0);
        let arrival = arrivals.iter().find(|it| it.delivery == delivery).unwrap();
        assert_eq!(
            row.get::<_, String>(1),
            world.receiver.url(&arrival.path),
            "the URL that it used"
        );
    }
}

/// URL, headers and secret in one transaction, as any change of an endpoint.
async fn rewrite(sql: &mut Session, endpoint: &Endpoint, url: &str, own: &str, secret: &Secret) {
    let keys = MasterKeys::new([7; 32], None);
    let id = endpoint.id.parse::<EndpointId>().unwrap().0;
    let sealed = keys.seal(secret.as_bytes(), &format!("secret:{id}"));
    let headers = json!([["x-version", own]]).to_string();
    let headers = keys.seal(headers.as_bytes(), &format!("headers:{id}"));
    let transaction = sql.transaction().await.unwrap();
    let key = endpoint.key;
    let change = "
        WITH old AS (DELETE FROM endpoint_secrets WHERE endpoint_id = $1),
        e AS (
          UPDATE endpoints SET url = $2, sealed_headers = $3, version = version + 1, updated_at = now()
          WHERE id = $1 RETURNING *),
        u AS (INSERT INTO endpoint_urls (endpoint_id, version, url) SELECT id, version, url FROM e),
        t AS (UPDATE tenants SET config_version = config_version + 1 WHERE id IN (SELECT tenant_id FROM e))
        INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT slot, tenant_id, id, 1 FROM e";
    let changed = transaction.execute(change, &[&key, &url, &headers]).await;
    assert_eq!(changed.unwrap(), 1);
    let new = "INSERT INTO endpoint_secrets (endpoint_id, sealed) VALUES ($1, $2)";
    transaction.execute(new, &[&key, &sealed]).await.unwrap();
    transaction
        .batch_execute("NOTIFY postrider_commands")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
}

fn signed_with(arrival: &Arrival, secret: &Secret) -> bool {
    let header = |name| arrival.request.header(name).unwrap();
    let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
    let signed = Signed {
        id: &id,
        timestamp: &timestamp,
        body: arrival.request.body(),
    };
    let signatures = header("webhook-signature");
    let now = timestamp.parse().unwrap();
    let secrets = std::slice::from_ref(secret);
    verify_standard(secrets, &signed, &signatures, now, IN_FORCE).is_ok()
}

/// F48: what is on the wire when the URL changes ends at the old one; its retry goes to the new one; each
/// attempt says where it went.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_goes_to_the_url_of_now_and_each_attempt_says_where_it_went() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("old", quick()).await;
    let refusal = Answer::late(Duration::from_secs(3)).status(503);
    world.receiver.answers("/old", &[refusal]);

    let delivery = world.publish(&endpoint).await;
    let open = || async { (world.receiver.open(|_| true) == 1).then_some(()) };
    eventually(PATIENCE, open).await;
    let (old, new) = (world.receiver.url("/old"), world.receiver.url("/new"));
    let change = json!({ "url": new, "headers": { "x-version": "new" } });
    patch(&world, &endpoint, change).await;
    world.finished(&[]).await;

    let arrivals = world.receiver.all();
    let seen: Vec<_> = arrivals
        .iter()
        .map(|it| (it.path.as_str(), it.request.header("x-version")))
        .collect();
    assert_eq!(seen, [("/old", None), ("/new", Some("new".to_owned()))]);
    let path = format!("/v1/deliveries/{}/attempts", DeliveryId(delivery));
    let attempts = world.ask("GET", &path, &Value::Null).await;
    let attempts = attempts["data"].as_array().unwrap();
    let urls: Vec<&Value> = attempts.iter().map(|attempt| &attempt["url"]).collect();
    assert_eq!(urls, [&json!(new), &json!(old)]);
}

/// F49: what came while an endpoint was disabled is there to be seen and is not sent by itself; nor is what
/// had died before, although sending that again is how any other outage ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_while_an_endpoint_was_disabled_is_kept_as_skipped_and_not_sent_by_itself() {
    const EVENTS: usize = 100;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = json!({ "max_attempts": 1 });
    let endpoint = world.endpoint("paused", endpoint).await;
    world.receiver.answers("/paused", &[Answer::now(503)]);
    let died = world.publish(&endpoint).await;
    let dead = "SELECT count(*) FROM dead_letters d JOIN endpoint_runtime r USING (endpoint_id) WHERE r.breaker = 1";
    eventually(PATIENCE, || async {
        (world.count(dead).await == 1).then_some(())
    })
    .await;
    world.receiver.answers("/paused", &[Answer::now(200)]);

    act(&world, &endpoint, "disable").await;
    for _ in 0..EVENTS {
        world.publish(&endpoint).await;
    }
    act(&world, &endpoint, "enable").await;
    let new = world.publish(&endpoint).await;
    let closed =
        "SELECT count(*) FROM endpoint_runtime WHERE breaker = 0 AND recover_until IS NULL";
    eventually(PATIENCE, || async {
        (world.count(closed).await == 1).then_some(())
    })
    .await;
    world.finished(&[]).await;

    let arrivals = world.receiver.all();
    let sent: Vec<_> = arrivals.iter().map(|it| it.delivery).collect();
    assert_eq!(
        sent,
        [died, new],
        "after it was enabled only what came since"
    );
    let path = format!(
        "/v1/deliveries?endpoint_id={}&status=skipped&limit=100",
        endpoint.id
    );
    let list = world.ask("GET", &path, &Value::Null).await;
    let skipped = list["data"].as_array().unwrap();
    assert_eq!(skipped.len(), EVENTS);
    for delivery in skipped {
        assert_eq!(delivery["close_reason"], "endpoint_disabled");
    }
}
