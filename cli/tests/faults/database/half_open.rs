//! F77, F61: connections that look well and pass nothing, as after a firewall's restart or a cut cable.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;
use shared::embedded_postgres::SUPERUSER;
use shared::runtime::clock::boot_time;
use shared::testing::proxy::Arrivals;
use shared::testing::{Proxy, TestCluster, eventually};

use super::{put_at_risk, recorded, resumed, some_accepted};
use crate::process::PATIENCE;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, World};

/// F77.
const RESUMED: Duration = Duration::from_secs(30);
/// From the time that the oldest post has waited for half of what it may until the writers have other connections.
const REFUSED: Duration = Duration::from_secs(6);
const PER_SECOND: u32 = 100;

fn through(proxy: &Proxy) -> String {
    format!(
        "postgres://{SUPERUSER}@{}/{SUPERUSER}?sslmode=disable",
        proxy.addr()
    )
}

/// Idle ones and those with a statement on them, all at once; new ones pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f77_connections_that_pass_nothing_are_given_up_and_replaced_and_posts_are_told_in_time() {
    let cluster = TestCluster::new().await;
    let proxy = Proxy::before_socket(cluster.server().socket_dir()).await;
    let world = World::start(&through(&proxy), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(2).await;
    let poster = world.post(PER_SECOND, &endpoints);

    let mut report = Report::of("database: every connection half-open, new ones pass");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(1, 10) {
        some_accepted(&poster, 200).await;
        let before = recorded(&world).await;
        proxy.freeze();
        put_at_risk(&world, &mut at_risk, &before).await;
        report.recovered(resumed(&world, RESUMED).await);
        // What the pool has is as good as new: the first question to each of its connections is answered.
        for _ in 0..20 {
            world
                .ask("GET", "/v1/endpoints?limit=1", &json!(null))
                .await;
        }
        some_accepted(&poster, 2_000).await;
    }

    let posted = poster.stop().await;
    let other = posted.refused.iter().find(|it| !it.starts_with("503"));
    assert_eq!(other, None, "refused in another way");
    assert!(
        posted.error_window() < REFUSED,
        "{:?}",
        posted.error_window()
    );
    report.note("a silent socket is found by deadlines alone: nothing is refused or reset");
    report.close(&world, &posted, &at_risk).await;
}

/// Nothing passes, for new connections neither, and then it does: nobody has to be restarted, and who waits is told
/// in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f77_a_network_that_passes_nothing_for_a_while_is_an_answer_in_time_and_then_over() {
    const AWAY: Duration = Duration::from_secs(20);
    let cluster = TestCluster::new().await;
    let proxy = Proxy::before_socket(cluster.server().socket_dir()).await;
    let world = World::start(&through(&proxy), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(1).await;
    let poster = world.post(PER_SECOND, &endpoints);
    some_accepted(&poster, 200).await;

    let before = recorded(&world).await;
    let stopped = boot_time();
    proxy.arrivals(Arrivals::Hang);
    proxy.freeze();
    let mut at_risk = AtRisk::default();
    put_at_risk(&world, &mut at_risk, &before).await;
    let (read, _) = tokio::join!(
        world.ask_as(Some(&world.key), ("GET", "/v1/endpoints"), b""),
        eventually(PATIENCE, || async {
            (boot_time().since(stopped) > AWAY).then_some(())
        }),
    );
    assert_eq!(read.0, 503, "{}", read.1);
    proxy.arrivals(Arrivals::Pass);
    let mut report = Report::of("database: the network passes nothing for 20 s");
    report.recovered(resumed(&world, RESUMED).await);
    // A lease that could not be renewed for so long has run out, and what was on its way may come again.
    put_at_risk(&world, &mut at_risk, &recorded(&world).await).await;

    let posted = poster.stop().await;
    let other = posted.refused.iter().find(|it| !it.starts_with("503"));
    assert_eq!(other, None, "refused in another way");
    report.close(&world, &posted, &at_risk).await;
}

/// The server cannot send what a worker listens for, and holds a snapshot while it tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_a_listener_that_is_not_read_holds_no_snapshot_for_long_and_workers_find_their_work() {
    const BLOCKED: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND backend_xmin IS NOT NULL";
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let cluster = TestCluster::on(port).await;
    let proxy = Proxy::before(port).await;
    let world = World::start(&through(&proxy), cluster.database()).await;
    let mut workers = world.workers(1).await;
    let endpoint = world.endpoint("unheard", json!({})).await;

    assert_eq!(proxy.freeze_those_that_said("LISTEN postrider_hint"), 1);
    // More than the sockets' buffers on the way hold.
    let flood = "SELECT pg_notify('postrider_hint', i::text || repeat(',1:1', 1900)) FROM generate_series(1, 4000) i";
    let sql = world.sql().await;
    sql.batch_execute(flood).await.unwrap();
    let blocked = async || sql.query_one(BLOCKED, &[]).await.unwrap().get::<_, i64>(0);
    eventually(PATIENCE, || async { (blocked().await == 1).then_some(()) }).await;
    let began = boot_time();

    world.publish(&endpoint).await;
    eventually(Duration::from_secs(5), || async {
        (world.receiver.count_at(&endpoint.path) == 1).then_some(())
    })
    .await;
    eventually(RESUMED, || async { (blocked().await == 0).then_some(()) }).await;
    eprintln!(
        "the snapshot was let go after {:?}",
        boot_time().since(began)
    );
    workers[0]
        .process
        .logs(
            "hints are not heard; connecting again, scans find the work meanwhile",
            1,
        )
        .await;
}
