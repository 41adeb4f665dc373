//! The system under test with everything around it, and one measurement of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared::runtime::clock::boot_time;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

use super::calibrate::calibrate;
use super::cpu::{self, Cpu};
use super::database::{self, Postgres};
use super::outcome::Measured;
use super::process::{Process, free_addr};
use super::scenario::{Load, Scenario};
use super::setup;
use crate::client::{ask, ask_json, request};
use crate::commands::Line;
use crate::generator::Report;
use crate::ids::Id;
use crate::payload;
use crate::receiver::Verify;
use crate::receiver::books::Counts;

/// How long the programs may take to be ready.
const START: Duration = Duration::from_secs(60);
/// How long nothing may be received, while something is missing, before the drain is given up.
const STALLED: Duration = Duration::from_secs(20);
/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(50);
/// PostgreSQL's backends tell their counters once a second at most.
const COUNTERS: Duration = Duration::from_millis(1_200);

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
    /// `NAME=VALUE` for PostgreSQL.
    pub(super) postgres: Vec<String>,
    /// Whether the database counts its statements.
    pub(super) statements: bool,
}

/// Everything that runs. Dropping it kills the processes; the database stops by itself.
pub(super) struct System {
    dir: TempDir,
    logs: PathBuf,
    own: PathBuf,
    postgres: Postgres,
    receiver: Process,
    receiver_addr: SocketAddr,
    api: Process,
    api_addr: SocketAddr,
    worker: Process,
    admin_token: String,
}

/// A generator at work.
struct Generating {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
    accepted_file: PathBuf,
}

impl System {
    pub(super) async fn start(options: &Options) -> anyhow::Result<Self> {
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
        let (receiver, receiver_addr) = start_receiver(options, &logs).await?;
        let admin_token = random_key();
        let (api_addr, api_metrics, worker_metrics) = (free_addr()?, free_addr()?, free_addr()?);
        let common = [
            ("DATABASE_URL", postgres.url.clone()),
            ("POSTRIDER_MASTER_KEY", random_key()),
            ("POSTRIDER_ALLOW_CIDRS", "127.0.0.0/8".to_owned()),
            ("RUST_LOG", "warn".to_owned()),
        ];
        let mut api = program(options, "api", &common)?;
        api.env("POSTRIDER_API_ADDR", api_addr.to_string())
            .env("POSTRIDER_METRICS_ADDR", api_metrics.to_string())
            .env("POSTRIDER_ADMIN_TOKEN", &admin_token);
        let mut worker = program(options, "worker", &common)?;
        worker.env("POSTRIDER_METRICS_ADDR", worker_metrics.to_string());
        let mut system = Self {
            api: Process::start("api", api, &logs, false)?,
            worker: Process::start("worker", worker, &logs, false)?,
            own: options.own.clone(),
            dir,
            logs,
            postgres,
            receiver,
            receiver_addr,
            api_addr,
            admin_token,
        };
        system.ready(api_metrics, worker_metrics).await?;
        Ok(system)
    }

    async fn ready(&mut self, api: SocketAddr, worker: SocketAddr) -> anyhow::Result<()> {
        let question = request("GET", "/health/ready", None, b"");
        let deadline = boot_time().after(START);
        loop {
            self.check()?;
            let not_ready = match ask(api, &question).await {
                Ok(_) => ask(worker, &question).await.err(),
                Err(error) => Some(error),
            };
            match not_ready {
                None => return Ok(()),
                Some(error) if boot_time() > deadline => {
                    return Err(error.context(format!("not ready after {START:?}")));
                }
                Some(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Errors: a process has ended.
    fn check(&mut self) -> anyhow::Result<()> {
        self.api.check()?;
        self.worker.check()?;
        self.receiver.check()
    }

    /// Calibrates, makes the tenants and endpoints, loads, waits for the drain, and counts.
    pub(super) async fn measure(mut self, scenario: &Scenario) -> anyhow::Result<(Self, Measured)> {
        let calibration = calibrate(self.dir.path(), self.receiver_addr).await?;
        eprintln!("{}: making {} tenants", scenario.name, scenario.tenants);
        let world = setup::create(
            scenario,
            self.api_addr,
            &self.admin_token,
            self.receiver_addr,
        )
        .await?;
        let secrets = serde_json::to_vec(&world.secrets)?;
        self.control("POST", "secrets", &secrets).await?;
        tokio::time::sleep(COUNTERS).await;
        let counters_before = self.postgres.counters().await?;

        let mut generating = self.generate(scenario, &world.targets)?;
        let Line::Window { from_ns, until_ns } = generating.line().await? else {
            bail!("the generator did not begin with its window");
        };
        self.control(
            "POST",
            "measure",
            &serde_json::to_vec(&(from_ns..until_ns))?,
        )
        .await?;
        let (sent, cpu) = self.follow(&mut generating, from_ns, until_ns).await?;
        let accepted_ids = ids(&std::fs::read(&generating.accepted_file)?);
        generating.process.child.wait().await?;

        self.drain(&sent).await?;
        let live_at_end = self.settle().await?;
        tokio::time::sleep(COUNTERS).await;
        let counters = self.postgres.counters().await?;
        self.postgres.show_statements().await?;
        let received: Counts = self.counts().await?;
        let measured = Measured {
            received_ids: ids(&self.control("GET", "events", b"").await?),
            per_delivery: counters.per_delivery(counters_before, received.deliveries),
            postgres_settings: database::SETTINGS.iter().copied().collect(),
            window_end_ns: until_ns,
            sent,
            accepted_ids,
            received,
            cpu,
            live_at_end,
            calibration,
        };
        Ok((self, measured))
    }

    fn generate(
        &self,
        scenario: &Scenario,
        targets: &[crate::generator::Target],
    ) -> anyhow::Result<Generating> {
        // The file holds keys: the directory is ours alone.
        let targets_file = self.dir.path().join("targets.json");
        std::fs::write(&targets_file, serde_json::to_vec(targets)?)?;
        let accepted_file = self.dir.path().join("accepted");
        let mut command = Command::new(&self.own);
        command
            .arg("generate")
            .args(["--addr", &self.api_addr.to_string()])
            .args(["--warmup", &scenario.warmup.to_string()])
            .args(["--seconds", &scenario.seconds.to_string()])
            .args(["--payload-bytes", &scenario.payload_bytes.to_string()])
            .arg("--targets")
            .arg(&targets_file)
            .arg("--accepted")
            .arg(&accepted_file);
        match scenario.load {
            Load::Closed {
                connections,
                backlog,
            } => command
                .args(["--connections", &connections.to_string()])
                .args(["--backlog", &backlog.to_string()])
                .args(["--receiver", &self.receiver_addr.to_string()]),
            Load::Open {
                per_second,
                connections,
            } => command
                .args(["--connections", &connections.to_string()])
                .args(["--rate", &per_second.to_string()]),
        };
        let mut process = Process::start("generator", command, &self.logs, true)?;
        let stdout = process
            .child
            .stdout
            .take()
            .context("the generator has no output")?;
        Ok(Generating {
            process,
            lines: BufReader::new(stdout).lines(),
            accepted_file,
        })
    }

    /// Shows the progress until the generator reports; the CPU used in the window.
    async fn follow(
        &mut self,
        generating: &mut Generating,
        from_ns: u64,
        until_ns: u64,
    ) -> anyhow::Result<(Report, Cpu)> {
        let generator = generating.process.id().context("the generator has ended")?;
        let (mut before, mut after) = (None, None);
        let mut last = 0;
        loop {
            let due = if before.is_none() { from_ns } else { until_ns };
            let until_due = Duration::from_nanos(due.saturating_sub(payload::now_ns()));
            tokio::select! {
                line = generating.line() => match line? {
                    Line::Report(report) => {
                        // The report can come just before the window's end is due; the generator's
                        // figures stay readable until it is waited for.
                        let after = match after {
                            Some(after) => after,
                            None => self.cpu(generator).await?,
                        };
                        let before = before.context("the window was missed")?;
                        return Ok((*report, Cpu::since(&after, &before)));
                    }
                    Line::Progress { accepted } => {
                        self.check()?;
                        last = self.show(accepted, last).await?;
                    }
                    Line::Window { .. } => {}
                },
                () = tokio::time::sleep(until_due), if after.is_none() => {
                    let now = self.cpu(generator).await?;
                    if before.is_none() { before = Some(now) } else { after = Some(now) }
                }
            }
        }
    }

    async fn show(&self, accepted: u64, last: u64) -> anyhow::Result<u64> {
        let received = self.taken().await?;
        eprintln!(
            "  accepted {accepted:>9}  received {received:>9}  (+{:>6})  backlog {:>7}",
            received.saturating_sub(last),
            accepted.saturating_sub(received)
        );
        Ok(received)
    }

    async fn cpu(&self, generator: u32) -> anyhow::Result<Cpu> {
        let id = |process: &Process| process.id().with_context(|| format!("{}?", process.name));
        let processes = [
            ("api", id(&self.api)?),
            ("worker", id(&self.worker)?),
            ("receiver", id(&self.receiver)?),
            ("generator", generator),
            ("runner", std::process::id()),
        ];
        let backends = self.postgres.backends().await?;
        cpu::read(&processes, self.postgres.postmaster, &backends)
    }

    /// Waits until everything that was promised is received, or nothing has come for a while.
    async fn drain(&mut self, sent: &Report) -> anyhow::Result<()> {
        let mut last = (self.taken().await?, boot_time());
        while last.0 < sent.deliveries && boot_time().since(last.1) < STALLED {
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
    async fn settle(&mut self) -> anyhow::Result<i64> {
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

    async fn taken(&self) -> anyhow::Result<u64> {
        let taken = self.control("GET", "taken", b"").await?;
        Ok(std::str::from_utf8(&taken)?.parse()?)
    }

    async fn counts(&self) -> anyhow::Result<Counts> {
        ask_json(
            self.receiver_addr,
            &request("GET", "/control/counts", None, b""),
        )
        .await
    }

    async fn control(&self, method: &str, path: &str, body: &[u8]) -> anyhow::Result<Vec<u8>> {
        let path = format!("/control/{path}");
        ask(self.receiver_addr, &request(method, &path, None, body)).await
    }

    /// Stops everything in order. Errors: a program does not stop as it should.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.api.stop().await?;
        self.worker.stop().await?;
        drop(self.receiver);
        self.postgres.stop().await
    }
}

impl Generating {
    async fn line(&mut self) -> anyhow::Result<Line> {
        match self.lines.next_line().await? {
            Some(line) => Ok(serde_json::from_str(&line).context(line)?),
            None => {
                self.process.child.wait().await?;
                self.process.check()?;
                bail!("the generator ended without a report")
            }
        }
    }
}

async fn start_receiver(options: &Options, logs: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let verify = match options.verify {
        Verify::All => "all",
        Verify::Sample => "sample",
        Verify::None => "none",
    };
    let mut command = Command::new(&options.own);
    command.args(["receiver", "--verify", verify]);
    let mut receiver = Process::start("receiver", command, logs, true)?;
    let stdout = receiver
        .child
        .stdout
        .take()
        .context("the receiver has no output")?;
    let line = BufReader::new(stdout)
        .lines()
        .next_line()
        .await?
        .unwrap_or_default();
    let addr = line
        .strip_prefix("http://")
        .and_then(|addr| addr.parse().ok());
    match addr {
        Some(addr) => Ok((receiver, addr)),
        None => {
            receiver.child.wait().await?;
            receiver.check()?;
            bail!("the receiver said {line:?}")
        }
    }
}

/// `postrider-<name>` with nothing of our own environment that it would read.
fn program(options: &Options, name: &str, common: &[(&str, String)]) -> anyhow::Result<Command> {
    let path = options.programs.join(format!("postrider-{name}"));
    if !path.is_file() {
        bail!(
            "{} is missing: cargo build --release --workspace --bins",
            path.display()
        );
    }
    let mut command = Command::new(path);
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if text.starts_with("POSTRIDER_") || text == "RUST_LOG" {
            command.env_remove(&variable);
        }
    }
    command.envs(common.iter().map(|(name, value)| (*name, value)));
    for setting in &options.settings {
        let (program, setting) = setting.split_once(':').with_context(|| setting.clone())?;
        let (variable, value) = setting
            .split_once('=')
            .with_context(|| setting.to_owned())?;
        if program == name {
            command.env(variable, value);
        }
    }
    Ok(command)
}

/// 32 random bytes in base64.
fn random_key() -> String {
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    STANDARD.encode(halves.map(uuid::Uuid::into_bytes).concat())
}

fn ids(bytes: &[u8]) -> Vec<Id> {
    let (ids, _) = bytes.as_chunks::<16>();
    ids.iter().map(|id| Id::from_be_bytes(*id)).collect()
}

/// A connection per endpoint, at the worker and at the receiver, is more than the usual 1,024 files.
/// Our processes inherit the limit; `docs/performance.md` tells an operator the same.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        eprintln!(
            "the limit of open files stays at {:?}: {error}",
            limit.current
        );
    }
}
