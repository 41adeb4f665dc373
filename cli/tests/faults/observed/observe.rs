//! `make observe`: what a newcomer starts beside a Postrider that runs.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use shared::testing::{TestDatabase, eventually};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::{folder, get};
use crate::process::PATIENCE;
use crate::world::World;

/// A port that was free just now.
fn free() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap()
}

/// The script, with its Prometheus there and what it keeps here.
fn observe(addr: SocketAddr, kept: &Path, target: SocketAddr) -> Command {
    let mut script = Command::new(folder().join("../scripts/observe"));
    script
        .arg(target.to_string())
        .env("PROMETHEUS_ADDR", addr.to_string())
        .env("OBSERVE_DIR", kept)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    script
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn make_observe_scrapes_what_runs_with_the_rules_loaded_and_ends_with_its_prometheus() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let addr = free();
    let kept = tempfile::tempdir().unwrap();
    let metrics = world.api_process.metrics();
    let mut script = observe(addr, kept.path(), metrics).spawn().unwrap();

    eventually(PATIENCE, || {
        let ended = script.try_wait().unwrap();
        assert_eq!(ended, None, "scripts/observe ended");
        async {
            TcpStream::connect(addr).await.ok()?;
            let (_, rules) = get(addr, "/api/v1/rules").await;
            let (_, up) = get(addr, "/api/v1/query?query=postrider_events_accepted_total").await;
            (rules.contains("PostriderOldestPending") && up.contains("\"value\"")).then_some(())
        }
    })
    .await;

    let id = i32::try_from(script.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), Signal::TERM).unwrap();
    let ended = tokio::time::timeout(PATIENCE, script.wait()).await.unwrap();
    assert!(ended.unwrap().success());
    assert!(
        TcpStream::connect(addr).await.is_err(),
        "Prometheus goes on"
    );
}

#[tokio::test]
async fn make_observe_says_what_to_do_where_nothing_listens() {
    let (target, kept) = (free(), tempfile::tempdir().unwrap());
    let said = observe(free(), kept.path(), target).output().await.unwrap();

    let words = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        words.contains(&format!("Nothing listens on {target}")),
        "{words}"
    );
    assert!(words.contains("make run"), "{words}");
}
