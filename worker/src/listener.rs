//! The listener: hints of new work, commands and slots, by LISTEN on a connection of its own.
//!
//! A hint is never the truth: one that is lost costs at most the time to the next scan. Listening
//! begins before the scan that follows a (re)connection, so nothing falls between the two.

use std::sync::Arc;
use std::time::Duration;

use shared::ids::{EndpointKey, Slot};
use shared::runtime::clock::boot_time;
use shared::runtime::jitter;
use shared::store::pool::within;
use shared::store::{Database, Role, StoreError};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::scheduler::Input;

/// Hints that may wait; more are dropped, and the scan finds their work.
const CAPACITY: usize = 4_096;
const BUDGET: Duration = Duration::from_secs(5);
/// While the database is away: doubled from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that is silent this long is asked whether it lives.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Clone)]
pub struct Listener {
    /// The database.
    pub database: Database,
    /// To the engine.
    pub engine: mpsc::Sender<Input>,
    /// Wakes the lease: workers or slots changed.
    pub lease: Arc<Notify>,
    /// Wakes the commands.
    pub commands: Arc<Notify>,
}

impl Listener {
    /// Listens until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = boot_time();
            tokio::select! {
                ended = self.listen() => if let Err(error) = ended {
                    tracing::warn!(%error, "hints are not heard; connecting again, scans find the work meanwhile");
                },
                () = shutdown.cancelled() => return,
            }
            if boot_time().since(began) > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause.mul_f64(0.5 + jitter::fraction())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn listen(&self) -> Result<(), StoreError> {
        let (session, mut hints) = self
            .database
            .connect_listening(Role::Worker, CAPACITY)
            .await?;
        let listen = "LISTEN postrider_hint; LISTEN postrider_commands; LISTEN postrider_slots";
        within(BUDGET, session.batch_execute(listen)).await?;
        self.tell(Input::ScanAll).await?;
        self.commands.notify_one();
        loop {
            match tokio::time::timeout(CHECK_EVERY, hints.recv()).await {
                Ok(Some(hint)) => self.heard(hint.channel(), hint.payload()).await?,
                Ok(None) => {
                    return Err(StoreError::Unavailable(
                        "the listening connection closed".to_owned(),
                    ));
                }
                Err(_silence) => within(BUDGET, session.batch_execute("SELECT 1")).await?,
            }
        }
    }

    async fn heard(&self, channel: &str, payload: &str) -> Result<(), StoreError> {
        match channel {
            "postrider_hint" => self.tell(Input::Hint(pairs(payload))).await?,
            "postrider_commands" => self.commands.notify_one(),
            "postrider_slots" => self.lease.notify_one(),
            other => tracing::debug!(channel = other, "a notification that nobody waits for"),
        }
        Ok(())
    }

    async fn tell(&self, input: Input) -> Result<(), StoreError> {
        let sent = self.engine.send(input).await;
        sent.map_err(|_closed| StoreError::Other("the engine has ended".to_owned()))
    }
}

/// `slot:endpoint,slot:endpoint`; what cannot be read is left out.
fn pairs(payload: &str) -> Vec<(Slot, EndpointKey)> {
    let pair = |text: &str| {
        let (slot, endpoint) = text.split_once(':')?;
        Some((
            Slot(slot.parse().ok()?),
            EndpointKey(endpoint.parse().ok()?),
        ))
    };
    payload.split(',').filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_read_and_damage_is_left_out() {
        let all = pairs("3:17,255:900000000001,x:1,4:,7,");

        assert_eq!(
            all,
            [
                (Slot(3), EndpointKey(17)),
                (Slot(255), EndpointKey(900_000_000_001))
            ]
        );
    }
}
