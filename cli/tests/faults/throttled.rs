//! Receivers that want less: 429 with `Retry-After`, and rate limits of the tenant's own (R1).

use std::time::Duration;

use serde_json::json;
use shared::runtime::clock::BootTime;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Arrival;
use crate::world::{TAKE_OVER, World};

/// F39: so many events against a receiver that takes ten in each window.
const EVENTS: usize = 40;
const WINDOW: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_takes_ten_in_a_window_gets_all_and_is_asked_little_more() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world
        .endpoint(
            "narrow",
            json!({ "backoff": { "base_seconds": 1, "max_seconds": 1 } }),
        )
        .await;
    world.receiver.allows("/narrow", 10, WINDOW);

    for _ in 0..EVENTS {
        world.publish(&endpoint).await;
    }
    let delivered = "SELECT count(*) FROM attempts WHERE applied AND final_status = 3";
    let all = i64::try_from(EVENTS).unwrap();
    eventually(PATIENCE, || async {
        (world.count(delivered).await == all).then_some(())
    })
    .await;

    let arrivals = world.receiver.at("/narrow");
    assert!(
        arrivals.len() <= EVENTS * 3 / 2,
        "{} requests for {EVENTS} events",
        arrivals.len()
    );
    // Once it was told to wait, and that was recorded, nothing comes before the time it named.
    let refused: Vec<&Arrival> = arrivals.iter().filter(|it| it.status == 429).collect();
    let settled = Duration::from_millis(500);
    for asked in &refused {
        let answered = asked.answered.unwrap();
        let window_ends = next_success(&arrivals, answered);
        let early = arrivals
            .iter()
            .filter(|it| it.at > answered.after(settled) && it.at < window_ends && it.status == 429)
            .count();
        assert_eq!(early, 0, "requests before the time that was asked for");
    }
    eprintln!(
        "{} requests, {} of them refused, for {EVENTS} events",
        arrivals.len(),
        refused.len()
    );
}

fn next_success(arrivals: &[Arrival], after: BootTime) -> BootTime {
    arrivals
        .iter()
        .find(|it| it.at > after && it.status == 200)
        .map_or(after, |it| it.at)
}

const RATE: f64 = 20.0;
const BURST: u32 = 5;

/// R1, at the receiver: across a hand-over in order, a crash, and a hand-over after the crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_holds_across_hand_over_and_crash() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(1).await;
    let limit =
        json!({ "rate_limit": { "per_second": RATE, "burst": BURST }, "max_in_flight": 50 });
    let endpoint = world.endpoint("limited", limit).await;
    let poster = world.post(100, std::slice::from_ref(&endpoint));
    let reached = |count| {
        let world = &world;
        move || async move { (world.receiver.at("/limited").len() >= count).then_some(()) }
    };
    eventually(PATIENCE, reached(40)).await;
    poster.stop().await.all_accepted();

    // In order: SIGTERM to the owner, a new one beside it.
    workers.push(world.worker().await);
    let mut first = workers.remove(0);
    first.process.signal(rustix::process::Signal::TERM);
    assert!(first.process.ends().await.success());
    world.all_slots_owned(TAKE_OVER).await;
    let before = world.receiver.at("/limited").len();
    eventually(PATIENCE, reached(before + 20)).await;

    // A crash, and the take-over after it.
    workers[0].process.kill().await;
    workers.push(world.worker().await);
    world.all_slots_owned(TAKE_OVER).await;
    let before = world.receiver.at("/limited").len();
    eventually(TAKE_OVER, reached(before + 40)).await;

    let arrivals = world.receiver.at("/limited");
    let at: Vec<f64> = arrivals.iter().map(|it| it.at.0.as_secs_f64()).collect();
    // The receiver sees arrivals, not starts: what a loaded machine may add between the two.
    let jitter = 0.1;
    let worst = worst_excess(&at, jitter);
    eprintln!(
        "{} requests; the fullest window holds {worst:.1} more than allowed",
        at.len()
    );
    assert!(worst <= 0.0, "{worst:.1} requests above the limit");
}

/// The most by which any window holds more than rate · (t + jitter) + burst.
fn worst_excess(at: &[f64], jitter: f64) -> f64 {
    let mut worst = f64::MIN;
    for (first, from) in at.iter().enumerate() {
        for (count, until) in (1_u32..).zip(&at[first..]) {
            let allowed = RATE * (until - from + jitter) + f64::from(BURST);
            worst = worst.max(f64::from(count) - allowed);
        }
    }
    worst
}
