//! The database goes away: for a moment, which nobody notices, and for longer, which everybody is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Config;
use reqwest::Method;
use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, eventually};

use crate::app::{ADMIN, PATIENCE, Reply, Server};

/// A few seconds: longer than a restart takes.
const AWAY: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn a_database_that_is_away_for_a_moment_is_no_error_for_anyone() {
    let mut cluster = TestCluster::new().await;
    let server = Arc::new(Server::start(cluster.database()).await);
    server.ready().await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant.endpoint(json!({})).await;
    let (key, path) = (
        tenant.key.clone(),
        format!("/v1/endpoints/{}", endpoint["id"].as_str().unwrap()),
    );
    tenant.publishes("a", &json!(1)).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..12 {
        let (server, over, key, path) = (
            Arc::clone(&server),
            Arc::clone(&over),
            key.clone(),
            path.clone(),
        );
        asking.spawn(async move {
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                let reply = match number % 4 {
                    0 => server.get("/v1/events", &key).await,
                    1 => server.get(&path, &key).await,
                    2 => server.get("/v1/deliveries", &key).await,
                    _ => {
                        let event = json!({"type": "a", "payload": 1});
                        server.post("/v1/events", &key, &event).await
                    }
                };
                assert!(reply.status.is_success(), "{reply:?}");
                answered += 1;
            }
            answered
        });
    }

    cluster.stop().await.unwrap();
    let stopped = boot_time();
    // What begins while it is away waits for it, changes too.
    let changed = {
        let (server, key, path) = (Arc::clone(&server), key.clone(), path.clone());
        shared::runtime::spawn_driver(async move {
            let patch = json!({"description": "changed while the database was away"});
            server.patch(&path, &key, &patch).await
        })
    };
    away_since(stopped, AWAY).await;
    cluster.start().await.unwrap();

    changed.await.unwrap().expect(200);
    server.get("/v1/admin/tenants", ADMIN).await.expect(200);
    over.store(true, Ordering::Relaxed);
    while let Some(answered) = asking.join_next().await {
        assert!(answered.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_database_that_stays_away_is_said_within_the_deadline_and_all_goes_on_when_it_is_back() {
    let mut cluster = TestCluster::new().await;
    let deadline = Duration::from_secs(1);
    let config = Config::for_testing(cluster.database()).with_deadline(deadline);
    let server = Server::start_with(config).await;
    server.ready().await;
    let tenant = server.tenant("acme").await;
    tenant.publishes("a", &json!(1)).await;

    cluster.stop().await.unwrap();
    let event = json!({"type": "a", "payload": 1});
    let patch = json!({"description": "x"});
    let unknown = "prk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for _ in 0..3 {
        let asked = boot_time();
        let (post, get, change, other, admin) = tokio::join!(
            tenant.post("/v1/events", &event),
            tenant.get("/v1/events"),
            server.patch(
                "/v1/endpoints/ep_01kb9h2v3cfzqt9m6w8x5y7r2n",
                &tenant.key,
                &patch
            ),
            server.get("/v1/events", unknown),
            server.send(Method::GET, "/v1/admin/tenants", Some(ADMIN), "", &[]),
        );
        let took = boot_time().since(asked);
        for reply in [post, get, change, other, admin] {
            is_away(reply);
        }
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    cluster.start().await.unwrap();

    eventually(PATIENCE, || async {
        (tenant.post("/v1/events", &event).await.status == 202).then_some(())
    })
    .await;
    tenant.get("/v1/events").await.expect(200);
    server
        .get("/v1/events", unknown)
        .await
        .problem(401, "unauthorized");
}

fn is_away(reply: Reply) {
    assert_eq!(reply.header("retry-after"), "1");
    reply.problem(503, "unavailable");
}

/// Until something has been so for this long.
async fn away_since(since: shared::runtime::clock::BootTime, length: Duration) {
    eventually(PATIENCE, || async {
        (boot_time().since(since) >= length).then_some(())
    })
    .await;
}
