//! A new delivery of an event that is not new: what every replay comes down to, and the replay of one delivery.
//!
//! # Invariants
//! - D6: what ended stays as it is; a dead letter says as what it lives again (`replayed_as`), set in the
//!   statement that makes it, so that a replay by filter takes each once.
//! - A new delivery finds its payload: [`hold_floor`] holds the row that retention must change before it drops
//!   events, and the statements that look for the event are later ones, so they see what it left.
//! - S3: the tenant is named.

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::StoreError;
use crate::domain::delivery::{Kind, Status};
use crate::domain::endpoint::EndpointState;
use crate::domain::replay::NotReplayable;
use crate::ids::{EndpointKey, ReplayKey, Slot, TenantKey, created_at, new_v7};
use crate::store::deliveries::earliest_attempt;
use crate::store::notices;

/// SHARE on the one row, until the end of the transaction. Waits while retention changes it.
const HOLD_FLOOR: &str =
    "SELECT CASE WHEN isfinite(replay_floor) THEN replay_floor END FROM retention FOR SHARE";

/// An event as far as it decides about a new delivery: one whose payload was expunged (it is empty, which no JSON
/// text is) counts as none. `events_pkey`, or `events_kept_pkey` for one that is owed.
const EVENT: &str = "
SELECT e.deliver_before, e.order_key, e.order_seq, t.name FROM (
  SELECT e.type_id, e.deliver_before, e.order_key, e.order_seq FROM events e
  WHERE e.tenant_id = $1 AND e.id = $2 AND $3 AND octet_length(e.payload) > 0
  UNION ALL
  SELECT e.type_id, e.deliver_before, e.order_key, e.order_seq FROM events_kept e
  WHERE e.tenant_id = $1 AND e.id = $2 AND octet_length(e.payload) > 0
  LIMIT 1) e JOIN event_types t ON t.id = e.type_id";

/// Where a final delivery ended: `dead_letters_pkey`, `closed_pkey`, `attempts_pkey` since it was made.
const ENDED: &str = "
SELECT x.status, x.endpoint_id, x.event_id, e.state, e.slot FROM (
  SELECT 5::int2 AS status, endpoint_id, event_id FROM dead_letters WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT status, endpoint_id, event_id FROM closed WHERE tenant_id = $1 AND id = $2
  UNION ALL
  SELECT final_status, endpoint_id, event_id FROM attempts
  WHERE tenant_id = $1 AND delivery_id = $2 AND applied AND final_status = 3 AND started_at >= $3
  LIMIT 1) x JOIN endpoints e ON e.id = x.endpoint_id";

/// New deliveries to an enabled endpoint, in the order given. Of an ordered one, those that have a place in an
/// order go to the tail; where a dead letter blocks its key, it goes back to its place. Index: `endpoints_pkey`,
/// `dead_letters_pkey`. Locks: the dead letters that are marked.
const MAKE: &str = "
WITH src AS MATERIALIZED (
  SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::bool[], $7::timestamptz[], $8::int8[], $9::int8[], $10::int2[])
    WITH ORDINALITY u(id, event_id, source_id, dead, deliver_before, order_key, order_seq, kind, ord)),
dest AS MATERIALIZED (
  SELECT e.slot, e.ordered, coalesce(e.settings->>'on_dead_letter' = 'block', false) AS block
  FROM endpoints e WHERE e.id = $1 AND e.tenant_id = $2 AND e.state = 1),
marked AS (
  UPDATE dead_letters d SET replayed_as = s.id FROM src s
  WHERE s.dead AND d.tenant_id = $2 AND d.id = s.source_id AND ($11 OR d.replayed_as IS NULL) AND EXISTS (SELECT FROM dest)
  RETURNING d.id),
go AS MATERIALIZED (
  SELECT s.*, dest.* FROM (
    SELECT s.*, NOT s.dead OR s.source_id IN (SELECT id FROM marked) AS free FROM src s OFFSET 0) s
  CROSS JOIN dest WHERE s.free),
live AS (
  INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id, kind, replay_id, deliver_before)
  SELECT slot, $2, $1, id, event_id, kind, $12, deliver_before FROM go WHERE NOT ordered OR order_key IS NULL),
live_in_order AS (
  INSERT INTO ready_ordered (slot, tenant_id, endpoint_id, order_key, order_seq, id, event_id, kind, replay_id, deliver_before)
  SELECT slot, $2, $1, order_key, CASE WHEN block AND dead THEN order_seq ELSE nextval('order_seq') END, id, event_id, kind, $12,
         deliver_before
  FROM (SELECT * FROM go WHERE ordered AND order_key IS NOT NULL ORDER BY ord OFFSET 0) g),
remembered AS (
  INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id, source_id, replay_id)
  SELECT $2, id, $1, event_id, source_id, $12 FROM go),
counted AS (
  INSERT INTO replay_outstanding (endpoint_id, replay_id, delivery_id)
  SELECT $1, $12, id FROM go WHERE $12::int4 IS NOT NULL)
SELECT id FROM go ORDER BY ord";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("replays.hold_floor", HOLD_FLOOR),
    ("replays.event", EVENT),
    ("replays.ended", ENDED),
    ("replays.make", MAKE),
];

/// An event to be sent to an endpoint once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Again {
    /// The event.
    pub(super) event: Uuid,
    /// Its type, which tells a notice from what a tenant published.
    pub(super) event_type: String,
    /// The delivery that ended, if there was one.
    pub(super) source: Option<Uuid>,
    /// ... as a dead letter.
    pub(super) dead: bool,
    /// The event's own end of life.
    pub(super) deliver_before: Option<OffsetDateTime>,
    /// Its place in an order.
    pub(super) order: Option<(i64, i64)>,
}

impl Again {
    /// Nobody is told anything of a notice that fails, however often it is sent.
    fn kind(&self) -> Kind {
        if self.event_type.starts_with(notices::PREFIX) {
            Kind::Notice
        } else {
            Kind::Replay
        }
    }
}

/// How the replay of one delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// It is sent again as this delivery. Hint at the owner of the slot.
    As(Uuid, Slot, EndpointKey),
    /// It cannot be.
    Not(NotReplayable),
    /// It has not ended.
    NotFinal,
}

/// Retention changes nothing until the transaction ends. Events from before the floor are as good as gone, but
/// for those that somebody is owed.
pub(super) async fn hold_floor(
    transaction: &Transaction<'_>,
) -> Result<Option<OffsetDateTime>, StoreError> {
    let row = transaction.query_opt(HOLD_FLOOR, &[]).await?;
    row.map_or(Ok(None), |row| Ok(row.try_get(0)?))
}

/// Sends the event of a delivery that ended to its endpoint once more, as often as it is asked for.
///
/// # Errors
/// Any [`StoreError`].
pub async fn again(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    delivery: Uuid,
    now: OffsetDateTime,
) -> Result<Retried, StoreError> {
    let floor = hold_floor(transaction).await?;
    let since = earliest_attempt(delivery);
    let ended = transaction
        .query_opt(ENDED, &[&tenant.0, &delivery, &since])
        .await?;
    let Some(ended) = ended else {
        return Ok(Retried::NotFinal);
    };
    let status = Status::try_from(ended.try_get::<_, i16>(0)?)?;
    let endpoint = EndpointKey(ended.try_get(1)?);
    let event: Uuid = ended.try_get(2)?;
    if let Some(reason) = not_taken(EndpointState::try_from(ended.try_get::<_, i16>(3)?)?) {
        return Ok(Retried::Not(reason));
    }
    let stored = floor.is_none_or(|floor| created_at(event) >= floor);
    let found = transaction
        .query_opt(EVENT, &[&tenant.0, &event, &stored])
        .await?;
    let Some(found) = found else {
        return Ok(Retried::Not(NotReplayable::PayloadExpired));
    };
    let order: (Option<i64>, Option<i64>) = (found.try_get(1)?, found.try_get(2)?);
    let item = Again {
        event,
        event_type: found.try_get(3)?,
        source: Some(delivery),
        dead: status == Status::DeadLetter,
        deliver_before: found.try_get(0)?,
        order: order.0.zip(order.1),
    };
    if item.deliver_before.is_some_and(|at| at <= now) {
        return Ok(Retried::Not(NotReplayable::DeliverBeforePassed));
    }
    let whose = Whose {
        tenant,
        endpoint,
        replay: None,
    };
    let statement = transaction.prepare(MAKE).await?;
    let made = make(transaction, &statement, whose, &[item], now).await?;
    made.first()
        // It was disabled since this transaction looked.
        .map_or(Ok(Retried::Not(NotReplayable::EndpointDisabled)), |id| {
            Ok::<_, StoreError>(Retried::As(*id, Slot(ended.try_get(4)?), endpoint))
        })
}

/// Why an endpoint takes no delivery.
pub(super) const fn not_taken(state: EndpointState) -> Option<NotReplayable> {
    match state {
        EndpointState::Enabled => None,
        EndpointState::Disabled => Some(NotReplayable::EndpointDisabled),
        EndpointState::Deleted => Some(NotReplayable::EndpointDeleted),
    }
}

/// For whom deliveries are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose {
    pub(super) tenant: TenantKey,
    pub(super) endpoint: EndpointKey,
    /// `None`: of one delivery, which is asked for by its id and may be again.
    pub(super) replay: Option<ReplayKey>,
}

pub(super) async fn prepare(
    client: &impl GenericClient,
) -> Result<tokio_postgres::Statement, StoreError> {
    Ok(client.prepare(MAKE).await?)
}

/// Makes new deliveries in this order, after [`hold_floor`] in the same transaction. Those made: none of an
/// endpoint that is not enabled, nor of a dead letter that another replay took meanwhile.
pub(super) async fn make(
    transaction: &Transaction<'_>,
    statement: &tokio_postgres::Statement,
    whose: Whose,
    items: &[Again],
    now: OffsetDateTime,
) -> Result<Vec<Uuid>, StoreError> {
    // The first gets the smallest id, and so is sent first.
    let mut ids: Vec<Uuid> = items.iter().map(|_| new_v7(now)).collect();
    ids.sort_unstable();
    let events: Vec<Uuid> = items.iter().map(|it| it.event).collect();
    let sources: Vec<Option<Uuid>> = items.iter().map(|it| it.source).collect();
    let dead: Vec<bool> = items.iter().map(|it| it.dead).collect();
    let deliver_before: Vec<_> = items.iter().map(|it| it.deliver_before).collect();
    let keys: Vec<Option<i64>> = items.iter().map(|it| it.order.map(|at| at.0)).collect();
    let places: Vec<Option<i64>> = items.iter().map(|it| it.order.map(|at| at.1)).collect();
    let kinds: Vec<i16> = items.iter().map(|it| it.kind().code()).collect();
    let replay = whose.replay.map(|key| key.0);
    let repeated = replay.is_none();
    let params: [&(dyn ToSql + Sync); 12] = [
        &whose.endpoint.0,
        &whose.tenant.0,
        &ids,
        &events,
        &sources,
        &dead,
        &deliver_before,
        &keys,
        &places,
        &kinds,
        &repeated,
        &replay,
    ];
    let rows = transaction.query(statement, &params).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
