//! Health: ready means that it was tried.

use std::time::Duration;

use api::Config;
use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, TestDatabase, eventually};
use tokio_util::sync::CancellationToken;

use crate::app::{PATIENCE, Server, world};

#[tokio::test]
async fn it_is_live_at_once_and_ready_on_both_addresses_when_the_database_took_a_write() {
    let (_database, server) = world().await;

    server
        .open(&format!("{}/health/live", server.base))
        .await
        .expect(200);
    server.ready().await;

    let ready = server
        .open(&format!("{}/health/ready", server.metrics))
        .await;
    assert_eq!(ready.status, 200);
    let metrics = server.open(&format!("{}/metrics", server.metrics)).await;
    let text = String::from_utf8(metrics.bytes).unwrap();
    for name in [
        "postrider_events_accepted_total",
        "postrider_ingest_seconds_bucket",
    ] {
        assert!(text.contains(name), "{name}");
    }
}

#[tokio::test]
async fn it_is_not_ready_while_the_database_is_away_and_ready_again_afterwards() {
    let mut cluster = TestCluster::new().await;
    let server = Server::start(cluster.database()).await;
    server.ready().await;
    let not_ready = format!("{}/health/ready", server.metrics);

    cluster.stop().await.unwrap();

    let said = eventually(PATIENCE, || async {
        let reply = server.open(&not_ready).await;
        (reply.status == 503).then(|| String::from_utf8(reply.bytes).unwrap())
    })
    .await;
    assert!(said.contains("database"), "{said}");
    server
        .open(&format!("{}/health/ready", server.base))
        .await
        .problem(503, "unavailable");
    cluster.start().await.unwrap();
    server.ready().await;
}

#[tokio::test]
async fn it_is_not_ready_without_partitions_for_the_coming_days() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let rows = session
        .query(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass",
            &[],
        )
        .await
        .unwrap();
    for row in rows {
        let name: String = row.get(0);
        session
            .batch_execute(&format!("DROP TABLE {name}"))
            .await
            .unwrap();
    }

    let server = Server::start(database.database()).await;

    eventually(PATIENCE, || async {
        let reply = server
            .open(&format!("{}/health/ready", server.metrics))
            .await;
        let said = String::from_utf8(reply.bytes).unwrap();
        (reply.status == 503 && said.contains("partitions")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_database_and_a_taken_address_are_told_at_start() {
    let nowhere = shared::store::Database::new("postgres://u@127.0.0.1:1/d").unwrap();
    let error = api::start(Config::for_testing(nowhere), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("DATABASE_URL"), "{error:#}");

    let (database, server) = world().await;
    let mut config = Config::for_testing(database.database());
    config.addr = server.base.trim_start_matches("http://").parse().unwrap();
    let error = api::start(config, CancellationToken::new())
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("POSTRIDER_API_ADDR"),
        "{error:#}"
    );
}

#[tokio::test]
async fn requests_under_way_are_answered_before_it_stops() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let key = tenant.key.clone();
    let event = serde_json::json!({"type": "a", "payload": 1});

    let posts = (0..50).map(|_| server.post("/v1/events", &key, &event));
    let replies = futures_util::future::join_all(posts).await;

    assert!(replies.iter().all(|reply| reply.status == 202));
    // The client's connections are still open, and idle: they must not hold it up.
    let began = boot_time();
    server.stop().await.unwrap();
    let took = boot_time().since(began);
    assert!(took < Duration::from_secs(3), "{took:?}");
}
