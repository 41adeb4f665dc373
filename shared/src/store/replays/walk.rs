//! What a replay finds at an endpoint, a bounded stretch at a time, in the order of ids.
//!
//! Two walks: over deliveries that ended without being delivered (dead letters, skipped, cancelled), and over all
//! events of the time, for what was delivered or never had a delivery. A replay is never its own source: it looks
//! at what was made before it.
//!
//! # Invariants
//! - Bounded: each call looks at so many rows, whatever it finds; the caller goes on from the last one.
//! - What was replayed before is not found again by what it was: a dead letter with `replayed_as`, or one that was
//!   skipped or cancelled and replayed since. What became of the replay is.

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement, Transaction};
use uuid::Uuid;

use super::StoreError;
use super::again::Again;
use crate::domain::delivery::{DeadLetterClass, Status};
use crate::domain::endpoint::{wants_channels, wants_type};
use crate::domain::replay::{NotReplayable, ReplayFilter};
use crate::ids::{EndpointKey, TenantKey};

/// Indexes: `dead_letters_endpoint`, `closed_endpoint`, `replayed_event`, `events_pkey`, `events_kept_pkey`. No lock.
const DELIVERIES: &str = "
WITH seen AS MATERIALIZED (
  SELECT * FROM (
    (SELECT d.id, d.event_id, 5::int2 AS status, d.replayed_as IS NULL AND ($6::int2[] IS NULL OR d.class = ANY ($6)) AS fits
     FROM dead_letters d WHERE 5 = ANY ($5::int2[]) AND d.endpoint_id = $2 AND d.id > $3 AND d.id < $4
     ORDER BY d.endpoint_id, d.id LIMIT $9)
    UNION ALL
    (SELECT c.id, c.event_id, c.status, c.status = ANY ($5) AND NOT EXISTS (
       SELECT FROM replayed r WHERE r.endpoint_id = c.endpoint_id AND r.event_id = c.event_id AND r.source_id = c.id)
     FROM closed c WHERE $5 && '{6,7}'::int2[] AND c.endpoint_id = $2 AND c.id > $3 AND c.id < $4
     ORDER BY c.endpoint_id, c.id LIMIT $9)) x
  ORDER BY id LIMIT $9)
SELECT s.id, s.event_id, s.status, s.fits AND ($7::uuid[] IS NULL OR s.id IN (SELECT unnest($7))),
       t.name, e.deliver_before, e.order_key, e.order_seq
FROM seen s
LEFT JOIN LATERAL (
  SELECT e.type_id, e.deliver_before, e.order_key, e.order_seq FROM events e
  WHERE s.fits AND e.tenant_id = $1 AND e.id = s.event_id
    AND to_timestamp(('x' || left(replace(s.event_id::text, '-', ''), 12))::bit(48)::int8 / 1000.0) >= $8
    AND octet_length(e.payload) > 0
  UNION ALL
  SELECT e.type_id, e.deliver_before, e.order_key, e.order_seq FROM events_kept e
  WHERE s.fits AND e.tenant_id = $1 AND e.id = s.event_id AND octet_length(e.payload) > 0
  LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true
ORDER BY s.id";

/// Indexes: `events_pkey`, `replayed_event`, and for what was delivered `attempts_pkey` in the days after it was made.
/// No lock.
const EVENTS: &str = "
WITH seen AS MATERIALIZED (
  SELECT e.id, e.type_id, e.channels, e.deliver_before, e.order_key, e.order_seq,
         to_timestamp(('x' || left(replace(e.id::text, '-', ''), 12))::bit(48)::int8 / 1000.0) >= $7
           AND octet_length(e.payload) > 0 AS kept,
         (e.fan_delivery)[array_position(e.fan_endpoint, $2)] AS delivery
  FROM events e WHERE e.tenant_id = $1 AND e.id > $3 AND e.id < $4 ORDER BY e.id LIMIT $5)
SELECT s.id, t.name, s.deliver_before, s.order_key, s.order_seq, s.channels, s.kept, s.delivery,
       s.delivery IS NULL AND NOT EXISTS (SELECT FROM replayed r WHERE r.endpoint_id = $2 AND r.event_id = s.id),
       $6 AND EXISTS (
         SELECT FROM (
           SELECT s.delivery AS id WHERE s.delivery IS NOT NULL
           UNION ALL SELECT r.delivery_id FROM replayed r WHERE r.endpoint_id = $2 AND r.event_id = s.id) d
         CROSS JOIN LATERAL (
           SELECT to_timestamp(('x' || left(replace(d.id::text, '-', ''), 12))::bit(48)::int8 / 1000.0) AS made_at OFFSET 0) m
         CROSS JOIN LATERAL (
           SELECT FROM attempts a WHERE a.tenant_id = $1 AND a.delivery_id = d.id AND a.applied AND a.final_status = 3
             AND a.started_at >= m.made_at - interval '1 min' AND a.started_at < m.made_at + interval '40 days' LIMIT 1) x)
FROM seen s LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = s.type_id OFFSET 0) t ON true
ORDER BY s.id";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("replays.walk_deliveries", DELIVERIES),
    ("replays.walk_events", EVENTS),
];

/// The prepared statements of one session.
#[derive(Debug, Clone)]
pub(super) struct Walks {
    deliveries: Statement,
    events: Statement,
}

impl Walks {
    pub(super) async fn prepare(client: &Client) -> Result<Self, StoreError> {
        Ok(Self {
            deliveries: client.prepare(DELIVERIES).await?,
            events: client.prepare(EVENTS).await?,
        })
    }
}

/// Where a walk is, and what it looks for.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    pub(super) tenant: TenantKey,
    pub(super) endpoint: EndpointKey,
    pub(super) filter: &'a ReplayFilter,
    /// Ids after the first and before the second.
    pub(super) range: (Uuid, Uuid),
    /// What the endpoint wants now, for events that it never had.
    pub(super) event_types: &'a [String],
    pub(super) channels: &'a [String],
    /// Events from before are as good as gone.
    pub(super) floor: Option<OffsetDateTime>,
    pub(super) now: OffsetDateTime,
    /// Rows to look at, at most.
    pub(super) rows: i64,
}

/// What one call found.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// Up to what id each was found, and what it is.
    pub(super) found: Vec<(Uuid, Found)>,
    /// How far was looked; `None`: to the end.
    pub(super) seen_to: Option<Uuid>,
}

/// Something that was asked for.
#[derive(Debug)]
pub(super) enum Found {
    Again(Again),
    Not(NotReplayable, Uuid),
}

/// Every instant of ours is later, and earlier than what PostgreSQL can hold.
const EVER: OffsetDateTime = time::macros::datetime!(1970-01-01 00:00 UTC);

/// Deliveries that ended without being delivered.
pub(super) async fn deliveries(
    transaction: &Transaction<'_>,
    sql: &Walks,
    walk: &Walk<'_>,
) -> Result<Stretch, StoreError> {
    let statuses: Vec<i16> = walk.filter.statuses.iter().map(|it| it.code()).collect();
    let classes: Vec<i16> = walk.filter.classes.iter().map(|it| it.code()).collect();
    let classes = Some(classes).filter(|it| !it.is_empty());
    let ids = Some(&walk.filter.deliveries).filter(|it| !it.is_empty());
    let floor = walk.floor.unwrap_or(EVER);
    let params: [&(dyn ToSql + Sync); 9] = [
        &walk.tenant.0,
        &walk.endpoint.0,
        &walk.range.0,
        &walk.range.1,
        &statuses,
        &classes,
        &ids,
        &floor,
        &walk.rows,
    ];
    let rows = transaction.query(&sql.deliveries, &params).await?;
    let mut stretch = begin(&rows, walk)?;
    for row in &rows {
        if row.try_get::<_, bool>(3)?
            && let Some(found) = ended(row, walk)?
        {
            stretch.found.push((row.try_get(0)?, found));
        }
    }
    Ok(stretch)
}

fn ended(row: &Row, walk: &Walk<'_>) -> Result<Option<Found>, StoreError> {
    let event: Uuid = row.try_get(1)?;
    let asked = walk.filter.event_type.as_deref();
    let Some(event_type) = row.try_get::<_, Option<String>>(4)? else {
        // Of a type that nobody can tell any more.
        let gone = Found::Not(NotReplayable::PayloadExpired, event);
        return Ok(asked.is_none().then_some(gone));
    };
    if asked.is_some_and(|asked| asked != event_type) {
        return Ok(None);
    }
    let order: (Option<i64>, Option<i64>) = (row.try_get(6)?, row.try_get(7)?);
    let status = Status::try_from(row.try_get::<_, i16>(2)?)?;
    let again = Again {
        event,
        event_type,
        source: Some(row.try_get(0)?),
        dead: status == Status::DeadLetter,
        deliver_before: row.try_get(5)?,
        order: order.0.zip(order.1),
    };
    Ok(Some(in_time(again, walk.now)))
}

/// Events that were delivered to the endpoint, or that it never had.
pub(super) async fn events(
    transaction: &Transaction<'_>,
    sql: &Walks,
    walk: &Walk<'_>,
) -> Result<Stretch, StoreError> {
    let delivered = walk.filter.statuses.contains(&Status::Delivered);
    let floor = walk.floor.unwrap_or(EVER);
    let params: [&(dyn ToSql + Sync); 7] = [
        &walk.tenant.0,
        &walk.endpoint.0,
        &walk.range.0,
        &walk.range.1,
        &walk.rows,
        &delivered,
        &floor,
    ];
    let rows = transaction.query(&sql.events, &params).await?;
    let mut stretch = begin(&rows, walk)?;
    for row in &rows {
        if let Some(found) = event(row, walk)? {
            stretch.found.push((row.try_get(0)?, found));
        }
    }
    Ok(stretch)
}

fn event(row: &Row, walk: &Walk<'_>) -> Result<Option<Found>, StoreError> {
    let event: Uuid = row.try_get(0)?;
    let event_type: String = row.try_get(1)?;
    let channels: Vec<String> = row.try_get::<_, Option<_>>(5)?.unwrap_or_default();
    let missing = walk.filter.missing
        && row.try_get::<_, bool>(8)?
        && wants_type(walk.event_types, &event_type)
        && wants_channels(walk.channels, &channels);
    let asked = walk.filter.event_type.as_ref();
    if !(missing || row.try_get::<_, bool>(9)?) || asked.is_some_and(|it| *it != event_type) {
        return Ok(None);
    }
    if !row.try_get::<_, bool>(6)? {
        return Ok(Some(Found::Not(NotReplayable::PayloadExpired, event)));
    }
    let order: (Option<i64>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
    let again = Again {
        event,
        event_type,
        source: row.try_get(7)?,
        dead: false,
        deliver_before: row.try_get(2)?,
        order: order.0.zip(order.1),
    };
    Ok(Some(in_time(again, walk.now)))
}

fn in_time(again: Again, now: OffsetDateTime) -> Found {
    if again.deliver_before.is_some_and(|at| at <= now) {
        Found::Not(NotReplayable::DeliverBeforePassed, again.event)
    } else {
        Found::Again(again)
    }
}

fn begin(rows: &[Row], walk: &Walk<'_>) -> Result<Stretch, StoreError> {
    let full = i64::try_from(rows.len()).is_ok_and(|count| count >= walk.rows);
    let last = rows.last().filter(|_| full);
    Ok(Stretch {
        found: Vec::new(),
        seen_to: last.map(|row| row.try_get(0)).transpose()?,
    })
}

/// The classes by name are in the filter of dead letters only.
pub(super) fn classes(codes: Option<Vec<i16>>) -> Result<Vec<DeadLetterClass>, StoreError> {
    let codes = codes.unwrap_or_default().into_iter();
    Ok(codes
        .map(DeadLetterClass::try_from)
        .collect::<Result<_, _>>()?)
}
