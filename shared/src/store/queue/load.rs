//! Loading: the live rows of endpoints whose turn it is, with their events.

use time::OffsetDateTime;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::Statements;
use crate::domain::delivery::Kind;
use crate::domain::trace::TraceContext;
use crate::ids::{EndpointKey, Slot, TenantKey};
use crate::store::StoreError;

/// `ready_pkey` per endpoint from a cursor, then `events_pkey` (pruned to one partition) per row. No lock.
pub(super) const LOAD_READY: &str = "
SELECT w.ord, r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind,
       e.payload, coalesce(r.deliver_before, e.deliver_before), t.name, e.trace_context
FROM unnest($1::int2[], $2::int8[], $3::uuid[], $4::int8[]) WITH ORDINALITY w(slot, endpoint_id, cursor, lim, ord)
CROSS JOIN LATERAL (
  SELECT r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind, r.deliver_before FROM ready r
  WHERE r.slot = w.slot AND r.endpoint_id = w.endpoint_id AND r.id > w.cursor
  ORDER BY r.slot, r.endpoint_id, r.id LIMIT w.lim) r
LEFT JOIN LATERAL (
  SELECT e.payload, e.deliver_before, e.type_id, e.trace_context FROM events e WHERE e.tenant_id = r.tenant_id AND e.id = r.event_id
  UNION ALL
  SELECT k.payload, k.deliver_before, k.type_id, k.trace_context FROM events_kept k WHERE k.tenant_id = r.tenant_id AND k.id = r.event_id
  LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true
ORDER BY w.ord, r.id";

/// `retry_pkey` per endpoint, earliest first. Rows that are not due come without their event: they
/// only say when to look again. No lock.
pub(super) const LOAD_RETRY: &str = "
SELECT w.ord, r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind,
       e.payload, coalesce(r.deliver_before, e.deliver_before), t.name, e.trace_context, r.due_at, r.first_at
FROM unnest($1::int2[], $2::int8[], $3::int8[]) WITH ORDINALITY w(slot, endpoint_id, lim, ord)
CROSS JOIN LATERAL (
  SELECT r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind, r.due_at, r.deliver_before, r.first_at
  FROM retry r
  WHERE r.slot = w.slot AND r.endpoint_id = w.endpoint_id
  ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT w.lim) r
LEFT JOIN LATERAL (
  SELECT e.payload, e.deliver_before, e.type_id, e.trace_context FROM events e
  WHERE r.due_at <= $4 AND e.tenant_id = r.tenant_id AND e.id = r.event_id
  UNION ALL
  SELECT k.payload, k.deliver_before, k.type_id, k.trace_context FROM events_kept k
  WHERE r.due_at <= $4 AND k.tenant_id = r.tenant_id AND k.id = r.event_id
  LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true
ORDER BY w.ord, r.due_at, r.id";

/// Rows to load for one endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Its slot.
    pub slot: Slot,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// `ready` rows after this id.
    pub cursor: Uuid,
    /// At most so many of them.
    pub ready_limit: i64,
    /// At most so many of `retry`.
    pub retry_limit: i64,
}

/// A live row with its event.
#[derive(Debug)]
pub struct Row {
    /// Which [`Want`] it answers, counted from 0.
    pub want: usize,
    /// The delivery.
    pub id: Uuid,
    /// Its event.
    pub event_id: Uuid,
    /// Whose it is.
    pub tenant: TenantKey,
    /// Requests made.
    pub attempts_made: u16,
    /// Requests charged.
    pub attempts_charged: u16,
    /// Why it exists.
    pub kind: Kind,
    /// When it is due, if it comes from `retry`.
    pub due_at: Option<OffsetDateTime>,
    /// When its first attempt started, if one was made.
    pub first_at: Option<OffsetDateTime>,
    /// Type, payload and end of life; `None` if the event is gone, or the row not due.
    pub event: Option<(String, Vec<u8>, Option<OffsetDateTime>)>,
    /// Where the event stands in a trace.
    pub trace: Option<TraceContext>,
}

/// Loads live rows with their events: `(ready, retry)`. Rows of `retry` that are not due by `now`
/// come without event.
///
/// # Errors
/// As any statement.
pub async fn load(
    client: &Client,
    sql: &Statements,
    wants: &[Want],
    now: OffsetDateTime,
) -> Result<(Vec<Row>, Vec<Row>), StoreError> {
    futures_util::future::try_join(
        load_ready(client, &sql.load_ready, wants),
        load_retry(client, &sql.load_retry, wants, now),
    )
    .await
}

async fn load_ready(
    client: &Client,
    sql: &Statement,
    wants: &[Want],
) -> Result<Vec<Row>, StoreError> {
    let asked = positions(wants, |want| want.ready_limit);
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let slots: Vec<i16> = asked.iter().map(|(_, want)| want.slot.0).collect();
    let endpoints: Vec<i64> = asked.iter().map(|(_, want)| want.endpoint.0).collect();
    let cursors: Vec<Uuid> = asked.iter().map(|(_, want)| want.cursor).collect();
    let limits: Vec<i64> = asked.iter().map(|(_, want)| want.ready_limit).collect();
    let rows = client
        .query(sql, &[&slots, &endpoints, &cursors, &limits])
        .await?;
    rows.iter()
        .map(|row| read_row(row, asked_for(row, &asked)?.0, false))
        .collect()
}

async fn load_retry(
    client: &Client,
    sql: &Statement,
    wants: &[Want],
    now: OffsetDateTime,
) -> Result<Vec<Row>, StoreError> {
    let asked = positions(wants, |want| want.retry_limit);
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let slots: Vec<i16> = asked.iter().map(|(_, want)| want.slot.0).collect();
    let endpoints: Vec<i64> = asked.iter().map(|(_, want)| want.endpoint.0).collect();
    let limits: Vec<i64> = asked.iter().map(|(_, want)| want.retry_limit).collect();
    let rows = client
        .query(sql, &[&slots, &endpoints, &limits, &now])
        .await?;
    rows.iter()
        .map(|row| read_row(row, asked_for(row, &asked)?.0, true))
        .collect()
}

fn positions(wants: &[Want], limit: impl Fn(&Want) -> i64) -> Vec<(usize, &Want)> {
    wants
        .iter()
        .enumerate()
        .filter(|(_, want)| limit(want) > 0)
        .collect()
}

/// What the first column, an ordinal, refers to.
pub(super) fn asked_for<'a, T>(
    row: &tokio_postgres::Row,
    asked: &'a [T],
) -> Result<&'a T, StoreError> {
    let ordinal: i64 = row.try_get(0)?;
    let position = usize::try_from(ordinal - 1)
        .ok()
        .and_then(|index| asked.get(index));
    position.ok_or_else(|| StoreError::Decode(format!("row {ordinal} was not asked for")))
}

/// `tried`: the columns of a row that may have been tried are there.
pub(super) fn read_row(
    row: &tokio_postgres::Row,
    want: usize,
    tried: bool,
) -> Result<Row, StoreError> {
    let payload: Option<Vec<u8>> = row.try_get(7)?;
    let event_type: Option<String> = row.try_get(9)?;
    let trace: Option<&[u8]> = row.try_get(10)?;
    let event = match (event_type, payload) {
        (Some(event_type), Some(payload)) => Some((event_type, payload, row.try_get(8)?)),
        (Some(_) | None, Some(_) | None) => None,
    };
    Ok(Row {
        want,
        id: row.try_get(1)?,
        event_id: row.try_get(2)?,
        tenant: TenantKey(row.try_get(3)?),
        attempts_made: counter(row.try_get(4)?),
        attempts_charged: counter(row.try_get(5)?),
        kind: Kind::try_from(row.try_get::<_, i16>(6)?)?,
        due_at: if tried { row.try_get(11)? } else { None },
        first_at: if tried { row.try_get(12)? } else { None },
        event,
        trace: trace.and_then(TraceContext::from_bytes),
    })
}

fn counter(value: i16) -> u16 {
    u16::try_from(value).unwrap_or(0)
}
