//! A receiver that is killed with requests on its hands, and comes back.

use std::time::Duration;

use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, World};

const SLOW: Duration = Duration::from_millis(700);
const ON_THE_WIRE: usize = 20;

/// What it had not answered is sent again, under the same `webhook-id`; nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_receiver_had_not_answered_when_it_was_killed_is_sent_again() {
    let database = TestDatabase::new().await;
    let mut world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(2).await;
    let settings = json!({
        // More than are needed for all of its absences.
        "max_attempts": 20,
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 10, "cooldown_seconds": 1, "max_cooldown_seconds": 2 },
    });
    let mut endpoints = Vec::new();
    for number in 0..40 {
        let endpoint = world
            .endpoint(&format!("e{number}"), settings.clone())
            .await;
        world
            .receiver
            .answers(&endpoint.path, &[Answer::late(SLOW)]);
        endpoints.push(endpoint);
    }
    let poster = world.post(short_or_long(50, 100), &endpoints);
    let mut report = Report::of("receiver: killed with requests on its hands");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(2, 10) {
        eventually(PATIENCE, || async {
            (world.receiver.open(|_| true) >= ON_THE_WIRE).then_some(())
        })
        .await;
        let unanswered = world.receiver.kill();
        at_risk.add(unanswered);
        let accepted = poster.accepted();
        eventually(PATIENCE, || async {
            (poster.accepted() > accepted + endpoints.len()).then_some(())
        })
        .await;
        let (back, count) = (boot_time(), world.receiver.count());
        world.receiver.restart().await;
        eventually(PATIENCE, || async {
            (world.receiver.count() > count + endpoints.len()).then_some(())
        })
        .await;
        report.recovered(boot_time().since(back));
    }
    let posted = poster.stop().await;
    posted.nothing_refused();
    assert!(at_risk.total() > 0, "nothing was on the wire");
    report.note("recovered: as many requests again as there are endpoints");
    report.close(&world, &posted, &at_risk).await;
}
