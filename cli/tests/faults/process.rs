//! `postrider` as a child process: its log, its signals, its end.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use shared::runtime::spawn_driver;
use shared::testing::eventually;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// For everything that a loaded machine may do slowly.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The lines of its log that a failed test shows.
const TAIL: usize = 60;

/// A child; killed when dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts `postrider <command>` with these settings and none of our own environment's.
    pub(crate) fn start(command: &str, settings: &[(&str, String)]) -> Self {
        let mut postrider = Command::new(env!("CARGO_BIN_EXE_postrider"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("POSTRIDER_") || name.starts_with("DATABASE_URL") {
                postrider.env_remove(name);
            }
        }
        let mut child = postrider
            .arg(command)
            .env("POSTRIDER_LOG_FORMAT", "json")
            .env("RUST_LOG", "info")
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&log);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        drop(spawn_driver(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                into.lock().unwrap().push(line);
            }
        }));
        let name = format!("{command} {}", child.id().unwrap());
        Self { name, child, log }
    }

    /// Waits until it logs this message the `count`th time; returns that line.
    pub(crate) async fn logs(&mut self, message: &str, count: usize) -> Value {
        let (log, child, name) = (&self.log, &mut self.child, &self.name);
        eventually(PATIENCE, || {
            let found = log
                .lock()
                .unwrap()
                .iter()
                .filter_map(|line| read(line))
                .filter(|line| line["message"] == message)
                .nth(count - 1);
            if found.is_none()
                && let Some(status) = child.try_wait().unwrap()
            {
                panic!("{name} ended with {status} before it said {message:?}");
            }
            std::future::ready(found)
        })
        .await
    }

    /// All that it wrote so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Where its metrics are, as it said when it started.
    pub(crate) fn metrics(&self) -> SocketAddr {
        let log = self.log.lock().unwrap();
        let said = log.iter().filter_map(|line| read(line));
        let mut said = said.filter_map(|line| line["metrics"].as_str()?.parse().ok());
        said.next().unwrap()
    }

    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id().unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.id()).unwrap(), signal).unwrap();
    }

    /// `kill -9`; returns when it is gone.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let ending = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ending
            .unwrap_or_else(|_| panic!("{} does not end", self.name))
            .unwrap()
    }
}

/// A line of the log in either format: its message and its fields.
pub(crate) fn read(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok().or_else(|| read_text(line))
}

/// `<instant> LEVEL the message name=value name=value`: what our own words look like as text.
fn read_text(line: &str) -> Option<Value> {
    let (_, after) = line.split_once("Z ")?;
    let (_level, rest) = after.trim_start().split_once(' ')?;
    let mut words = rest.split(' ').peekable();
    let mut message = Vec::new();
    while let Some(word) = words.next_if(|word| !word.contains('=')) {
        message.push(word);
    }
    let mut document = serde_json::Map::new();
    document.insert("message".to_owned(), message.join(" ").into());
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        document.insert(name.to_owned(), value.into());
    }
    Some(document.into())
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.lock().unwrap();
            let tail = &log[log.len().saturating_sub(TAIL)..];
            eprintln!(
                "--- {} (last of {} lines)\n{}",
                self.name,
                log.len(),
                tail.join("\n")
            );
        }
    }
}
