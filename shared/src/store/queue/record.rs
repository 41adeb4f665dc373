//! Recording: what came of deliveries, fenced, gated and idempotent, one statement per batch.

use std::net::IpAddr;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::Statements;
use crate::domain::attempt::{Outcome, Phases};
use crate::domain::delivery::{CloseReason, DeadLetterClass, Status};
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use crate::store::StoreError;

/// What both statements that record begin with: the rows to record, and the incarnation that records them,
/// locked. And what they end with: the attempts, applied or not.
macro_rules! recording {
    ($between:literal) => {
        concat!(
            "
WITH inp AS MATERIALIZED (
  SELECT * FROM unnest($1::int2[], $2::int8[], $3::int8[], $4::uuid[], $5::uuid[], $6::int4[], $7::int2[], $8::int2[],
                       $9::int2[], $10::int2[], $11::int2[], $12::timestamptz[], $13::int2[], $14::int2[], $15::text[],
                       $16::timestamptz[], $17::int4[], $18::int2[], $19::int4[], $20::int4[], $21::int4[],
                       $22::int4[], $23::int4[], $24::int4[], $25::inet[], $26::text[], $27::bytea[], $28::int8[])
    u(slot, epoch, endpoint_id, id, event_id, tenant_id, no, made,
      charged, outcome, final_status, due_at, class, close_reason, note,
      started_at, endpoint_version, status, queue_us, dns_us, connect_us,
      tls_us, ttfb_us, total_ms, addr, dialled, response, fingerprint)),
me AS MATERIALIZED (SELECT id FROM workers WHERE id = $29 FOR KEY SHARE),",
            $between,
            "
att AS (
  INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms,
                        queue_us, dns_us, connect_us, tls_us, ttfb_us, outcome, status, final_status, applied, addr, dialled,
                        response, error)
  SELECT tenant_id, id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms,
         queue_us, dns_us, connect_us, tls_us, ttfb_us, outcome, status, CASE WHEN applied THEN final_status END, applied, addr,
         dialled::inet[], response, note
  FROM (SELECT i.*, i.id IN (SELECT id FROM gone) AS applied FROM inp i WHERE i.started_at IS NOT NULL OFFSET 0) a
  ON CONFLICT DO NOTHING)
SELECT i.id, i.id IN (SELECT id FROM gone) FROM inp i"
        )
    };
}

pub(super) use recording;

/// See the module. Locks: KEY SHARE on the incarnation (does not wait for renewals, conflicts with
/// the DELETE that declares it dead), the live rows that are deleted. Indexes: both of `ready`, both of
/// `retry`; for a dead letter that is a replay `dead_letters_replayed`, to the first delivery of its event.
pub(super) const RECORD: &str = recording!(
    "
ok AS MATERIALIZED (
  SELECT i.* FROM inp i JOIN slots s ON s.slot = i.slot AND s.epoch = i.epoch JOIN me ON me.id = s.owner),
h1 AS MATERIALIZED (
  SELECT ok.*, r.c, r.kind, r.replay_id, r.deliver_before, NULL::timestamptz AS first_at FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c, kind, replay_id, deliver_before FROM ready r
    WHERE r.tenant_id = ok.tenant_id AND r.slot = ok.slot AND r.endpoint_id = ok.endpoint_id AND r.id = ok.id
      AND r.attempts_made = ok.no - 1 OFFSET 0) r),
h2 AS MATERIALIZED (
  SELECT ok.*, r.c, r.kind, r.replay_id, r.deliver_before, r.first_at FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c, kind, replay_id, deliver_before, first_at FROM retry r
    WHERE r.tenant_id = ok.tenant_id AND r.id = ok.id AND r.attempts_made = ok.no - 1 OFFSET 0) r
  WHERE ok.no > 1),
d1 AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT c FROM h1)) RETURNING id),
d2 AS (DELETE FROM retry WHERE ctid = ANY (ARRAY(SELECT c FROM h2)) RETURNING id),
gone AS MATERIALIZED (
  SELECT * FROM (SELECT h.*, h.id IN (SELECT id FROM d1) AS hit FROM h1 h OFFSET 0) x WHERE hit
  UNION ALL
  SELECT * FROM (SELECT h.*, h.id IN (SELECT id FROM d2) AS hit FROM h2 h OFFSET 0) x WHERE hit),
rt AS (
  INSERT INTO retry (slot, attempts_made, tenant_id, endpoint_id, id, event_id, kind, attempts_charged, replay_id, due_at, last_status, last_error,
                     deliver_before, first_at)
  SELECT slot, made, tenant_id, endpoint_id, id, event_id, kind, charged, replay_id, due_at, status, outcome,
         deliver_before, coalesce(first_at, started_at, now())
  FROM gone WHERE final_status IS NULL),
dd AS (
  INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, outcome, status, reason, fingerprint, attempts_made, kind, root_id)
  SELECT tenant_id, id, endpoint_id, event_id, class, outcome, status, note, fingerprint, made, kind,
         CASE WHEN kind = 0 THEN id ELSE coalesce(
           (SELECT d.root_id FROM dead_letters d WHERE d.tenant_id = g.tenant_id AND d.replayed_as = g.id LIMIT 1), id) END
  FROM gone g WHERE final_status = 5),
cl AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
  SELECT tenant_id, id, endpoint_id, event_id, final_status, close_reason, made
  FROM gone WHERE final_status IN (6, 7)),
"
);

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
    /// How long its parts took.
    pub phases: Phases,
    /// Milliseconds in total.
    pub total_ms: i32,
    /// The address that was sent to, or the last one dialled in vain.
    pub addr: Option<IpAddr>,
    /// Every address dialled, in order; stored where it says more than `addr`.
    pub dialled: &'a [IpAddr],
    /// The beginning of the response's body.
    pub response: &'a [u8],
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
    dns_us: Vec<Option<i32>>,
    connect_us: Vec<Option<i32>>,
    tls_us: Vec<Option<i32>>,
    ttfb_us: Vec<Option<i32>>,
    total_ms: Vec<Option<i32>>,
    addr: Vec<Option<IpAddr>>,
    dialled: Vec<Option<String>>,
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
        let phases = attempt.map(|attempt| attempt.phases).unwrap_or_default();
        self.queue_us.push(phases.queue_us);
        self.dns_us.push(phases.dns_us);
        self.connect_us.push(phases.connect_us);
        self.tls_us.push(phases.tls_us);
        self.ttfb_us.push(phases.first_byte_us);
        self.total_ms.push(attempt.map(|attempt| attempt.total_ms));
        self.addr.push(attempt.and_then(|attempt| attempt.addr));
        let dialled = attempt.map(|attempt| attempt.dialled);
        self.dialled
            .push(dialled.filter(|all| all.len() > 1).map(array));
        let response = attempt.map(|attempt| attempt.response);
        self.response
            .push(response.filter(|bytes| !bytes.is_empty()));
        self.fingerprint
            .push(class.map(|class| fingerprint(class, row.outcome, http)));
    }
}

/// As PostgreSQL reads an array: a parameter cannot be an array of arrays of different lengths.
fn array(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    format!("{{{}}}", texts.join(","))
}

/// Equal for what broke in the same way.
pub(super) fn fingerprint(class: DeadLetterClass, outcome: Outcome, status: Option<u16>) -> i64 {
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
    submit(client, &sql.record, incarnation, rows).await
}

/// For the statements that take the parameters of [`RECORD`].
pub(super) async fn submit(
    client: &Client,
    statement: &Statement,
    incarnation: Incarnation,
    rows: &[RecordRow<'_>],
) -> Result<Vec<(Uuid, bool)>, StoreError> {
    let mut c = Columns::default();
    for row in rows {
        c.push(row);
    }
    let params: [&(dyn ToSql + Sync); 29] = [
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
        &c.dns_us,
        &c.connect_us,
        &c.tls_us,
        &c.ttfb_us,
        &c.total_ms,
        &c.addr,
        &c.dialled,
        &c.response,
        &c.fingerprint,
        &incarnation.0,
    ];
    let answers = client.query(statement, &params).await?;
    answers
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}
