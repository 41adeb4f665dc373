//! Work that takes two writes: a worker dies between them, and the next one finds what is left to do (F88).

use serde_json::{Value, json};
use shared::runtime::clock::{BootTime, boot_time};
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use super::{dies_at, has_died};
use crate::poster::Posted;
use crate::process::{PATIENCE, Process};
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, Worker, World};

/// Replays: more than one turn makes.
const DEAD: usize = 40;

/// D6, F88: commands, closings, replays and suspicions are carried out once, whoever dies of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_between_two_writes_leaves_nothing_half_done() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut report =
        Report::of("worker: SIGKILL between two writes of a command, a closing, a replay");
    let mut at_risk = AtRisk::default();
    for round in 0..short_or_long(1, 5) {
        command(&world, round, &mut report).await;
        closing(&world, round, &mut report).await;
        replay(&world, round, &mut report).await;
        at_risk.join(suspicion(&world, round, &mut report).await);
    }
    let _last = world.worker().await;
    report.note("buried by the test: recovered without the wait for the lease");
    let posted = Posted::from(delivered_events(&world).await);
    report.close(&world, &posted, &at_risk).await;
}

/// A setting that its owner was told of and did not strike off its list is told to the next one.
async fn command(world: &World, round: usize, report: &mut Report) {
    let endpoint = world.endpoint(&format!("command{round}"), json!({})).await;
    let mut worker = dying(world, "worker.command_done").await;
    let path = format!("/v1/endpoints/{}", endpoint.id);
    let moved = json!({ "url": world.receiver.url("/moved") });
    world.ask("PATCH", &path, &moved).await;
    let died = buried(world, &mut worker.process).await;

    let before = world.receiver.count_at("/moved");
    let mut next = world.worker().await;
    world.publish(&endpoint).await;
    eventually(PATIENCE, || async {
        (world.receiver.count_at("/moved") > before).then_some(())
    })
    .await;
    eventually(PATIENCE, || async {
        (world.count("SELECT count(*) FROM commands").await == 0).then_some(())
    })
    .await;
    report.recovered(boot_time().since(died));
    stop(world, &mut next).await;
}

/// What waits for an endpoint that is deleted is closed, and the worker dies before it knows.
async fn closing(world: &World, round: usize, report: &mut Report) {
    let settings = json!({ "backoff": { "base_seconds": 3_600, "max_seconds": 3_600 } });
    let endpoint = world.endpoint(&format!("closing{round}"), settings).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(503)]);
    let mut worker = dying(world, "worker.chore_done").await;
    let delivery = world.publish(&endpoint).await;
    let waits = "SELECT count(*) FROM retry";
    eventually(PATIENCE, || async {
        (world.count(waits).await == 1).then_some(())
    })
    .await;
    let path = format!("/v1/endpoints/{}", endpoint.id);
    world.ask("DELETE", &path, &Value::Null).await;
    let died = buried(world, &mut worker.process).await;

    let mut next = world.worker().await;
    let closed = format!("SELECT count(*) FROM closed WHERE id = '{delivery}'");
    eventually(PATIENCE, || async {
        (world.count(&closed).await == 1).then_some(())
    })
    .await;
    report.recovered(boot_time().since(died));
    stop(world, &mut next).await;
}

/// A turn of a replay is made whole or not at all, and told or found.
async fn replay(world: &World, round: usize, report: &mut Report) {
    let settings = json!({ "replay_on_recovery": false });
    let endpoint = world.endpoint(&format!("replay{round}"), settings).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(422)]);
    let mut first = world.worker().await;
    for _ in 0..DEAD {
        world.publish(&endpoint).await;
    }
    let dead = format!(
        "SELECT count(*) FROM dead_letters WHERE endpoint_id = {}",
        endpoint.key
    );
    eventually(PATIENCE, || async {
        (world.count(&dead).await == i64::try_from(DEAD).unwrap()).then_some(())
    })
    .await;
    stop(world, &mut first).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(200)]);

    let path = format!("/v1/endpoints/{}/replay", endpoint.id);
    let replay = world.ask("POST", &path, &json!({})).await;
    let path = format!("/v1/replays/{}", replay["id"].as_str().unwrap());
    for point in ["worker.replay_turning", "worker.replay_turned"] {
        let mut worker = world.starting_worker(&[dies_at(point, 1)]);
        let died = buried(world, &mut worker).await;
        report.recovered(boot_time().since(died));
    }
    let died = boot_time();
    let mut next = world.worker().await;
    let replay = eventually(PATIENCE, || async {
        let replay = world.ask("GET", &path, &Value::Null).await;
        replay["finished_at"].is_string().then_some(replay)
    });
    let replay = replay.await;
    report.recovered(boot_time().since(died));
    assert_eq!(
        (&replay["total"], &replay["done"]),
        (&json!(DEAD), &json!(DEAD)),
        "{replay}"
    );
    let again = world.receiver.at(&endpoint.path);
    let again = again.iter().filter(|it| it.status == 200).count();
    assert_eq!(again, DEAD, "each dead letter is sent again once");
    stop(world, &mut next).await;
}

/// What was on the wire at a death is charged with the next one before it is sent.
async fn suspicion(world: &World, round: usize, report: &mut Report) -> AtRisk {
    let endpoint = world.endpoint(&format!("suspect{round}"), json!({})).await;
    let answers = [Answer::never(), Answer::now(200)];
    world.receiver.answers(&endpoint.path, &answers);
    let mut first = world.worker().await;
    let delivery = world.publish(&endpoint).await;
    let listed = "SELECT count(*) FROM workers WHERE in_flight <> '{}'";
    eventually(PATIENCE, || async {
        (world.count(listed).await == 1).then_some(())
    })
    .await;
    first.process.kill().await;
    let at_risk = world.at_risk().await;
    world.bury_all().await;

    let mut worker = world.starting_worker(&[dies_at("worker.suspect_charged", 1)]);
    let died = buried(world, &mut worker).await;
    assert_eq!(
        world.receiver.count_at(&endpoint.path),
        1,
        "sent before it died"
    );
    let deaths = format!("SELECT deaths::int8 FROM suspects WHERE delivery_id = '{delivery}'");
    assert_eq!(world.count(&deaths).await, 2);
    let mut next = world.worker().await;
    eventually(PATIENCE, || async {
        (world.receiver.count_at(&endpoint.path) == 2).then_some(())
    })
    .await;
    report.recovered(boot_time().since(died));
    stop(world, &mut next).await;
    at_risk
}

/// A worker that will die at this place and owns every slot.
async fn dying(world: &World, point: &str) -> Worker {
    let worker = world.dying_worker(point).await;
    world.spread_over(1, PATIENCE).await;
    worker
}

/// Waits until it has died, and buries it; when that was.
async fn buried(world: &World, worker: &mut Process) -> BootTime {
    has_died(worker).await;
    let died = boot_time();
    world.bury_all().await;
    died
}

/// Lets it finish, and hand everything over.
async fn stop(world: &World, worker: &mut Worker) {
    worker.process.signal(rustix::process::Signal::TERM);
    assert!(worker.process.ends().await.success());
    assert_eq!(world.count("SELECT count(*) FROM workers").await, 0);
}

/// All events but those whose endpoint was deleted before they came through.
async fn delivered_events(world: &World) -> Vec<Uuid> {
    let closed = "SELECT id FROM events EXCEPT SELECT event_id FROM closed";
    let rows = world.sql().await.query(closed, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
