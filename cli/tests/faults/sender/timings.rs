//! What an attempt tells of its time and its way: each part takes longer than what it could be mistaken
//! for, so that two that change places are seen.

use std::time::Duration;

use serde_json::{Value, json};
use shared::ids::DeliveryId;
use shared::runtime::clock::boot_time;
use shared::testing::dns::{DnsServer, RecordType, Reply};
use shared::testing::{TestDatabase, eventually};
use tokio::sync::watch;
use uuid::Uuid;

use super::authority::Authority;
use super::nowhere::{Closed, Full};
use super::scripted::{Act, Scripted};
use crate::process::PATIENCE;
use crate::world::World;

/// How long the name server takes.
const DNS: Duration = Duration::from_millis(400);
/// Until the next address is tried beside one that does not answer.
const CONNECT: Duration = Duration::from_millis(250);
/// How long the receiver takes to begin with TLS; and what is left of it when the worker saw late that it
/// was connected.
const TLS: Duration = Duration::from_millis(1_600);
const TLS_AT_LEAST: Duration = Duration::from_millis(800);
const ANSWER: Duration = Duration::from_millis(100);
const NAME: &str = "two.test";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_shows_the_time_of_each_part_and_every_address_that_was_dialled() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let authority = Authority::new();
    let (_file, trusted) = authority.trusted();
    let tls = Some(authority.server(NAME));
    let receiver = Scripted::start_late(tls, TLS, Act::Late(ANSWER)).await;
    let port = receiver.addr().port();
    let hole = Full::at(([127, 0, 0, 2], port).into()).await;
    let dns = DnsServer::start().await;
    let both = vec![hole.addr.ip(), receiver.addr().ip()];
    let (release, held) = watch::channel(false);
    let both = Reply::Addresses(both, 60);
    dns.answer(NAME, Reply::When(held, Box::new(both)));
    let settings = [trusted, ("POSTRIDER_DNS_SERVERS", dns.addr().to_string())];
    let _worker = world.worker_with(&settings).await;
    let url = format!("https://{NAME}:{port}/");
    let endpoint = world.endpoint("two", json!({ "url": url })).await;

    let first = world.publish(&endpoint).await;
    let asked = || async { (dns.asked(NAME, RecordType::A) > 0).then(boot_time) };
    let asked = eventually(PATIENCE, asked).await;
    let late = || async { (boot_time().since(asked) >= DNS).then_some(()) };
    eventually(PATIENCE, late).await;
    release.send_replace(true);
    let new = attempt(&world, first).await;
    let again = world.publish(&endpoint).await;
    let reused = attempt(&world, again).await;
    let closed = Closed::new();
    let settings = json!({ "url": format!("http://{}/", closed.addr), "max_attempts": 1 });
    let closed = world.endpoint("closed", settings).await;
    let in_vain = attempt(&world, world.publish(&closed).await).await;

    let parts = ["dns", "connect", "tls"].map(|part| took(&new, part).unwrap());
    assert!(parts[0] >= DNS, "{new}");
    assert!(parts[1] >= CONNECT, "{new}");
    assert!(parts[2] >= TLS_AT_LEAST, "{new}");
    let connecting = parts.iter().sum::<Duration>();
    in_order(&new, connecting + ANSWER);
    assert_eq!(new["address"], "127.0.0.1");
    assert_eq!(new["addresses_dialled"], json!(["127.0.0.2", "127.0.0.1"]));

    in_order(&reused, ANSWER);
    for (attempt, parts) in [
        (&reused, &["dns", "connect", "tls"][..]),
        (&in_vain, &["dns", "connect", "tls", "first_byte"]),
    ] {
        for part in parts {
            assert_eq!(took(attempt, part), None, "{part} in {attempt}");
        }
        assert_eq!(attempt["address"], "127.0.0.1");
        assert_eq!(attempt["addresses_dialled"], Value::Null);
        assert!(took(attempt, "queue").is_some(), "{attempt}");
    }
}

/// The head of the answer came after all that precedes it, and the end of the attempt after that.
fn in_order(attempt: &Value, before: Duration) {
    let first_byte = took(attempt, "first_byte").unwrap();
    let total = attempt["response_ms"].as_u64().unwrap();
    // Whole milliseconds.
    let total = Duration::from_millis(total + 1);
    assert!(before <= first_byte && first_byte <= total, "{attempt}");
    assert!(took(attempt, "queue").is_some(), "{attempt}");
}

fn took(attempt: &Value, part: &str) -> Option<Duration> {
    let micros = &attempt["timings_us"][part];
    assert!(micros.is_null() || micros.is_u64(), "{part} in {attempt}");
    micros.as_u64().map(Duration::from_micros)
}

/// The first attempt of a delivery, as the API shows it.
async fn attempt(world: &World, delivery: Uuid) -> Value {
    let path = format!("/v1/deliveries/{}/attempts", DeliveryId(delivery));
    eventually(PATIENCE, || async {
        let attempts = world.ask("GET", &path, &Value::Null).await;
        let first = attempts["data"].as_array().unwrap().last()?;
        Some(first.clone())
    })
    .await
}
