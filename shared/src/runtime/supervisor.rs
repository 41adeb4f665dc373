//! Tasks that are watched: the only place that spawns.
//!
//! A task that ends or panics before shutdown is started again after a pause that doubles, is
//! counted (`postrider_task_restarts_total`), and after too many restarts in a row ends the process,
//! so that an orchestrator sees it. Nothing dies in silence.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{IntCounterVec, Opts};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// The pause before the first restart; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Restarts in a row (each within [`CALM`] of the last) before the process gives up.
const MOST_RESTARTS: u32 = 20;
/// A task that ran this long has recovered: its count of restarts begins anew.
const CALM: Duration = Duration::from_secs(60);

/// Counts restarts by task name; registered by the telemetry of each process.
pub static TASK_RESTARTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "postrider_task_restarts_total",
        "Background tasks that had to be restarted",
    );
    #[expect(
        clippy::expect_used,
        reason = "the name and label are constants and valid"
    )]
    IntCounterVec::new(opts, &["task"]).expect("a valid metric")
});

/// Drives a future beside the caller: a connection, or one request. It must end by itself.
pub fn spawn_driver<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(
        clippy::disallowed_methods,
        reason = "the supervisor is where tasks start"
    )]
    tokio::spawn(future)
}

/// The long-running tasks of a process.
#[derive(Debug)]
pub struct Supervisor {
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), String>>,
}

impl Supervisor {
    /// Tasks started here are told to stop by `shutdown`.
    #[must_use]
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            shutdown,
            tasks: JoinSet::new(),
        }
    }

    /// Starts a task, made anew by `make` for each restart. It should return when the token that it
    /// is handed is cancelled; returning earlier counts as a failure.
    pub fn start<M, F>(&mut self, name: &'static str, mut make: M)
    where
        M: FnMut(CancellationToken) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        // The series begins with 0, so that the first restart is seen as one.
        TASK_RESTARTS.with_label_values(&[name]).inc_by(0);
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let mut restarts = 0_u32;
            let mut pause = FIRST_PAUSE;
            loop {
                let started = super::clock::boot_time();
                let ended = spawn_driver(make(shutdown.clone())).await;
                if shutdown.is_cancelled() {
                    return Ok(());
                }
                if super::clock::boot_time().since(started) > CALM {
                    (restarts, pause) = (0, FIRST_PAUSE);
                }
                restarts += 1;
                TASK_RESTARTS.with_label_values(&[name]).inc();
                tracing::error!(
                    task = name,
                    restarts,
                    panicked = ended.is_err(),
                    "a background task ended; starting it again"
                );
                if restarts > MOST_RESTARTS {
                    return Err(format!("the task {name} does not stay up"));
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    () = shutdown.cancelled() => return Ok(()),
                }
            }
        });
    }

    /// Waits until all tasks ended after shutdown, at most `grace`, or one gave up.
    ///
    /// # Errors
    /// The name of the task that gave up, or that tasks were still running after `grace`.
    pub async fn run(mut self, grace: Duration) -> Result<(), String> {
        let result = loop {
            tokio::select! {
                ended = self.tasks.join_next() => match ended {
                    None => return Ok(()),
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(gave_up))) => break Err(gave_up),
                    Some(Err(panic)) => break Err(panic.to_string()),
                },
                () = self.shutdown.cancelled() => break Ok(()),
            }
        };
        self.shutdown.cancel();
        let all_ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all_ended).await.is_err() {
            return Err(format!(
                "tasks were still running {grace:?} after shutdown began"
            ));
        }
        result
    }
}
