//! What the replays job does: one turn of one part at a time, each a transaction of its own.
//!
//! A turn looks where the deliveries are that the part made (`settling`), makes more where there is room
//! (`making`), and moves the cursor, all in one commit. So a job that is killed anywhere leaves nothing half done,
//! and the next one goes on where it was.
//!
//! Not here: how fast (`policy::replay`), and what is found (`walk`).
//!
//! # Invariants
//! - D3: a turn is fenced by the job's lease, and holds the replay's row: a cancel comes before it or after it.
//! - D6: what a cancel stops was never sent.
//! - Nothing is made twice: the cursor moves in the commit that makes what is before it.
//! - A replay is told to have ended once, in the commit that ends it.

mod making;
mod settling;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::types::{Json, ToSql};
use tokio_postgres::{Client, Row, Statement, Transaction};
use uuid::Uuid;

use super::again::prepare;
use super::walk::Walks;
use super::{filter, range};
use crate::domain::endpoint::{EndpointSettings, EndpointState};
use crate::domain::replay::{NotReplayable, ReplayFilter, ReplayStatus};
use crate::ids::{EndpointKey, ReplayKey, Slot, TenantKey};
use crate::store::leases::{self, Lease};
use crate::store::notices::{self, EndedReplay};
use crate::store::{Session, StoreError};

/// Events that are named per reason.
const MOST_NAMED: usize = 20;
/// Until the next look while deliveries are being made and end.
const SOON: Duration = Duration::from_millis(50);
/// ... while nothing moves: all wait for their next attempt, for the breaker, or for a rate limit.
const LATER: Duration = Duration::from_millis(500);

/// Index: `replay_parts_due`.
const DUE: &str = "
SELECT replay_id, endpoint_id FROM replay_parts WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT $1";

/// Index: `replay_parts_due`.
const NEXT_DUE: &str =
    "SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM replay_parts";

/// By primary keys. Locks the replay, then the part.
const HOLD: &str = "
SELECT r.tenant_id, r.status, r.statuses, r.missing, r.classes, r.event_type, r.delivery_ids, r.since, r.until, r.created_at,
       r.per_second, r.paced_until, p.phase, p.cursor, e.slot, e.state, e.backlog_full, e.settings, e.event_types, e.channels,
       clock_timestamp()
FROM replays r JOIN replay_parts p ON p.replay_id = r.id JOIN endpoints e ON e.id = p.endpoint_id
WHERE r.id = $1 AND p.endpoint_id = $2 FOR UPDATE OF r, p";

const SKIP: &str = "
INSERT INTO replay_skips (replay_id, reason, count, first) VALUES ($1, $2, $3, $4)
ON CONFLICT (replay_id, reason) DO UPDATE SET count = replay_skips.count + excluded.count,
  first = (replay_skips.first || excluded.first)[1:20]";

const MOVE: &str = "
UPDATE replay_parts SET phase = $3, cursor = $4, due_at = clock_timestamp() + $5::float8 * interval '1 s'
WHERE replay_id = $1 AND endpoint_id = $2";

const COUNT: &str = "
UPDATE replays SET total = total + $2, done = done + $3, failed = failed + $4, skipped = skipped + $5,
  not_replayable = not_replayable + $6, paced_until = $7 WHERE id = $1";

const END_PART: &str = "DELETE FROM replay_parts WHERE replay_id = $1 AND endpoint_id = $2";

/// When its last part has ended.
const END: &str = "
UPDATE replays r SET status = CASE status WHEN 1 THEN 2 ELSE status END, finished_at = clock_timestamp()
WHERE r.id = $1 AND NOT EXISTS (SELECT FROM replay_parts p WHERE p.replay_id = r.id)
RETURNING r.public_id, r.endpoint_id, r.status, r.total, r.done, r.failed, r.skipped, r.not_replayable, r.created_at";

const FAIL: &str = "
WITH r AS (UPDATE replays SET status = 4 WHERE id = $1 AND status = 1)
UPDATE replay_parts SET due_at = clock_timestamp() + interval '10 s' WHERE replay_id = $1 AND endpoint_id = $2";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("replays.due", DUE),
    ("replays.next_due", NEXT_DUE),
    ("replays.hold", HOLD),
    ("replays.settle", settling::SETTLE),
    ("replays.forget", settling::FORGET),
    ("replays.stop", settling::STOP),
    ("replays.skip", SKIP),
    ("replays.move", MOVE),
    ("replays.count", COUNT),
    ("replays.end_part", END_PART),
    ("replays.end", END),
    ("replays.fail", FAIL),
];

/// The prepared statements of one session.
#[derive(Debug, Clone)]
pub struct Statements {
    hold: Statement,
    settle: Statement,
    make: Statement,
    walks: Walks,
}

impl Statements {
    /// Prepares them.
    ///
    /// # Errors
    /// When the schema does not fit or the database is away.
    pub async fn prepare(client: &Client) -> Result<Self, StoreError> {
        Ok(Self {
            hold: client.prepare(HOLD).await?,
            settle: client.prepare(settling::SETTLE).await?,
            make: prepare(client).await?,
            walks: Walks::prepare(client).await?,
        })
    }
}

/// What is left of a replay at one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Of which replay.
    pub replay: ReplayKey,
    /// At which endpoint.
    pub endpoint: EndpointKey,
}

/// What a turn did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    /// So many new deliveries.
    pub made: usize,
    /// Whose owners have something new.
    pub hints: Vec<(Slot, EndpointKey)>,
    /// Something was stopped: call `notify::commands`.
    pub stopped: bool,
    /// The replay has ended.
    pub ended: bool,
}

/// Parts that are to be looked at, the longest due first.
///
/// # Errors
/// As any statement.
pub async fn due(client: &Client, limit: i64) -> Result<Vec<Part>, StoreError> {
    let read = |row: &Row| {
        Ok(Part {
            replay: ReplayKey(row.try_get(0)?),
            endpoint: EndpointKey(row.try_get(1)?),
        })
    };
    client
        .query(DUE, &[&limit])
        .await?
        .iter()
        .map(read)
        .collect()
}

/// How long until a part is due; `None`: there is none.
///
/// # Errors
/// As any statement.
pub async fn next_due(client: &Client) -> Result<Option<Duration>, StoreError> {
    let seconds: Option<f64> = client.query_one(NEXT_DUE, &[]).await?.try_get(0)?;
    Ok(seconds.map(|it| Duration::try_from_secs_f64(it.max(0.0)).unwrap_or(LATER)))
}

/// A replay whose turn fails for no passing reason is not carried on.
///
/// # Errors
/// As any statement.
pub async fn fail(client: &Client, part: Part) -> Result<(), StoreError> {
    client
        .execute(FAIL, &[&part.replay.0, &part.endpoint.0])
        .await?;
    Ok(())
}

/// What is known of a part in its turn.
struct Held {
    part: Part,
    tenant: TenantKey,
    status: ReplayStatus,
    filter: ReplayFilter,
    range: (Uuid, Uuid),
    per_second: f64,
    paced_until: OffsetDateTime,
    phase: i16,
    slot: Slot,
    state: EndpointState,
    backlog_full: bool,
    max_in_flight: u16,
    event_types: Vec<String>,
    channels: Vec<String>,
    now: OffsetDateTime,
}

/// What a turn adds up.
#[derive(Default)]
struct Sums {
    found: usize,
    made: usize,
    done: i64,
    failed: i64,
    skipped: i64,
    not: BTreeMap<NotReplayable, Vec<Uuid>>,
    not_count: i64,
    waiting: usize,
    outstanding: usize,
    /// Of this part.
    own: usize,
    settled: usize,
}

/// One turn of a part.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is lost; else those of the database, and nothing was changed.
pub async fn turn(
    session: &mut Session,
    lease: &Lease,
    sql: &Statements,
    part: Part,
) -> Result<Turn, StoreError> {
    let transaction = session.transaction().await?;
    leases::still_mine(&transaction, lease).await?;
    let mut turn = Turn::default();
    let held = transaction
        .query_opt(&sql.hold, &[&part.replay.0, &part.endpoint.0])
        .await?;
    let Some(held) = held else {
        return Ok(turn);
    };
    let mut held = hold(&held, part)?;
    let mut sums = Sums::default();
    if held.status != ReplayStatus::Running {
        turn.stopped = settling::stop(&transaction, &held).await?;
        held.phase = 3;
    }
    settling::settle(&transaction, sql, &held, &mut sums).await?;
    let again = if held.phase < 3 {
        making::advance(&transaction, sql, &mut held, &mut sums).await?
    } else {
        pause(&sums)
    };
    write(&transaction, &held, &sums, again).await?;
    let mut told = Vec::new();
    if held.phase == 3 && sums.own == 0 {
        (turn.ended, told) = end(&transaction, &held).await?;
    }
    crate::fail_point!("worker.replay_turning");
    transaction.commit().await?;
    turn.made = sums.made;
    if sums.made > 0 {
        turn.hints.push((held.slot, part.endpoint));
    }
    turn.hints.extend(told);
    Ok(turn)
}

fn hold(row: &Row, part: Part) -> Result<Held, StoreError> {
    let filter = filter(row)?;
    let (_first, before) = range(&filter, row.try_get(9)?);
    // Not all of them: what a newer program stores is no reason to give a replay up.
    let Json(settings): Json<Value> = row.try_get(17)?;
    let max_in_flight = settings.get("max_in_flight").and_then(Value::as_u64);
    Ok(Held {
        part,
        tenant: TenantKey(row.try_get(0)?),
        status: ReplayStatus::try_from(row.try_get::<_, i16>(1)?)?,
        range: (row.try_get(13)?, before),
        filter,
        per_second: row.try_get(10)?,
        paced_until: row.try_get(11)?,
        phase: row.try_get(12)?,
        slot: Slot(row.try_get(14)?),
        state: EndpointState::try_from(row.try_get::<_, i16>(15)?)?,
        backlog_full: row.try_get(16)?,
        max_in_flight: max_in_flight
            .and_then(|most| u16::try_from(most).ok())
            .unwrap_or_else(|| EndpointSettings::default().max_in_flight),
        event_types: row.try_get(18)?,
        channels: row.try_get(19)?,
        now: row.try_get(20)?,
    })
}

/// Until the next turn, when nothing is to be made.
const fn pause(sums: &Sums) -> Duration {
    if sums.settled > 0 { SOON } else { LATER }
}

async fn write(
    transaction: &Transaction<'_>,
    held: &Held,
    sums: &Sums,
    again: Duration,
) -> Result<(), StoreError> {
    let (replay, endpoint) = (held.part.replay.0, held.part.endpoint.0);
    for (reason, events) in &sums.not {
        let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
        let first: Vec<Uuid> = events.iter().copied().take(MOST_NAMED).collect();
        transaction
            .execute(SKIP, &[&replay, &reason.code(), &count, &first])
            .await?;
    }
    let found = i64::try_from(sums.found).unwrap_or(i64::MAX);
    let counts: [&(dyn ToSql + Sync); 7] = [
        &replay,
        &found,
        &sums.done,
        &sums.failed,
        &sums.skipped,
        &sums.not_count,
        &held.paced_until,
    ];
    if sums.found > 0 || sums.settled > 0 {
        transaction.execute(COUNT, &counts).await?;
    }
    let seconds = again.as_secs_f64();
    let moved: [&(dyn ToSql + Sync); 5] =
        [&replay, &endpoint, &held.phase, &held.range.0, &seconds];
    transaction.execute(MOVE, &moved).await?;
    Ok(())
}

/// Nothing of the part is left; whether that was the last, and who is to be told of it.
async fn end(
    transaction: &Transaction<'_>,
    held: &Held,
) -> Result<(bool, Vec<(Slot, EndpointKey)>), StoreError> {
    let part = held.part;
    transaction
        .execute(END_PART, &[&part.replay.0, &part.endpoint.0])
        .await?;
    let Some(row) = transaction.query_opt(END, &[&part.replay.0]).await? else {
        return Ok((false, Vec::new()));
    };
    let ended = EndedReplay {
        id: row.try_get(0)?,
        tenant: held.tenant,
        endpoint: row.try_get::<_, Option<i64>>(1)?.map(EndpointKey),
        status: ReplayStatus::try_from(row.try_get::<_, i16>(2)?)?,
        counts: [
            ("total", row.try_get(3)?),
            ("done", row.try_get(4)?),
            ("failed", row.try_get(5)?),
            ("skipped", row.try_get(6)?),
            ("not_replayable", row.try_get(7)?),
        ],
        created_at: row.try_get(8)?,
        now: held.now,
    };
    let told = notices::replay_ended(transaction, &ended).await?;
    Ok((true, told))
}
