//! What the replays job does: one turn of one part at a time, each a transaction of its own.
//!
//! A turn looks where the deliveries are that the part made (*settle*), makes more where there is room, and moves
//! the cursor, all in one commit. So a job that is killed anywhere leaves nothing half done, and the next one goes
//! on where it was.
//!
//! Not here: how fast (`policy::replay`), and what is found (`walk`).
//!
//! # Invariants
//! - D3: a turn is fenced by the job's lease, and holds the replay's row: a cancel comes before it or after it.
//! - D6: what a cancel stops was never sent.
//! - Nothing is made twice: the cursor moves in the commit that makes what is before it.
//! - A replay is told to have ended once, in the commit that ends it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::types::{Json, ToSql};
use tokio_postgres::{Client, Row, Statement, Transaction};
use uuid::Uuid;

use super::again::{Again, Whose, hold_floor, make, not_taken, prepare};
use super::walk::{self, Found, Stretch, Walk, Walks};
use super::{filter, range};
use crate::domain::delivery::CloseReason;
use crate::domain::endpoint::{EndpointSettings, EndpointState};
use crate::domain::replay::{NotReplayable, ReplayFilter, ReplayStatus};
use crate::ids::{EndpointKey, ReplayKey, Slot, TenantKey};
use crate::policy::replay as policy;
use crate::store::leases::{self, Lease};
use crate::store::notices::{self, EndedReplay};
use crate::store::{Session, StoreError};

/// Deliveries whose place is looked up in one turn: all that may be outstanding at an endpoint, twice.
const MOST_SETTLED: i64 = 2_000;
/// Rows looked at in one turn, whatever is found.
const MOST_SEEN: usize = 2_000;
/// Rows looked at first. Each costs a look at its event, so a turn that may make a few looks at no more than it
/// finds them in; where little fits, it looks at so many times as many next.
const LEAST_SEEN: usize = 64;
const SEEN_GROWS: usize = 4;
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

/// Where the deliveries are that replays made for an endpoint: 1 waiting, 4 waiting for another attempt, 5 dead,
/// 7 closed; 3 when it is nowhere, which is where a delivered one is. Index: `replay_outstanding_pkey`, the
/// `…_by_id` indexes and primary keys. No lock.
const SETTLE: &str = "
SELECT o.delivery_id, o.replay_id, CASE
    WHEN EXISTS (SELECT FROM ready r WHERE r.tenant_id = $2 AND r.id = o.delivery_id) THEN 1
    WHEN EXISTS (SELECT FROM retry r WHERE r.tenant_id = $2 AND r.id = o.delivery_id) THEN 4
    WHEN EXISTS (SELECT FROM ready_ordered r WHERE r.tenant_id = $2 AND r.id = o.delivery_id) THEN 1
    WHEN EXISTS (SELECT FROM dead_letters d WHERE d.tenant_id = $2 AND d.id = o.delivery_id) THEN 5
    WHEN EXISTS (SELECT FROM closed c WHERE c.tenant_id = $2 AND c.id = o.delivery_id) THEN 7
    ELSE 3 END::int2
FROM (SELECT * FROM replay_outstanding WHERE endpoint_id = $1 ORDER BY endpoint_id, replay_id, delivery_id LIMIT $3) o";

const FORGET: &str = "
DELETE FROM replay_outstanding WHERE endpoint_id = $1 AND replay_id = $2 AND delivery_id = ANY ($3)";

/// Closes what was never tried, and asks the owner to drop what it has in memory. Indexes: the `…_by_id`.
const STOP: &str = "
WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now()),
o AS MATERIALIZED (
  SELECT delivery_id AS id FROM replay_outstanding WHERE endpoint_id = $1 AND replay_id = $2
    AND NOT delivery_id IN (SELECT id FROM flying)),
a AS (DELETE FROM ready WHERE tenant_id = $3 AND id = ANY (ARRAY(SELECT id FROM o)) AND attempts_made = 0
      RETURNING id, event_id),
b AS (DELETE FROM ready_ordered WHERE tenant_id = $3 AND id = ANY (ARRAY(SELECT id FROM o)) AND attempts_made = 0
      RETURNING id, event_id),
gone AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
  SELECT $3, id, $1, event_id, $4, $5 FROM (SELECT * FROM a UNION ALL SELECT * FROM b) x RETURNING 1)
INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT $6, $3, $1, 1 WHERE EXISTS (SELECT FROM gone)";

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
    ("replays.settle", SETTLE),
    ("replays.forget", FORGET),
    ("replays.stop", STOP),
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
            settle: client.prepare(SETTLE).await?,
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
        turn.stopped = stop(&transaction, &held).await?;
        held.phase = 3;
    }
    settle(&transaction, sql, &held, &mut sums).await?;
    let again = if held.phase < 3 {
        advance(&transaction, sql, &mut held, &mut sums).await?
    } else {
        pause(&sums)
    };
    write(&transaction, &held, &sums, again).await?;
    let mut told = Vec::new();
    if held.phase == 3 && sums.own == 0 {
        (turn.ended, told) = end(&transaction, &held).await?;
    }
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

/// Looks where the deliveries are, and counts those of this part that have ended.
async fn settle(
    transaction: &Transaction<'_>,
    sql: &Statements,
    held: &Held,
    sums: &mut Sums,
) -> Result<(), StoreError> {
    let part = held.part;
    let params: [&(dyn ToSql + Sync); 3] = [&part.endpoint.0, &held.tenant.0, &MOST_SETTLED];
    let mut ended: Vec<Uuid> = Vec::new();
    for row in transaction.query(&sql.settle, &params).await? {
        let own = row.try_get::<_, i32>(1)? == part.replay.0;
        let place: i16 = row.try_get(2)?;
        match (place, own) {
            (1 | 4, _) => {
                sums.waiting += usize::from(place == 1);
                sums.outstanding += 1;
                sums.own += usize::from(own);
                continue;
            }
            (_, false) => continue,
            (3, true) => sums.done += 1,
            (5, true) => sums.failed += 1,
            (_, true) => sums.skipped += 1,
        }
        ended.push(row.try_get(0)?);
    }
    sums.settled = ended.len();
    if !ended.is_empty() {
        let params: [&(dyn ToSql + Sync); 3] = [&part.endpoint.0, &part.replay.0, &ended];
        transaction.execute(FORGET, &params).await?;
    }
    Ok(())
}

/// Cancels what was made and never tried.
async fn stop(transaction: &Transaction<'_>, held: &Held) -> Result<bool, StoreError> {
    let reason = CloseReason::Cancelled;
    let (status, code) = (reason.status().code(), reason.code());
    let params: [&(dyn ToSql + Sync); 6] = [
        &held.part.endpoint.0,
        &held.part.replay.0,
        &held.tenant.0,
        &status,
        &code,
        &held.slot.0,
    ];
    Ok(transaction.execute(STOP, &params).await? > 0)
}

/// Makes new deliveries, if there is room. Returns the pause until the next turn.
async fn advance(
    transaction: &Transaction<'_>,
    sql: &Statements,
    held: &mut Held,
    sums: &mut Sums,
) -> Result<Duration, StoreError> {
    let taken = not_taken(held.state);
    // What cannot be sent is only counted, which costs nobody anything.
    let most = if taken.is_some() {
        policy::MOST_AT_ONCE
    } else if held.backlog_full {
        0
    } else {
        let room = policy::room(held.max_in_flight, sums.waiting, sums.outstanding);
        room.min(policy::allowance(
            held.per_second,
            held.paced_until,
            held.now,
        ))
    };
    if most == 0 {
        let paced = Duration::try_from(held.paced_until - held.now).unwrap_or_default();
        return Ok(pause(sums).max(paced).min(Duration::from_secs(60)));
    }
    let before = (held.phase, held.range.0);
    let items = find(transaction, sql, (most, taken), held, sums).await?;
    if items.is_empty() {
        return Ok(SOON);
    }
    let whose = Whose {
        tenant: held.tenant,
        endpoint: held.part.endpoint,
        replay: Some(held.part.replay),
    };
    let made = make(transaction, &sql.make, whose, &items, held.now).await?;
    if made.is_empty() {
        // The endpoint was disabled since this turn looked, or another replay took them all: look again.
        (held.phase, held.range.0) = before;
        (sums.found, sums.not_count) = (0, 0);
        sums.not.clear();
        return Ok(SOON);
    }
    // What another replay took meanwhile is that one's.
    sums.found -= items.len() - made.len();
    sums.made = made.len();
    sums.own += made.len();
    held.paced_until = policy::paced_until(held.per_second, held.paced_until, made.len(), held.now);
    Ok(SOON)
}

/// At most so many to be sent again, and moves the cursor behind them.
async fn find(
    transaction: &Transaction<'_>,
    sql: &Statements,
    (most, taken): (usize, Option<NotReplayable>),
    held: &mut Held,
    sums: &mut Sums,
) -> Result<Vec<Again>, StoreError> {
    let floor = hold_floor(transaction).await?;
    let phase = held.phase;
    let mut items = Vec::new();
    let (mut seen, mut rows) = (0, most.max(LEAST_SEEN));
    while items.len() < most && held.phase == phase && seen < MOST_SEEN {
        rows = rows.min(MOST_SEEN - seen);
        let walk = Walk {
            tenant: held.tenant,
            endpoint: held.part.endpoint,
            filter: &held.filter,
            range: held.range,
            event_types: &held.event_types,
            channels: &held.channels,
            floor,
            now: held.now,
            rows: i64::try_from(rows).unwrap_or(i64::MAX),
        };
        let stretch = if phase == 1 {
            walk::deliveries(transaction, &sql.walks, &walk).await?
        } else {
            walk::events(transaction, &sql.walks, &walk).await?
        };
        take(stretch, (most, taken), &mut items, held, sums);
        seen += rows;
        rows *= SEEN_GROWS;
    }
    Ok(in_order(items))
}

/// The first of what was found, and moves the cursor behind it.
fn take(
    stretch: Stretch,
    (most, taken): (usize, Option<NotReplayable>),
    items: &mut Vec<Again>,
    held: &mut Held,
    sums: &mut Sums,
) {
    let refuse = |sums: &mut Sums, reason, event| {
        sums.not_count += 1;
        let named = sums.not.entry(reason).or_default();
        named.push(event);
    };
    for (place, found) in stretch.found {
        if items.len() >= most {
            // The next turn begins with this one.
            held.range.0 = Uuid::from_u128(place.as_u128().saturating_sub(1));
            return;
        }
        sums.found += 1;
        match (found, taken) {
            (Found::Not(reason, event), _) => refuse(sums, reason, event),
            (Found::Again(again), Some(reason)) => refuse(sums, reason, again.event),
            (Found::Again(again), None) => items.push(again),
        }
    }
    match stretch.seen_to {
        Some(seen_to) => held.range.0 = seen_to,
        None if held.phase == 1 && held.filter.wants_events() => {
            held.phase = 2;
            held.range.0 = range(&held.filter, held.now).0;
        }
        None => held.phase = 3,
    }
}

/// Ids are nearly in the order in which events were accepted, but for clocks that differ; what has a place in an
/// order knows it.
fn in_order(mut items: Vec<Again>) -> Vec<Again> {
    if items.iter().any(|item| item.order.is_some()) {
        items.sort_by_key(|item| item.order.map(|(_key, place)| place));
    }
    items
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
