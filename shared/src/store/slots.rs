//! Slots and worker incarnations: who owns what, and how a dead worker is fenced (D3).
//!
//! - One row per *incarnation* (life of a process) in `workers`; a renewal updates it.
//! - Declaring an incarnation dead is a DELETE of its row, which waits for its record statement that
//!   is still running; afterwards its records find no row and change nothing.
//! - The first scan of a slot that was taken is a *later* statement than the take-over.
//!
//! - R1: what is left of an endpoint's rate limit is stored in the transaction that gives its slot up, and
//!   only then; [`Taken::clean`] tells whether the last owner got that far.
//!
//! All of these commit synchronously: a take-over that was lost in a crash of the database would
//! hand out one epoch twice.

use std::collections::HashMap;
use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use super::StoreError;
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};

/// Again after a lost answer: the row may be there already, and renewed since by the time that the
/// first of two statements comes through.
const JOIN: &str = "INSERT INTO workers (id, name, expires_at)
VALUES ($1, $2, clock_timestamp() + $3::float8 * interval '1 s')
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(workers.expires_at, excluded.expires_at)
RETURNING clock_timestamp()";

/// By `workers_pkey`. Does not conflict with the KEY SHARE of a running record.
const RENEW: &str = "UPDATE workers SET expires_at = clock_timestamp() + $2::float8 * interval '1 s', in_flight = $3
WHERE id = $1 RETURNING clock_timestamp()";

/// The others take what this incarnation gives up: it is not counted any more.
const DRAIN: &str = "UPDATE workers SET draining = true WHERE id = $1 AND NOT draining";

/// Waits for the record statements of the dead. What they had in flight becomes suspect.
const DECLARE_DEAD: &str = "
WITH dead AS (
  DELETE FROM workers WHERE expires_at < clock_timestamp() - interval '1 s' AND id <> $1 RETURNING in_flight),
suspect AS (
  INSERT INTO suspects (delivery_id, deaths) SELECT DISTINCT id, 1 FROM dead, unnest(in_flight) id
  ON CONFLICT (delivery_id) DO NOTHING)
SELECT count(*) FROM dead";

/// As [`DECLARE_DEAD`], of everybody.
const DECLARE_ALL_DEAD: &str = "
WITH dead AS (DELETE FROM workers RETURNING in_flight),
suspect AS (
  INSERT INTO suspects (delivery_id, deaths) SELECT DISTINCT id, 1 FROM dead, unnest(in_flight) id
  ON CONFLICT (delivery_id) DO NOTHING)
SELECT count(*) FROM dead";

const CENSUS: &str = "
SELECT (SELECT count(*) FROM workers WHERE expires_at > clock_timestamp() AND NOT draining),
       (SELECT count(*) FROM slots s WHERE s.owner IS NULL OR NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner)),
       ARRAY(SELECT slot FROM slots WHERE owner = $1 ORDER BY slot),
       ARRAY(SELECT epoch FROM slots WHERE owner = $1 ORDER BY slot),
       (SELECT extract(epoch FROM min(expires_at) + interval '1 s' - clock_timestamp())::float8 FROM workers WHERE id <> $1)";

/// Locks the slots that it takes; skips those that another worker is taking, or took since this
/// statement began: the row is then read again, but its new owner, who may have joined since as well,
/// is looked up in the old snapshot and seems to be dead. Hence the epoch as of the snapshot (`seen`).
const ACQUIRE: &str = "
UPDATE slots SET owner = $1, epoch = epoch + 1,
  emptied_at = CASE WHEN epoch = 0 OR released_epoch = epoch THEN emptied_at ELSE clock_timestamp() END
WHERE slot IN (
  SELECT s.slot FROM slots s JOIN slots seen ON seen.slot = s.slot AND seen.epoch = s.epoch
  WHERE s.owner IS NULL OR NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner)
  ORDER BY s.slot LIMIT $2 FOR UPDATE OF s SKIP LOCKED)
  AND EXISTS (SELECT 1 FROM workers WHERE id = $1)
RETURNING slot, epoch, epoch = 1 OR coalesce(released_epoch = epoch - 1, false), clock_timestamp(), emptied_at";

/// By slot and epoch, so that an earlier copy of the statement that is still under way does nothing.
const RECLAIM: &str = "
UPDATE slots s SET epoch = s.epoch + 1, emptied_at = clock_timestamp() FROM unnest($2::int2[], $3::int8[]) w(slot, epoch)
WHERE s.slot = w.slot AND s.epoch = w.epoch AND s.owner = $1
RETURNING s.slot, s.epoch, false, clock_timestamp(), s.emptied_at";

/// Waits for this incarnation's own statements under the fence, so that nothing is recorded or closed
/// after the hand-over.
const LOCK_SELF: &str = "SELECT 1 FROM workers WHERE id = $1 FOR UPDATE";

/// By slot and epoch, as [`RECLAIM`].
const RELEASE: &str = "
UPDATE slots s SET owner = NULL, released_epoch = s.epoch FROM unnest($2::int2[], $3::int8[]) w(slot, epoch)
WHERE s.slot = w.slot AND s.epoch = w.epoch AND s.owner = $1 RETURNING s.slot, s.released_epoch";

/// By primary key, in its order. In the transaction of [`RELEASE`], for slots that it gave up. A breaker's
/// state is not touched.
const HAND_OVER: &str = "
INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, tat_at, tat_version, parked_until)
SELECT * FROM unnest($1::int8[], $2::int2[], $3::int4[], $4::timestamptz[], $5::int4[], $6::timestamptz[])
  u(endpoint_id, slot, tenant_id, tat_at, tat_version, parked_until)
ORDER BY endpoint_id
ON CONFLICT (endpoint_id) DO UPDATE SET
  slot = excluded.slot, tenant_id = excluded.tenant_id,
  tat_at = excluded.tat_at, tat_version = excluded.tat_version, parked_until = excluded.parked_until";

/// In the transaction of [`RELEASE`]: the next owner looks as closely as after a crash.
const DOUBT: &str =
    "UPDATE slots SET released_epoch = NULL WHERE slot = ANY ($1) AND owner IS NULL";

const LEAVE: &str = "DELETE FROM workers WHERE id = $1";

const SUSPECTS: &str = "SELECT delivery_id, deaths FROM suspects ORDER BY seen_at DESC LIMIT 10000";

/// The death is charged before the request is made: a delivery that kills us at once is counted too.
const CHARGE_SUSPECT: &str =
    "UPDATE suspects SET deaths = deaths + 1, seen_at = now() WHERE delivery_id = $1";

const CLEAR_SUSPECTS: &str =
    "DELETE FROM suspects WHERE delivery_id = ANY ($1) OR seen_at < now() - interval '7 days'";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("slots::join", JOIN),
    ("slots::renew", RENEW),
    ("slots::drain", DRAIN),
    ("slots::declare_dead", DECLARE_DEAD),
    ("slots::declare_all_dead", DECLARE_ALL_DEAD),
    ("slots::census", CENSUS),
    ("slots::acquire", ACQUIRE),
    ("slots::reclaim", RECLAIM),
    ("slots::lock_self", LOCK_SELF),
    ("slots::release", RELEASE),
    ("slots::hand_over", HAND_OVER),
    ("slots::doubt", DOUBT),
    ("slots::leave", LEAVE),
    ("slots::suspects", SUSPECTS),
    ("slots::charge_suspect", CHARGE_SUSPECT),
    ("slots::clear_suspects", CLEAR_SUSPECTS),
];

/// How the slots are spread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// Living worker incarnations, those that are draining not counted.
    pub workers: usize,
    /// How long until the first of the others could be declared dead, if it does not renew its lease; zero
    /// when one could be now.
    pub first_death_in: Option<Duration>,
    /// Slots without a living owner.
    pub free: usize,
    /// What the asker owns.
    pub mine: Vec<(Slot, Epoch)>,
}

/// A slot that was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub slot: Slot,
    /// The number of this take-over.
    pub epoch: Epoch,
    /// It had no owner before, or one that handed it over in order. Otherwise a transition may have been
    /// lost, and buckets start empty as of `at` (R1).
    pub clean: bool,
    /// The database's clock at the take-over. Who owned the slot before started nothing after it, unless
    /// it was paused past its lease.
    pub at: OffsetDateTime,
    /// The last take-over of the slot from a dead owner, this one or an earlier one. What was sent before
    /// it is not known: no bucket is fuller than one that was empty then (R1).
    pub emptied_at: Option<OffsetDateTime>,
}

/// What the next owner must know of an endpoint's limits; only of endpoints whose bucket is not full, or
/// that are parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Its slot.
    pub slot: Slot,
    /// The epoch that ends.
    pub epoch: Epoch,
    /// Whose it is.
    pub tenant: TenantKey,
    /// The bucket's position (theoretical arrival time); `None`: it is full.
    pub tat: Option<OffsetDateTime>,
    /// The version of the endpoint that it was counted under.
    pub version: i32,
    /// Nothing is sent before.
    pub parked_until: Option<OffsetDateTime>,
}

/// Begins a life. Returns the database's clock.
///
/// # Errors
/// As any statement.
pub async fn join(
    client: &Client,
    incarnation: Incarnation,
    name: &str,
    ttl: Duration,
) -> Result<OffsetDateTime, StoreError> {
    let row = client
        .query_one(JOIN, &[&incarnation.0, &name, &ttl.as_secs_f64()])
        .await?;
    Ok(row.try_get(0)?)
}

/// Renews the lease and lists what has been on the wire for a while. `None`: this incarnation was
/// declared dead. Returns the database's clock.
///
/// # Errors
/// As any statement.
pub async fn renew(
    client: &Client,
    incarnation: Incarnation,
    ttl: Duration,
    in_flight: &[Uuid],
) -> Result<Option<OffsetDateTime>, StoreError> {
    let row = client
        .query_opt(RENEW, &[&incarnation.0, &ttl.as_secs_f64(), &in_flight])
        .await?;
    row.map(|row| row.try_get(0))
        .transpose()
        .map_err(Into::into)
}

/// Declares dead whose lease ran out over a second ago. Only for a worker whose own session has been
/// healthy for a TTL: a database that was away must not make the first one back take everything.
///
/// # Errors
/// As any statement.
pub async fn declare_dead(client: &Client, incarnation: Incarnation) -> Result<i64, StoreError> {
    Ok(client
        .query_one(DECLARE_DEAD, &[&incarnation.0])
        .await?
        .try_get(0)?)
}

/// Declares every worker dead. For a private database that has just been started again: nobody who
/// wrote these rows lives, and if one did, the fence would stop it as any other.
///
/// # Errors
/// As any statement.
pub async fn declare_all_dead(client: &Client) -> Result<i64, StoreError> {
    Ok(client.query_one(DECLARE_ALL_DEAD, &[]).await?.try_get(0)?)
}

/// Counts workers and free slots, and lists the slots of this incarnation.
///
/// # Errors
/// As any statement.
pub async fn census(client: &Client, incarnation: Incarnation) -> Result<Census, StoreError> {
    let row = client.query_one(CENSUS, &[&incarnation.0]).await?;
    let count = |index| -> Result<usize, StoreError> {
        Ok(usize::try_from(row.try_get::<_, i64>(index)?).unwrap_or(0))
    };
    let slots: Vec<i16> = row.try_get(2)?;
    let epochs: Vec<i64> = row.try_get(3)?;
    let mine = slots
        .into_iter()
        .map(Slot)
        .zip(epochs.into_iter().map(Epoch))
        .collect();
    let first_death_in: Option<f64> = row.try_get(4)?;
    Ok(Census {
        workers: count(0)?,
        first_death_in: first_death_in
            .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        free: count(1)?,
        mine,
    })
}

/// Tells the others that this incarnation is on its way out: its slots are theirs to share.
///
/// # Errors
/// As any statement.
pub async fn drain(client: &Client, incarnation: Incarnation) -> Result<(), StoreError> {
    client.execute(DRAIN, &[&incarnation.0]).await?;
    Ok(())
}

/// Takes at most `count` free slots.
///
/// # Errors
/// As any statement.
pub async fn acquire(
    client: &Client,
    incarnation: Incarnation,
    count: usize,
) -> Result<Vec<Taken>, StoreError> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let rows = client.query(ACQUIRE, &[&incarnation.0, &count]).await?;
    rows.iter().map(taken).collect()
}

fn taken(row: &Row) -> Result<Taken, StoreError> {
    Ok(Taken {
        slot: Slot(row.try_get(0)?),
        epoch: Epoch(row.try_get(1)?),
        clean: row.try_get(2)?,
        at: row.try_get(3)?,
        emptied_at: row.try_get(4)?,
    })
}

/// Takes anew, under the next epoch, slots that are this incarnation's according to the database
/// while it does not know them: the answer to a take-over or hand-over was lost. An earlier statement
/// about them that is still under way finds another epoch and does nothing.
///
/// # Errors
/// As any statement.
pub async fn reclaim(
    client: &mut Client,
    incarnation: Incarnation,
    slots: &[(Slot, Epoch)],
) -> Result<Vec<Taken>, StoreError> {
    let (slots, epochs) = columns(slots);
    let transaction = client.transaction().await?;
    transaction.query_opt(LOCK_SELF, &[&incarnation.0]).await?;
    let rows = transaction
        .query(RECLAIM, &[&incarnation.0, &slots, &epochs])
        .await?;
    transaction.commit().await?;
    rows.iter().map(taken).collect()
}

fn columns(slots: &[(Slot, Epoch)]) -> (Vec<i16>, Vec<i64>) {
    slots.iter().map(|(slot, epoch)| (slot.0, epoch.0)).unzip()
}

/// Hands slots over, with what the next owner must know of their endpoints' limits; nothing of them may
/// be on the wire. `buckets`: each endpoint at most once; those of slots that are not handed over here are
/// left out. `doubtful`: slots in which an outage may have begun that is stored nowhere: they count as taken
/// from a dead owner. Returns the slots that were still ours.
///
/// # Errors
/// As any statement.
pub async fn release(
    client: &mut Client,
    incarnation: Incarnation,
    slots: &[(Slot, Epoch)],
    buckets: &[Handed],
    doubtful: &[Slot],
) -> Result<Vec<Slot>, StoreError> {
    let (slots, epochs) = columns(slots);
    let transaction = client.transaction().await?;
    transaction.query_opt(LOCK_SELF, &[&incarnation.0]).await?;
    let rows = transaction
        .query(RELEASE, &[&incarnation.0, &slots, &epochs])
        .await?;
    let mut released = HashMap::with_capacity(rows.len());
    for row in rows {
        released.insert(Slot(row.try_get(0)?), Epoch(row.try_get(1)?));
    }
    let ours = |it: &&Handed| released.get(&it.slot) == Some(&it.epoch);
    let handed: Vec<&Handed> = buckets.iter().filter(ours).collect();
    if !handed.is_empty() {
        hand_over(&transaction, &handed).await?;
    }
    let doubtful = doubtful.iter().filter(|slot| released.contains_key(slot));
    let doubtful: Vec<i16> = doubtful.map(|slot| slot.0).collect();
    if !doubtful.is_empty() {
        transaction.execute(DOUBT, &[&doubtful]).await?;
    }
    transaction.commit().await?;
    Ok(released.into_keys().collect())
}

async fn hand_over(transaction: &Transaction<'_>, handed: &[&Handed]) -> Result<(), StoreError> {
    let endpoints: Vec<i64> = handed.iter().map(|it| it.endpoint.0).collect();
    let slots: Vec<i16> = handed.iter().map(|it| it.slot.0).collect();
    let tenants: Vec<i32> = handed.iter().map(|it| it.tenant.0).collect();
    let positions: Vec<_> = handed.iter().map(|it| it.tat.map(rounded_up)).collect();
    let versions: Vec<i32> = handed.iter().map(|it| it.version).collect();
    let parked: Vec<_> = handed
        .iter()
        .map(|it| it.parked_until.map(rounded_up))
        .collect();
    let params: [&(dyn ToSql + Sync); 6] =
        [&endpoints, &slots, &tenants, &positions, &versions, &parked];
    transaction.execute(HAND_OVER, &params).await?;
    Ok(())
}

/// To the database's microseconds, never down: a position that comes back earlier than it went is a
/// request too many (R1).
fn rounded_up(at: OffsetDateTime) -> OffsetDateTime {
    match at.nanosecond() % 1_000 {
        0 => at,
        over => at
            .checked_add(time::Duration::nanoseconds(i64::from(1_000 - over)))
            .unwrap_or(at),
    }
}

/// Ends a life in order, after all slots were released.
///
/// # Errors
/// As any statement.
pub async fn leave(client: &Client, incarnation: Incarnation) -> Result<(), StoreError> {
    client.execute(LEAVE, &[&incarnation.0]).await?;
    Ok(())
}

/// What was in flight when a worker died, with the number of deaths.
///
/// # Errors
/// As any statement.
pub async fn suspects(client: &Client) -> Result<HashMap<Uuid, u16>, StoreError> {
    let rows = client.query(SUSPECTS, &[]).await?;
    let read = |row: &tokio_postgres::Row| -> Result<(Uuid, u16), StoreError> {
        Ok((
            row.try_get(0)?,
            u16::try_from(row.try_get::<_, i16>(1)?).unwrap_or(0),
        ))
    };
    rows.iter().map(read).collect()
}

/// Charges a death to a suspect before it is sent.
///
/// # Errors
/// As any statement.
pub async fn charge_suspect(client: &Client, delivery: Uuid) -> Result<(), StoreError> {
    client.execute(CHARGE_SUSPECT, &[&delivery]).await?;
    Ok(())
}

/// These were sent and killed nobody.
///
/// # Errors
/// As any statement.
pub async fn clear_suspects(client: &Client, deliveries: &[Uuid]) -> Result<(), StoreError> {
    client.execute(CLEAR_SUSPECTS, &[&deliveries]).await?;
    Ok(())
}
