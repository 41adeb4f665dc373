//! The system under test with everything around it: started, watched, stopped.

mod programs;
mod workers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::runtime::clock::boot_time;
use tempfile::TempDir;

use self::programs::{program, raise_file_limit, random_key, start_receiver};
use self::workers::Worker;
use super::cpu::{self, Cpu};
use super::database::Postgres;
use super::process::{Process, free_addr};
use crate::client::{ask, request};
use crate::receiver::Verify;
use crate::receiver::books::Counts;

/// How long the programs may take to be ready.
const START: Duration = Duration::from_secs(60);
/// How long nothing may be received, while something is missing, before the drain is given up.
pub(super) const STALLED: Duration = Duration::from_secs(20);
/// How often a condition is looked at.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// How to start it.
pub(super) struct Options {
    /// The directory of `postrider-api` and `postrider-worker`.
    pub(super) programs: PathBuf,
    /// This program.
    pub(super) own: PathBuf,
    pub(super) logs: Option<PathBuf>,
    /// `api:NAME=VALUE`, `worker:NAME=VALUE`.
    pub(super) settings: Vec<String>,
    pub(super) verify: Verify,
    pub(super) workers: usize,
    /// Loopback addresses that the receiver is reached at; 1: only its own.
    pub(super) hosts: usize,
    /// `NAME=VALUE` for PostgreSQL.
    pub(super) postgres: Vec<String>,
    /// Whether the database counts its statements.
    pub(super) statements: bool,
}

/// Everything that runs. Dropping it kills the processes; the database stops by itself.
pub(super) struct System {
    options: Options,
    dir: TempDir,
    logs: PathBuf,
    /// What every program of ours is told.
    common: Vec<(&'static str, String)>,
    pub(super) postgres: Postgres,
    receiver: Process,
    pub(super) receiver_addr: SocketAddr,
    /// Until it is stopped.
    api: Option<Process>,
    pub(super) api_addr: SocketAddr,
    api_metrics: SocketAddr,
    workers: Vec<Worker>,
    workers_started: usize,
    pub(super) admin_token: String,
}

impl System {
    pub(super) async fn start(options: Options) -> anyhow::Result<Self> {
        raise_file_limit();
        let dir = tempfile::Builder::new()
            .prefix("postrider-load-")
            .tempdir()?;
        let logs = options
            .logs
            .clone()
            .unwrap_or_else(|| dir.path().to_owned());
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        let postgres = Postgres::start(&options.postgres, options.statements).await?;
        let (receiver, receiver_addr) = start_receiver(&options, &logs).await?;
        let admin_token = random_key();
        let (api_addr, api_metrics) = (free_addr()?, free_addr()?);
        let common = vec![
            ("DATABASE_URL", postgres.url.clone()),
            ("POSTRIDER_MASTER_KEY", random_key()),
            ("POSTRIDER_ALLOW_CIDRS", "127.0.0.0/8".to_owned()),
            ("RUST_LOG", "warn".to_owned()),
        ];
        let mut api = program(&options, "api", &common)?;
        api.env("POSTRIDER_API_ADDR", api_addr.to_string())
            .env("POSTRIDER_METRICS_ADDR", api_metrics.to_string())
            .env("POSTRIDER_ADMIN_TOKEN", &admin_token);
        let mut system = Self {
            api: Some(Process::start("api", api, &logs, false)?),
            workers: Vec::new(),
            workers_started: 0,
            options,
            dir,
            logs,
            common,
            postgres,
            receiver,
            receiver_addr,
            api_addr,
            api_metrics,
            admin_token,
        };
        for _ in 0..system.options.workers {
            system.start_worker()?;
        }
        system.ready(api_metrics).await?;
        system.workers_ready().await?;
        Ok(system)
    }

    /// Waits until the program that answers there is ready.
    async fn ready(&mut self, metrics: SocketAddr) -> anyhow::Result<()> {
        let question = request("GET", "/health/ready", None, b"");
        let deadline = boot_time().after(START);
        loop {
            self.check()?;
            match ask(metrics, &question).await {
                Ok(_) => return Ok(()),
                Err(error) if boot_time() > deadline => {
                    return Err(error.context(format!("not ready after {START:?}")));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Errors: a process has ended that should not.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(api) = &mut self.api {
            api.check()?;
        }
        for worker in &mut self.workers {
            worker.check()?;
        }
        self.receiver.check()
    }

    /// A directory of this run's own, on the disk where the database is.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a program beside the system, with its output in `<log>.log`.
    pub(super) fn start_beside(
        &self,
        name: &'static str,
        log: &str,
        command: tokio::process::Command,
    ) -> anyhow::Result<Process> {
        Process::start_logged(name, log, command, &self.logs)
    }

    /// The API's and the running workers' process ids.
    pub(super) fn programs(&self) -> Vec<(String, u32)> {
        let api = self.api.as_ref().and_then(Process::id);
        let api = api.map(|id| ("api".to_owned(), id));
        api.into_iter().chain(self.worker_names()).collect()
    }

    /// A program of this run's own beside the system, with its stdout to read.
    pub(super) fn companion(&self, command: &str) -> tokio::process::Command {
        let mut companion = tokio::process::Command::new(&self.options.own);
        companion.arg(command);
        companion
    }

    pub(super) fn start_companion(
        &self,
        name: &'static str,
        command: tokio::process::Command,
    ) -> anyhow::Result<Process> {
        Process::start(name, command, &self.logs, true)
    }

    /// The CPU clocks: `worker`, `worker-2`, … A worker that was killed is not among them any more.
    pub(super) async fn cpu(&self, generator: Option<u32>) -> anyhow::Result<Cpu> {
        let id = |process: &Process| process.id().with_context(|| format!("{}?", process.name));
        let api = self.api.as_ref().context("the API was stopped")?;
        let mut processes = vec![
            ("api", id(api)?),
            ("receiver", id(&self.receiver)?),
            ("runner", std::process::id()),
        ];
        processes.extend(generator.map(|id| ("generator", id)));
        let mut processes: Vec<(String, u32)> = processes
            .into_iter()
            .map(|(name, id)| (name.to_owned(), id))
            .collect();
        processes.extend(self.worker_names());
        let backends = self.postgres.backends().await?;
        cpu::read(&processes, self.postgres.postmaster, &backends)
    }

    /// Waits until so many deliveries are received, or nothing has come for a while.
    pub(super) async fn drain(&mut self, deliveries: u64) -> anyhow::Result<()> {
        let mut last = (self.taken().await?, boot_time());
        while last.0 < deliveries && boot_time().since(last.1) < STALLED {
            self.check()?;
            tokio::time::sleep(POLL).await;
            let taken = self.taken().await?;
            if taken > last.0 {
                last = (taken, boot_time());
            }
        }
        Ok(())
    }

    /// Waits until every outcome is recorded: what is not would be sent again. How many are left.
    pub(super) async fn settle(&mut self) -> anyhow::Result<i64> {
        let deadline = boot_time().after(STALLED);
        loop {
            self.check()?;
            let live = self.postgres.live().await?;
            if live == 0 || boot_time() > deadline {
                return Ok(live);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// How many deliveries were received.
    pub(super) async fn taken(&self) -> anyhow::Result<u64> {
        let taken = self.control("taken", b"").await?;
        Ok(std::str::from_utf8(&taken)?.parse()?)
    }

    pub(super) async fn counts(&self) -> anyhow::Result<Counts> {
        self.inquire("counts", &()).await
    }

    /// Asks the receiver's control, in JSON.
    pub(super) async fn inquire<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let reply = self.control(path, &serde_json::to_vec(body)?).await?;
        serde_json::from_slice(&reply).with_context(|| format!("the receiver's reply to {path}"))
    }

    /// Tells the receiver's control something, in JSON.
    pub(super) async fn tell(&self, path: &str, body: &impl Serialize) -> anyhow::Result<()> {
        self.control(path, &serde_json::to_vec(body)?).await?;
        Ok(())
    }

    pub(super) async fn control(&self, path: &str, body: &[u8]) -> anyhow::Result<Vec<u8>> {
        let path = format!("/control/{path}");
        ask(self.receiver_addr, &request("POST", &path, None, body)).await
    }

    /// Stops what is ours of what is measured; the database and the receiver go on.
    pub(super) async fn stop_programs(&mut self) -> anyhow::Result<()> {
        self.stop_workers().await?;
        match self.api.take() {
            Some(api) => api.stop().await,
            None => Ok(()),
        }
    }

    /// Stops everything in order. Errors: a program does not stop as it should.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_programs().await?;
        drop(self.receiver);
        self.postgres.stop().await
    }
}
