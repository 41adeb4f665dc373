//! F35: API, worker and database each in a time zone of its own. All that is said is UTC.

use serde_json::{Value, json};
use shared::runtime::clock::wall_time;
use shared::testing::{TestDatabase, eventually};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime, UtcOffset};

use super::{question, verified};
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::{ADMIN_TOKEN, Setting, World};

/// More than a message takes, less than any zone is off.
const NOW: Duration = Duration::minutes(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f35_in_three_time_zones_every_instant_is_utc_and_the_same_everywhere() {
    let database = TestDatabase::new().await;
    let zone = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''America/St_Johns''', current_database()); END $$";
    database.session().await.batch_execute(zone).await.unwrap();
    let zone = |name: &str| -> Setting { ("TZ", name.to_owned()) };
    let api = [zone("Pacific/Apia")];
    let world = World::start_with(database.url(), database.database(), &[], &api).await;
    let worker = world.worker_with(&[zone("Asia/Kolkata")]).await;
    let settings = json!({ "backoff": { "base_seconds": 3_600, "max_seconds": 86_400 } });
    let fails = world.endpoint("fails", settings).await;
    world.receiver.answers(&fails.path, &[Answer::now(503)]);
    let takes = world.endpoint("takes", json!({})).await;
    world.publish(&fails).await;
    world.publish(&takes).await;
    let recorded = "SELECT count(*) FROM attempts";
    eventually(PATIENCE, || async {
        (world.count(recorded).await == 2).then_some(())
    })
    .await;

    for endpoint in [&fails, &takes] {
        let arrivals = world.receiver.at(&endpoint.path);
        let header = |name| arrivals[0].request.header(name).unwrap();
        let stamp = utc(&header("x-delivery-timestamp"));
        let seconds: i64 = header("webhook-timestamp").parse().unwrap();
        assert_eq!(stamp.unix_timestamp(), seconds);
        verified(&[question(&arrivals[0], &endpoint.secret)]);
    }
    let due = "SELECT due_at FROM retry";
    let due: OffsetDateTime = world.sql().await.query_one(due, &[]).await.unwrap().get(0);
    let list = format!("/v1/deliveries?endpoint_id={}", fails.id);
    let shown = world.ask("GET", &list, &Value::Null).await;
    let next = shown["data"][0]["next_attempt_at"].as_str().unwrap();
    assert_eq!(OffsetDateTime::parse(next, &Rfc3339).unwrap(), due);
    assert!(due > wall_time());

    let mut instants = 0;
    for path in ["/v1/deliveries", "/v1/events", "/v1/endpoints"] {
        let all = world.ask("GET", path, &Value::Null).await;
        instants += all_utc(&all);
        // All of them: which of two comes first is chance if they are of one millisecond.
        for one in all["data"].as_array().unwrap() {
            let path = format!("{path}/{}", one["id"].as_str().unwrap());
            instants += all_utc(&world.ask("GET", &path, &Value::Null).await);
            if path.starts_with("/v1/deliveries") {
                let attempts = format!("{path}/attempts");
                instants += all_utc(&world.ask("GET", &attempts, &Value::Null).await);
            }
        }
    }
    let health = format!("/v1/endpoints/{}/health", fails.id);
    instants += all_utc(&world.ask("GET", &health, &Value::Null).await);
    let (status, tenants) = world
        .ask_as(Some(ADMIN_TOKEN), ("GET", "/v1/admin/tenants"), b"")
        .await;
    assert_eq!(status, 200);
    instants += all_utc(&serde_json::from_str(&tenants).unwrap());
    assert!(instants >= 20, "{instants} instants were looked at");
    since_and_until_count_in_any_offset(&world).await;
    for log in [world.api_process.log(), worker.process.log()] {
        let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        utc(last["timestamp"].as_str().unwrap());
    }
}

/// `since` and `until` mean the instant, whatever offset it is written in.
async fn since_and_until_count_in_any_offset(world: &World) {
    let offset = UtcOffset::from_hms(13, 0, 0).unwrap();
    let at = |minutes: i64| {
        let at = wall_time() + Duration::minutes(minutes);
        let text = at.to_offset(offset).format(&Rfc3339).unwrap();
        text.replace('+', "%2B")
    };
    let found = async |since: i64, until: i64| {
        let path = format!("/v1/events?since={}&until={}", at(since), at(until));
        let page = world.ask("GET", &path, &Value::Null).await;
        page["data"].as_array().unwrap().len()
    };
    assert_eq!(found(-60, 60).await, 2);
    assert_eq!(found(60, 120).await, 0);
    assert_eq!(found(-120, -60).await, 0);
}

/// Every `…_at` in a document is about now or later and says that it is UTC; how many there are.
fn all_utc(document: &Value) -> usize {
    match document {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match value.as_str() {
                Some(text) if name.ends_with("_at") => {
                    let at = utc(text);
                    assert!(at > wall_time() - NOW, "{name}: {text}");
                    assert!(
                        name == "next_attempt_at" || at < wall_time() + NOW,
                        "{name}: {text}"
                    );
                    1
                }
                Some(_) | None => all_utc(value),
            })
            .sum(),
        Value::Array(values) => values.iter().map(all_utc).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn utc(text: &str) -> OffsetDateTime {
    assert!(text.ends_with('Z'), "{text}");
    OffsetDateTime::parse(text, &Rfc3339).unwrap()
}
