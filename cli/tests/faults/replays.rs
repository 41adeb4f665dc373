//! Replays on the real thing (field report F82): thousands while live traffic runs, at the rate that was asked for
//! and within the endpoint's own limit, through the death of the worker that makes them; asked for twice, and
//! stopped half way. The 100,000 of that report, and what live events notice, are the load scenario `replay`.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use shared::runtime::clock::BootTime;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::{Answer, Arrival};
use crate::world::{TAKE_OVER, World};

/// So many events of an endpoint that refuses them: dead letters, each at its first attempt.
async fn dead_letters(world: &World, endpoint: &Endpoint, count: usize) -> Vec<Uuid> {
    world.receiver.answers(&endpoint.path, &[Answer::now(422)]);
    let poster = world.post(500, std::slice::from_ref(endpoint));
    eventually(PATIENCE, || async {
        (poster.accepted() >= count).then_some(())
    })
    .await;
    let events = poster.stop().await.all_accepted();
    let dead = format!(
        "SELECT count(*) FROM dead_letters WHERE endpoint_id = {}",
        endpoint.key
    );
    let all = i64::try_from(events.len()).unwrap();
    eventually(PATIENCE, || async {
        (world.count(&dead).await == all).then_some(())
    })
    .await;
    world.receiver.answers(&endpoint.path, &[Answer::now(200)]);
    events
}

/// An endpoint that gets nothing again by itself: refused a while, it would when it takes events again.
fn alone() -> Value {
    json!({ "replay_on_recovery": false })
}

async fn replay(world: &World, endpoint: &Endpoint, body: &Value) -> String {
    let path = format!("/v1/endpoints/{}/replay", endpoint.id);
    let replay = world.ask("POST", &path, body).await;
    assert_eq!(replay["status"], "running");
    replay["id"].as_str().unwrap().to_owned()
}

async fn ended(world: &World, id: &str, within: Duration) -> Value {
    let path = format!("/v1/replays/{id}");
    eventually(within, || async {
        let replay = world.ask("GET", &path, &Value::Null).await;
        replay["finished_at"].is_string().then_some(replay)
    })
    .await
}

/// What was delivered at this path, by event.
fn delivered(world: &World, path: &str) -> HashMap<Uuid, Vec<Arrival>> {
    let mut by_event: HashMap<Uuid, Vec<Arrival>> = HashMap::new();
    for arrival in world.receiver.at(path) {
        if arrival.status == 200 {
            by_event.entry(arrival.event).or_default().push(arrival);
        }
    }
    by_event
}

/// The most arrivals in any time of this length.
fn busiest(times: &mut [BootTime], span: Duration) -> usize {
    times.sort_unstable();
    let within = |first: usize| {
        let from = times[first];
        times[first..]
            .iter()
            .take_while(|at| at.since(from) < span)
            .count()
    };
    (0..times.len()).map(within).max().unwrap_or(0)
}

/// F82: the API answers at once with an id; each event comes once more under its `webhook-id`, marked; the rate and
/// the endpoint's own limit hold; live events of the same endpoint and of another one go on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f82_r1_thousands_are_sent_again_within_the_limits_while_live_traffic_runs() {
    const PER_SECOND: usize = 150;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(2).await;
    let limit =
        json!({ "replay_on_recovery": false, "rate_limit": { "per_second": 250, "burst": 20 } });
    let endpoint = world.endpoint("replayed", limit).await;
    let other = world.endpoint("other", json!({})).await;
    let dead: HashSet<Uuid> = dead_letters(&world, &endpoint, 2_000)
        .await
        .into_iter()
        .collect();

    let body = json!({ "rate_per_second": PER_SECOND });
    let id = replay(&world, &endpoint, &body).await;
    // The same once more, whichever status of it is shown: it is not doubled.
    let path = format!("/v1/endpoints/{}/replay", endpoint.id);
    let (status, text) = world.ask_as(Some(&world.key), ("POST", &path), b"{}").await;
    assert_eq!(status, 409, "{text}");
    assert!(text.contains(&id), "{text}");
    let poster = world.post(100, &[endpoint.clone(), other.clone()]);
    let replay = ended(&world, &id, PATIENCE * 3).await;
    let live = poster.stop().await.all_accepted();
    world.finished(&live).await;

    assert_eq!(replay["status"], "finished", "{replay}");
    assert_eq!(replay["total"], dead.len());
    assert_eq!(replay["done"], dead.len());
    assert_eq!(
        (&replay["failed"], &replay["skipped"]),
        (&json!(0), &json!(0))
    );
    let arrived = delivered(&world, &endpoint.path);
    let mut times = Vec::new();
    for event in &dead {
        let arrivals = &arrived[event];
        assert_eq!(arrivals.len(), 1, "each once");
        times.push(arrivals[0].at);
    }
    let most = busiest(&mut times, Duration::from_secs(1));
    // What was made in a second and waited for another one's permits.
    assert!(most <= PER_SECOND + 60, "{most} in a second");
    let mut all: Vec<BootTime> = arrived.values().flatten().map(|it| it.at).collect();
    let most = busiest(&mut all, Duration::from_secs(1));
    assert!(most <= 250 + 20 + 5, "{most} at the endpoint in a second");
    let marked = "SELECT count(*) FROM replayed r JOIN dead_letters d ON d.id = r.source_id AND d.replayed_as = r.delivery_id";
    let all = i64::try_from(dead.len()).unwrap();
    assert_eq!(world.count(marked).await, all);
    let new = arrived[dead.iter().next().unwrap()][0].delivery;
    let path = format!("/v1/deliveries/{}", shared::ids::DeliveryId(new));
    let shown = world.ask("GET", &path, &Value::Null).await;
    assert_eq!(shown["replay_id"], id);
}

/// Whoever makes a replay's deliveries is killed in the middle: another one goes on, and nothing is made twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f82_a_replay_survives_the_death_of_the_worker_that_makes_it() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(2).await;
    let endpoint = world.endpoint("replayed", alone()).await;
    let dead = dead_letters(&world, &endpoint, 1_000).await;
    let id = replay(&world, &endpoint, &json!({ "rate_per_second": 60 })).await;
    eventually(PATIENCE, || async {
        (delivered(&world, &endpoint.path).len() > 100).then_some(())
    })
    .await;

    let owner = "SELECT owner FROM leases WHERE name = 'replays'";
    let owner: Uuid = world
        .sql()
        .await
        .query_one(owner, &[])
        .await
        .unwrap()
        .get(0);
    let place = workers
        .iter()
        .position(|it| it.incarnation == owner)
        .unwrap();
    let mut victim = workers.swap_remove(place);
    victim.process.kill().await;
    let replay = ended(&world, &id, PATIENCE * 2 + TAKE_OVER).await;

    assert_eq!(replay["done"], dead.len(), "{replay}");
    let twice = "SELECT count(*) FROM (SELECT FROM replayed GROUP BY endpoint_id, event_id HAVING count(*) > 1) x";
    assert_eq!(world.count(twice).await, 0);
    let arrived = delivered(&world, &endpoint.path);
    assert!(dead.iter().all(|event| arrived.contains_key(event)));
    world.finished(&[]).await;
}

/// A replay is stopped half way: what was not sent is cancelled, what was is counted, and the rest stays a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f82_a_cancelled_replay_stops_and_says_how_far_it_came() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("replayed", alone()).await;
    let dead = dead_letters(&world, &endpoint, 500).await;
    let id = replay(&world, &endpoint, &json!({ "rate_per_second": 50 })).await;
    eventually(PATIENCE, || async {
        (delivered(&world, &endpoint.path).len() > 20).then_some(())
    })
    .await;

    let stopping = world
        .ask("POST", &format!("/v1/replays/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(stopping["status"], "cancelled");
    let replay = ended(&world, &id, PATIENCE).await;

    let number = |name: &str| usize::try_from(replay[name].as_i64().unwrap()).unwrap();
    assert_eq!(number("done") + number("skipped"), number("total"));
    assert!(number("total") < dead.len(), "{replay}");
    let open = "SELECT count(*) FROM dead_letters WHERE replayed_as IS NULL";
    let left = i64::try_from(dead.len() - number("total")).unwrap();
    assert_eq!(world.count(open).await, left);
    world.finished(&[]).await;
}

/// A retry of what is on its way behind an open breaker probes now, instead of after its cooldown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_behind_an_open_breaker_probes_now() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let settings = json!({ "breaker": { "failures": 1, "cooldown_seconds": 3600, "max_cooldown_seconds": 3600 },
                           "backoff": { "base_seconds": 1, "max_seconds": 1 }, "max_attempts": 20 });
    let endpoint = world.endpoint("away", settings).await;
    world.receiver.answers("/away", &[Answer::now(503)]);
    let delivery = world.publish(&endpoint).await;
    let open = "SELECT count(*) FROM endpoint_runtime WHERE breaker = 1";
    eventually(PATIENCE, || async {
        (world.count(open).await == 1).then_some(())
    })
    .await;
    world.receiver.answers("/away", &[Answer::now(200)]);

    let path = format!("/v1/deliveries/{}/retry", shared::ids::DeliveryId(delivery));
    world.ask("POST", &path, &json!({})).await;

    world.finished(&[]).await;
    assert!(world.receiver.at("/away").iter().any(|it| it.status == 200));
}
