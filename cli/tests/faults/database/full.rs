//! The disk of the database is full: nothing is acknowledged that is not stored, nothing that was is lost, and when
//! there is room again all goes on by itself.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shared::embedded_postgres::{EmbeddedPostgres, Shutdown};
use shared::testing::{TestCluster, eventually};

use super::{put_at_risk, recorded, resumed, some_accepted};
use crate::process::PATIENCE;
use crate::report::Report;
use crate::world::{AtRisk, World};

const SIZE: &str = "size=256m,mode=0755";
const RESUMED: Duration = Duration::from_secs(30);
const PER_SECOND: u32 = 200;
/// Posts without a 202: longer than any of them waits.
const REFUSED: usize = 12 * 200;

/// A small file system of its own; gone when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Only root may mount one.
    fn mount() -> Option<Self> {
        let dir = tempfile::Builder::new()
            .prefix("postrider-small-")
            .tempdir()
            .unwrap()
            .keep();
        let mounting = Command::new("mount")
            .args(["-t", "tmpfs", "-o", SIZE, "tmpfs"])
            .arg(&dir)
            .output();
        if mounting.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(dir));
        }
        std::fs::remove_dir(&dir).unwrap();
        None
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all the room that there is.
    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        let block = vec![1; 1 << 20];
        while file.write_all(&block).is_ok() {}
        while file.write_all(&block[..4_096]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        if unmounted.is_ok_and(|status| status.success()) {
            drop(std::fs::remove_dir(&self.0));
        }
    }
}

fn runs(server: &EmbeddedPostgres) -> bool {
    server
        .pid()
        .is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_that_was_acknowledged_and_all_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("NOT TESTED: a full disk. Only root can mount a small one.");
        return;
    };
    // Segments of WAL are made when they are needed, and not kept: the disk fills at once.
    let settings = [
        ("max_wal_size", "32MB"),
        ("min_wal_size", "32MB"),
        ("wal_recycle", "off"),
    ];
    let mut cluster = TestCluster::with(&settings, Some(disk.0.join("cluster"))).await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(1).await;
    let poster = world.post(PER_SECOND, &endpoints);
    some_accepted(&poster, 400).await;

    let before = recorded(&world).await;
    disk.fill();
    eventually(PATIENCE, || async {
        (poster.waiting() > REFUSED).then_some(())
    })
    .await;
    let mut at_risk = AtRisk::default();
    put_at_risk(&world, &mut at_risk, &before).await;
    disk.make_room();
    let mut report = Report::of("database: its disk is full");
    if !runs(cluster.server()) {
        // Without room for its log it gives up; whoever looks after it starts it again.
        report.note("PostgreSQL had given up (PANIC) and was started again");
        cluster
            .server_mut()
            .halt(Shutdown::Immediate)
            .await
            .unwrap();
        cluster.start().await.unwrap();
    }
    report.recovered(resumed(&world, RESUMED).await);

    let posted = poster.stop().await;
    let other = posted.refused.iter().find(|it| !it.starts_with("503"));
    assert_eq!(other, None, "refused in another way");
    report.close(&world, &posted, &at_risk).await;
    drop(world);
    drop(cluster);
}
