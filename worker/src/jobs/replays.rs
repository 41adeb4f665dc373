//! The replays job: makes the deliveries that people asked for, a few at a time, and counts what comes of them.
//!
//! One process does it for all. It goes round the parts that are due (a part is what a replay has left at one
//! endpoint), each in a transaction of its own (`shared::store::replays::work`).

use std::time::Duration;

use shared::fail_point;
use shared::store::leases::Lease;
use shared::store::replays::work::{self, Part, Statements, Turn};
use shared::store::{Role, Session, StoreError, notify};

use super::Job;

/// How often to look while nothing is to be sent again: a new replay begins within this.
const EVERY_IDLE: Duration = Duration::from_secs(1);
/// The least pause between two rounds.
const LEAST: Duration = Duration::from_millis(10);
/// Turns in a round: a shutdown does not wait for all parts.
const ROUND: i64 = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Replays {
    sql: Option<Statements>,
}

impl Job for Replays {
    const NAME: &'static str = "replays";
    const ROLE: Role = Role::Worker;

    fn connected(&mut self) {
        self.sql = None;
    }

    async fn step(&mut self, session: &mut Session, lease: &Lease) -> Result<Duration, StoreError> {
        let parts = work::due(session, ROUND).await?;
        if !parts.is_empty() {
            let sql = match self.sql.take() {
                Some(sql) => sql,
                None => Statements::prepare(session).await?,
            };
            for part in parts {
                turn(session, lease, &sql, part).await?;
            }
            self.sql = Some(sql);
        }
        let next = work::next_due(session).await?;
        Ok(next.map_or(EVERY_IDLE, |next| next.clamp(LEAST, EVERY_IDLE)))
    }
}

async fn turn(
    session: &mut Session,
    lease: &Lease,
    sql: &Statements,
    part: Part,
) -> Result<(), StoreError> {
    match work::turn(session, lease, sql, part).await {
        Ok(turn) => {
            fail_point!("worker.replay_turned");
            tell(session, part, &turn).await;
            Ok(())
        }
        Err(error) if error.is_transient() || matches!(error, StoreError::NotOwner) => Err(error),
        Err(error) => {
            tracing::error!(replay.key = part.replay.0, error.kind = error.kind(), %error, "a replay cannot be carried on");
            work::fail(session, part).await
        }
    }
}

/// Owners find it all by themselves; this is faster.
async fn tell(session: &Session, part: Part, turn: &Turn) {
    for (slot, endpoint) in &turn.hints {
        notify::hint(&**session, &format!("{}:{}", slot.0, endpoint.0)).await;
    }
    if turn.stopped {
        notify::commands(&**session).await;
    }
    if turn.ended {
        tracing::info!(replay.key = part.replay.0, "a replay has ended");
    }
}
