//! What an endpoint's owner knows of it and the next owner must know as well: breaker, recovery,
//! the bucket's position. Written on transitions and at hand-over, never per attempt.
//!
//! Not the state machine (that is `policy`), and not who writes when (the worker's `transitions`; at
//! hand-over [`super::slots::release`]).
//!
//! # Invariants
//! - D3: [`save_all`] is fenced by owner and epoch, and locks the slot: a worker that was declared dead,
//!   or has handed the slot over, overwrites nothing that its successor wrote.
//! - R1: a bucket's position is written with the version of the endpoint that it was counted under: under
//!   another quota it says nothing. Crashes since are told by [`super::slots::Taken::emptied_at`].

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::StoreError;
use crate::domain::attempt::Outcome;
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};

/// By primary key, in its order. Locks: KEY SHARE on the incarnation and SHARE on the slots, as
/// `queue::close`. Leaves alone what others write: the bucket, `parked_until`, `p95_ms`, `enabled_at`.
const SAVE: &str = "
WITH inp AS MATERIALIZED (
  SELECT * FROM unnest($2::int2[], $3::int8[], $4::int8[], $5::int4[], $6::timestamptz[], $7::float8[], $8::timestamptz[],
                       $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::bool[], $14::int8[])
    u(slot, epoch, endpoint_id, tenant_id, opened_at, cooldown, next_probe_at,
      failing_since, refusing_since, recover_from, recover_until, recover_refused, seq)),
me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
mine AS MATERIALIZED (
  SELECT s.slot, s.epoch FROM slots s JOIN me ON me.id = s.owner WHERE s.slot = ANY ($2) ORDER BY s.slot FOR SHARE OF s),
ok AS MATERIALIZED (
  SELECT * FROM (SELECT inp.*, (slot, epoch) IN (SELECT slot, epoch FROM mine) AS fenced_in FROM inp OFFSET 0) x WHERE fenced_in),
put AS (
  INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, breaker, opened_at, cooldown, next_probe_at,
                                failing_since, refusing_since, recover_from, recover_until, recover_refused, saved_epoch, saved_seq)
  SELECT endpoint_id, slot, tenant_id, CASE WHEN opened_at IS NULL THEN 0 ELSE 1 END, opened_at, cooldown * interval '1 s', next_probe_at,
         failing_since, refusing_since, recover_from, recover_until, recover_refused, epoch, seq
  FROM ok ORDER BY endpoint_id
  ON CONFLICT (endpoint_id) DO UPDATE SET
    slot = excluded.slot, tenant_id = excluded.tenant_id, breaker = excluded.breaker, opened_at = excluded.opened_at,
    cooldown = excluded.cooldown, next_probe_at = excluded.next_probe_at, failing_since = excluded.failing_since,
    refusing_since = excluded.refusing_since, recover_from = excluded.recover_from, recover_until = excluded.recover_until,
    recover_refused = excluded.recover_refused, saved_epoch = excluded.saved_epoch, saved_seq = excluded.saved_seq
  WHERE (coalesce(endpoint_runtime.saved_epoch, 0), coalesce(endpoint_runtime.saved_seq, 0)) <= (excluded.saved_epoch, excluded.saved_seq))
SELECT endpoint_id FROM ok";

/// By `endpoint_runtime_awake`, per slot, then `endpoints_pkey`. No lock.
const AWAKE: &str = "
SELECT r.slot, r.endpoint_id, e.tenant_id FROM unnest($1::int2[]) w(slot)
CROSS JOIN LATERAL (
  SELECT r.slot, r.endpoint_id FROM endpoint_runtime r
  WHERE r.slot = w.slot AND (r.breaker <> 0 OR r.recover_until IS NOT NULL)
  ORDER BY r.slot, r.endpoint_id OFFSET 0) r
CROSS JOIN LATERAL (SELECT e.tenant_id FROM endpoints e WHERE e.id = r.endpoint_id AND e.state = 1 OFFSET 0) e";

/// By `attempts_endpoint` of the partitions since $2, newest first. No lock.
const HISTORY: &str = "
SELECT w.ord, a.outcome, a.started_at FROM unnest($1::int8[]) WITH ORDINALITY w(endpoint_id, ord)
CROSS JOIN LATERAL (
  SELECT a.outcome, a.started_at FROM attempts a
  WHERE a.endpoint_id = w.endpoint_id AND a.started_at >= $2 AND a.applied
  ORDER BY a.endpoint_id, a.started_at DESC LIMIT $3) a
ORDER BY w.ord, a.started_at DESC";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("endpoint_runtime::save", SAVE),
    ("endpoint_runtime::awake", AWAKE),
    ("endpoint_runtime::history", HISTORY),
];

/// What is known of an endpoint besides its configuration. The default: nothing, and all is well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runtime {
    /// When its breaker opened; `None`: closed. Half-open is not stored: a probe that was lost is made
    /// again (B1).
    pub opened_at: Option<OffsetDateTime>,
    /// How long the breaker stays open between two probes.
    pub cooldown: Duration,
    /// When the next probe may go.
    pub next_probe_at: Option<OffsetDateTime>,
    /// Its first failure after its last success.
    pub failing_since: Option<OffsetDateTime>,
    /// The first of a run of permanent refusals, if the run is long.
    pub refusing_since: Option<OffsetDateTime>,
    /// The outage whose dead letters are being replayed.
    pub recovery: Option<Recovery>,
    /// Grows with each state that one owner saves: a statement whose client gave up on it, and which commits
    /// after a later one, changes nothing. Not read back.
    pub sequence: i64,
    /// The bucket at the last hand-over: its position, and the endpoint's version that it was
    /// counted under.
    pub bucket: Option<(OffsetDateTime, i32)>,
    /// Nothing is sent before, as the receiver asked; as of the last hand-over.
    pub parked_until: Option<OffsetDateTime>,
    /// Its P95 in milliseconds, from the statistics.
    pub p95_ms: Option<u32>,
    /// When it was enabled again last.
    pub enabled_at: Option<OffsetDateTime>,
}

/// An outage that is over: what died in it is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// Dead letters that died from here (included) …
    pub from: OffsetDateTime,
    /// … to here (included).
    pub until: OffsetDateTime,
    /// Those that the receiver refused for good as well.
    pub refused: bool,
}

/// A state to be saved, with the ownership under which it came about.
#[derive(Debug, Clone, Copy)]
pub struct Save<'a> {
    /// The endpoint's slot.
    pub slot: Slot,
    /// Under which take-over.
    pub epoch: Epoch,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Whose it is.
    pub tenant: TenantKey,
    /// What is saved of it: what the owner decides, that is, all above `bucket`.
    pub runtime: &'a Runtime,
}

/// Saves an endpoint's state, all above [`Runtime::bucket`].
///
/// # Errors
/// [`StoreError::NotOwner`] when the slot is not this incarnation's any more (D3).
pub async fn save(
    client: &Client,
    (incarnation, slot, epoch): (Incarnation, Slot, Epoch),
    endpoint: EndpointKey,
    tenant: TenantKey,
    runtime: &Runtime,
) -> Result<(), StoreError> {
    let one = Save {
        slot,
        epoch,
        endpoint,
        tenant,
        runtime,
    };
    let saved = save_all(client, incarnation, &[one]).await?;
    if saved.is_empty() {
        return Err(StoreError::NotOwner);
    }
    Ok(())
}

/// Saves the state of endpoints, each at most once in `states`. Returns those that were saved; the
/// slots of the others are not this incarnation's any more (D3).
///
/// # Errors
/// As any statement.
pub async fn save_all(
    client: &Client,
    incarnation: Incarnation,
    states: &[Save<'_>],
) -> Result<Vec<EndpointKey>, StoreError> {
    let mut c = Columns::default();
    for state in states {
        c.push(state);
    }
    let params: [&(dyn ToSql + Sync); 14] = [
        &incarnation.0,
        &c.slot,
        &c.epoch,
        &c.endpoint,
        &c.tenant,
        &c.opened_at,
        &c.cooldown,
        &c.next_probe_at,
        &c.failing_since,
        &c.refusing_since,
        &c.recover_from,
        &c.recover_until,
        &c.recover_refused,
        &c.sequence,
    ];
    let rows = client.query(SAVE, &params).await?;
    rows.iter()
        .map(|row| Ok(EndpointKey(row.try_get(0)?)))
        .collect()
}

/// Columns of [`SAVE`]'s parameters.
#[derive(Default)]
struct Columns {
    slot: Vec<i16>,
    epoch: Vec<i64>,
    endpoint: Vec<i64>,
    tenant: Vec<i32>,
    opened_at: Vec<Option<OffsetDateTime>>,
    cooldown: Vec<f64>,
    next_probe_at: Vec<Option<OffsetDateTime>>,
    failing_since: Vec<Option<OffsetDateTime>>,
    refusing_since: Vec<Option<OffsetDateTime>>,
    recover_from: Vec<Option<OffsetDateTime>>,
    recover_until: Vec<Option<OffsetDateTime>>,
    recover_refused: Vec<Option<bool>>,
    sequence: Vec<i64>,
}

impl Columns {
    fn push(&mut self, state: &Save<'_>) {
        let runtime = state.runtime;
        self.sequence.push(runtime.sequence);
        self.slot.push(state.slot.0);
        self.epoch.push(state.epoch.0);
        self.endpoint.push(state.endpoint.0);
        self.tenant.push(state.tenant.0);
        self.opened_at.push(runtime.opened_at);
        self.cooldown.push(runtime.cooldown.as_secs_f64());
        self.next_probe_at.push(runtime.next_probe_at);
        self.failing_since.push(runtime.failing_since);
        self.refusing_since.push(runtime.refusing_since);
        self.recover_from.push(runtime.recovery.map(|it| it.from));
        self.recover_until.push(runtime.recovery.map(|it| it.until));
        self.recover_refused
            .push(runtime.recovery.map(|it| it.refused));
    }
}

/// Enabled endpoints of these slots that somebody must look at although nothing of them may be
/// pending: a breaker that is not closed, or a recovery that has not ended.
///
/// # Errors
/// As any statement.
pub async fn awake(
    client: &Client,
    slots: &[Slot],
) -> Result<Vec<(Slot, EndpointKey, TenantKey)>, StoreError> {
    let slots: Vec<i16> = slots.iter().map(|slot| slot.0).collect();
    let rows = client.query(AWAKE, &[&slots]).await?;
    let read = |row: &Row| -> Result<_, StoreError> {
        Ok((
            Slot(row.try_get(0)?),
            EndpointKey(row.try_get(1)?),
            TenantKey(row.try_get(2)?),
        ))
    };
    rows.iter().map(read).collect()
}

/// An attempt as far as it says something about its endpoint: its outcome and when it started.
pub type PastAttempt = (Outcome, OffsetDateTime);

/// The last attempts at these endpoints that counted, newest first, at most `limit` each, none
/// started before `since`. In the order of `endpoints`; one without attempts has an empty list.
///
/// # Errors
/// As any statement.
pub async fn history(
    client: &Client,
    endpoints: &[EndpointKey],
    since: OffsetDateTime,
    limit: i64,
) -> Result<Vec<(EndpointKey, Vec<PastAttempt>)>, StoreError> {
    let keys: Vec<i64> = endpoints.iter().map(|key| key.0).collect();
    let rows = client.query(HISTORY, &[&keys, &since, &limit]).await?;
    let mut found: Vec<(EndpointKey, Vec<PastAttempt>)> =
        endpoints.iter().map(|key| (*key, Vec::new())).collect();
    for row in rows {
        let ordinal: i64 = row.try_get(0)?;
        let position = usize::try_from(ordinal - 1).ok();
        let Some((_, attempts)) = position.and_then(|index| found.get_mut(index)) else {
            return Err(StoreError::Decode(format!(
                "row {ordinal} was not asked for"
            )));
        };
        attempts.push((
            Outcome::try_from(row.try_get::<_, i16>(1)?)?,
            row.try_get(2)?,
        ));
    }
    Ok(found)
}

/// The columns of `endpoint_runtime` (as `r`) that [`read`] reads, in its order.
macro_rules! runtime_columns {
    () => {
        "r.opened_at, extract(epoch FROM r.cooldown)::float8, r.next_probe_at, r.failing_since, r.refusing_since,
       r.recover_from, r.recover_until, r.recover_refused, r.tat_at, r.tat_version, r.parked_until, r.p95_ms, r.enabled_at"
    };
}
pub(super) use runtime_columns;

/// Reads [`runtime_columns`] from column `first` on; all null without a row.
pub(super) fn read(row: &Row, first: usize) -> Result<Runtime, StoreError> {
    let cooldown: Option<f64> = row.try_get(first + 1)?;
    let recovery = match (row.try_get(first + 5)?, row.try_get(first + 6)?) {
        (Some(from), Some(until)) => Some(Recovery {
            from,
            until,
            refused: row.try_get::<_, Option<bool>>(first + 7)?.unwrap_or(false),
        }),
        (Some(_) | None, Some(_) | None) => None,
    };
    let tat: Option<OffsetDateTime> = row.try_get(first + 8)?;
    let version: Option<i32> = row.try_get(first + 9)?;
    let p95: Option<i32> = row.try_get(first + 11)?;
    Ok(Runtime {
        opened_at: row.try_get(first)?,
        cooldown: Duration::try_from_secs_f64(cooldown.unwrap_or(0.0)).unwrap_or_default(),
        next_probe_at: row.try_get(first + 2)?,
        failing_since: row.try_get(first + 3)?,
        refusing_since: row.try_get(first + 4)?,
        recovery,
        sequence: 0,
        bucket: tat.zip(version),
        parked_until: row.try_get(first + 10)?,
        p95_ms: p95.and_then(|p95| u32::try_from(p95).ok()),
        enabled_at: row.try_get(first + 12)?,
    })
}
