//! F78: PostgreSQL is killed and comes back, again and again, under load: nobody spins, and nobody storms it.

use std::time::Duration;

use shared::embedded_postgres::{SUPERUSER, Shutdown};
use shared::runtime::clock::boot_time;
use shared::testing::{Proxy, TestCluster, eventually};

use super::{put_at_risk, recorded, resumed, some_accepted};
use crate::process::{PATIENCE, Process};
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, World};

/// F78, architecture §8.
const RESUMED: Duration = Duration::from_secs(10);
const PER_SECOND: u32 = 200;
const AWAY: Duration = Duration::from_secs(2);
/// Each of the sessions of API and worker tries at 50 ms, and then at double the pause up to a second.
const MOST_ATTEMPTS_A_SECOND: usize = 60;
/// Of the kernel's clock of processor time.
const TICKS: f64 = 100.0;

/// Processor time so far, of all these processes, in seconds.
fn busy(processes: &[&Process]) -> f64 {
    let of = |process: &&Process| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        let (_, after) = stat.rsplit_once(')').unwrap();
        let fields: Vec<f64> = after
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0.0))
            .collect();
        fields[11] + fields[12]
    };
    processes.iter().map(of).sum::<f64>() / TICKS
}

/// How busy they are for this long, in processors.
async fn share(processes: &[&Process], length: Duration) -> f64 {
    let (before, began) = (busy(processes), boot_time());
    eventually(PATIENCE, || async {
        (boot_time().since(began) >= length).then_some(())
    })
    .await;
    (busy(processes) - before) / boot_time().since(began).as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_database_that_is_killed_again_and_again_is_neither_spun_on_nor_stormed() {
    let mut cluster = TestCluster::new().await;
    let proxy = Proxy::before_socket(cluster.server().socket_dir()).await;
    let url = format!(
        "postgres://{SUPERUSER}@{}/{SUPERUSER}?sslmode=disable",
        proxy.addr()
    );
    let world = World::start(&url, cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let workers = world.workers(2).await;
    let processes = [&world.api_process, &workers[0].process, &workers[1].process];
    let poster = world.post(PER_SECOND, &endpoints);
    some_accepted(&poster, 200).await;
    let usual = share(&processes, AWAY).await;

    let mut report = Report::of("database: killed (SIGKILL), away for 2 s");
    let mut at_risk = AtRisk::default();
    let (mut busiest, mut most) = (0_f64, 0);
    for _ in 0..short_or_long(2, 20) {
        some_accepted(&poster, 100).await;
        let before = recorded(&world).await;
        cluster.server_mut().halt(Shutdown::Kill).await.unwrap();
        put_at_risk(&world, &mut at_risk, &before).await;
        // Readers too wait for a connection, and the pool is what they share.
        let opened = proxy.opened();
        let reading =
            (0..40).map(|_| world.ask_as(Some(&world.key), ("GET", "/v1/endpoints?limit=1"), b""));
        let reading = futures_util::future::join_all(reading);
        let away = async {
            let share = share(&processes, AWAY).await;
            let attempts = proxy.opened() - opened;
            cluster.start().await.unwrap();
            (share, attempts, resumed(&world, RESUMED).await)
        };
        let (read, (share, attempts, recovered)) = tokio::join!(reading, away);
        let failed = read.iter().find(|(status, _)| *status != 200);
        assert_eq!(failed, None, "it was away for less than a request waits");
        report.recovered(recovered);
        busiest = busiest.max(share);
        most = most.max(attempts);
    }

    let posted = poster.stop().await;
    posted.nothing_refused();
    let attempts = most / usize::try_from(AWAY.as_secs()).unwrap();
    report.note(format!(
        "{busiest:.2} processors while away, {usual:.2} before; at most {attempts} connections tried a second"
    ));
    report.close(&world, &posted, &at_risk).await;
    assert!(
        busiest < usual * 2.0,
        "{busiest} processors, usually {usual}"
    );
    assert!(
        attempts <= MOST_ATTEMPTS_A_SECOND,
        "{attempts} attempts a second"
    );
}
