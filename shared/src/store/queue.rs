//! Live deliveries: finding, loading, recording and closing them. The hot statements of a worker.
//!
//! Their forms are not a matter of taste. A queue table is empty when VACUUM looks and when plans
//! are cached; growth alone invalidates neither, and the obvious forms then take 30 s for 200 rows
//! (review finding 3). Hence `LATERAL (… OFFSET 0)` naming all columns of both indexes, `ctid = ANY`,
//! hashed `IN` in the select list, and `enable_seqscan = off` on the session ([`super::Role::Worker`]).
//!
//! # Invariants
//! - D3 [`record`] and [`close`] take `FOR KEY SHARE` on the incarnation's row in `workers` and compare
//!   owner *and* epoch: a worker that was declared dead changes nothing, however late it wakes up.
//! - D6 only what was really deleted from a live table goes on: a repeated, stale or cancelled record
//!   stops there, and its attempt is kept with `applied = false`.
//! - Idempotent: a record submitted twice (lost acknowledgement) changes nothing the second time.

use std::net::IpAddr;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::StoreError;
use crate::domain::attempt::Outcome;
use crate::domain::delivery::{CloseReason, DeadLetterClass, Kind, Status};
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};

/// Loose index scan of `ready_pkey`: one probe per endpoint, whatever its backlog. No lock.
const SCAN_READY: &str = "
WITH RECURSIVE s AS (
  SELECT w.slot, f.endpoint_id, f.tenant_id FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.tenant_id FROM ready r
    WHERE r.slot = w.slot ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1) f
  UNION ALL
  SELECT s.slot, f.endpoint_id, f.tenant_id FROM s CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.tenant_id FROM ready r
    WHERE r.slot = s.slot AND r.endpoint_id > s.endpoint_id
    ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1) f)
SELECT slot, endpoint_id, tenant_id FROM s";

/// The same over `retry_pkey`, whose first row per endpoint is the one due first. No lock.
const SCAN_RETRY: &str = "
WITH RECURSIVE s AS (
  SELECT w.slot, f.endpoint_id, f.tenant_id, f.due_at FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.tenant_id, r.due_at FROM retry r
    WHERE r.slot = w.slot ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1) f
  UNION ALL
  SELECT s.slot, f.endpoint_id, f.tenant_id, f.due_at FROM s CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.tenant_id, r.due_at FROM retry r
    WHERE r.slot = s.slot AND r.endpoint_id > s.endpoint_id
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1) f)
SELECT slot, endpoint_id, tenant_id, due_at FROM s";

/// `ready_pkey` per endpoint from a cursor, then `events_pkey` (pruned to one partition) per row. No lock.
const LOAD_READY: &str = "
SELECT w.ord, r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind,
       e.payload, e.deliver_before, t.name
FROM unnest($1::int2[], $2::int8[], $3::uuid[], $4::int8[]) WITH ORDINALITY w(slot, endpoint_id, cursor, lim, ord)
CROSS JOIN LATERAL (
  SELECT r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind FROM ready r
  WHERE r.slot = w.slot AND r.endpoint_id = w.endpoint_id AND r.id > w.cursor
  ORDER BY r.slot, r.endpoint_id, r.id LIMIT w.lim) r
LEFT JOIN LATERAL (
  SELECT e.payload, e.deliver_before, e.type_id FROM events e WHERE e.tenant_id = r.tenant_id AND e.id = r.event_id
  UNION ALL
  SELECT k.payload, k.deliver_before, k.type_id FROM events_kept k WHERE k.tenant_id = r.tenant_id AND k.id = r.event_id
  LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true
ORDER BY w.ord, r.id";

/// `retry_pkey` per endpoint, earliest first. Rows that are not due come without their event: they
/// only say when to look again. No lock.
const LOAD_RETRY: &str = "
SELECT w.ord, r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind,
       e.payload, e.deliver_before, t.name, r.due_at
FROM unnest($1::int2[], $2::int8[], $3::int8[]) WITH ORDINALITY w(slot, endpoint_id, lim, ord)
CROSS JOIN LATERAL (
  SELECT r.id, r.event_id, r.tenant_id, r.attempts_made, r.attempts_charged, r.kind, r.due_at FROM retry r
  WHERE r.slot = w.slot AND r.endpoint_id = w.endpoint_id
  ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT w.lim) r
LEFT JOIN LATERAL (
  SELECT e.payload, e.deliver_before, e.type_id FROM events e
  WHERE r.due_at <= $4 AND e.tenant_id = r.tenant_id AND e.id = r.event_id
  UNION ALL
  SELECT k.payload, k.deliver_before, k.type_id FROM events_kept k
  WHERE r.due_at <= $4 AND k.tenant_id = r.tenant_id AND k.id = r.event_id
  LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true
ORDER BY w.ord, r.due_at, r.id";

/// See the module. Locks: KEY SHARE on the incarnation (does not wait for renewals, conflicts with
/// the DELETE that declares it dead), the live rows that are deleted. Indexes: both of `ready`, both of `retry`.
const RECORD: &str = "
WITH inp AS MATERIALIZED (
  SELECT * FROM unnest($1::int2[], $2::int8[], $3::int8[], $4::uuid[], $5::uuid[], $6::int4[], $7::int2[], $8::int2[],
                       $9::int2[], $10::int2[], $11::int2[], $12::timestamptz[], $13::int2[], $14::int2[], $15::text[],
                       $16::timestamptz[], $17::int4[], $18::int2[], $19::int4[], $20::int4[], $21::int4[],
                       $22::inet[], $23::bytea[], $24::int8[])
    u(slot, epoch, endpoint_id, id, event_id, tenant_id, no, made,
      charged, outcome, final_status, due_at, class, close_reason, note,
      started_at, endpoint_version, status, queue_us, ttfb_us, total_ms,
      addr, response, fingerprint)),
me AS MATERIALIZED (SELECT id FROM workers WHERE id = $25 FOR KEY SHARE),
ok AS MATERIALIZED (
  SELECT i.* FROM inp i JOIN slots s ON s.slot = i.slot AND s.epoch = i.epoch JOIN me ON me.id = s.owner),
h1 AS MATERIALIZED (
  SELECT ok.*, r.c, r.kind, r.replay_id FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c, kind, replay_id FROM ready r
    WHERE r.tenant_id = ok.tenant_id AND r.slot = ok.slot AND r.endpoint_id = ok.endpoint_id AND r.id = ok.id
      AND r.attempts_made = ok.no - 1 OFFSET 0) r),
h2 AS MATERIALIZED (
  SELECT ok.*, r.c, r.kind, r.replay_id FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c, kind, replay_id FROM retry r
    WHERE r.tenant_id = ok.tenant_id AND r.id = ok.id AND r.attempts_made = ok.no - 1 OFFSET 0) r
  WHERE ok.no > 1),
d1 AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT c FROM h1)) RETURNING id),
d2 AS (DELETE FROM retry WHERE ctid = ANY (ARRAY(SELECT c FROM h2)) RETURNING id),
gone AS MATERIALIZED (
  SELECT * FROM (SELECT h.*, h.id IN (SELECT id FROM d1) AS hit FROM h1 h OFFSET 0) x WHERE hit
  UNION ALL
  SELECT * FROM (SELECT h.*, h.id IN (SELECT id FROM d2) AS hit FROM h2 h OFFSET 0) x WHERE hit),
rt AS (
  INSERT INTO retry (slot, attempts_made, tenant_id, endpoint_id, id, event_id, kind, attempts_charged, replay_id, due_at, last_status, last_error)
  SELECT slot, made, tenant_id, endpoint_id, id, event_id, kind, charged, replay_id, due_at, status, outcome
  FROM gone WHERE final_status IS NULL),
dd AS (
  INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, outcome, status, reason, fingerprint, attempts_made, kind, root_id)
  SELECT tenant_id, id, endpoint_id, event_id, class, outcome, status, note, fingerprint, made, kind, id
  FROM gone WHERE final_status = 5),
cl AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
  SELECT tenant_id, id, endpoint_id, event_id, final_status, close_reason, made
  FROM gone WHERE final_status IN (6, 7)),
att AS (
  INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms,
                        queue_us, ttfb_us, outcome, status, final_status, applied, addr, response, error)
  SELECT tenant_id, id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms,
         queue_us, ttfb_us, outcome, status, CASE WHEN applied THEN final_status END, applied, addr, response, note
  FROM (SELECT i.*, i.id IN (SELECT id FROM gone) AS applied FROM inp i WHERE i.started_at IS NOT NULL OFFSET 0) a
  ON CONFLICT DO NOTHING)
SELECT i.id, i.id IN (SELECT id FROM gone) FROM inp i";

/// Live rows of one endpoint, 1,000 at a time, into `closed`. Locks and fence as in [`RECORD`], and
/// SHARE on the slot: one that is handed over meanwhile is not ours any more. Not if the endpoint is
/// enabled (again): a snapshot that shows what was accepted for it since shows its new state as well.
const CLOSE: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
ok AS MATERIALIZED (
  SELECT s.slot FROM slots s JOIN me ON me.id = s.owner WHERE s.slot = $2 AND s.epoch = $3
    AND NOT EXISTS (SELECT 1 FROM endpoints e WHERE e.id = $4 AND e.state = 1)
  FOR SHARE OF s),
c1 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id <> ALL ($5::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1000) r),
c2 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM retry r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id <> ALL ($5::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1000) r),
d1 AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT c FROM c1)) RETURNING tenant_id, id, endpoint_id, event_id, attempts_made),
d2 AS (DELETE FROM retry WHERE ctid = ANY (ARRAY(SELECT c FROM c2)) RETURNING tenant_id, id, endpoint_id, event_id, attempts_made),
cl AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
  SELECT tenant_id, id, endpoint_id, event_id, $6, $7, attempts_made FROM (SELECT * FROM d1 UNION ALL SELECT * FROM d2) d
  RETURNING 1)
SELECT (SELECT count(*) FROM cl), (SELECT count(*) FROM ok)";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("queue::scan_ready", SCAN_READY),
    ("queue::scan_retry", SCAN_RETRY),
    ("queue::load_ready", LOAD_READY),
    ("queue::load_retry", LOAD_RETRY),
    ("queue::record", RECORD),
    ("queue::close", CLOSE),
];

/// An endpoint that has live rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its slot.
    pub slot: Slot,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Whose it is.
    pub tenant: TenantKey,
    /// Whether `ready` has rows.
    pub ready: bool,
    /// The earliest row of `retry`.
    pub next_due: Option<OffsetDateTime>,
}

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
    /// Type, payload and end of life; `None` if the event is gone, or the row not due.
    pub event: Option<(String, Vec<u8>, Option<OffsetDateTime>)>,
}

/// What is written about one delivery.
#[derive(Debug)]
pub struct RecordRow<'a> {
    /// The slot and the epoch under which it was sent.
    pub slot: Slot,
    /// See `slot`.
    pub epoch: Epoch,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// The delivery.
    pub delivery: Uuid,
    /// Its event.
    pub event_id: Uuid,
    /// Whose it is.
    pub tenant: TenantKey,
    /// Attempts made before this record.
    pub attempts_before: u16,
    /// Attempts charged after it.
    pub attempts_charged: u16,
    /// What was observed.
    pub outcome: Outcome,
    /// Where the delivery goes.
    pub next: Next,
    /// In words.
    pub note: Option<&'a str>,
    /// The request, if one was made.
    pub attempt: Option<AttemptRow<'a>>,
}

/// Where a delivery goes after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Delivered. Final.
    Delivered,
    /// Another attempt at this instant.
    Retry(OffsetDateTime),
    /// No longer tried. Final.
    DeadLetter(DeadLetterClass),
    /// Skipped or cancelled. Final.
    Closed(CloseReason),
}

/// One HTTP request.
#[derive(Debug)]
pub struct AttemptRow<'a> {
    /// Database time; must lie in an existing partition.
    pub started_at: OffsetDateTime,
    /// Version of the endpoint.
    pub endpoint_version: i32,
    /// HTTP status.
    pub status: Option<u16>,
    /// Microseconds in the queue.
    pub queue_us: i32,
    /// Microseconds to the first byte.
    pub ttfb_us: Option<i32>,
    /// Milliseconds in total.
    pub total_ms: i32,
    /// The address dialled.
    pub addr: Option<IpAddr>,
    /// The beginning of the response's body.
    pub response: &'a [u8],
}

/// The prepared hot statements of one session.
#[derive(Debug, Clone)]
pub struct Statements {
    scan_ready: Statement,
    scan_retry: Statement,
    load_ready: Statement,
    load_retry: Statement,
    record: Statement,
    close: Statement,
}

impl Statements {
    /// Prepares them.
    ///
    /// # Errors
    /// When the schema does not fit or the database is away.
    pub async fn prepare(client: &Client) -> Result<Self, StoreError> {
        Ok(Self {
            scan_ready: client.prepare(SCAN_READY).await?,
            scan_retry: client.prepare(SCAN_RETRY).await?,
            load_ready: client.prepare(LOAD_READY).await?,
            load_retry: client.prepare(LOAD_RETRY).await?,
            record: client.prepare(RECORD).await?,
            close: client.prepare(CLOSE).await?,
        })
    }
}

/// Which endpoints of these slots have live rows. One pass over both tables, pipelined.
///
/// # Errors
/// As any statement.
pub async fn scan(
    client: &Client,
    sql: &Statements,
    slots: &[Slot],
) -> Result<Vec<Waiting>, StoreError> {
    let slots: Vec<i16> = slots.iter().map(|slot| slot.0).collect();
    let params: [&(dyn ToSql + Sync); 1] = [&slots];
    let (ready, retry) = futures_util::future::try_join(
        client.query(&sql.scan_ready, &params),
        client.query(&sql.scan_retry, &params),
    )
    .await?;
    let mut found = std::collections::BTreeMap::new();
    for row in &ready {
        let waiting = waiting(row, true, None)?;
        found.insert(waiting.endpoint, waiting);
    }
    for row in &retry {
        let due: OffsetDateTime = row.try_get(3)?;
        let waiting = waiting(row, false, Some(due))?;
        found.entry(waiting.endpoint).or_insert(waiting).next_due = Some(due);
    }
    Ok(found.into_values().collect())
}

fn waiting(
    row: &tokio_postgres::Row,
    ready: bool,
    next_due: Option<OffsetDateTime>,
) -> Result<Waiting, StoreError> {
    Ok(Waiting {
        slot: Slot(row.try_get(0)?),
        endpoint: EndpointKey(row.try_get(1)?),
        tenant: TenantKey(row.try_get(2)?),
        ready,
        next_due,
    })
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
        .map(|row| read_row(row, &asked, false))
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
    rows.iter().map(|row| read_row(row, &asked, true)).collect()
}

fn positions(wants: &[Want], limit: impl Fn(&Want) -> i64) -> Vec<(usize, &Want)> {
    wants
        .iter()
        .enumerate()
        .filter(|(_, want)| limit(want) > 0)
        .collect()
}

fn read_row(
    row: &tokio_postgres::Row,
    asked: &[(usize, &Want)],
    retry: bool,
) -> Result<Row, StoreError> {
    let ordinal: i64 = row.try_get(0)?;
    let position = usize::try_from(ordinal - 1)
        .ok()
        .and_then(|index| asked.get(index));
    let (want, _) =
        position.ok_or_else(|| StoreError::Decode(format!("row {ordinal} was not asked for")))?;
    let payload: Option<Vec<u8>> = row.try_get(7)?;
    let event_type: Option<String> = row.try_get(9)?;
    let event = match (event_type, payload) {
        (Some(event_type), Some(payload)) => Some((event_type, payload, row.try_get(8)?)),
        (Some(_) | None, Some(_) | None) => None,
    };
    Ok(Row {
        want: *want,
        id: row.try_get(1)?,
        event_id: row.try_get(2)?,
        tenant: TenantKey(row.try_get(3)?),
        attempts_made: counter(row.try_get(4)?),
        attempts_charged: counter(row.try_get(5)?),
        kind: Kind::try_from(row.try_get::<_, i16>(6)?)?,
        due_at: if retry { Some(row.try_get(10)?) } else { None },
        event,
    })
}

fn counter(value: i16) -> u16 {
    u16::try_from(value).unwrap_or(0)
}

fn small(value: u16) -> i16 {
    i16::try_from(value).unwrap_or(i16::MAX)
}

/// Columns of [`RECORD`]'s parameters.
#[derive(Default)]
struct Columns<'a> {
    slot: Vec<i16>,
    epoch: Vec<i64>,
    endpoint: Vec<i64>,
    id: Vec<Uuid>,
    event: Vec<Uuid>,
    tenant: Vec<i32>,
    no: Vec<i16>,
    made: Vec<i16>,
    charged: Vec<i16>,
    outcome: Vec<i16>,
    final_status: Vec<Option<i16>>,
    due_at: Vec<Option<OffsetDateTime>>,
    class: Vec<Option<i16>>,
    close_reason: Vec<Option<i16>>,
    note: Vec<Option<&'a str>>,
    started_at: Vec<Option<OffsetDateTime>>,
    version: Vec<Option<i32>>,
    status: Vec<Option<i16>>,
    queue_us: Vec<Option<i32>>,
    ttfb_us: Vec<Option<i32>>,
    total_ms: Vec<Option<i32>>,
    addr: Vec<Option<IpAddr>>,
    response: Vec<Option<&'a [u8]>>,
    fingerprint: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, row: &'a RecordRow<'a>) {
        let attempt = row.attempt.as_ref();
        let (status, due, class, reason) = match row.next {
            Next::Delivered => (Some(Status::Delivered), None, None, None),
            Next::Retry(at) => (None, Some(at), None, None),
            Next::DeadLetter(class) => (Some(Status::DeadLetter), None, Some(class), None),
            Next::Closed(reason) => (Some(reason.status()), None, None, Some(reason)),
        };
        self.slot.push(row.slot.0);
        self.epoch.push(row.epoch.0);
        self.endpoint.push(row.endpoint.0);
        self.id.push(row.delivery);
        self.event.push(row.event_id);
        self.tenant.push(row.tenant.0);
        self.no.push(small(row.attempts_before.saturating_add(1)));
        // A retry follows a request, also where the attempt itself could not be stored: a row of `retry`
        // without an attempt made would be found by no later record.
        let requested = attempt.is_some() || matches!(row.next, Next::Retry(_));
        self.made.push(small(
            row.attempts_before.saturating_add(u16::from(requested)),
        ));
        self.charged.push(small(row.attempts_charged));
        self.outcome.push(row.outcome.code());
        self.final_status.push(status.map(Status::code));
        self.due_at.push(due);
        self.class.push(class.map(DeadLetterClass::code));
        self.close_reason.push(reason.map(CloseReason::code));
        self.note.push(row.note);
        self.started_at
            .push(attempt.map(|attempt| attempt.started_at));
        self.version
            .push(attempt.map(|attempt| attempt.endpoint_version));
        let http = attempt.and_then(|attempt| attempt.status);
        self.status.push(http.map(small));
        self.queue_us.push(attempt.map(|attempt| attempt.queue_us));
        self.ttfb_us
            .push(attempt.and_then(|attempt| attempt.ttfb_us));
        self.total_ms.push(attempt.map(|attempt| attempt.total_ms));
        self.addr.push(attempt.and_then(|attempt| attempt.addr));
        let response = attempt.map(|attempt| attempt.response);
        self.response
            .push(response.filter(|bytes| !bytes.is_empty()));
        self.fingerprint
            .push(class.map(|class| fingerprint(class, row.outcome, http)));
    }
}

/// Equal for what broke in the same way.
fn fingerprint(class: DeadLetterClass, outcome: Outcome, status: Option<u16>) -> i64 {
    i64::from(class.code()) << 32 | i64::from(outcome.code()) << 16 | i64::from(status.unwrap_or(0))
}

/// Records what came of deliveries, in one statement and commit. For each, in the order of `rows`,
/// whether it was applied; what was not is stale, repeated or cancelled, and only its attempt is kept.
///
/// # Errors
/// [`StoreError::BadData`] when a row cannot be stored: submit halves. Transient ones: submit again.
pub async fn record(
    client: &Client,
    sql: &Statements,
    incarnation: Incarnation,
    rows: &[RecordRow<'_>],
) -> Result<Vec<(Uuid, bool)>, StoreError> {
    let mut c = Columns::default();
    for row in rows {
        c.push(row);
    }
    let params: [&(dyn ToSql + Sync); 25] = [
        &c.slot,
        &c.epoch,
        &c.endpoint,
        &c.id,
        &c.event,
        &c.tenant,
        &c.no,
        &c.made,
        &c.charged,
        &c.outcome,
        &c.final_status,
        &c.due_at,
        &c.class,
        &c.close_reason,
        &c.note,
        &c.started_at,
        &c.version,
        &c.status,
        &c.queue_us,
        &c.ttfb_us,
        &c.total_ms,
        &c.addr,
        &c.response,
        &c.fingerprint,
        &incarnation.0,
    ];
    let answers = client.query(&sql.record, &params).await?;
    answers
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// Closes up to 2,000 live rows of an endpoint, but for `except` (on the wire). Returns how many.
///
/// # Errors
/// [`StoreError::NotOwner`] when the slot is not this incarnation's any more, or the endpoint takes
/// deliveries.
pub async fn close(
    client: &Client,
    sql: &Statements,
    (incarnation, slot, epoch): (Incarnation, Slot, Epoch),
    (endpoint, reason): (EndpointKey, CloseReason),
    except: &[Uuid],
) -> Result<u64, StoreError> {
    let (status, code) = (reason.status().code(), reason.code());
    let params: [&(dyn ToSql + Sync); 7] = [
        &incarnation.0,
        &slot.0,
        &epoch.0,
        &endpoint.0,
        &except,
        &status,
        &code,
    ];
    let row = client.query_one(&sql.close, &params).await?;
    if row.try_get::<_, i64>(1)? == 0 {
        return Err(StoreError::NotOwner);
    }
    Ok(u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0))
}
