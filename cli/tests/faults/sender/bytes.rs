//! P1 through the whole product (field reports F26–F29): the bytes that were posted are those that every
//! receiver gets and those that are signed, on the first attempt, a retry, a retry by another process, and
//! a replay.

use std::collections::HashMap;

use load_tests::client::{Connection, request};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::process::Signal;
use serde_json::{Value, json};
use shared::ids::{DeliveryId, EventId};
use shared::testing::{TestDatabase, eventually};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{documents, question, verified};
use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::{Worker, World};

/// So many random documents; `POSTRIDER_DOCUMENTS` asks for more.
const DOCUMENTS: usize = 3_000;
/// Those that are sent more than once, of each way to do so.
const REPEATED: usize = 60;
/// Posts under way at once.
const POSTERS: usize = 4;

/// What was accepted, by its event.
type Posted = HashMap<Uuid, Vec<u8>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_what_is_posted_arrives_and_is_signed_byte_for_byte_on_every_way() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let worker = world.worker().await;
    let random = random_documents();
    let mut special: Vec<_> = documents::special().collect();
    special.extend(edges().map(documents::of_size));
    let some = [special.as_slice(), &random[..REPEATED]].concat();

    let plain = world.endpoint("plain", json!({})).await;
    let mut posted = post(&world, &plain, [special, random].concat()).await;
    let retried = retried(&world, &some, &mut posted).await;
    let replayed = replayed(&world, &some, &mut posted).await;
    let handed_over = retried_by_another_process(&world, worker, &some, &mut posted).await;
    world
        .finished(&posted.keys().copied().collect::<Vec<_>>())
        .await;

    let arrivals = world.receiver.all();
    assert!(arrivals.len() > posted.len() + 3 * REPEATED);
    let secrets: HashMap<_, _> = [plain, retried, replayed, handed_over]
        .into_iter()
        .map(|endpoint| (endpoint.path, endpoint.secret))
        .collect();
    let mut requests = Vec::new();
    for (number, arrival) in arrivals.iter().enumerate() {
        let sent = arrival.request.body();
        let wanted = posted[&arrival.event].as_slice();
        assert_eq!(sent, wanted, "{}", String::from_utf8_lossy(wanted));
        let request = question(arrival, &secrets[&arrival.path]);
        requests.push(request);
        // The libraries are able to refuse.
        if number.is_multiple_of(50) {
            let mut forged = question(arrival, &secrets[&arrival.path]);
            forged.body.push(b' ');
            forged.genuine = false;
            requests.push(forged);
        }
    }
    verified(&requests);
}

/// F27, F28: what is no JSON is refused with a reason, and nothing of it is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_what_is_no_json_is_refused_with_a_reason_and_never_an_event() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    world.endpoint("refused", json!({})).await;
    let refused: [&[u8]; 12] = [
        b"01",
        b"-",
        b"1.",
        b"NaN",
        b"\"\x00\"",
        b"\"\n\"",
        b"\"\\ud8\"",
        b"\"\\x00\"",
        b"\"\xff\"",
        b"\"\xed\xa0\xbd\"",
        b"\xef\xbb\xbf{}",
        b"{\"a\":1,}",
    ];
    for payload in refused {
        let (status, reply) = world
            .ask_as(
                Some(&world.key),
                ("POST", "/v1/events"),
                &event("refused", payload),
            )
            .await;
        let text = String::from_utf8_lossy(payload).into_owned();
        assert!((400..500).contains(&status), "{text:?}: {status}");
        let problem: Value = serde_json::from_str(&reply).unwrap();
        assert!(
            problem["detail"].as_str().unwrap().len() > 10,
            "{text:?}: {reply}"
        );
    }
    assert_eq!(world.count("SELECT count(*) FROM events").await, 0);
}

/// The edges of SHA-256's blocks, and of a page.
fn edges() -> impl Iterator<Item = usize> {
    (55..=65).chain(119..=129).chain(4_095..=4_097)
}

fn random_documents() -> Vec<Vec<u8>> {
    let asked = std::env::var("POSTRIDER_DOCUMENTS").ok();
    let count = asked.map_or(DOCUMENTS, |count| count.parse().unwrap());
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count)
        .map(|_| documents::json().new_tree(&mut runner).unwrap().current())
        .map(String::into_bytes)
        .collect()
}

/// 503, then 200 a second later at most.
async fn retried(world: &World, documents: &[Vec<u8>], posted: &mut Posted) -> Endpoint {
    let endpoint = world.endpoint("retried", patient()).await;
    let script = [Answer::now(503), Answer::now(200)];
    world.receiver.answers(&endpoint.path, &script);
    posted.extend(post(world, &endpoint, documents.to_vec()).await);
    arrived(world, &endpoint, 2 * documents.len()).await;
    endpoint
}

/// Nothing is taken until all are dead letters or wait behind the breaker; then the receiver is well.
async fn replayed(world: &World, documents: &[Vec<u8>], posted: &mut Posted) -> Endpoint {
    let settings = json!({
        "max_attempts": 1,
        "breaker": { "failures": 4, "cooldown_seconds": 1, "max_cooldown_seconds": 1 },
    });
    let endpoint = world.endpoint("replayed", settings).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(503)]);
    posted.extend(post(world, &endpoint, documents.to_vec()).await);
    arrived(world, &endpoint, 4).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(200)]);
    let left = "SELECT count(*) FROM dead_letters WHERE replayed_as IS NULL";
    let replays = "SELECT count(*) FROM dead_letters WHERE replayed_as IS NOT NULL";
    eventually(PATIENCE, || async {
        let all = world.count(left).await == 0 && world.count(replays).await >= 4;
        all.then_some(())
    })
    .await;
    endpoint
}

/// Rows that one process wrote are read by the next one, as after an upgrade, and sent when the tenant asks.
async fn retried_by_another_process(
    world: &World,
    mut worker: Worker,
    documents: &[Vec<u8>],
    posted: &mut Posted,
) -> Endpoint {
    let mut settings = patient();
    settings["backoff"] = json!({ "base_seconds": 3_600, "max_seconds": 86_400 });
    let endpoint = world.endpoint("handed-over", settings).await;
    let script = [Answer::now(503), Answer::now(200)];
    world.receiver.answers(&endpoint.path, &script);
    posted.extend(post(world, &endpoint, documents.to_vec()).await);
    arrived(world, &endpoint, documents.len()).await;
    worker.process.signal(Signal::TERM);
    assert!(worker.process.ends().await.success());
    let waiting = "SELECT id FROM retry";
    let waiting = world.sql().await.query(waiting, &[]).await.unwrap();
    // By chance a few were due at once.
    assert!(waiting.len() > documents.len() * 9 / 10);

    let _next = world.worker().await;
    for row in waiting {
        let path = format!("/v1/deliveries/{}/retry", DeliveryId(row.get(0)));
        let path = ("POST", path.as_str());
        let (status, reply) = world.ask_as(Some(&world.key), path, b"").await;
        assert!([202, 409].contains(&status), "{reply}");
    }
    arrived(world, &endpoint, 2 * documents.len()).await;
    world.finished(&[]).await;
    endpoint
}

/// The quickest ladder, and no breaker.
fn patient() -> Value {
    json!({
        "max_attempts": 20,
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 1_000 },
    })
}

async fn arrived(world: &World, endpoint: &Endpoint, count: usize) {
    eventually(PATIENCE, || async {
        (world.receiver.count_at(&endpoint.path) >= count).then_some(())
    })
    .await;
}

/// The event whose payload is this text as it stands.
fn event(event_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!(r#"{{"type":"{event_type}","payload":"#);
    [head.as_bytes(), payload, b"}"].concat()
}

/// Posts these documents; all must be accepted. What stands around a JSON value is the envelope's, not its.
async fn post(world: &World, endpoint: &Endpoint, documents: Vec<Vec<u8>>) -> Posted {
    let mut posters = JoinSet::new();
    for share in documents.chunks(documents.len().div_ceil(POSTERS)) {
        let (api, key) = (world.api, world.key.clone());
        let event_type = endpoint.event_type.clone();
        let share = share.to_vec();
        posters.spawn(async move {
            let mut connection = Connection::open(api).await.unwrap();
            let mut posted = Vec::new();
            for document in share {
                let body = event(&event_type, &document);
                let request = request("POST", "/v1/events", Some(&key), &body);
                let reply = connection.exchange(&request).await.unwrap();
                let text = String::from_utf8_lossy(reply.body);
                assert_eq!(
                    reply.status,
                    202,
                    "{text} {}",
                    String::from_utf8_lossy(&body)
                );
                let reply: Value = serde_json::from_str(&text).unwrap();
                let event: EventId = reply["id"].as_str().unwrap().parse().unwrap();
                let blank = [' ', '\t', '\n', '\r'];
                let value = std::str::from_utf8(&document).unwrap().trim_matches(blank);
                posted.push((event.0, value.as_bytes().to_vec()));
            }
            posted
        });
    }
    posters.join_all().await.into_iter().flatten().collect()
}
