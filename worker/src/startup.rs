//! Wires a worker and lists all its tasks.
//!
//! Shutdown in order: no new sends (engine), what is on the wire ends and is recorded, slots are handed
//! over (lease), then everything else stops. What is still on the wire after the drain timeout is left to
//! its lease: the next owner repeats it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use shared::runtime::clock::{BootTime, DatabaseClock};
use shared::runtime::telemetry::MetricsServer;
use shared::runtime::traces::Traces;
use shared::runtime::{Supervisor, budgets, open_files, spawn_driver};
use shared::store::{Database, Role, migrate, pauses};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::commands::Commands;
use crate::config::Config;
use crate::deliver::Context;
use crate::engine::Engine;
use crate::jobs::{JOBS, Jobs};
use crate::lease::{Lease, Ownerships};
use crate::listener::Listener;
use crate::loader::{Loader, Question};
use crate::metrics::{self, Standing};
use crate::pulse::{LONGEST_SILENCE, Pulse};
use crate::recorder::{RecordLag, Recorder};
use crate::scheduler::{Input, Scheduler, SchedulerSettings};
use crate::sender::{self, ResolverSettings, Sender, SenderSettings};
use crate::suspects::Suspects;
use crate::transitions::{Changes, Transitions};

/// Inputs that may wait for the engine; senders wait when it is full.
const INPUTS: usize = 4_096;
/// Questions that may wait for a loader.
const QUESTIONS: usize = 4;
/// Rows in memory; a row without its payload takes some 200 bytes.
const MOST_LOADED: usize = 50_000;
/// Payload bytes in memory, what is on the wire not counted: that is bounded by the permits, which carry
/// 128 KiB each.
const MOST_LOADED_BYTES: usize = 64 << 20;
/// Open files of a worker that are neither requests nor look-ups: database, metrics, logs.
const OTHER_FILES: usize = 128;
/// One host gets one of so many shares of the unused connections. A share is as many as there are permits,
/// where open files allow: one host can serve thousands of endpoints (a gateway, an automation service), and
/// a connection that was needed at once is needed again; opening one costs more than a request.
const SHARES: usize = 4;
/// Connections to the database of one worker, whatever is on the wire (D7): two loaders, recorder,
/// transitions, lease, listener, commands, and the jobs. A suspect has one more while its death is charged.
pub const CONNECTIONS: usize = 7 + JOBS;
/// What the other tasks get to end after the drain.
const STOP_GRACE: Duration = Duration::from_secs(3);
const _: () = assert!(budgets::TRACES_FLUSH.as_millis() < STOP_GRACE.as_millis());

/// A worker that runs.
#[derive(Debug)]
pub struct Running {
    /// Where the metrics are.
    pub metrics_addr: SocketAddr,
    finished: JoinHandle<Result<(), String>>,
}

impl Running {
    /// Waits until the worker has ended after its shutdown token was cancelled, or failed.
    ///
    /// # Errors
    /// What failed, in words.
    pub async fn finished(self) -> Result<(), String> {
        self.finished.await.map_err(|panic| panic.to_string())?
    }
}

/// Starts a worker; it stops in order when `shutdown` is cancelled.
///
/// # Errors
/// The database cannot be reached, its schema does not fit, or an address is taken.
pub async fn start(config: Config, shutdown: CancellationToken) -> anyhow::Result<Running> {
    // What is wrong with this machine is told before the database is asked for anything.
    let sender = Sender::new(sender_settings(&config)?)?;
    let database = Database::new(&config.database_url.0)?;
    migrate::check_version(&database).await?;
    database.refuse_shared_sessions().await?;
    let server = MetricsServer::bind(config.metrics_addr)
        .await
        .with_context(|| {
            format!(
                "POSTRIDER_METRICS_ADDR {} cannot be used",
                config.metrics_addr
            )
        })?;
    metrics::register();
    let metrics_addr = server.addr();
    let stop = CancellationToken::new();
    let pauses = pauses::read(&*database.connect(Role::Worker).await?).await?;
    let parts = Parts::new(database, sender);
    // Before all else: nothing that is held back may go while it is not known yet.
    if parts.engine.try_send(Input::Pauses(pauses)).is_err() {
        anyhow::bail!("the engine takes no inputs");
    }
    let readiness = readiness(&parts, config.lease_ttl);
    let mut supervisor = Supervisor::new(stop.clone());
    parts.supervise(&mut supervisor, &config);
    let traces = Traces::start(config.traces.as_ref(), "postrider-worker", &mut supervisor);
    let core = parts.run_core(&config, traces, (&shutdown, &stop));
    spawn_driver(server.run(readiness, stop.clone()));
    let drain = config.drain_timeout;
    let finished = spawn_driver(watch_over(core, supervisor, shutdown, stop, drain));
    tracing::info!(metrics = %metrics_addr, "a worker started");
    Ok(Running {
        metrics_addr,
        finished,
    })
}

fn sender_settings(config: &Config) -> anyhow::Result<SenderSettings> {
    let roots = sender::trusted(config.ca_file.as_deref()).map_err(anyhow::Error::msg)?;
    let max_idle = connections(config.max_in_flight, open_files::raise())?;
    Ok(SenderSettings {
        rules: config.rules.clone(),
        max_idle_per_host: (max_idle / SHARES).max(1),
        max_idle,
        roots,
        proxy: config.proxy.clone(),
        max_age: sender::MAX_AGE,
        resolver: ResolverSettings {
            servers: config.dns_servers.clone(),
            ..ResolverSettings::default()
        },
    })
}

/// How many unused connections there is room for where `most` files may be open. Each request under way
/// holds a connection, or before it has one as many as it dials at once; look-ups, files, the database and
/// metrics take the rest.
fn connections(max_in_flight: usize, most: usize) -> anyhow::Result<usize> {
    let needed = max_in_flight
        .saturating_mul(sender::MOST_AT_ONCE)
        .saturating_add(sender::MOST_LOOKUP_SOCKETS + OTHER_FILES);
    let Some(room) = most.checked_sub(needed).filter(|room| *room > 0) else {
        anyhow::bail!(
            "POSTRIDER_MAX_IN_FLIGHT {max_in_flight} needs {needed} open files, and this process may \
             have {most}: raise the limit (ulimit -Hn, LimitNOFILE) or lower the setting"
        );
    };
    Ok(room.min(max_in_flight.saturating_mul(SHARES)))
}

/// What the tasks share.
struct Parts {
    database: Database,
    clock: Arc<DatabaseClock>,
    engine: mpsc::Sender<Input>,
    inputs: mpsc::Receiver<Input>,
    owned: watch::Sender<Ownerships>,
    wake_lease: Arc<Notify>,
    wake_commands: Arc<Notify>,
    sender: Sender,
    lag: Arc<RecordLag>,
    loads: Arc<Pulse>,
    scans: Arc<Pulse>,
}

impl Parts {
    fn new(database: Database, sender: Sender) -> Self {
        let (engine, inputs) = mpsc::channel(INPUTS);
        Self {
            database,
            clock: Arc::new(DatabaseClock::new()),
            engine,
            inputs,
            owned: watch::Sender::new(Ownerships::default()),
            wake_lease: Arc::new(Notify::new()),
            wake_commands: Arc::new(Notify::new()),
            sender,
            lag: Arc::new(RecordLag::default()),
            loads: Arc::default(),
            scans: Arc::default(),
        }
    }

    /// Tasks that are started again when they end.
    fn supervise(&self, supervisor: &mut Supervisor, config: &Config) {
        let listener = Listener {
            database: self.database.clone(),
            engine: self.engine.clone(),
            lease: Arc::clone(&self.wake_lease),
            commands: Arc::clone(&self.wake_commands),
        };
        supervisor.start("listener", move |shutdown| listener.clone().run(shutdown));
        let commands = Commands {
            database: self.database.clone(),
            engine: self.engine.clone(),
            owned: self.owned.subscribe(),
            wake: Arc::clone(&self.wake_commands),
            clock: Arc::clone(&self.clock),
        };
        supervisor.start("commands", move |shutdown| commands.clone().run(shutdown));
        let standing = Standing {
            clock: Arc::clone(&self.clock),
            owned: self.owned.subscribe(),
            ttl: config.lease_ttl,
        };
        Jobs::new(&self.database, standing, config.retention).supervise(supervisor);
    }

    /// Tasks that hold state: if one ends before shutdown, the process ends, and its slots move.
    fn run_core(
        self,
        config: &Config,
        traces: Traces,
        (drain, stop): (&CancellationToken, &CancellationToken),
    ) -> JoinSet<&'static str> {
        let mut core = JoinSet::new();
        let in_flight = Arc::new(Mutex::new(Vec::new()));
        let lag = Arc::clone(&self.lag);
        // Room for every permit, so that handing over an outcome never waits for the database.
        let (records, recorded) = mpsc::channel(config.max_in_flight + 1);
        let (releases, released) = mpsc::channel(256);
        let loads = self.loader(config, &self.loads, &mut core);
        let scans = self.loader(config, &self.scans, &mut core);
        let changes = Arc::new(Changes::default());
        let recorder = Recorder {
            database: self.database.clone(),
            records: recorded,
            engine: self.engine.clone(),
            lag: Arc::clone(&lag),
            changes: Arc::clone(&changes),
        };
        core.spawn(named("recorder", recorder.run()));
        let transitions = Transitions {
            database: self.database.clone(),
            changes: Arc::clone(&changes),
            clock: Arc::clone(&self.clock),
        };
        core.spawn(named("transitions", transitions.run(stop.clone())));
        let lease = Lease {
            database: self.database.clone(),
            name: worker_name(),
            ttl: config.lease_ttl,
            clock: Arc::clone(&self.clock),
            engine: self.engine.clone(),
            releases: released,
            changes: Arc::clone(&changes),
            in_flight: Arc::clone(&in_flight),
            owned: self.owned,
            wake: self.wake_lease,
        };
        core.spawn(named("lease", lease.run(drain.clone(), stop.clone())));
        let context = Context {
            sender: self.sender,
            clock: Arc::clone(&self.clock),
            records: records.clone(),
            traces,
        };
        let engine = Engine {
            scheduler: Scheduler::new(scheduler_settings(config)),
            inputs: self.inputs,
            loads,
            scans,
            releases,
            records,
            context: Arc::new(context),
            suspects: Arc::new(Suspects {
                database: self.database,
                engine: self.engine,
            }),
            clock: self.clock,
            in_flight,
            lag,
            listed_at: BootTime(Duration::ZERO),
            urgent: VecDeque::new(),
            chores: VecDeque::new(),
            chore_turn: 0,
            chore_out: false,
            changes,
        };
        core.spawn(named("engine", engine.run(drain.clone(), stop.clone())));
        core
    }

    fn loader(
        &self,
        config: &Config,
        pulse: &Arc<Pulse>,
        core: &mut JoinSet<&'static str>,
    ) -> mpsc::Sender<Question> {
        let (ask, questions) = mpsc::channel(QUESTIONS);
        let loader = Loader {
            database: self.database.clone(),
            questions,
            engine: self.engine.clone(),
            clock: Arc::clone(&self.clock),
            keys: Arc::clone(&config.keys),
            https_only: config.https_only,
            pulse: Arc::clone(pulse),
        };
        core.spawn(named("loader", loader.run()));
        ask
    }
}

fn scheduler_settings(config: &Config) -> SchedulerSettings {
    SchedulerSettings {
        max_in_flight: config.max_in_flight,
        max_loaded: MOST_LOADED,
        max_loaded_bytes: MOST_LOADED_BYTES,
        lease_ttl: config.lease_ttl,
        lease_margin: budgets::LEASE_MARGIN,
    }
}

async fn named(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

/// Ready: the lease was renewed within its length, the queue is read and outcomes are recorded.
fn readiness(
    parts: &Parts,
    ttl: Duration,
) -> impl Fn() -> std::future::Ready<Result<(), String>> + Send + Sync + 'static {
    let clock = Arc::clone(&parts.clock);
    let owned = parts.owned.subscribe();
    let (loads, scans) = (Arc::clone(&parts.loads), Arc::clone(&parts.scans));
    let lag = Arc::clone(&parts.lag);
    move || {
        let (alive, idle) = {
            let owned = owned.borrow();
            (owned.incarnation.is_some(), owned.slots.is_empty())
        };
        let renewed = clock.measured_ago().is_some_and(|ago| ago < ttl);
        let problem = if !alive || !renewed {
            "the lease is not renewed: is the database reachable?"
        } else if !idle && scans.silent_for().max(loads.failing_for()) > LONGEST_SILENCE {
            "the queue has not been read for 20 s: is one of its tables locked?"
        } else if lag.lag() > LONGEST_SILENCE {
            "outcomes have not been recorded for 20 s: is one of their tables locked?"
        } else {
            return std::future::ready(Ok(()));
        };
        std::future::ready(Err(problem.to_owned()))
    }
}

async fn watch_over(
    mut core: JoinSet<&'static str>,
    supervisor: Supervisor,
    drain: CancellationToken,
    stop: CancellationToken,
    drain_timeout: Duration,
) -> Result<(), String> {
    let mut others = spawn_driver(supervisor.run(STOP_GRACE));
    let failed = tokio::select! {
        // Told to end before it had a slot, the engine ends as soon as it hears of it: that is no failure.
        biased;
        () = drain.cancelled() => None,
        ended = core.join_next() => Some(match ended {
            Some(Ok(name)) => format!("the {name} of the worker ended"),
            Some(Err(panic)) => format!("a core task of the worker failed: {panic}"),
            None => "the worker has no tasks".to_owned(),
        }),
        gave_up = &mut others => Some(match gave_up {
            Ok(Err(reason)) => reason,
            Ok(Ok(())) => "the worker's tasks ended".to_owned(),
            Err(panic) => panic.to_string(),
        }),
    };
    if failed.is_none() {
        let drained = async { while core.join_next().await.is_some() {} };
        if tokio::time::timeout(drain_timeout, drained).await.is_err() {
            tracing::warn!(
                ?drain_timeout,
                "requests were still on the wire at the end of the drain; the next owner repeats them"
            );
        }
    }
    drain.cancel();
    stop.cancel();
    core.shutdown().await;
    if !others.is_finished()
        && tokio::time::timeout(STOP_GRACE * 2, &mut others)
            .await
            .is_err()
    {
        tracing::warn!("background tasks did not end in time");
    }
    tracing::info!("the worker stopped");
    failed.map_or(Ok(()), Err)
}

fn worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {}", host.trim(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_for_requests_first_and_what_is_left_is_for_unused_connections() {
        let others = sender::MOST_LOOKUP_SOCKETS + OTHER_FILES;
        let needed = 1_024 * 3 + others;
        for (most, expected) in [
            (needed + 1, 1),
            (needed + 1_000, 1_000),
            (needed + 4_096, 4_096),
            (needed + 4_097, 4_096),
            (usize::MAX, 4_096),
        ] {
            assert_eq!(connections(1_024, most).unwrap(), expected, "{most}");
        }
        for (in_flight, most) in [
            (1_024, needed),
            (1_024, 0),
            (1, others + 3),
            (usize::MAX, usize::MAX),
        ] {
            let refused = connections(in_flight, most).unwrap_err().to_string();
            assert!(refused.contains("POSTRIDER_MAX_IN_FLIGHT"), "{refused}");
        }
        assert_eq!(connections(1, others + 4).unwrap(), 1);
    }
}
