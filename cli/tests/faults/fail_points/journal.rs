//! The API dies while it keeps events on its own disk, and while it brings them into the database: at every step. Then it
//! is started again on the same directory, or nobody is and the directory is replayed by hand.

use std::path::Path;

use load_tests::client::{self, Connection};
use serde_json::{Value, json};
use shared::ids::EventId;
use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, eventually};
use tokio::process::Command;
use uuid::Uuid;

use super::{dies_at, has_died};
use crate::endpoint::Endpoint;
use crate::poster::Posted;
use crate::process::PATIENCE;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, Setting, World};

fn settings(journal: &Path) -> [Setting; 2] {
    [
        (
            "POSTRIDER_JOURNAL_DIR",
            journal.to_str().unwrap().to_owned(),
        ),
        ("POSTRIDER_JOURNAL_PERSISTENT", "true".to_owned()),
    ]
}

fn with(journal: &Path, more: Setting) -> Vec<Setting> {
    settings(journal).into_iter().chain([more]).collect()
}

/// Publishes an event with this key; its id and whether it is durable on the API's disk only.
async fn publish(
    api: std::net::SocketAddr,
    world: &World,
    endpoint: &Endpoint,
    key: &str,
) -> Option<(Uuid, bool)> {
    let event = json!({ "type": endpoint.event_type, "payload": { "key": key } }).to_string();
    let headers = [("idempotency-key", key)];
    let ask = ("POST", "/v1/events");
    let request = client::request_with(ask, Some(&world.key), &headers, event.as_bytes());
    let mut connection = Connection::open(api).await.ok()?;
    let reply = connection.exchange(&request).await.ok()?;
    assert_eq!(reply.status, 202, "{}", String::from_utf8_lossy(reply.body));
    let reply: Value = serde_json::from_slice(reply.body).unwrap();
    let id: EventId = reply["id"].as_str().unwrap().parse().unwrap();
    Some((id.0, reply["durability"] == "local"))
}

/// D2, F87: killed between every two steps of keeping and replaying, it loses nothing that it acknowledged, and stores
/// nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_an_api_that_dies_with_a_journal_loses_nothing_and_stores_nothing_twice() {
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("kept", json!({})).await;
    let mut report = Report::of("API: SIGKILL at every step of its journal");
    let mut accepted = Vec::new();
    for round in 0..short_or_long(1, 5) {
        for point in [
            "api.journal_writing",
            "api.journal_written",
            "api.journal_replaying",
            "api.journal_replayed",
            "api.journal_aliased",
            "api.journal_refused",
            "api.journal_removed",
        ] {
            let journal = tempfile::tempdir().unwrap();
            // The second group of events is what the first two points end in.
            let dies = dies_at(point, if point.contains("writ") { 2 } else { 1 });
            let (mut process, addr) = world.another_api(&with(journal.path(), dies)).await;
            let key = |number: u32| format!("{point}-{round}-{number}");
            let (direct, local) = publish(addr, &world, &endpoint, &key(0)).await.unwrap();
            assert!(!local, "{point}: the database is there");
            accepted.push(direct);

            cluster.stop().await.unwrap();
            let mut kept = Vec::new();
            for number in 1..=5 {
                let Some((id, local)) = publish(addr, &world, &endpoint, &key(number)).await else {
                    break;
                };
                assert!(local, "{point}: the database is away");
                kept.push((key(number), id));
            }
            assert_eq!(
                kept.len(),
                if point.contains("writ") { 1 } else { 5 },
                "{point}"
            );
            if !point.contains("writ") {
                cluster.start().await.unwrap();
            }
            has_died(&mut process).await;

            let began = boot_time();
            if point.contains("writ") {
                cluster.start().await.unwrap();
            }
            let (_process, addr) = world.another_api(&settings(journal.path())).await;
            emptied(journal.path()).await;
            for (key, id) in &kept {
                let again = publish(addr, &world, &endpoint, key).await;
                assert_eq!(again, Some((*id, false)), "{point}: its key stands for it");
            }
            report.recovered(boot_time().since(began));
            accepted.extend(kept.iter().map(|(_, id)| *id));
        }
    }
    // What was written and not acknowledged may be there as well; each event is there once, by its key.
    let twice = "SELECT count(*) - count(DISTINCT convert_from(payload, 'UTF8')) FROM events";
    assert_eq!(world.count(twice).await, 0);
    report.note("the database is away when the API dies; recovered: from its next start until all is in the database");
    report
        .close(&world, &Posted::from(accepted), &AtRisk::default())
        .await;
}

/// The process is gone for good, its disk is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_whose_process_is_gone_is_replayed_by_hand() {
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("kept", json!({})).await;
    let journal = tempfile::tempdir().unwrap();
    let (mut process, addr) = world.another_api(&settings(journal.path())).await;
    let (direct, _) = publish(addr, &world, &endpoint, "direct").await.unwrap();
    cluster.stop().await.unwrap();
    let mut accepted = vec![direct];
    for number in 0..20 {
        let (id, local) = publish(addr, &world, &endpoint, &format!("k{number}"))
            .await
            .unwrap();
        assert!(local);
        accepted.push(id);
    }
    let told = postrider(&cluster.url(), "status", journal.path()).await;
    assert_eq!(told["events"], 20, "{told}");
    cluster.start().await.unwrap();
    process.kill().await;

    let told = postrider(&cluster.url(), "replay", journal.path()).await;
    // The process may have begun.
    assert_eq!(told["refused"], 0, "{told}");
    let again = postrider(&cluster.url(), "replay", journal.path()).await;
    assert_eq!(again, json!({ "stored": 0, "aliases": 0, "refused": 0 }));
    let told = postrider(&cluster.url(), "status", journal.path()).await;
    assert_eq!((&told["events"], &told["refused"]), (&json!(0), &json!(0)));
    world.finished(&accepted).await;
}

async fn postrider(url: &str, verb: &str, journal: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command
        .args(["journal", verb])
        .arg(journal)
        .args(["--output", "json"])
        .env("DATABASE_URL", url);
    let output = command.output().await.unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{verb}: {stdout} {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Waits until everything is in the database. `inspect` and not a metric: the process may just be ending.
async fn emptied(journal: &Path) {
    eventually(PATIENCE, || async {
        let left = api::journal::inspect(journal).ok()?;
        (left.events == 0).then_some(())
    })
    .await;
}
