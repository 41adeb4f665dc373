//! What an earlier run that was killed left behind, cleared before a start.
//!
//! A `postmaster.pid` says little: its number may have been given to another program since. So the
//! processes themselves are asked: a PostgreSQL process works in its cluster's directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::place::{self, Place};
use super::{EmbeddedError, io_error, server};
use crate::runtime::clock::wall_time;

/// How long each signal is given. The shell that watched the server may be stopping it already.
const STEPS: [(Signal, Duration); 3] = [
    (Signal::INT, Duration::from_secs(10)),
    (Signal::QUIT, Duration::from_secs(5)),
    (Signal::KILL, Duration::from_secs(5)),
];
const POLL: Duration = Duration::from_millis(10);
/// Younger ones may be about to be locked by the process that makes them.
const SWEEP_AFTER: Duration = Duration::from_secs(3600);

/// Stops a server that still runs in this place and removes what is half made or stale. The caller
/// holds the place's lock: no other process of ours is using it.
pub(super) async fn clear(place: &Place) -> Result<(), EmbeddedError> {
    stop_orphans(place).await?;
    remove_dir(&place.half_made())?;
    let pid_file = place.pid_file();
    match std::fs::remove_file(&pid_file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io_error("remove", &pid_file)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn stop_orphans(place: &Place) -> Result<(), EmbeddedError> {
    for (signal, grace) in STEPS {
        let orphans = processes_in(&place.data);
        if orphans.is_empty() {
            return Ok(());
        }
        // A fast shutdown is for the first process only: to the others SIGINT means "cancel".
        let first = orphans.iter().position(|pid| is_postmaster(place, *pid));
        let addressed = match (signal, first) {
            (Signal::INT, None) => continue,
            (Signal::INT, Some(first)) => orphans.get(first..=first).unwrap_or_default(),
            _ => orphans.as_slice(),
        };
        for pid in addressed {
            if let Err(error) = kill_process(*pid, signal) {
                tracing::debug!(%error, "a left-over PostgreSQL process has ended already");
            }
        }
        let all_ended = async {
            while !processes_in(&place.data).is_empty() {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(grace, all_ended).await.is_ok() {
            return Ok(());
        }
    }
    let pids = processes_in(&place.data);
    Err(EmbeddedError::Stuck {
        dir: place.base.clone(),
        pids: pids
            .iter()
            .map(|pid| pid.as_raw_nonzero().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn is_postmaster(place: &Place, pid: Pid) -> bool {
    u32::try_from(pid.as_raw_nonzero().get()).ok() == server::postmaster_pid(place)
}

/// PostgreSQL processes whose working directory is this cluster. Empty where there is no `/proc`:
/// then PostgreSQL's own check of `postmaster.pid` is all there is.
fn processes_in(data: &Path) -> Vec<Pid> {
    let Ok(data) = data.canonicalize() else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            let proc = entry.path();
            std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == data)
                && std::fs::read_to_string(proc.join("comm"))
                    .is_ok_and(|name| name.trim_end() == "postgres")
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .collect()
}

/// Removes throw-away clusters whose process was killed before its server's shell could look after
/// them: old, with a lock that nobody holds, and without a server.
pub(super) fn sweep(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let dir = entry.path();
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(place::THROW_AWAY_PREFIX)
            && is_abandoned(&dir)
            && let Err(error) = std::fs::remove_dir_all(&dir)
        {
            tracing::debug!(%error, dir = %dir.display(), "an abandoned cluster stays");
        }
    }
}

fn is_abandoned(dir: &Path) -> bool {
    let age = dir
        .metadata()
        .and_then(|found| found.modified())
        .ok()
        .and_then(|modified| SystemTime::from(wall_time()).duration_since(modified).ok());
    age.is_some_and(|age| age > SWEEP_AFTER)
        && File::open(dir.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok())
        && processes_in(&dir.join("data")).is_empty()
}

fn remove_dir(dir: &Path) -> Result<(), EmbeddedError> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io_error("remove", dir)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
