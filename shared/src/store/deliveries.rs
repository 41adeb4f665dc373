//! Deliveries as the API shows them, and the two changes that it makes itself: cancel, and the
//! command to retry now.
//!
//! # Invariants
//! - The status of a delivery is the table that it is in, read in one snapshot; delivered = an
//!   *applied* attempt with a final status. Attempts of fenced workers never count.
//! - D6: cancel deletes a live row and closes it in one statement, or does nothing.
//! - S3: every statement names the tenant.

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Json;
use uuid::Uuid;

use super::{Reader, StoreError};
use crate::domain::attempt::Outcome;
use crate::domain::delivery::{CloseReason, DeadLetterClass, Status, WaitingFor};
use crate::domain::endpoint::EndpointSettings;
use crate::ids::{TenantKey, created_at};

pub(super) mod page;

pub use self::page::{Filter, page};

/// Attempts are found by partition: none started before its delivery was made, but for the
/// difference of two clocks.
const CLOCK_SLACK: time::Duration = time::Duration::minutes(1);

/// Deliveries by id, in the order of the ids. Uses the `…_by_id` indexes and primary keys. What a live one waits
/// for: parked (a negative slot) or held back by a pause of its tenant; its endpoint's breaker; its line, of
/// which the head alone goes (one probe of `ready_ordered_pkey`, and one of `dead_letters_order`). Most end on their first
/// day, with an attempt that no other follows: only of the rest the later partitions are asked.
const BY_IDS: &str = "
WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now())
SELECT u.id, p.status, u.id IN (SELECT id FROM flying), coalesce(p.event_id, a.event_id), e.public_id,
       e.settings, coalesce(p.attempts_made, a.no), p.due_at, p.reason, p.class, p.why, p.ended_at,
       a.final_status, a.outcome, a.status, a.total_ms, a.error, a.started_at, y.replayed, y.source_id, y.public_id,
       p.slot IS NOT NULL AND (p.parked OR (SELECT EXISTS (
         SELECT FROM pauses WHERE tenant_id = u.tenant_id AND event_type IS NULL AND until > now()))) AS paused,
       coalesce(r.breaker <> 0, false) AS behind_breaker, r.next_probe_at,
       CASE WHEN p.order_seq IS NULL THEN false ELSE EXISTS (
         SELECT FROM ready_ordered o WHERE o.slot = p.slot AND o.endpoint_id = p.endpoint_id
           AND o.order_key = p.order_key AND (o.order_seq, o.id) < (p.order_seq, u.id))
         OR coalesce(e.settings->>'on_dead_letter' = 'block', false) AND EXISTS (
           SELECT FROM dead_letters d WHERE d.endpoint_id = p.endpoint_id AND d.order_key = p.order_key
             AND d.replayed_as IS NULL AND d.order_seq < p.order_seq) END AS in_line
FROM unnest($1::int4[], $2::uuid[], $3::timestamptz[]) WITH ORDINALITY AS u(tenant_id, id, made_at, ord)
LEFT JOIN LATERAL (
  SELECT 1::int2 AS status, endpoint_id, event_id, attempts_made, NULL::timestamptz AS due_at,
         NULL::int2 AS reason, NULL::int2 AS class, NULL::text AS why, NULL::timestamptz AS ended_at,
         slot, slot < 0 AS parked, NULL::int8 AS order_key, NULL::int8 AS order_seq
  FROM ready WHERE tenant_id = u.tenant_id AND id = u.id
  UNION ALL
  SELECT 4::int2, endpoint_id, event_id, attempts_made, due_at, NULL, NULL, NULL, NULL, slot, slot < 0, NULL, NULL
  FROM retry WHERE tenant_id = u.tenant_id AND id = u.id
  UNION ALL
  SELECT CASE WHEN due_at IS NULL THEN 1::int2 ELSE 4::int2 END, endpoint_id, event_id, attempts_made, due_at, NULL, NULL, NULL, NULL,
         slot, due_at IS NOT NULL AND attempts_made = 0, order_key, order_seq
  FROM ready_ordered WHERE tenant_id = u.tenant_id AND id = u.id
  UNION ALL
  SELECT 5::int2, endpoint_id, event_id, attempts_made, NULL, NULL, class, reason, dead_at, NULL, false, NULL, NULL
  FROM dead_letters WHERE tenant_id = u.tenant_id AND id = u.id
  UNION ALL
  SELECT status, endpoint_id, event_id, attempts_made, NULL, reason, NULL, NULL, closed_at, NULL, false, NULL, NULL
  FROM closed WHERE tenant_id = u.tenant_id AND id = u.id
  LIMIT 1) p ON true
LEFT JOIN LATERAL (
  (SELECT no, endpoint_id, event_id, final_status, outcome, status, total_ms, error, started_at FROM attempts
   WHERE tenant_id = u.tenant_id AND delivery_id = u.id AND applied AND final_status IS NOT NULL
     AND started_at >= u.made_at AND started_at < u.made_at + interval '1 day' LIMIT 1)
  UNION ALL
  (SELECT no, endpoint_id, event_id, final_status, outcome, status, total_ms, error, started_at FROM attempts
   WHERE tenant_id = u.tenant_id AND delivery_id = u.id AND applied AND started_at >= u.made_at
   ORDER BY no DESC, epoch DESC LIMIT 1)
  LIMIT 1) a ON true
LEFT JOIN LATERAL (
  SELECT public_id, settings FROM endpoints WHERE id = coalesce(p.endpoint_id, a.endpoint_id) OFFSET 0) e ON true
LEFT JOIN LATERAL (
  SELECT true AS replayed, r.source_id, b.public_id FROM replayed r LEFT JOIN replays b ON b.id = r.replay_id
  WHERE r.delivery_id = u.id OFFSET 0) y ON true
LEFT JOIN LATERAL (
  SELECT breaker, next_probe_at FROM endpoint_runtime
  WHERE endpoint_id = p.endpoint_id AND p.slot IS NOT NULL OFFSET 0) r ON true
WHERE p.status IS NOT NULL OR a.final_status IS NOT NULL
ORDER BY u.ord";

/// Deletes the live row, wherever it is, unless a living worker lists it as under way, and closes
/// the delivery. A record that runs at the same time waits, finds nothing and changes nothing.
const CANCEL: &str = "
WITH flying AS MATERIALIZED (SELECT FROM workers WHERE expires_at > now() AND $2 = ANY (in_flight)),
a AS (DELETE FROM ready WHERE tenant_id = $1 AND id = $2 AND NOT EXISTS (SELECT FROM flying)
      RETURNING endpoint_id, event_id, attempts_made),
b AS (DELETE FROM retry WHERE tenant_id = $1 AND id = $2 AND NOT EXISTS (SELECT FROM flying)
      RETURNING endpoint_id, event_id, attempts_made),
c AS (DELETE FROM ready_ordered WHERE tenant_id = $1 AND id = $2 AND NOT EXISTS (SELECT FROM flying)
      RETURNING endpoint_id, event_id, attempts_made)
INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
SELECT $1, $2, endpoint_id, event_id, $3, $4, attempts_made
FROM (SELECT * FROM a UNION ALL SELECT * FROM b UNION ALL SELECT * FROM c) gone";

/// Asks the slot's owner to make a waiting delivery due now. One that is parked (a negative slot) stays
/// parked: it goes as soon as its pause ends.
const RETRY: &str = "
INSERT INTO commands (slot, tenant_id, endpoint_id, delivery_id, verb)
SELECT CASE WHEN slot < 0 THEN slot + 256 ELSE slot END, $1, endpoint_id, $2, 2 FROM (
  SELECT slot, endpoint_id FROM ready WHERE tenant_id = $1 AND id = $2
  UNION ALL SELECT slot, endpoint_id FROM retry WHERE tenant_id = $1 AND id = $2
  UNION ALL SELECT slot, endpoint_id FROM ready_ordered WHERE tenant_id = $1 AND id = $2) live";

/// Every statement here but those of [`page`], for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("deliveries.by_ids", BY_IDS),
    ("deliveries.cancel", CANCEL),
    ("deliveries.retry", RETRY),
];

/// A delivery and how it stands.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// UUIDv7; `created_at` is in it.
    pub id: Uuid,
    /// Of which event.
    pub event: Uuid,
    /// To which endpoint, by its public id.
    pub endpoint: Uuid,
    /// How it stands.
    pub status: Status,
    /// Requests made.
    pub attempts_made: i16,
    /// How many may be charged to it.
    pub max_attempts: u16,
    /// When its next attempt is due.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// What it waits for, if it waits for more than its turn.
    pub waiting_for: Option<WaitingFor>,
    /// When its endpoint's breaker lets a probe through, if it waits for that.
    pub next_probe_at: Option<OffsetDateTime>,
    /// When it was delivered.
    pub delivered_at: Option<OffsetDateTime>,
    /// Why it was closed.
    pub close_reason: Option<CloseReason>,
    /// Why it is a dead letter.
    pub dead_letter: Option<(DeadLetterClass, Option<String>)>,
    /// When it was closed or became a dead letter.
    pub ended_at: Option<OffsetDateTime>,
    /// Its last attempt, as far as it counts.
    pub last: Option<LastAttempt>,
    /// Of what was sent before, or not at all: its event is older than it is.
    pub replay: Option<Replayed>,
}

/// Of a delivery that sends an event again.
#[derive(Debug, Clone, Copy)]
pub struct Replayed {
    /// The delivery that it repeats, if there was one.
    pub of: Option<Uuid>,
    /// The replay that made it, by its public id.
    pub by: Option<Uuid>,
}

/// What the last attempt that counts brought.
#[derive(Debug, Clone)]
pub struct LastAttempt {
    /// Its class.
    pub outcome: Outcome,
    /// HTTP status, if there was a response.
    pub status_code: Option<i16>,
    /// Milliseconds, DNS to last byte.
    pub total_ms: i32,
    /// What went wrong, in words.
    pub error: Option<String>,
}

/// A tenant's deliveries by id, in the order given; what does not exist, or belongs to another
/// tenant, is absent.
///
/// # Errors
/// Any [`StoreError`].
pub async fn by_ids(
    client: &impl Reader,
    tenant: TenantKey,
    ids: &[Uuid],
) -> Result<Vec<Delivery>, StoreError> {
    by_tenants_and_ids(client, &vec![tenant.0; ids.len()], ids).await
}

/// The same of several tenants: each id belongs to the tenant at its place.
///
/// # Errors
/// Any [`StoreError`].
pub async fn by_tenants_and_ids(
    client: &impl Reader,
    tenants: &[i32],
    ids: &[Uuid],
) -> Result<Vec<Delivery>, StoreError> {
    let made_at: Vec<OffsetDateTime> = ids.iter().map(|id| earliest_attempt(*id)).collect();
    client
        .rows(BY_IDS, &[&tenants, &ids, &made_at])
        .await?
        .iter()
        .map(delivery)
        .collect()
}

/// Cancels a delivery that waits; whether it did.
///
/// # Errors
/// Any [`StoreError`].
pub async fn cancel(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<bool, StoreError> {
    let reason = CloseReason::Cancelled;
    let status = reason.status().code();
    let closed = client
        .execute(CANCEL, &[&tenant.0, &id, &status, &reason.code()])
        .await?;
    Ok(closed > 0)
}

/// Asks for a waiting delivery to be due now; whether it waits. Call [`super::notify::commands`]
/// afterwards.
///
/// # Errors
/// Any [`StoreError`].
pub async fn retry(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<bool, StoreError> {
    Ok(client.execute(RETRY, &[&tenant.0, &id]).await? > 0)
}

/// No attempt of a delivery started before this.
pub(super) fn earliest_attempt(id: Uuid) -> OffsetDateTime {
    created_at(id) - CLOCK_SLACK
}

fn delivery(row: &tokio_postgres::Row) -> Result<Delivery, StoreError> {
    let live: Option<i16> = row.try_get(1)?;
    let flying: bool = row.try_get(2)?;
    let final_status: Option<i16> = row.try_get(12)?;
    let status = match (live, final_status) {
        (Some(code), _) | (None, Some(code)) => Status::try_from(code)?,
        (None, None) => return Err(StoreError::Decode("a delivery nowhere".to_owned())),
    };
    let status = if flying && !status.is_final() {
        Status::InFlight
    } else {
        status
    };
    // Not all of them: what a newer program stores does not keep this one from showing deliveries.
    let settings: Option<Json<Value>> = row.try_get(5)?;
    let last = last_attempt(row)?;
    let delivered_at = match (status, &last) {
        (Status::Delivered, Some(last)) => {
            let started: OffsetDateTime = row.try_get(17)?;
            Some(started + time::Duration::milliseconds(i64::from(last.total_ms)))
        }
        _ => None,
    };
    let waiting_for = waiting_for(row, status)?;
    let next_probe_at = match waiting_for {
        Some(WaitingFor::Breaker) => row.try_get(23)?,
        _ => None,
    };
    Ok(Delivery {
        waiting_for,
        next_probe_at,
        id: row.try_get(0)?,
        event: row.try_get(3)?,
        endpoint: row.try_get(4)?,
        status,
        attempts_made: row.try_get(6)?,
        max_attempts: settings
            .and_then(|Json(settings)| settings.get("max_attempts")?.as_u64())
            .and_then(|most| u16::try_from(most).ok())
            .unwrap_or_else(|| EndpointSettings::default().max_attempts),
        next_attempt_at: row.try_get(7)?,
        delivered_at,
        close_reason: code(row.try_get(8)?)?,
        dead_letter: code(row.try_get(9)?)?
            .map(|class| Ok::<_, StoreError>((class, row.try_get(10)?)))
            .transpose()?,
        ended_at: row.try_get(11)?,
        last,
        replay: match row.try_get(18)? {
            Some(true) => Some(Replayed {
                of: row.try_get(19)?,
                by: row.try_get(20)?,
            }),
            Some(false) | None => None,
        },
    })
}

/// The first of the reasons that apply, in the order in which they end last.
fn waiting_for(
    row: &tokio_postgres::Row,
    status: Status,
) -> Result<Option<WaitingFor>, StoreError> {
    if status.is_final() || status == Status::InFlight {
        return Ok(None);
    }
    let reasons = [
        (row.try_get(21)?, WaitingFor::Paused),
        (row.try_get(22)?, WaitingFor::Breaker),
        (row.try_get(24)?, WaitingFor::Order),
        (status == Status::Failed, WaitingFor::Retry),
    ];
    let first = reasons.into_iter().find(|(applies, _)| *applies);
    Ok(first.map(|(_, reason)| reason))
}

fn last_attempt(row: &tokio_postgres::Row) -> Result<Option<LastAttempt>, StoreError> {
    let Some(outcome) = code(row.try_get(13)?)? else {
        return Ok(None);
    };
    Ok(Some(LastAttempt {
        outcome,
        status_code: row.try_get(14)?,
        total_ms: row.try_get(15)?,
        error: row.try_get(16)?,
    }))
}

/// A nullable code as its enumeration.
pub(super) fn code<T>(code: Option<i16>) -> Result<Option<T>, StoreError>
where
    T: TryFrom<i16>,
    StoreError: From<T::Error>,
{
    Ok(code.map(T::try_from).transpose()?)
}
