//! Wires the parts and lists the tasks.
//!
//! Order at shutdown: the HTTP server stops taking requests and answers those under way, which needs
//! the writers; then the writers and all else end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};
use anyhow::Context as _;
use shared::runtime::clock::DatabaseClock;
use shared::runtime::telemetry::MetricsServer;
use shared::runtime::traces::Traces;
use shared::runtime::{Supervisor, budgets, spawn_driver};
use shared::store::migrate::check_version;
use shared::store::{Database, Pool, Role};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::auth::{Auth, Belief};
use crate::config::Config;
use crate::connections::Connections;
use crate::health::Health;
use crate::ingest::{Intake, Lane, Queues, hints, writer};
use crate::journal::{Journal, replay};
use crate::quotas::Quotas;
use crate::routes::{NextSlot, State};
use crate::schemas::Schemas;
use crate::{metrics, request_id, routes};

/// Threads that parse requests. Two: one of them may be busy with a large body.
const HTTP_WORKERS: usize = 2;
/// How long an idle connection is kept: longer than the idle timeout of usual load balancers (60 s),
/// or they would send into a connection that is being closed.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is noted which keys were used.
const NOTE_USED: Duration = Duration::from_secs(60);
/// How often changes of tenants are looked for: limits and deletions hold within two seconds.
const LOOK_FOR_CHANGES: Duration = Duration::from_secs(1);
/// How often the events of tenants with a quota are written.
const WRITE_COUNTS: Duration = Duration::from_secs(1);
/// How often the pool is measured.
const OBSERVE_POOL: Duration = Duration::from_secs(5);
/// What the background tasks get to end, after the last request.
const TASK_GRACE: Duration = Duration::from_secs(5);
const _: () = assert!(budgets::TRACES_FLUSH.as_millis() < TASK_GRACE.as_millis());
/// How long what is remembered may take to be written at the end.
const LAST_BUDGET: Duration = Duration::from_secs(4);
const _: () = assert!(LAST_BUDGET.as_millis() < TASK_GRACE.as_millis());
/// The pause before that is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// An API process that runs.
#[derive(Debug)]
pub struct Running {
    /// Where the API listens.
    pub addr: SocketAddr,
    /// Where metrics and health are.
    pub metrics_addr: SocketAddr,
    ended: JoinHandle<Result<(), String>>,
}

impl Running {
    /// Waits until it ended: after the shutdown that was asked for, or because a part gave up.
    ///
    /// # Errors
    /// Which part gave up, or did not end in time.
    pub async fn finished(self) -> Result<(), String> {
        match self.ended.await {
            Ok(result) => result,
            Err(error) => Err(format!("the API's main task failed: {error}")),
        }
    }
}

/// Starts the API; `shutdown` ends it in order.
///
/// # Errors
/// When the database cannot be reached or has another schema, or an address is taken.
pub async fn start(config: Config, shutdown: CancellationToken) -> anyhow::Result<Running> {
    check_version(&config.database)
        .await
        .context("the database of DATABASE_URL cannot be used")?;
    config.database.refuse_shared_sessions().await?;
    metrics::register_all();
    let database = config.database.clone();
    let pool = database.pool(Role::Api, config.connections, budgets::POOL_WAIT)?;
    let (intake, arriving) = intake(&config)?;
    let (clock, writers) = (Arc::clone(&intake.clock), Arc::clone(&intake.writers));
    let health = Health::new(
        pool.clone(),
        database.clone(),
        Arc::clone(&clock),
        Arc::clone(&writers),
        intake.journal.clone(),
    );
    let connections = Connections::new(pool.clone(), config.deadline);
    // Not `shutdown`: requests under way still need the writers when it comes.
    let last = CancellationToken::new();
    let mut tasks = Supervisor::new(last.clone());
    let traces = Traces::start(config.traces.as_ref(), "postrider-api", &mut tasks);
    let state = web::Data::new(State {
        auth: Auth::new(
            connections.clone(),
            Arc::clone(&clock),
            config.admin_token.clone(),
            config.limits,
            Belief {
                length: config.believed,
                through_outages: intake.journal.is_some(),
            },
        ),
        slots: NextSlot::new(),
        schemas: Schemas::new(connections.clone()),
        quotas: Quotas::new(connections.clone()),
        intake,
        connections,
        clock,
        health,
        traces,
        config,
    });

    let (server, addr) = serve(&state)?;
    let metrics_server = MetricsServer::bind(state.config.metrics_addr).await?;
    let metrics_addr = metrics_server.addr();
    start_writers(&mut tasks, &state, &writers);
    start_hints(&mut tasks, database, arriving);
    start_replay(&mut tasks, &state);
    start_observers(&mut tasks, &state, pool);
    let ready = Arc::clone(&state.health);
    drop(spawn_driver(metrics_server.run(
        move || std::future::ready(ready.ready()),
        last.clone(),
    )));
    tracing::info!(%addr, metrics = %metrics_addr, "the API listens");
    let handle = server.handle();
    let ended = spawn_driver(run(server, handle, tasks, shutdown, last));
    Ok(Running {
        addr,
        metrics_addr,
        ended,
    })
}

/// What takes events, and what its writers tell the workers.
fn intake(config: &Config) -> anyhow::Result<(Intake, mpsc::Receiver<hints::Places>)> {
    let clock = Arc::new(DatabaseClock::new());
    let mut queues = Queues::new(config.deadline);
    if let Some(most) = config.most_waiting {
        queues = queues.with_most_waiting(most);
    }
    let queues = Arc::new(queues);
    let (hints, arriving) = hints::Hints::channel();
    let writers = Arc::new(writer::Shared {
        database: config.database.clone(),
        queues: Arc::clone(&queues),
        clock: Arc::clone(&clock),
        hints,
        connected: AtomicBool::new(false),
    });
    let journal = match &config.journal {
        Some(settings) => Some(Journal::open(&settings.directory, settings.most_bytes)?),
        None => None,
    };
    let intake = Intake {
        queues,
        journal,
        writers,
        clock,
        deadline: config.deadline,
    };
    Ok((intake, arriving))
}

fn serve(state: &web::Data<State>) -> anyhow::Result<(Server, SocketAddr)> {
    let for_workers = state.clone();
    let addr = state.config.addr;
    let server = HttpServer::new(move || {
        App::new()
            .app_data(for_workers.clone())
            .wrap(from_fn(request_id::tag))
            .configure(routes::configure)
    })
    .workers(HTTP_WORKERS)
    .keep_alive(KEEP_ALIVE)
    .client_request_timeout(HEAD_TIMEOUT)
    .shutdown_timeout(state.config.drain.as_secs())
    .disable_signals()
    .bind(addr)
    .with_context(|| format!("the address {addr} (POSTRIDER_API_ADDR) cannot be used"))?;
    let addr = server.addrs().first().copied().unwrap_or(addr);
    Ok((server.run(), addr))
}

/// Runs until shutdown or until a part gives up; then stops in order.
async fn run(
    server: Server,
    handle: ServerHandle,
    tasks: Supervisor,
    shutdown: CancellationToken,
    last: CancellationToken,
) -> Result<(), String> {
    let mut server = spawn_driver(server);
    let mut tasks = spawn_driver(tasks.run(TASK_GRACE));
    let early = tokio::select! {
        () = shutdown.cancelled() => None,
        ended = &mut server => Some(Err(format!("the HTTP server ended by itself: {ended:?}"))),
        ended = &mut tasks => Some(ended.unwrap_or_else(|error| Err(error.to_string()))),
    };
    handle.stop(true).await;
    last.cancel();
    match early {
        Some(result) => result,
        None => tasks.await.unwrap_or_else(|error| Err(error.to_string())),
    }
}

fn start_writers(tasks: &mut Supervisor, state: &State, writers: &Arc<writer::Shared>) {
    for _ in 0..state.config.writers {
        let shared = Arc::clone(writers);
        tasks.start("writer", move |stop| {
            writer::run(Arc::clone(&shared), Lane::Plain, stop)
        });
    }
    for (name, lane) in [
        ("keyed writer", Lane::Keyed),
        ("ordered writer", Lane::Ordered),
    ] {
        let shared = Arc::clone(writers);
        tasks.start(name, move |stop| {
            writer::run(Arc::clone(&shared), lane, stop)
        });
    }
}

fn start_replay(tasks: &mut Supervisor, state: &State) {
    let Some(journal) = &state.intake.journal else {
        return;
    };
    let journal = Arc::clone(journal);
    let target = replay::Target {
        queues: Arc::clone(&state.intake.queues),
        connections: state.connections.clone(),
    };
    tasks.start("journal", move |stop| {
        let (journal, target) = (Arc::clone(&journal), target.clone());
        async move { replay::run(&journal, &target, &stop).await }
    });
}

fn start_hints(
    tasks: &mut Supervisor,
    database: Database,
    arriving: mpsc::Receiver<hints::Places>,
) {
    let arriving = Arc::new(tokio::sync::Mutex::new(arriving));
    tasks.start("hints", move |stop| {
        let (database, arriving) = (database.clone(), Arc::clone(&arriving));
        async move { hints::run(&database, &mut *arriving.lock().await, &stop).await }
    });
}

fn start_observers(tasks: &mut Supervisor, state: &web::Data<State>, pool: Pool) {
    let health = Arc::clone(&state.health);
    tasks.start("health", move |stop| {
        let health = Arc::clone(&health);
        async move { health.run(stop).await }
    });
    let auth = Arc::clone(&state.auth);
    tasks.start("key use", move |stop| {
        let auth = Arc::clone(&auth);
        every_and_at_the_end(NOTE_USED, stop, async move || {
            let noted = auth.note_used().await;
            noted.inspect_err(
                |error| tracing::debug!(%error, "it was not noted which keys were used"),
            )
        })
    });
    let auth = Arc::clone(&state.auth);
    tasks.start("changed tenants", move |stop| {
        let auth = Arc::clone(&auth);
        every(LOOK_FOR_CHANGES, stop, async move || {
            if let Err(error) = auth.forget_changed().await {
                tracing::debug!(%error, "it is not known which tenants changed");
            }
        })
    });
    let (quotas, clock) = (Arc::clone(&state.quotas), Arc::clone(&state.clock));
    tasks.start("quotas", move |stop| {
        let (quotas, clock) = (Arc::clone(&quotas), Arc::clone(&clock));
        every_and_at_the_end(WRITE_COUNTS, stop, async move || {
            let written = quotas.write(clock.now().date()).await;
            written.inspect_err(
                |error| tracing::warn!(%error, "the events of tenants with a quota were not written; trying again"),
            )
        })
    });
    metrics::observe_pool(&pool);
    tasks.start("pool metrics", move |stop| {
        let pool = pool.clone();
        every(OBSERVE_POOL, stop, async move || {
            metrics::observe_pool(&pool)
        })
    });
}

/// The same, and once more when the process stops: what it remembers is not lost.
async fn every_and_at_the_end<E>(
    interval: Duration,
    stop: CancellationToken,
    mut act: impl AsyncFnMut() -> Result<(), E>,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => drop(act().await),
            () = stop.cancelled() => break,
        }
    }
    // A connection is driven by the HTTP worker that opened it, and ends with that one: now, and in the middle of this.
    let at_the_end = async {
        while act().await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    };
    if tokio::time::timeout(LAST_BUDGET, at_the_end).await.is_err() {
        tracing::warn!("what was remembered could not be written before the end");
    }
}

async fn every(interval: Duration, stop: CancellationToken, mut act: impl AsyncFnMut()) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => act().await,
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_fails_at_the_end_is_tried_until_it_succeeds() {
        let stop = CancellationToken::new();
        stop.cancel();
        let mut failures = 2;
        let mut calls = 0;
        every_and_at_the_end(NOTE_USED, stop, async || {
            calls += 1;
            if failures == 0 {
                return Ok(());
            }
            failures -= 1;
            Err(())
        })
        .await;

        assert_eq!(calls, 3);
    }
}
