//! A receiver has answered, and that cannot be written down (field report F81 (b)): nothing is sent a second time, and
//! it is written down once when it can be.

use std::time::Duration;

use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::poster::Posted;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::Report;
use crate::world::{AtRisk, World};

/// Longer than it takes to stop the database after the request has arrived.
const ANSWERED_AFTER: Duration = Duration::from_secs(6);
const NOT_RECORDED: &str = "outcomes could not be recorded; trying again";

/// F81 (b): the database goes away between the answer and its record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_while_the_database_is_away_is_recorded_once_and_not_asked_for_again()
{
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let mut workers = world.workers(1).await;
    let endpoint = world.endpoint("late", json!({})).await;
    world
        .receiver
        .answers(&endpoint.path, &[Answer::late(ANSWERED_AFTER)]);

    world.publish(&endpoint).await;
    arrived(&world, 1).await;
    cluster.stop().await.unwrap();
    assert!(
        world.receiver.all()[0].answered.is_none(),
        "too late to show anything"
    );
    workers[0].process.logs(NOT_RECORDED, 1).await;
    assert!(world.receiver.all()[0].answered.is_some());
    cluster.start().await.unwrap();
    let back = boot_time();

    recorded(&world, 1).await;
    let mut report = Report::of("database: away between an answer and its record");
    report.recovered(boot_time().since(back));
    goes_on(&world, &endpoint, 1).await;
    let posted = Posted::from(world.events().await);
    report.close(&world, &posted, &AtRisk::default()).await;
}

/// F81 (b): the database refuses the record of the attempt, for a while, and for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_record_the_database_refuses_is_not_asked_for_again() {
    // Not about the row: tried until it works. About the row: the delivery ends without its attempt.
    for (sqlstate, attempts) in [("P0001", 1), ("23514", 0)] {
        let database = TestDatabase::new().await;
        let world = World::start(database.url(), database.database()).await;
        let mut workers = world.workers(1).await;
        let endpoint = world.endpoint("fine", json!({})).await;
        refuse_attempts(&world, sqlstate).await;

        world.publish(&endpoint).await;
        arrived(&world, 1).await;
        if attempts == 0 {
            workers[0]
                .process
                .logs("an outcome is refused again", 1)
                .await;
        } else {
            workers[0].process.logs(NOT_RECORDED, 3).await;
        }
        let allow = "DROP TRIGGER refusing ON attempts";
        world.sql().await.batch_execute(allow).await.unwrap();

        recorded(&world, attempts).await;
        goes_on(&world, &endpoint, attempts).await;
    }
}

/// Makes the database refuse every attempt.
async fn refuse_attempts(world: &World, sqlstate: &str) {
    let refuse = format!(
        "CREATE FUNCTION refusing() RETURNS trigger LANGUAGE plpgsql
         AS $$ BEGIN RAISE EXCEPTION 'refused by the test' USING ERRCODE = '{sqlstate}'; END $$;
         CREATE TRIGGER refusing BEFORE INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION refusing();"
    );
    world.sql().await.batch_execute(&refuse).await.unwrap();
}

async fn arrived(world: &World, count: usize) {
    eventually(PATIENCE, || async {
        (world.receiver.count() >= count).then_some(())
    })
    .await;
}

/// Until nothing waits any more; then there are so many attempts.
async fn recorded(world: &World, attempts: i64) {
    let waiting = "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM retry)";
    eventually(PATIENCE, || async {
        (world.count(waiting).await == 0).then_some(())
    })
    .await;
    assert_eq!(world.count("SELECT count(*) FROM attempts").await, attempts);
}

/// The next event of the endpoint is delivered and recorded, and its predecessor was sent once.
async fn goes_on(world: &World, endpoint: &Endpoint, attempts: i64) {
    world.receiver.answers(&endpoint.path, &[Answer::now(200)]);
    world.publish(endpoint).await;
    arrived(world, 2).await;
    recorded(world, attempts + 1).await;
    let all = world.receiver.all();
    assert_eq!(all.len(), 2, "sent again: {all:?}");
    assert_ne!(all[0].delivery, all[1].delivery);
}
