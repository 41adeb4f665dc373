//! `postrider doctor` beside an installation that works, and beside one whose worker was killed.

use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};
use tokio::process::Command;

use crate::process::PATIENCE;
use crate::world::{TAKE_OVER, World};

/// Its report, and its exit code.
async fn doctor(url: &str) -> (Value, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command
        .args(["doctor", "--output", "json"])
        .env("DATABASE_URL", url);
    let output = command.output().await.unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap();
    (report, output.status.code().unwrap())
}

fn state<'r>(report: &'r Value, check: &str) -> &'r str {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["check"] == check);
    found.unwrap()["state"].as_str().unwrap()
}

/// D8, F59: what is due, owned and delivered is good; slots that lost their worker are critical within the lease, while
/// every process that is left looks well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d8_the_doctor_finds_a_killed_worker_and_nothing_wrong_before() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoint = world.endpoint("a", json!({})).await;
    let mut worker = world.worker().await;
    world.all_slots_owned(TAKE_OVER).await;
    for _ in 0..20 {
        world.publish(&endpoint).await;
    }
    let delivered = "SELECT count(*) FROM attempts WHERE final_status = 3";
    eventually(PATIENCE, || async {
        (world.count(delivered).await == 20).then_some(())
    })
    .await;

    // Jobs begin one after the other.
    let report = eventually(PATIENCE, || async {
        let (report, _) = doctor(database.url()).await;
        (state(&report, "jobs") == "good").then_some(report)
    })
    .await;
    for check in [
        "slots",
        "jobs",
        "queues",
        "newest_events",
        "oldest_pending",
        "partitions",
        "schema",
    ] {
        assert_eq!(state(&report, check), "good", "{report:#}");
    }
    let text = report.to_string();
    assert!(
        text.contains("each of the newest 20 deliveries is in one place"),
        "{report:#}"
    );

    worker.process.kill().await;
    let (report, code) = eventually(TAKE_OVER, || async {
        let (report, code) = doctor(database.url()).await;
        (state(&report, "slots") == "critical").then_some((report, code))
    })
    .await;
    assert_eq!(code, 1);
    assert_eq!(state(&report, "leases"), "warning", "{report:#}");
    assert_eq!(state(&report, "jobs"), "warning", "{report:#}");
}
