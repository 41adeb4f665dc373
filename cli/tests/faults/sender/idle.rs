//! F01: receivers that close a connection just when the next request comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use load_tests::http;
use serde_json::{Value, json};
use shared::runtime::spawn_driver;
use shared::testing::{TestDatabase, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::world::World;

/// As in the report: the gap between events is the receiver's idle limit.
const GAP: Duration = Duration::from_millis(50);
const EVENTS: usize = 80;
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_a_receiver_that_closes_idle_connections_gets_every_event_and_costs_nobody() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let closing = Closing::start(Way::WhenIdle).await;
    let endpoint = closing.endpoint(&world).await;
    let per_second = u32::try_from(1_000 / GAP.as_millis()).unwrap();
    let poster = world.post(per_second, std::slice::from_ref(&endpoint));
    eventually(PATIENCE, || async {
        (poster.accepted() >= EVENTS).then_some(())
    })
    .await;

    let accepted = poster.stop().await.all_accepted();

    delivered(&world, accepted.len()).await;
    let maybe_sent = nothing_is_charged(&world, &endpoint).await;
    closing.each_once(accepted.len());
    eprintln!("{} events, {maybe_sent} maybe sent", accepted.len());
}

/// The worst of the above each time: the request arrives whole and its connection ends without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_a_receiver_that_closes_upon_each_reuse_gets_every_event_and_costs_nobody() {
    const REUSES: usize = 8;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let closing = Closing::start(Way::UponReuse).await;
    let endpoint = closing.endpoint(&world).await;
    // The one connection that waits is that of the event before.
    for number in 0..=REUSES {
        world.publish(&endpoint).await;
        delivered(&world, number + 1).await;
    }

    let maybe_sent = nothing_is_charged(&world, &endpoint).await;
    closing.each_once(REUSES + 1);

    assert_eq!(usize::try_from(maybe_sent).unwrap(), REUSES);
}

/// Waits until so many have been delivered.
pub(super) async fn delivered(world: &World, count: usize) {
    let delivered = "SELECT count(*) FROM attempts WHERE final_status = 3";
    let count = i64::try_from(count).unwrap();
    eventually(PATIENCE, || async {
        (world.count(delivered).await == count).then_some(())
    })
    .await;
}

/// Every attempt without an answer is told as *maybe sent* or *not sent*; none cost the endpoint anything. How
/// many there were.
pub(super) async fn nothing_is_charged(world: &World, endpoint: &Endpoint) -> i64 {
    world.each_delivery_in_one_place().await;
    let told = "SELECT coalesce(array_agg(DISTINCT error), '{}'), count(*) FROM attempts WHERE status IS NULL";
    let row = world.sql().await.query_one(told, &[]).await.unwrap();
    let (errors, count): (Vec<Option<String>>, i64) = (row.get(0), row.get(1));
    let told = |error: &Option<String>| {
        let error = error.as_deref().unwrap_or_default();
        let maybe_sent = error.contains("reused") && error.contains("may have been received");
        maybe_sent || error.contains("before it took the request")
    };
    assert!(errors.iter().all(told), "{errors:?}");
    let opened =
        "SELECT count(*) FROM endpoint_runtime WHERE breaker <> 0 OR failing_since IS NOT NULL";
    assert_eq!(world.count(opened).await, 0, "the breaker has moved");
    let health = format!("/v1/endpoints/{}/health", endpoint.id);
    let health = world.ask("GET", &health, &Value::Null).await;
    assert_eq!(health["state"], "closed");
    count
}

/// When a connection is closed.
#[derive(Clone, Copy)]
enum Way {
    /// After [`GAP`] without a request.
    WhenIdle,
    /// When it has read its second request.
    UponReuse,
}

/// A receiver that answers 200 and closes connections.
struct Closing {
    url: String,
    /// How often each event was answered.
    answered: Arc<Mutex<HashMap<Vec<u8>, usize>>>,
    _stop: DropGuard,
}

impl Closing {
    /// What arrived and was not answered arrived again under the same id, and was answered once.
    fn each_once(&self, events: usize) {
        let answered = self.answered.lock().unwrap();
        assert_eq!(answered.len(), events);
        assert!(answered.values().all(|times| *times == 1));
    }

    /// With a single attempt to spend: if one was charged for what is nobody's fault, its delivery would be
    /// dead.
    async fn endpoint(&self, world: &World) -> Endpoint {
        let settings = json!({ "url": self.url, "max_attempts": 1, "breaker": { "failures": 1 } });
        world.endpoint("idle", settings).await
    }

    async fn start(way: Way) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answered = Arc::default();
        let stop = CancellationToken::new();
        let (books, stopped) = (Arc::clone(&answered), stop.clone());
        drop(spawn_driver(async move {
            let accepting = async {
                while let Ok((stream, _)) = listener.accept().await {
                    // Ends with its peer.
                    drop(spawn_driver(serve(stream, way, Arc::clone(&books))));
                }
            };
            stopped.run_until_cancelled(accepting).await;
        }));
        Self {
            url,
            answered,
            _stop: stop.drop_guard(),
        }
    }
}

async fn serve(mut stream: TcpStream, way: Way, answered: Arc<Mutex<HashMap<Vec<u8>, usize>>>) {
    let mut buffer = Vec::new();
    for number in 0.. {
        let reading = next(&mut stream, &mut buffer);
        let read = match way {
            Way::UponReuse => reading.await,
            Way::WhenIdle if number == 0 => reading.await,
            Way::WhenIdle => tokio::time::timeout(GAP, reading).await.unwrap_or(None),
        };
        let Some(event) = read else { return };
        if matches!(way, Way::UponReuse) && number > 0 {
            return;
        }
        *answered.lock().unwrap().entry(event).or_default() += 1;
        if stream.write_all(OK).await.is_err() {
            return;
        }
    }
}

/// The `webhook-id` of the next request.
async fn next(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(request) = http::request(buffer).unwrap() {
            let (length, event) = (request.length, request.webhook_id.to_vec());
            buffer.drain(..length);
            return Some(event);
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}
