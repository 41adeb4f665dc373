//! The whole machine dies: API, workers and PostgreSQL at once.
//!
//! What this cannot show is the loss of what the kernel had not written to the disk yet. Against that stands
//! PostgreSQL's `fsync`, and `synchronous_commit = on` in every session of ours (D2), which is looked at here.

use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::store::Role;
use shared::testing::{TestCluster, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, TAKE_OVER, World};

/// D2, F87: all that was acknowledged is delivered when everything is started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f87_when_everything_is_killed_at_once_nothing_that_was_acknowledged_is_lost() {
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    for slow in endpoints.iter().step_by(8) {
        let answer = Answer::late(Duration::from_millis(900));
        world.receiver.answers(&slow.path, &[answer]);
    }
    let mut workers = world.workers(2).await;
    let (mut api, mut addr) = world.another_api(&[]).await;
    let poster = world.post_to(&[addr], short_or_long(150, 400), &endpoints);
    let mut report = Report::of("machine: API, workers and database killed at once");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(2, 10) {
        let accepted = poster.accepted();
        eventually(PATIENCE, || async {
            (poster.accepted() > accepted + 300).then_some(())
        })
        .await;
        for process in [&api, &workers[0].process, &workers[1].process] {
            process.signal(rustix::process::Signal::KILL);
        }
        cluster.kill_and_restart().await.unwrap();
        at_risk.join(world.at_risk().await);

        let began = boot_time();
        poster.goes_no_more_to(addr);
        (api, addr) = world.another_api(&[]).await;
        poster.goes_to(addr);
        workers = vec![world.worker().await, world.worker().await];
        eventually(TAKE_OVER, || async {
            let mut slots = world.slots_of(workers[0].incarnation).await;
            slots.extend(world.slots_of(workers[1].incarnation).await);
            (slots.len() == 256).then_some(())
        })
        .await;
        report.recovered(boot_time().since(began));
    }
    let posted = poster.stop().await;
    report.note("recovered: from the start of the programs until they own all slots; refused: while there was no API");
    report.close(&world, &posted, &at_risk).await;
}

/// D2: whatever the server's or the database's default is.
#[tokio::test]
async fn d2_every_session_of_ours_commits_synchronously() {
    let cluster = TestCluster::new().await;
    let database = cluster.database();
    let session = database.connect(Role::Maintenance).await.unwrap();
    let off = "ALTER SYSTEM SET synchronous_commit = off; SELECT pg_reload_conf();
        ALTER DATABASE postrider SET synchronous_commit = off";
    for statement in off.split(';') {
        session.batch_execute(statement).await.unwrap();
    }
    for role in [Role::Api, Role::Worker, Role::Maintenance] {
        let session = database.connect(role).await.unwrap();
        let row = session.query_one("SHOW synchronous_commit", &[]).await;
        assert_eq!(row.unwrap().get::<_, String>(0), "on", "{role:?}");
    }
}
