//! F65: everything that writes at once, for a while: no deadlock.

use std::time::Duration;

use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::receiver::Answer;
use crate::report::short_or_long;
use crate::world::World;

const ENDPOINTS: usize = 40;
const PER_SECOND: u32 = 150;

/// Some are made, changed, replayed into and deleted all the while; the others get the traffic.
async fn change(world: &World, endpoints: &[Endpoint]) {
    loop {
        let passing = world.endpoint("passing", json!({})).await;
        world.publish(&passing).await;
        for endpoint in endpoints {
            let path = format!("/v1/endpoints/{}", endpoint.id);
            let all = json!({ "since": "2000-01-01T00:00:00Z", "status": ["dead_letter", "delivered"], "rate_per_second": 100 });
            let description = json!({ "description": "changed" });
            let (all, description) = (all.to_string(), description.to_string());
            let (replay, disable, enable) = (
                format!("{path}/replay"),
                format!("{path}/disable"),
                format!("{path}/enable"),
            );
            let key = Some(world.key.as_str());
            tokio::join!(
                world.ask_as(key, ("POST", &replay), all.as_bytes()),
                world.ask_as(key, ("PATCH", &path), description.as_bytes()),
                world.ask_as(key, ("POST", &disable), b""),
                world.ask_as(key, ("POST", &enable), b""),
                world.ask_as(key, ("POST", "/v1/dead-letters/replay"), b"{}"),
            );
        }
        world
            .ask(
                "DELETE",
                &format!("/v1/endpoints/{}", passing.id),
                &json!(null),
            )
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_all_that_writes_at_once_ends_in_no_deadlock() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(2).await;
    let settings = json!({
        "max_attempts": 2, "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 3, "cooldown_seconds": 1, "max_cooldown_seconds": 2 },
    });
    let mut endpoints = Vec::new();
    for number in 0..ENDPOINTS {
        let mut settings = settings.clone();
        settings["ordered"] = json!(number % 4 == 3);
        let endpoint = world.endpoint(&format!("lock{number}"), settings).await;
        match number % 3 {
            0 => world
                .receiver
                .answers(&endpoint.path, &[Answer::now(500), Answer::now(200)]),
            1 => world.receiver.answers(&endpoint.path, &[Answer::now(400)]),
            _ => {}
        }
        endpoints.push(endpoint);
    }
    let stop = CancellationToken::new();
    let changing = stop.run_until_cancelled(change(&world, &endpoints));
    let poster = world.post(PER_SECOND, &endpoints);
    let length = Duration::from_secs(short_or_long(8, 120));
    let began = boot_time();
    let timing = async {
        eventually(length * 3, || async {
            (boot_time().since(began) >= length).then_some(())
        })
        .await;
        stop.cancel();
    };
    tokio::join!(changing, timing);
    let posted = poster.stop().await;
    posted.nothing_refused();

    // The server counts them for everybody; those of a database of our own are ours.
    eventually(Duration::from_secs(3), || async {
        (boot_time().since(began) >= length + Duration::from_secs(1)).then_some(())
    })
    .await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(world.count(deadlocks).await, 0, "deadlocks");
    let log = world.api_process.log();
    assert!(!log.contains("40P01"), "a deadlock: {log}");
    world.each_delivery_in_one_place().await;
    eprintln!(
        "{} events, {} requests, no deadlock",
        posted.accepted.len(),
        world.receiver.count()
    );
}
