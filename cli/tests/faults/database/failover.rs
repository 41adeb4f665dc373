//! The database changes places: both nodes are in `DATABASE_URL`, and replication is synchronous, so that nothing
//! that was acknowledged is lost.

use std::path::Path;
use std::time::Duration;

use shared::embedded_postgres::{EmbeddedPostgres, SUPERUSER, Shutdown};
use shared::runtime::clock::boot_time;
use shared::store::Database;
use shared::testing::{TestCluster, eventually};

use super::{put_at_risk, recorded, resumed, some_accepted};
use crate::process::PATIENCE;
use crate::report::Report;
use crate::world::{AtRisk, World};

/// F76.
const RESUMED: Duration = Duration::from_secs(30);
const PER_SECOND: u32 = 100;
/// Sessions of ours that were asked something lately.
const OURS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('postrider-api', 'postrider-worker')
                    AND state_change > now() - interval '3 s'";

/// A primary, a standby that its commits wait for, and a product that knows of both.
struct Pair {
    primary: TestCluster,
    standby: EmbeddedPostgres,
    world: World,
}

impl Pair {
    async fn start() -> Self {
        let primary = TestCluster::new().await;
        let standby = primary.server().replica("standby").await.unwrap();
        let own = primary.server();
        ask(
            own,
            "ALTER SYSTEM SET synchronous_standby_names = 'standby'",
        );
        ask(own, "SELECT pg_reload_conf()");
        eventually(PATIENCE, || async {
            let state = ask(own, "SELECT sync_state FROM pg_stat_replication");
            (state == "sync").then_some(())
        })
        .await;
        let url = format!(
            "host={},{} port=5432 user={SUPERUSER} dbname={SUPERUSER} sslmode=disable",
            own.socket_dir().display(),
            standby.socket_dir().display()
        );
        let world = World::start(&url, Database::new(&url).unwrap()).await;
        Self {
            primary,
            standby,
            world,
        }
    }

    /// Waits until the standby has all that the primary will ever have had.
    async fn caught_up(&self) {
        let end = ask(self.primary.server(), "SELECT pg_current_wal_flush_lsn()");
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
        eventually(PATIENCE, || async {
            (ask(&self.standby, &replayed) == "t").then_some(())
        })
        .await;
    }
}

/// What a node says, whether it takes writes or not.
fn ask(server: &EmbeddedPostgres, sql: &str) -> String {
    let mut psql = server.command(Path::new("psql"));
    psql.args(["-XAtq", "-U", SUPERUSER, "-h"]);
    psql.arg(server.socket_dir()).args(["-c", sql]);
    let said = psql.output().unwrap();
    assert!(said.status.success(), "{sql}: {said:?}");
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_standby_that_is_promoted_when_the_primary_is_killed_takes_over_and_nothing_is_lost()
{
    let mut report = Report::of("database: primary killed, synchronous standby promoted");
    let mut pair = Pair::start().await;
    let endpoints = pair.world.an_endpoint_in_each_slot().await;
    let _workers = pair.world.workers(2).await;
    let poster = pair.world.post(PER_SECOND, &endpoints);
    some_accepted(&poster, 300).await;

    let killed = boot_time();
    pair.primary
        .server_mut()
        .halt(Shutdown::Kill)
        .await
        .unwrap();
    pair.standby.promote().await.unwrap();
    let mut at_risk = AtRisk::default();
    put_at_risk(&pair.world, &mut at_risk, &recorded(&pair.world).await).await;
    resumed(&pair.world, RESUMED).await;
    report.recovered(boot_time().since(killed));

    let posted = poster.stop().await;
    posted.nothing_refused();
    report.close(&pair.world, &posted, &at_risk).await;
}

/// The old primary stays, and its connections with it; it only takes no more writes. What is read there has been
/// overtaken: who stays there would send again what the new primary has recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_primary_that_is_left_read_only_is_left_by_everybody_and_nothing_is_sent_twice() {
    let mut report = Report::of("database: old primary left read-only, connections alive");
    let pair = Pair::start().await;
    let endpoints = pair.world.an_endpoint_in_each_slot().await;
    let _workers = pair.world.workers(2).await;
    let poster = pair.world.post(PER_SECOND, &endpoints);
    some_accepted(&poster, 300).await;

    let left = boot_time();
    let old = pair.primary.server();
    ask(old, "ALTER SYSTEM SET default_transaction_read_only = on");
    ask(old, "SELECT pg_reload_conf()");
    pair.caught_up().await;
    pair.standby.promote().await.unwrap();
    let mut at_risk = AtRisk::default();
    put_at_risk(&pair.world, &mut at_risk, &recorded(&pair.world).await).await;
    resumed(&pair.world, RESUMED).await;
    report.recovered(boot_time().since(left));
    eventually(RESUMED, || async { (ask(old, OURS) == "0").then_some(()) }).await;
    report.note(format!(
        "nothing was asked there after {:.1} s",
        boot_time().since(left).as_secs_f64()
    ));

    let posted = poster.stop().await;
    posted.nothing_refused();
    report.close(&pair.world, &posted, &at_risk).await;
}

/// The old primary is first in `DATABASE_URL`, and answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_primary_that_comes_back_as_a_standby_is_passed_over() {
    let mut report = Report::of("database: primary demoted to a standby, the other promoted");
    let mut pair = Pair::start().await;
    let endpoints = pair.world.an_endpoint_in_each_slot().await;
    let _workers = pair.world.workers(2).await;
    let poster = pair.world.post(PER_SECOND, &endpoints);
    some_accepted(&poster, 300).await;

    let left = boot_time();
    pair.primary.server_mut().demote().await.unwrap();
    pair.standby.promote().await.unwrap();
    let mut at_risk = AtRisk::default();
    put_at_risk(&pair.world, &mut at_risk, &recorded(&pair.world).await).await;
    resumed(&pair.world, RESUMED).await;
    report.recovered(boot_time().since(left));

    let posted = poster.stop().await;
    posted.nothing_refused();
    report.close(&pair.world, &posted, &at_risk).await;
}
