//! Stopping: SIGINT and SIGTERM cancel the one token that every task of a process watches.
//!
//! The first signal asks for an orderly end; a second one ends the process at once, for people whose
//! patience is shorter than the drain. What it leaves behind is what a crash leaves behind, which
//! everything here survives. One key press can arrive twice, from the terminal and again from a parent
//! that passes it on (`timeout`, some shells and runners), so what follows within [`ONE_PRESS`] is
//! the same signal.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after a second signal: the work was cut short.
const IMPATIENT: i32 = 1;

/// Too short for a person to press again, and long enough for a parent that passes a signal on.
const ONE_PRESS: Duration = Duration::from_millis(500);

/// A token that SIGINT or SIGTERM cancels. Call once, inside the runtime, before anything is started.
///
/// # Errors
/// When the operating system refuses the handlers.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    super::spawn_driver(async move {
        next(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping; a second signal ends it at once");
        token.cancel();
        let repeated = async {
            loop {
                next(&mut interrupt, &mut terminate).await;
            }
        };
        if tokio::time::timeout(ONE_PRESS, repeated).await.is_err() {
            next(&mut interrupt, &mut terminate).await;
        }
        tracing::warn!("a second signal: ending now");
        std::process::exit(IMPATIENT);
    });
    Ok(shutdown)
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
