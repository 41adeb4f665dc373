//! Each step of a delivery: from the moment that its row is loaded until its outcome is recorded and known.

use std::ops::RangeInclusive;

use rustix::process::Signal;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, eventually};
use uuid::Uuid;

use super::{dies_at, has_died};
use crate::endpoint::Endpoint;
use crate::poster::Posted;
use crate::process::{PATIENCE, Process};
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, TAKE_OVER, Worker, World};

/// How the delivery ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Delivered,
    Dead,
    Closed,
}

/// A worker dies at this place with one delivery in its hands.
struct Case {
    point: &'static str,
    /// Of the receiver to the first request, and to those that follow.
    answers: &'static [u16],
    body: usize,
    /// Requests of this delivery, from the first to the last worker.
    requests: RangeInclusive<usize>,
    end: End,
}

const SMALL: usize = 100;
/// More than a socket takes at once; less than an event may have.
const LARGE: usize = 250_000;

const fn case(point: &'static str, requests: RangeInclusive<usize>) -> Case {
    Case {
        point,
        answers: &[200],
        body: SMALL,
        requests,
        end: End::Delivered,
    }
}

const fn answered(answers: &'static [u16], end: End, case: Case) -> Case {
    Case {
        answers,
        end,
        ..case
    }
}

/// In waves of one worker each. Before a byte is written nothing was sent; after the commit nothing is sent again;
/// what lies between is sent twice.
const WAVES: [&[Case]; 2] = [
    &[
        case("worker.loaded", 1..=1),
        case("worker.admitted", 1..=1),
        case("worker.connected", 1..=1),
        case("worker.writing", 1..=1),
        case("worker.written", 2..=2),
        Case {
            body: LARGE,
            ..case("worker.written", 1..=2)
        },
        case("worker.answered", 2..=2),
    ],
    &[
        case("worker.recording", 2..=2),
        case("worker.recorded", 1..=1),
        answered(&[422], End::Dead, case("worker.recording", 2..=2)),
        answered(&[422], End::Dead, case("worker.recorded", 1..=1)),
        // The endpoint stays enabled until the next 410.
        answered(&[410], End::Closed, case("worker.disabling", 1..=1)),
        // Three attempts; the second one is late enough to open the breaker.
        answered(
            &[503, 503, 200],
            End::Delivered,
            case("worker.breaker_saving", 3..=3),
        ),
        answered(
            &[503, 503, 200],
            End::Delivered,
            case("worker.breaker_saved", 3..=3),
        ),
    ],
];

/// D6, D8, F66, F88: each of these is taken up within a lease and a look, by nobody in particular, and ends once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_at_any_step_of_a_delivery_loses_nothing() {
    let cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let mut report = Report::of("worker: SIGKILL at each step of a delivery");
    let mut at_risk = AtRisk::default();
    let mut events = Vec::new();
    for round in 0..short_or_long(1, 5) {
        for (number, wave) in WAVES.iter().enumerate() {
            let name = format!("{round}-{number}");
            let (sent, risk) = die(&world, &name, wave, &mut report).await;
            events.extend(sent);
            at_risk.join(risk);
        }
    }
    report.note("one delivery for each; recovered: it has ended");
    report.close(&world, &Posted::from(events), &at_risk).await;
}

/// Each worker of a wave dies, and another comes.
async fn die(world: &World, name: &str, wave: &[Case], report: &mut Report) -> (Vec<Uuid>, AtRisk) {
    let mut dying = Vec::new();
    for case in wave {
        dying.push(world.starting_worker(&[dies_at(case.point, 1)]));
    }
    let mut workers = Vec::new();
    for process in dying {
        workers.push(Worker::joined(process).await);
    }
    world.spread_over(wave.len(), PATIENCE).await;
    let mut events = Vec::new();
    let mut endpoints = Vec::new();
    for (number, (case, worker)) in wave.iter().zip(&workers).enumerate() {
        let endpoint = endpoint_of(world, worker, &format!("{name}-{number}")).await;
        let answer = |status: &u16| Answer::now(*status).with("retry-after: 3");
        let answers: Vec<Answer> = case.answers.iter().map(answer).collect();
        world.receiver.answers(&endpoint.path, &answers);
        events.push(publish(world, &endpoint, case.body).await);
        endpoints.push(endpoint);
    }
    let published = boot_time();
    for (case, worker) in wave.iter().zip(&mut workers) {
        has_died(&mut worker.process).await;
        eprintln!("died at {}", case.point);
    }
    let at_risk = world.at_risk().await;

    let mut rescuer = world.worker().await;
    for (case, (event, endpoint)) in wave.iter().zip(events.iter().zip(&endpoints)) {
        let (point, end) = (case.point, case.end);
        let ended = || async { (how_it_ended(world, *event).await == Some(end)).then_some(()) };
        eventually(TAKE_OVER, ended).await;
        report.recovered(boot_time().since(published));
        let requests = world.receiver.count_at(&endpoint.path);
        assert!(
            case.requests.contains(&requests),
            "{point}: {requests} requests"
        );
    }
    rescuer.process.signal(Signal::TERM);
    assert!(rescuer.process.ends().await.success());
    (events, at_risk)
}

/// A new endpoint in a slot of this worker.
async fn endpoint_of(world: &World, worker: &Worker, name: &str) -> Endpoint {
    let slots = world.slots_of(worker.incarnation).await;
    let settings = json!({
        "max_attempts": 5, "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 1, "cooldown_seconds": 1, "max_cooldown_seconds": 4 },
    });
    for number in 0.. {
        let endpoint = world
            .endpoint(&format!("{name}.{number}"), settings.clone())
            .await;
        if slots.contains(&endpoint.slot) {
            return endpoint;
        }
    }
    unreachable!("slots are given out in turn")
}

async fn publish(world: &World, endpoint: &Endpoint, bytes: usize) -> Uuid {
    let event = json!({ "type": endpoint.event_type, "payload": "x".repeat(bytes) });
    let reply: Value = world.ask("POST", "/v1/events", &event).await;
    let event: shared::ids::EventId = reply["id"].as_str().unwrap().parse().unwrap();
    event.0
}

async fn how_it_ended(world: &World, event: Uuid) -> Option<End> {
    let places = "SELECT EXISTS (SELECT FROM attempts WHERE event_id = $1 AND final_status = 3),
        EXISTS (SELECT FROM dead_letters WHERE event_id = $1), EXISTS (SELECT FROM closed WHERE event_id = $1)";
    let row = world
        .sql()
        .await
        .query_one(places, &[&event])
        .await
        .unwrap();
    match (row.get(0), row.get(1), row.get(2)) {
        (true, false, false) => Some(End::Delivered),
        (false, true, false) => Some(End::Dead),
        (false, false, true) => Some(End::Closed),
        (false, false, false) => None,
        places => panic!("in several places: {places:?}"),
    }
}

impl Worker {
    /// One whose process was just started.
    async fn joined(mut process: Process) -> Self {
        let incarnation = process.joined(1).await;
        Self {
            process,
            incarnation,
        }
    }
}
