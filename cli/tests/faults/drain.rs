//! SIGTERM of a worker with requests on the wire.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rustix::process::Signal;
use shared::testing::{TestDatabase, eventually};
use time::OffsetDateTime;

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::Report;
use crate::world::{AtRisk, World};

/// No request starts later than this after the signal (architecture §8).
const LAST_SEND: Duration = Duration::from_millis(100);
/// How long a receiver takes, and so the requests on the wire at most; they must all get there
/// before the first one ends.
const SLOW: Duration = Duration::from_secs(4);
/// From the end of the last request until the other worker owns everything.
const HANDED_OVER: Duration = Duration::from_secs(2);
const ON_THE_WIRE: usize = 50;

/// Nothing is lost, nothing repeated, and nothing waits for a lease to run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_worker_told_to_end_finishes_what_it_began_and_hands_the_rest_over() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let mut workers = world.workers(2).await;
    let mut leaving = workers.remove(0);
    let epochs = epochs_of(&world, leaving.incarnation).await;
    let (theirs, _): (Vec<_>, Vec<_>) = endpoints
        .iter()
        .cloned()
        .partition(|endpoint| epochs.contains_key(&endpoint.slot));
    let (slow, quick) = theirs.split_at(ON_THE_WIRE);
    for endpoint in slow {
        world
            .receiver
            .answers(&endpoint.path, &[Answer::late(SLOW)]);
    }
    // Its other endpoints are busy: there is always something that it could still send.
    let poster = world.post(150, quick);
    let answered = world.receiver.count();
    eventually(PATIENCE, || async {
        (world.receiver.count() > answered + 50).then_some(())
    })
    .await;
    let mut on_the_wire = Vec::new();
    for endpoint in slow {
        on_the_wire.push(world.publish(endpoint).await);
    }
    let paths: HashSet<_> = slow.iter().map(|endpoint| endpoint.path.clone()).collect();
    eventually(SLOW, || async {
        (world.receiver.open(|it| paths.contains(&it.path)) == ON_THE_WIRE).then_some(())
    })
    .await;

    leaving.process.signal(Signal::TERM);
    let told = database_time(&world).await;
    let status = leaving.process.ends().await;
    assert_eq!(status.code(), Some(0));
    let ended = database_time(&world).await;
    assert!(
        ended - told < SLOW + HANDED_OVER,
        "it ended {} after the signal",
        ended - told
    );
    assert_eq!(
        world.slots_of(leaving.incarnation).await,
        HashSet::new(),
        "slots that it kept"
    );
    world.all_slots_owned(HANDED_OVER).await;

    let recorded = "SELECT count(*) FROM attempts WHERE delivery_id = ANY ($1) AND applied AND final_status = 3";
    let sql = world.sql().await;
    let recorded: i64 = sql
        .query_one(recorded, &[&on_the_wire])
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        usize::try_from(recorded).unwrap(),
        ON_THE_WIRE,
        "finished and recorded by itself"
    );
    let posted = poster.stop().await;
    posted.nothing_refused();
    world.finished(&posted.accepted).await;
    let last = last_send(&world, &epochs).await;
    assert!(
        last - told <= LAST_SEND,
        "a request started {} after the signal",
        last - told
    );
    let mut report = Report::of("worker: SIGTERM with 50 slow requests on the wire");
    report.recovered((ended - told).unsigned_abs());
    report.note("recovered: it has ended, and its slots have an owner");
    report.close(&world, &posted, &AtRisk::default()).await;
}

async fn epochs_of(world: &World, incarnation: uuid::Uuid) -> HashMap<i16, i64> {
    let sql = world.sql().await;
    let rows = sql
        .query(
            "SELECT slot, epoch FROM slots WHERE owner = $1",
            &[&incarnation],
        )
        .await;
    rows.unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

async fn database_time(world: &World) -> OffsetDateTime {
    world
        .sql()
        .await
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0)
}

/// When the last request under these epochs started.
async fn last_send(world: &World, epochs: &HashMap<i16, i64>) -> OffsetDateTime {
    let (slots, epochs): (Vec<i16>, Vec<i64>) = epochs.iter().unzip();
    let last = "SELECT max(a.started_at) FROM attempts a JOIN endpoints e ON e.id = a.endpoint_id
        JOIN unnest($1::int2[], $2::int8[]) o(slot, epoch) ON o.slot = e.slot AND o.epoch = a.epoch";
    world
        .sql()
        .await
        .query_one(last, &[&slots, &epochs])
        .await
        .unwrap()
        .get(0)
}
