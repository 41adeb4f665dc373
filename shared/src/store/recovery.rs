//! Recovery: dead letters of an outage that is over live again, as new deliveries of the same events;
//! and outages whose owner was killed before it could write them down.
//!
//! Not the decision when an outage is over, or how fast (`policy::outage` and the scheduler).
//!
//! # Invariants
//! - D6: a dead letter stays as it is; what lives is a new delivery of its event. `replayed_as` is set in
//!   the statement that makes it, so each dead letter is revived once, whatever answer was lost. What lives is
//!   noted in `replayed` too, as every delivery of an event that is not new: whoever expunges the event finds it
//!   there, whatever became of the dead letter.
//! - No loop (review finding 21): what was revived by itself and died again is never revived by itself.
//! - A revived delivery finds its payload: [`revive`] holds the floor of [`super::retention`].
//! - D3: [`revive`] is fenced by owner and epoch, and locks the slot. [`outages`] only reads.

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::StoreError;
use super::endpoint_runtime::Recovery;
use crate::domain::delivery::{DeadLetterClass, Kind};
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};

/// Classes that say that the receiver was away.
const AWAY: [DeadLetterClass; 2] = [DeadLetterClass::Transient, DeadLetterClass::Misconfigured];
/// The same, and a receiver that refused everything for a while.
const AWAY_OR_REFUSING: [DeadLetterClass; 3] = [
    DeadLetterClass::Transient,
    DeadLetterClass::Misconfigured,
    DeadLetterClass::Permanent,
];

/// Oldest first. Index `dead_letters_revivable` per class, then events by primary key. Locks: KEY SHARE on
/// the incarnation, SHARE on the slot, SHARE on the floor, the dead letters (skipping those that a replay
/// holds). Of an ordered endpoint, those that stood in line go to the tail in their old order, or, where a dead
/// letter blocks its key, back to their place: nothing of the key was sent since.
const REVIVE: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
ok AS MATERIALIZED (
  SELECT s.slot FROM slots s JOIN me ON me.id = s.owner WHERE s.slot = $2 AND s.epoch = $3 FOR SHARE OF s),
floor AS MATERIALIZED (
  SELECT r.replay_floor FROM retention r WHERE EXISTS (SELECT FROM ok) FOR SHARE),
dest AS MATERIALIZED (
  SELECT ok.slot, e.ordered, e.block, floor.replay_floor FROM ok CROSS JOIN floor
  CROSS JOIN LATERAL (
    SELECT e.ordered, coalesce(e.settings->>'on_dead_letter' = 'block', false) AS block FROM endpoints e WHERE e.id = $4 AND e.slot = ok.slot AND e.state = 1 OFFSET 0) e),
pick AS MATERIALIZED (
  SELECT d.* FROM dest CROSS JOIN unnest($7::int2[]) k(class) CROSS JOIN LATERAL (
    SELECT d.ctid AS c, d.id, d.dead_at, e.deliver_before FROM dead_letters d
    CROSS JOIN LATERAL (
      SELECT e.deliver_before FROM events e
      WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id AND octet_length(e.payload) > 0
        AND to_timestamp(('x' || left(replace(d.event_id::text, '-', ''), 12))::bit(48)::int8 / 1000.0) >= dest.replay_floor
      UNION ALL
      SELECT e.deliver_before FROM events_kept e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id AND octet_length(e.payload) > 0
      LIMIT 1) e
    WHERE d.endpoint_id = $4 AND d.class = k.class AND d.class <= 3 AND d.dead_at >= $5 AND d.dead_at <= $6
      AND d.replayed_as IS NULL AND d.kind <> 2 AND coalesce(e.deliver_before > clock_timestamp(), true)
    ORDER BY d.endpoint_id, d.class, d.dead_at LIMIT cardinality($8::uuid[])
    FOR NO KEY UPDATE OF d SKIP LOCKED) d
  ORDER BY d.dead_at, d.id LIMIT cardinality($8::uuid[])),
pair AS MATERIALIZED (
  SELECT p.*, ($8::uuid[])[row_number() OVER (ORDER BY p.dead_at, p.id)] AS new_id FROM pick p),
marked AS (
  UPDATE dead_letters d SET replayed_as = (SELECT p.new_id FROM pair p WHERE p.id = d.id)
  WHERE d.ctid = ANY (ARRAY(SELECT c FROM pair)) AND d.replayed_as IS NULL
  RETURNING d.tenant_id, d.endpoint_id, d.event_id, d.order_key, d.order_seq, d.id AS source_id, d.replayed_as AS id,
            (SELECT p.deliver_before FROM pair p WHERE p.id = d.id) AS deliver_before),
live AS (
  INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id, kind, deliver_before)
  SELECT dest.slot, m.tenant_id, m.endpoint_id, m.id, m.event_id, $9, m.deliver_before
  FROM marked m CROSS JOIN dest WHERE NOT dest.ordered OR m.order_key IS NULL),
live_in_order AS (
  INSERT INTO ready_ordered (slot, tenant_id, endpoint_id, order_key, order_seq, id, event_id, kind, deliver_before)
  SELECT dest.slot, m.tenant_id, m.endpoint_id, m.order_key,
         CASE WHEN dest.block THEN m.order_seq ELSE nextval('order_seq') END, m.id, m.event_id, $9, m.deliver_before
  FROM (SELECT * FROM marked WHERE order_key IS NOT NULL ORDER BY order_seq, id OFFSET 0) m CROSS JOIN dest WHERE dest.ordered),
remembered AS (
  INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id, source_id)
  SELECT tenant_id, id, endpoint_id, event_id, source_id FROM marked)
SELECT ARRAY(SELECT id FROM marked), (SELECT count(*) FROM ok)";

/// Loose index scan of `dead_letters_revivable`, then per endpoint: `endpoints_pkey`,
/// `endpoint_runtime_pkey`, its latest dead letter that tells of an outage, that one's first attempt
/// (`attempts_pkey`), its last success (`attempts_endpoint` backwards, 10,000 attempts at most: an endpoint
/// that failed so often in a row is down). No lock.
const OUTAGES: &str = "
WITH RECURSIVE s AS (
  SELECT f.endpoint_id FROM (
    SELECT d.endpoint_id FROM dead_letters d WHERE d.replayed_as IS NULL AND d.kind <> 2 AND d.class <= 3
    ORDER BY d.endpoint_id, d.class, d.dead_at LIMIT 1) f
  UNION ALL
  SELECT f.endpoint_id FROM s CROSS JOIN LATERAL (
    SELECT d.endpoint_id FROM dead_letters d
    WHERE d.endpoint_id > s.endpoint_id AND d.replayed_as IS NULL AND d.kind <> 2 AND d.class <= 3
    ORDER BY d.endpoint_id, d.class, d.dead_at LIMIT 1) f)
SELECT e.slot, e.id, e.tenant_id, d.dead_at FROM s
CROSS JOIN LATERAL (
  SELECT e.slot, e.id, e.tenant_id FROM endpoints e
  WHERE e.id = s.endpoint_id AND e.state = 1 AND e.slot = ANY ($1) OFFSET 0) e
LEFT JOIN LATERAL (
  SELECT r.breaker, r.recover_until FROM endpoint_runtime r WHERE r.endpoint_id = e.id OFFSET 0) r ON true
CROSS JOIN LATERAL (
  SELECT l.id, l.dead_at FROM unnest($3::int2[]) k(class) CROSS JOIN LATERAL (
    SELECT d.id, d.dead_at FROM dead_letters d
    WHERE d.endpoint_id = e.id AND d.class = k.class AND d.class <= 3 AND d.dead_at >= $2
      AND d.replayed_as IS NULL AND d.kind <> 2
    ORDER BY d.endpoint_id DESC, d.class DESC, d.dead_at DESC LIMIT 1) l
  ORDER BY l.dead_at DESC LIMIT 1) last
LEFT JOIN LATERAL (
  SELECT a.started_at FROM attempts a
  WHERE a.tenant_id = e.tenant_id AND a.delivery_id = last.id AND a.no = 1 AND a.started_at >= $2 LIMIT 1) began ON true
LEFT JOIN LATERAL (
  SELECT a.started_at FROM (
    SELECT a.outcome, a.started_at FROM attempts a
    WHERE a.endpoint_id = e.id AND a.started_at >= $2 AND a.started_at < $4 AND a.applied
    ORDER BY a.endpoint_id, a.started_at DESC LIMIT 10000) a
  WHERE a.outcome = 1 LIMIT 1) up ON true
CROSS JOIN LATERAL (
  SELECT min(f.dead_at) AS dead_at FROM unnest($3::int2[]) k(class) CROSS JOIN LATERAL (
    SELECT d.dead_at FROM dead_letters d
    WHERE d.endpoint_id = e.id AND d.class = k.class AND d.class <= 3 AND d.dead_at >= greatest($2, up.started_at)
      AND d.replayed_as IS NULL AND d.kind <> 2
    ORDER BY d.endpoint_id, d.class, d.dead_at LIMIT 1) f) d
WHERE coalesce(r.breaker, 0) = 0 AND coalesce(last.dead_at > r.recover_until, true)
  AND coalesce(up.started_at < coalesce(began.started_at, last.dead_at), true)";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] =
    &[("recovery::revive", REVIVE), ("recovery::outages", OUTAGES)];

/// Which dead letters live again, and as what.
#[derive(Debug, Clone, Copy)]
pub struct Revive<'a> {
    /// Those that died in it; the oldest first.
    pub window: Recovery,
    /// Ids of the new deliveries, one for each: UUIDv7 of database time, new with every call. Some hundreds
    /// at most.
    pub ids: &'a [Uuid],
}

/// Makes new deliveries of the oldest dead letters of an endpoint: those of an outage, or one to probe
/// with. Left out are what auto-replay itself made, what was replayed before, what has no payload any more
/// or has passed its `deliver_before`. Returns the ids that were used: fewer than given means no more are
/// to be had. None of an endpoint that is not enabled.
///
/// # Errors
/// [`StoreError::NotOwner`] when the slot is not this incarnation's any more (D3). Any other: they may
/// live all the same, and the next call then revives those after them.
pub async fn revive(
    client: &Client,
    (incarnation, slot, epoch): (Incarnation, Slot, Epoch),
    endpoint: EndpointKey,
    what: Revive<'_>,
) -> Result<Vec<Uuid>, StoreError> {
    let classes = codes(if what.window.refused {
        &AWAY_OR_REFUSING
    } else {
        &AWAY
    });
    // What died first gets the first id, and so is sent first.
    let mut ids = what.ids.to_vec();
    ids.sort_unstable();
    let kind = Kind::AutoReplay.code();
    let params: [&(dyn ToSql + Sync); 9] = [
        &incarnation.0,
        &slot.0,
        &epoch.0,
        &endpoint.0,
        &what.window.from,
        &what.window.until,
        &classes,
        &ids,
        &kind,
    ];
    let row = client.query_one(REVIVE, &params).await?;
    if row.try_get::<_, i64>(1)? == 0 {
        return Err(StoreError::NotOwner);
    }
    Ok(row.try_get(0)?)
}

/// Enabled endpoints of these slots that look as if their last owner was killed before it could save that
/// their breaker opened: a dead letter since `since` that tells of an outage, no success from its first
/// attempt to the take-over, and neither an open breaker nor a recovery from it stored. With each the instant
/// at which the first such dead letter after its last success died. For after a take-over that was not
/// clean: what the new owner has delivered by now does not hide what the old one left. Costs a few index
/// probes per endpoint that has dead letters, in whatever slot.
///
/// # Errors
/// As any statement.
pub async fn outages(
    client: &Client,
    slots: &[Slot],
    (since, taken_at): (OffsetDateTime, OffsetDateTime),
) -> Result<Vec<(Slot, EndpointKey, TenantKey, OffsetDateTime)>, StoreError> {
    let slots: Vec<i16> = slots.iter().map(|slot| slot.0).collect();
    let rows = client
        .query(OUTAGES, &[&slots, &since, &codes(&AWAY), &taken_at])
        .await?;
    let read = |row: &Row| -> Result<_, StoreError> {
        Ok((
            Slot(row.try_get(0)?),
            EndpointKey(row.try_get(1)?),
            TenantKey(row.try_get(2)?),
            row.try_get(3)?,
        ))
    };
    rows.iter().map(read).collect()
}

fn codes(classes: &[DeadLetterClass]) -> Vec<i16> {
    classes.iter().map(|class| class.code()).collect()
}
