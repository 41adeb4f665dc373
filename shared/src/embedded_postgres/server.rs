//! The server's process: made, started, waited for, stopped.
//!
//! Standard library processes, not tokio's: a server in a `static` outlives the runtime of the test
//! that started it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::place::Place;
use super::{EmbeddedError, Options, SUPERUSER, Shutdown, io_error};

/// Names the socket; nothing listens on TCP.
pub(super) const PORT: u16 = 5432;
/// Recovery after a crash reads at most `max_wal_size` of WAL.
const START_BUDGET: Duration = Duration::from_secs(120);
/// A fast shutdown writes a checkpoint.
const FAST_GRACE: Duration = Duration::from_secs(10);
/// An immediate one writes nothing.
const IMMEDIATE_GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
/// How much of a log an error quotes, bytes.
const LOG_TAIL: u64 = 2_000;

const WATCHER: &str = include_str!("server.sh");

/// A running server and the shell that watches over it.
#[derive(Debug)]
pub(super) struct Server {
    shell: Child,
    /// Open, because a throw-away server's shell removes the file before we can ask what it says.
    log: File,
    /// Where the log of this run begins.
    log_from: u64,
}

impl Server {
    pub(super) async fn launch(place: &Place, options: &Options) -> Result<Self, EmbeddedError> {
        place.renew_socket_dir()?;
        let log = log_file(place)?;
        let log_from = log.metadata().map_err(io_error("read", &place.log))?.len();
        let output = log.try_clone().map_err(io_error("open", &place.log))?;
        let errors = log.try_clone().map_err(io_error("open", &place.log))?;
        let mut command = place.command(Path::new("/bin/sh"));
        command
            .args(["-c", WATCHER, "postrider-postgres"])
            .arg(place.remove.as_deref().unwrap_or(Path::new("")))
            .arg(FAST_GRACE.as_secs().to_string())
            .arg(place.program("postgres"))
            .arg("-D")
            .arg(&place.data)
            .arg("-k")
            .arg(&place.socket);
        for (name, value) in settings(place, options) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let shell = command
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(io_error("run", Path::new("/bin/sh")))?;
        let mut server = Self {
            shell,
            log,
            log_from,
        };
        server.ready(place).await?;
        place.unkeep();
        Ok(server)
    }

    /// Waits until the server takes connections: it says so in `postmaster.pid`.
    async fn ready(&mut self, place: &Place) -> Result<(), EmbeddedError> {
        let became_ready = async {
            loop {
                if !self.runs() {
                    return false;
                }
                if pid_file_line(place, 7).is_some_and(|status| status == "ready") {
                    return true;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match tokio::time::timeout(START_BUDGET, became_ready).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(EmbeddedError::Program {
                program: "postgres",
                output: self.log_tail(),
            }),
        }
    }

    fn runs(&mut self) -> bool {
        matches!(self.shell.try_wait(), Ok(None))
    }

    pub(super) async fn ended(&mut self) {
        while self.runs() {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops the server, harder each time that it does not end.
    pub(super) async fn stop(mut self, place: &Place, how: Shutdown) -> Result<(), EmbeddedError> {
        let pid = postmaster_pid(place);
        let steps = [
            ("INT", FAST_GRACE),
            ("QUIT", IMMEDIATE_GRACE),
            ("KILL", IMMEDIATE_GRACE),
        ];
        let first = match how {
            Shutdown::Fast => 0,
            Shutdown::Immediate => 1,
            Shutdown::Kill => 2,
        };
        for (signal, grace) in steps.into_iter().skip(first) {
            self.order(signal);
            if tokio::time::timeout(grace, self.ended()).await.is_ok() {
                return Ok(());
            }
        }
        Err(EmbeddedError::Stuck {
            dir: place.base.clone(),
            pids: pid.map(|pid| pid.to_string()).unwrap_or_default(),
        })
    }

    /// The end of what the server logged in this run.
    pub(super) fn log_tail(&self) -> String {
        let read = || {
            let mut log = &self.log;
            let length = log.metadata()?.len();
            let from = self.log_from.max(length.saturating_sub(LOG_TAIL));
            log.seek(SeekFrom::Start(from))?;
            let mut tail = Vec::new();
            log.take(LOG_TAIL).read_to_end(&mut tail)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&tail).into_owned())
        };
        read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
    }

    fn order(&mut self, signal: &str) {
        if let Some(orders) = &mut self.shell.stdin
            && let Err(error) = writeln!(orders, "{signal}")
        {
            tracing::debug!(%error, "the embedded PostgreSQL has ended already");
        }
    }
}

/// Makes the cluster beside its place and moves it there when it is whole, so that a run killed in
/// between leaves nothing that looks like a cluster.
pub(super) async fn initialize(place: &Place, durable: bool) -> Result<(), EmbeddedError> {
    let half_made = place.half_made();
    let mut initdb = place.command(&place.program("initdb"));
    initdb
        .args(["--username", SUPERUSER, "--encoding", "UTF8"])
        .args(["--locale", "C", "--auth-local", "trust"])
        .args(["--auth-host", "reject", "--no-instructions"])
        .arg("--pgdata")
        .arg(&half_made);
    if !durable {
        initdb.arg("--no-sync");
    }
    run("initdb", initdb, "").await?;
    let mut single = place.command(&place.program("postgres"));
    single.arg("--single").arg("-D").arg(&half_made);
    if !durable {
        single.args(["-c", "fsync=off"]);
    }
    single.arg("postgres");
    let create = format!("CREATE DATABASE {SUPERUSER}\n");
    run("postgres --single", single, &create).await?;
    std::fs::rename(&half_made, &place.data).map_err(io_error("make", &place.data))
}

/// Runs a program of PostgreSQL to its end.
pub(super) async fn run(
    program: &'static str,
    command: Command,
    input: &str,
) -> Result<(), EmbeddedError> {
    let path = command.get_program().to_owned();
    let mut child = tokio::process::Command::from(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(io_error("run", Path::new(&path)))?;
    if let Some(mut stdin) = child.stdin.take() {
        use tokio::io::AsyncWriteExt;
        stdin
            .write_all(input.as_bytes())
            .await
            .map_err(io_error("write to", Path::new(&path)))?;
    }
    let output = child
        .wait_with_output()
        .await
        .map_err(io_error("run", Path::new(&path)))?;
    if output.status.success() {
        return Ok(());
    }
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(EmbeddedError::Program {
        program,
        output: said,
    })
}

/// The server's settings. On the command line, so that they follow the program and not the day on
/// which the cluster was made.
fn settings(place: &Place, options: &Options) -> Vec<(String, String)> {
    let on_off = if options.durable { "on" } else { "off" };
    let mut settings = vec![
        ("listen_addresses", ""),
        ("unix_socket_permissions", "0700"),
        ("max_connections", "200"),
        ("jit", "off"),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
        ("log_line_prefix", "%m [%p] %a "),
        ("autovacuum_naptime", "5s"),
        ("max_wal_size", "4GB"),
        ("checkpoint_timeout", "30min"),
        ("fsync", on_off),
        ("full_page_writes", on_off),
        ("synchronous_commit", on_off),
        (
            "shared_buffers",
            if options.durable { "512MB" } else { "64MB" },
        ),
        ("wal_compression", if place.lz4 { "lz4" } else { "on" }),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect::<Vec<_>>();
    settings.push(("port".to_owned(), PORT.to_string()));
    settings.extend(options.settings.iter().cloned());
    settings
}

/// The log of this run is appended to; one of an earlier run is kept under another name once large.
fn log_file(place: &Place) -> Result<File, EmbeddedError> {
    const LARGE: u64 = 8 << 20;
    if place.log.metadata().is_ok_and(|log| log.len() > LARGE) {
        let old = place.log.with_extension("log.1");
        std::fs::rename(&place.log, &old).map_err(io_error("rename", &place.log))?;
    }
    OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(&place.log)
        .map_err(io_error("open", &place.log))
}

/// The process id in `postmaster.pid`; it may be stale.
pub(super) fn postmaster_pid(place: &Place) -> Option<u32> {
    pid_file_line(place, 0)?.parse().ok()
}

fn pid_file_line(place: &Place, index: usize) -> Option<String> {
    let text = std::fs::read_to_string(place.pid_file()).ok()?;
    text.lines().nth(index).map(|line| line.trim().to_owned())
}
