//! The processes of a scenario: started with a log of their own, stopped by their id.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// How long a process may take from SIGTERM to its end: the drain, and a little.
const GRACE: Duration = Duration::from_secs(40);
/// The part of a log that an error shows, in bytes.
const TAIL: usize = 2_000;

/// A process that is killed, at the latest, when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: &'static str,
    pub(super) child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its stderr in `<dir>/<name>.log`, and its stdout there too unless it
    /// is read (`piped`).
    pub(super) fn start(
        name: &'static str,
        command: Command,
        dir: &Path,
        piped: bool,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        Self::spawn(name, command, log, piped)
    }

    /// The same with all its output in `<dir>/<log>.log`: for several of one name.
    pub(super) fn start_logged(
        name: &'static str,
        log: &str,
        command: Command,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{log}.log"));
        Self::spawn(name, command, log, false)
    }

    fn spawn(
        name: &'static str,
        mut command: Command,
        log: PathBuf,
        piped: bool,
    ) -> anyhow::Result<Self> {
        let file = std::fs::File::create(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let stdout = if piped {
            Stdio::piped()
        } else {
            file.try_clone()?.into()
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, log })
    }

    /// Its process id, while it runs.
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// An error with the end of its log if it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.tail()),
        }
    }

    /// Asks it to stop, and waits for its end. Errors: it did not end in time (then it is killed),
    /// or not with success.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        let id = self
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(id) = id {
            kill_process(id, Signal::TERM)?;
        }
        match tokio::time::timeout(GRACE, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => Ok(()),
            Ok(status) => bail!("{} ended with {}:\n{}", self.name, status?, self.tail()),
            Err(_elapsed) => {
                self.child.kill().await?;
                bail!(
                    "{} did not end within {GRACE:?} of SIGTERM:\n{}",
                    self.name,
                    self.tail()
                )
            }
        }
    }

    fn tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let from = log.len().saturating_sub(TAIL);
        String::from_utf8_lossy(log.get(from..).unwrap_or_default()).into_owned()
    }
}

/// A loopback address with a port that nobody listens on now. Someone may take it before its user
/// binds it; then that user says so and ends.
pub(super) fn free_addr() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}
