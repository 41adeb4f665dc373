//! Field reports of other webhook systems, each as the kind of failure that it is: ladders that stand
//! still (F37, F38), dead letters of whose making (F50), a fan-out with a dead endpoint in it (F53),
//! bookkeeping that is slow (F58), and workers that look well and do nothing (F59).

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use load_tests::client::{Connection, request};
use rustix::process::Signal;
use serde_json::json;
use shared::domain::delivery::DeadLetterClass;
use shared::ids::{EndpointId, EventId};
use shared::runtime::clock::boot_time;
use shared::runtime::spawn_driver;
use shared::store::Session;
use shared::testing::{TestDatabase, eventually};
use tokio_util::sync::CancellationToken;

use crate::process::{PATIENCE, Process};
use crate::receiver::Answer;
use crate::world::{AtRisk, TAKE_OVER, World, requests};

/// F37, F38: an endpoint that always answers 403, and workers that are killed while its ladder runs. Every
/// attempt counts, so the ladder ends after three; nothing that is due stands longer without a living
/// owner than a take-over takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ladder_moves_and_ends_although_its_workers_are_killed() {
    const DELIVERIES: usize = 48;
    const LADDER: usize = 3;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(2).await;
    let ladder = json!({
        "max_attempts": LADDER, "backoff": { "base_seconds": 2, "max_seconds": 4 },
    });
    for number in 0..DELIVERIES {
        let name = format!("forbidden{number}");
        let endpoint = world.endpoint(&name, ladder.clone()).await;
        world.receiver.answers(&endpoint.path, &[Answer::now(403)]);
        world.publish(&endpoint).await;
    }
    let watch = Unowned::watch(world.sql().await);

    let mut at_risk = 0;
    for first in [DELIVERIES, DELIVERIES + 1] {
        eventually(PATIENCE, || async {
            (world.receiver.count() >= first).then_some(())
        })
        .await;
        workers[0].process.kill().await;
        let dead = workers.remove(0);
        at_risk += world.buried(dead.incarnation).await.len();
        workers.push(world.worker().await);
        world.all_slots_owned(TAKE_OVER).await;
    }
    world.finished(&[]).await;

    let longest = watch.stop().await;
    assert!(longest < TAKE_OVER, "due and unowned for {longest:?}");
    let arrivals = world.receiver.all();
    let sent = requests(&arrivals);
    assert_eq!(sent.len(), DELIVERIES);
    let most = sent.values().max().unwrap();
    assert!(*most <= LADDER + 2, "one was sent {most} times");
    assert!(
        arrivals.len() <= DELIVERIES * LADDER + at_risk,
        "{} requests, {at_risk} of them at risk",
        arrivals.len()
    );
    let whole = "SELECT count(*) FROM (SELECT FROM attempts WHERE applied GROUP BY delivery_id
        HAVING array_agg(no ORDER BY no) = '{1,2,3}') x";
    let dead =
        "SELECT count(*) FROM dead_letters WHERE class = 2 AND status = 403 AND attempts_made = 3";
    let all = i64::try_from(DELIVERIES).unwrap();
    assert_eq!(
        (world.count(whole).await, world.count(dead).await),
        (all, all)
    );
    eprintln!(
        "{} requests, {at_risk} at risk; due and unowned for {longest:?} at most",
        arrivals.len()
    );
}

/// Looks all the time how long something has been due without a living owner.
struct Unowned {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Duration>,
}

impl Unowned {
    fn watch(sql: Session) -> Self {
        let longest = "
            SELECT coalesce(extract(epoch FROM clock_timestamp() - min(l.due)), 0)::float8
            FROM (SELECT slot, due_at AS due FROM retry UNION ALL
                  SELECT slot, to_timestamp(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::int8 / 1000.0) FROM ready) l
            JOIN slots s USING (slot) LEFT JOIN workers w ON w.id = s.owner AND w.expires_at > clock_timestamp()
            WHERE w.id IS NULL AND l.due < clock_timestamp()";
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = spawn_driver(async move {
            let mut look = tokio::time::interval(Duration::from_millis(100));
            let mut most = Duration::ZERO;
            while stopped.run_until_cancelled(look.tick()).await.is_some() {
                let found: f64 = sql.query_one(longest, &[]).await.unwrap().get(0);
                most = most.max(Duration::from_secs_f64(found.max(0.0)));
            }
            most
        });
        Self { stop, task }
    }

    async fn stop(self) -> Duration {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

/// F53: each delivery of a fan-out is on its own, so an endpoint that fails is asked again alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_fan_out_only_the_endpoints_that_failed_are_asked_again() {
    const ENDPOINTS: usize = 20;
    const LADDER: usize = 3;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let subscribe = async |url: String| {
        let document = json!({
            "url": url, "event_types": ["fan"], "max_attempts": LADDER,
            "backoff": { "base_seconds": 1, "max_seconds": 1 },
        });
        let made = world.ask("POST", "/v1/endpoints", &document).await;
        made["id"].as_str().unwrap().parse::<EndpointId>().unwrap()
    };
    for number in 2..ENDPOINTS {
        subscribe(world.receiver.url(&format!("/{number}"))).await;
    }
    subscribe(world.receiver.url("/refuses")).await;
    world.receiver.answers("/refuses", &[Answer::now(503)]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = nobody.local_addr().unwrap();
    drop(nobody);
    let absent = subscribe(format!("http://{closed}/")).await;

    let event = json!({ "type": "fan", "payload": {} });
    let reply = world.ask("POST", "/v1/events", &event).await;
    assert_eq!(reply["delivery_count"], ENDPOINTS);
    let event: EventId = reply["id"].as_str().unwrap().parse().unwrap();
    world.finished(&[event.0]).await;

    for number in 2..ENDPOINTS {
        let arrivals = world.receiver.at(&format!("/{number}"));
        assert_eq!(arrivals.len(), 1, "requests at /{number}");
    }
    assert_eq!(world.receiver.at("/refuses").len(), LADDER);
    let tried = "SELECT count(*) FROM attempts a JOIN endpoints e ON e.id = a.endpoint_id WHERE e.public_id = $1";
    let sql = world.sql().await;
    let tried: i64 = sql.query_one(tried, &[&absent.0]).await.unwrap().get(0);
    assert_eq!(usize::try_from(tried).unwrap(), LADDER);
    assert_eq!(world.count("SELECT count(*) FROM dead_letters").await, 2);
}

/// F50: what receivers refuse and what is our own fault are counted apart, and each dead letter says which
/// it is. A secret that cannot be opened is our fault and heals: its deliveries wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_receivers_and_faults_of_ours_are_counted_apart() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let sql = world.sql().await;
    let refuses = world.endpoint("refuses", json!({})).await;
    world.receiver.answers(&refuses.path, &[Answer::now(422)]);
    let absent = json!({ "max_attempts": 1 });
    let absent = world.endpoint("absent", absent).await;
    world.receiver.answers(&absent.path, &[Answer::now(404)]);
    let lost = world.endpoint("lost", json!({})).await;
    let sealed = world.endpoint("sealed", json!({})).await;
    world.publish(&absent).await;
    for _ in 0..100 {
        world.publish(&refuses).await;
    }
    for _ in 0..10 {
        world.publish(&lost).await;
        world.publish(&sealed).await;
    }
    // The events of one are gone, the secret of the other was damaged.
    let loss = "DELETE FROM events WHERE fan_endpoint = ARRAY[$1::int8]";
    assert_eq!(sql.execute(loss, &[&lost.key]).await.unwrap(), 10);
    let damage = "UPDATE endpoint_secrets SET sealed = '\\x00' WHERE endpoint_id = $1";
    assert_eq!(sql.execute(damage, &[&sealed.key]).await.unwrap(), 1);
    let mut worker = world.worker().await;

    let dead = "SELECT count(*) FROM dead_letters";
    eventually(PATIENCE, || async {
        (world.count(dead).await == 111).then_some(())
    })
    .await;
    let by = "SELECT class, count(*), bool_and(reason IS NOT NULL) FROM dead_letters GROUP BY class ORDER BY class";
    let rows = sql.query(by, &[]).await.unwrap();
    let found: Vec<(i16, i64, bool)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    let class = |class: DeadLetterClass, count| (class.code(), count, true);
    let mut wanted = [
        class(DeadLetterClass::Misconfigured, 1),
        class(DeadLetterClass::Permanent, 100),
        class(DeadLetterClass::Internal, 10),
    ];
    wanted.sort_unstable();
    assert_eq!(found, wanted);

    let metrics = metrics_of(&mut worker.process).await;
    let (status, text) = get(metrics, "/metrics").await.unwrap();
    assert_eq!(status, 200);
    for (class, count) in [("permanent", 100), ("misconfigured", 1), ("internal", 10)] {
        let line = format!("postrider_dead_letters_total{{class=\"{class}\"}} {count}\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
    let waits = "an endpoint cannot be read; its deliveries wait";
    worker.process.logs(waits, 1).await;
    assert_eq!(world.count("SELECT count(*) FROM ready").await, 10);
    assert_eq!(world.receiver.at(&sealed.path).len(), 0);
    assert_eq!(world.receiver.at(&lost.path).len(), 0);
}

/// F58: the attempts cannot be written for longer than a statement may take. What is sent meanwhile is
/// bounded by the limits, events are accepted as before, and afterwards nothing is missing or repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_recording_stands_still_events_are_accepted_and_nothing_is_lost_or_repeated() {
    const ENDPOINTS: usize = 8;
    const LIMIT: usize = 10;
    const STANDSTILL: Duration = Duration::from_secs(6);
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let mut endpoints = Vec::new();
    for number in 0..ENDPOINTS {
        let limit = json!({ "max_in_flight": LIMIT });
        endpoints.push(world.endpoint(&format!("e{number}"), limit).await);
    }
    let poster = world.post(100, &endpoints);
    let begun = || async { (world.receiver.count() > 100).then_some(()) };
    eventually(PATIENCE, begun).await;

    let sql = world.sql().await;
    sql.batch_execute("BEGIN; LOCK TABLE attempts IN SHARE MODE")
        .await
        .unwrap();
    let (locked, sent, accepted) = (boot_time(), world.receiver.count(), poster.accepted());
    eventually(PATIENCE, || async {
        (boot_time().since(locked) >= STANDSTILL).then_some(())
    })
    .await;
    let sent = world.receiver.count() - sent;
    let accepted = poster.accepted() - accepted;
    sql.batch_execute("COMMIT").await.unwrap();

    let all = poster.stop().await.all_accepted();
    world.finished(&all).await;
    assert_eq!(
        AtRisk::default().excuse(&world.receiver.all()),
        0,
        "repetitions"
    );
    eprintln!("while nothing could be recorded: {accepted} accepted, {sent} sent");
    assert!(
        (ENDPOINTS..=ENDPOINTS * LIMIT).contains(&sent),
        "{sent} sent without a record"
    );
    assert!(accepted >= 300, "{accepted} accepted in {STANDSTILL:?}");
}

/// F59: as in the report.
const NOTICED: Duration = Duration::from_secs(60);

/// F59: a worker that stands still gives no sign of readiness; its neighbour does, and so does it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stands_still_is_not_ready() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(2).await;
    let stopped = metrics_of(&mut workers[0].process).await;
    let other = metrics_of(&mut workers[1].process).await;
    ready(stopped, true, PATIENCE).await;
    ready(other, true, PATIENCE).await;

    workers[0].process.signal(Signal::STOP);
    ready(stopped, false, NOTICED).await;
    world.buried(workers[0].incarnation).await;
    world.all_slots_owned(TAKE_OVER).await;
    ready(other, true, PATIENCE).await;
    workers[0].process.signal(Signal::CONT);
    workers[0].process.joined(2).await;
    ready(stopped, true, PATIENCE).await;
}

/// F59: a worker that lives and does not get on says so, whichever of its tables it waits for: that of
/// the leases, the queue, one that it loads from, or the one that it records in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_does_not_get_on_is_not_ready() {
    tokio::join!(
        stuck("workers", "ACCESS EXCLUSIVE"),
        stuck("ready", "ACCESS EXCLUSIVE"),
        stuck("endpoint_secrets", "ACCESS EXCLUSIVE"),
        stuck("attempts", "SHARE"),
    );
}

/// Ready, not while this table is locked, and then again.
async fn stuck(table: &str, lock: &str) {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut worker = world.worker().await;
    let addr = metrics_of(&mut worker.process).await;
    let endpoint = world.endpoint("e", json!({})).await;
    ready(addr, true, PATIENCE).await;

    let sql = world.sql().await;
    let lock = format!("BEGIN; LOCK TABLE {table} IN {lock} MODE");
    sql.batch_execute(&lock).await.unwrap();
    let locked = boot_time();
    if ["attempts", "endpoint_secrets"].contains(&table) {
        world.publish(&endpoint).await;
    }
    let published = boot_time();
    let why = eventually(NOTICED, || async {
        let (status, why) = get(addr, "/health/ready").await?;
        (status == 503).then_some(why)
    });
    let why = why.await;
    let (waited, noticed) = (published.since(locked), boot_time().since(locked));
    eprintln!("{table} is locked: published after {waited:?}, after {noticed:?} {why}");
    sql.batch_execute("COMMIT").await.unwrap();
    ready(addr, true, PATIENCE).await;
}

/// Where a process answers for metrics and health.
async fn metrics_of(process: &mut Process) -> SocketAddr {
    let started = process.logs("a worker started", 1).await;
    started["metrics"].as_str().unwrap().parse().unwrap()
}

/// Waits until it says so.
async fn ready(addr: SocketAddr, wanted: bool, within: Duration) {
    eventually(within, || async {
        let ready = get(addr, "/health/ready")
            .await
            .is_some_and(|it| it.0 == 200);
        (ready == wanted).then_some(())
    })
    .await;
}

/// Status and body; `None`: no answer within a second.
async fn get(addr: SocketAddr, path: &str) -> Option<(u16, String)> {
    let asking = async {
        let mut connection = Connection::open(addr).await.ok()?;
        let reply = connection.exchange(&request("GET", path, None, b"")).await;
        let reply = reply.ok()?;
        let text = String::from_utf8_lossy(reply.body).into_owned();
        Some((reply.status, text))
    };
    let answer = tokio::time::timeout(Duration::from_secs(1), asking).await;
    answer.ok().flatten()
}
