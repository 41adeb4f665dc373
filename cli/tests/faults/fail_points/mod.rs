//! SIGKILL at every step (field reports F66, F88): a process dies at a named place in the code
//! (`shared::fail_point!`), and whoever comes next finds everything as it should be. What was sent before it could
//! be recorded is sent again; nothing else is, and nothing is lost.

mod api;
mod journal;
mod loaded;
mod owners;
mod steps;
mod writes;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use rustix::process::Signal;
use shared::store::slots;

use crate::process::Process;
use crate::world::{Setting, Worker, World};

/// Lets a process die when it comes by this place for the `at`th time.
fn dies_at(point: &str, at: usize) -> Setting {
    ("FAIL_POINT", format!("{point}:{at}"))
}

impl World {
    /// A worker that will die when it first comes by this place.
    async fn dying_worker(&self, point: &str) -> Worker {
        self.worker_with(&[dies_at(point, 1)]).await
    }

    /// Declares every worker dead, as another one would when their leases have run out.
    async fn bury_all(&self) {
        let session = self.sql().await;
        slots::declare_all_dead(&session).await.unwrap();
    }
}

/// Waits until it has died as it was told to.
async fn has_died(process: &mut Process) {
    let status = process.ends().await;
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
}

/// F88: there is no place that no test tries.
#[test]
fn every_fail_point_is_tried_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut places = BTreeSet::new();
    for directory in ["api/src", "worker/src", "shared/src"] {
        find(&root.join(directory), &mut |text| {
            places.extend(names(text, "fail_point!(\""));
        });
    }
    let mut tried = String::new();
    find(&root.join("cli/tests/faults/fail_points"), &mut |text| {
        tried.push_str(text);
    });
    assert!(places.len() > 20, "{places:?}");
    places.retain(|place| !tried.contains(&format!("\"{place}\"")));
    assert!(places.is_empty(), "no test dies at {places:?}");
}

/// Reads every Rust file below a directory.
fn find(directory: &Path, read: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, read);
        } else if path.extension().is_some_and(|it| it == "rs") {
            read(&fs::read_to_string(path).unwrap());
        }
    }
}

/// What stands between this beginning and the next quote.
fn names(text: &str, before: &str) -> Vec<String> {
    let places = text.split(before).skip(1);
    places
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .filter(|name| name.contains('.'))
        .collect()
}
