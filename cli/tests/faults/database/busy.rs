//! F75: every connection of the pool is held up. Who needs one is told in time, and who does not, notices nothing.

use std::time::Duration;

use load_tests::client::{ask, request};
use serde_json::json;
use shared::ids::DeliveryId;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::PATIENCE;
use crate::world::World;

/// The deadline of a request, and what it takes besides.
const IN_TIME: Duration = Duration::from_secs(13);
/// An event needs no connection of the pool; that its key is known is asked again now and then, and not for long.
const QUICK: Duration = Duration::from_secs(3);
const CONNECTIONS: usize = 5;
const READERS: usize = 60;

async fn waiters(world: &World) -> f64 {
    let asked = request("GET", "/metrics", None, b"");
    let page = ask(world.api_process.metrics(), &asked);
    let page = String::from_utf8(page.await.unwrap()).unwrap();
    let mut lines = page.lines();
    let line = lines.find_map(|line| line.strip_prefix("postrider_db_pool{state=\"waiting\"} "));
    line.unwrap().parse().unwrap()
}

/// The head of the answer to a list's request.
async fn read(world: &World, path: &str) -> String {
    let mut stream = TcpStream::connect(world.api).await.unwrap();
    let asked = request("GET", path, Some(&world.key), b"");
    stream.write_all(&asked).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f75_with_every_connection_held_up_readers_are_told_in_time_and_events_are_accepted() {
    let database = TestDatabase::new().await;
    let connections = [("POSTRIDER_CONNECTIONS", CONNECTIONS.to_string())];
    let world = World::start_with(database.url(), database.database(), &[], &connections).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("busy", json!({})).await;
    let delivery = DeliveryId(world.publish(&endpoint).await);
    let path = format!("/v1/deliveries/{delivery}/attempts");

    let mut session = world.sql().await;
    let lock = session.transaction().await.unwrap();
    let hold = "SET LOCAL idle_in_transaction_session_timeout = '60s'; LOCK TABLE attempts IN ACCESS EXCLUSIVE MODE";
    lock.batch_execute(hold).await.unwrap();
    let began = boot_time();
    let reads = (0..READERS).map(|_| async {
        let began = boot_time();
        let head = read(&world, &path).await;
        let told_when = head.to_ascii_lowercase().contains("\r\nretry-after: ");
        (
            head.starts_with("HTTP/1.1 503 ") && told_when,
            head,
            boot_time().since(began),
        )
    });
    let reads = futures_util::future::join_all(reads);
    let meanwhile = async {
        let counted = eventually(PATIENCE, || async {
            Some(waiters(&world).await).filter(|count| *count > 0.0)
        });
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let began = boot_time();
            world.publish(&endpoint).await;
            slowest = slowest.max(boot_time().since(began));
        }
        (counted.await, slowest)
    };
    let (answers, (counted, slowest)) = tokio::join!(reads, meanwhile);

    assert!(slowest < QUICK, "an event took {slowest:?}");
    for (told, head, took) in &answers {
        assert!(*told && *took < IN_TIME, "{head}, {took:?}");
    }
    eprintln!(
        "{counted} waited at once; all were told after {:?}",
        boot_time().since(began)
    );
    drop(lock);
    // The worker's own connections were held up as well, and it goes on by itself.
    eventually(PATIENCE, || async {
        (world.receiver.count_at(&endpoint.path) == 21).then_some(())
    })
    .await;
    world.ask("GET", &path, &json!(null)).await;
}
