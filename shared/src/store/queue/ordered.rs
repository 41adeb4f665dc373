//! Live deliveries that stand in line: those of ordered endpoints whose event has an ordering key.
//!
//! The line of a key is its rows of `ready_ordered` by `order_seq`; the first is its *head*, and only heads
//! are ever loaded. So a retry, which is an UPDATE of `due_at`, keeps its place and holds back its own key by
//! itself, through crash and hand-over too; no state is needed that says which keys are blocked.
//!
//! Not here: closing and expiring, which treat all live rows of an endpoint alike.
//!
//! # Invariants
//! - FIFO: a row is loaded only if no live row of its key has a smaller number. Ingest makes the rows of a key
//!   visible in the order of their numbers, and a record removes a row in the commit that makes its outcome
//!   known, so whoever loads a head knows that all before it are final.
//! - `on_dead_letter = block`: nor if a dead letter of its key with a smaller number is open (not replayed).
//! - D3, D6, idempotence: [`record_ordered`] as `record`.

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::load::{Row, asked_for, read_row};
use super::record::{RecordRow, recording, submit};
use crate::domain::order::OrderKey;
use crate::ids::{EndpointKey, Incarnation, Slot};
use crate::store::StoreError;

/// Loose index scan of `ready_ordered_pkey`: one probe per endpoint, whatever its lines. No lock.
pub(super) const SCAN: &str = "
WITH RECURSIVE s AS (
  SELECT w.slot, f.endpoint_id, f.tenant_id FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.tenant_id FROM ready_ordered r
    WHERE r.slot = w.slot ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f
  UNION ALL
  SELECT s.slot, f.endpoint_id, f.tenant_id FROM s CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.tenant_id FROM ready_ordered r
    WHERE r.slot = s.slot AND r.endpoint_id > s.endpoint_id
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f)
SELECT slot, endpoint_id, tenant_id FROM s";

/// The rows `h (ord, head, sendable, last_key, ended)` with their keys, and with their events where they may go.
macro_rules! with_events {
    ($rows:literal) => {
        concat!(
            $rows,
            "
SELECT h.ord, (h.head).id, (h.head).event_id, (h.head).tenant_id, (h.head).attempts_made, (h.head).attempts_charged, (h.head).kind,
       e.payload, coalesce((h.head).deliver_before, e.deliver_before), t.name, e.trace_context, (h.head).due_at, (h.head).first_at,
       (h.head).order_key, h.sendable, h.last_key, h.ended
FROM h
LEFT JOIN LATERAL (
  SELECT e.payload, e.deliver_before, e.type_id, e.trace_context FROM events e
  WHERE h.sendable AND e.tenant_id = (h.head).tenant_id AND e.id = (h.head).event_id
  UNION ALL
  SELECT k.payload, k.deliver_before, k.type_id, k.trace_context FROM events_kept k
  WHERE h.sendable AND k.tenant_id = (h.head).tenant_id AND k.id = (h.head).event_id
  LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true"
        )
    };
}

/// Heads of keys after a cursor: a skip scan of `ready_ordered_pkey`, one probe per key (and one of
/// `dead_letters_order` where `block` asks for it), that stops after `lim` heads that may go, or `walk` keys.
/// The row that each walk begins with says how far it came. No lock.
pub(super) const WALK: &str = with_events!(
    "
WITH RECURSIVE x AS (
  SELECT w.ord, w.slot, w.endpoint_id, w.lim, w.walk, w.block, w.cursor AS order_key, NULL::ready_ordered AS head,
         false AS sendable, 0::int8 AS found, 0::int8 AS walked
  FROM unnest($1::int2[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::bool[])
    WITH ORDINALITY w(slot, endpoint_id, cursor, lim, walk, block, ord)
  UNION ALL
  SELECT x.ord, x.slot, x.endpoint_id, x.lim, x.walk, x.block, (f.head).order_key, f.head,
         f.sendable, x.found + f.sendable::int, x.walked + 1
  FROM x CROSS JOIN LATERAL (
    SELECT r AS head, coalesce(r.due_at <= $7, true) AND NOT (x.block AND EXISTS (
        SELECT FROM dead_letters d WHERE d.endpoint_id = r.endpoint_id AND d.order_key = r.order_key
          AND d.replayed_as IS NULL AND d.order_seq < r.order_seq)) AS sendable
    FROM ready_ordered r WHERE r.slot = x.slot AND r.endpoint_id = x.endpoint_id AND r.order_key > x.order_key
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f
  WHERE x.found < x.lim AND x.walked < x.walk),
h AS MATERIALIZED (
  SELECT * FROM (
    SELECT ord, head, sendable, walked, max(order_key) OVER o AS last_key,
           max(found) OVER o < lim AND max(walked) OVER o < walk AS ended
    FROM x WINDOW o AS (PARTITION BY ord)) y
  WHERE sendable OR walked = 0)"
);

/// Rows that were tried, the one due first first, by `ready_ordered_due`; the first that is not due says when to
/// look again. They are heads, as only heads are tried, unless a dead letter came back before them. No lock.
pub(super) const DUE: &str = with_events!(
    "
WITH h AS MATERIALIZED (
  SELECT w.ord, f.head, (f.head).due_at <= $5 AS sendable, NULL::int8 AS last_key, NULL::bool AS ended
  FROM unnest($1::int2[], $2::int8[], $3::int8[], $4::bool[]) WITH ORDINALITY w(slot, endpoint_id, lim, block, ord)
  CROSS JOIN LATERAL (
    SELECT r AS head FROM ready_ordered r WHERE r.slot = w.slot AND r.endpoint_id = w.endpoint_id AND r.due_at IS NOT NULL
      AND r.id = (
        SELECT b.id FROM ready_ordered b
        WHERE b.slot = r.slot AND b.endpoint_id = r.endpoint_id AND b.order_key = r.order_key
        ORDER BY b.slot, b.endpoint_id, b.order_key, b.order_seq, b.id LIMIT 1)
      AND NOT (w.block AND EXISTS (
        SELECT FROM dead_letters d WHERE d.endpoint_id = r.endpoint_id AND d.order_key = r.order_key
          AND d.replayed_as IS NULL AND d.order_seq < r.order_seq))
    ORDER BY r.slot, r.endpoint_id, r.due_at LIMIT w.lim) f)"
);

/// The heads of given keys, by `ready_ordered_pkey`. No lock.
pub(super) const NEXT: &str = with_events!(
    "
WITH h AS MATERIALIZED (
  SELECT w.ord, f.head, f.sendable, NULL::int8 AS last_key, NULL::bool AS ended
  FROM unnest($1::int2[], $2::int8[], $3::int8[], $4::bool[]) WITH ORDINALITY w(slot, endpoint_id, order_key, block, ord)
  CROSS JOIN LATERAL (
    SELECT r AS head, coalesce(r.due_at <= $5, true) AND NOT (w.block AND EXISTS (
        SELECT FROM dead_letters d WHERE d.endpoint_id = r.endpoint_id AND d.order_key = r.order_key
          AND d.replayed_as IS NULL AND d.order_seq < r.order_seq)) AS sendable
    FROM ready_ordered r WHERE r.slot = w.slot AND r.endpoint_id = w.endpoint_id AND r.order_key = w.order_key
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f)"
);

/// As `record`, for rows of `ready_ordered`. A statement of its own, so that the hot one stays as it is.
/// Locks: KEY SHARE on the incarnation, the live rows. Indexes: `ready_ordered_by_id`; `dead_letters_replayed`
/// for a dead letter that is a replay.
pub(super) const RECORD: &str = recording!(
    "
ok AS MATERIALIZED (
  SELECT i.* FROM inp i JOIN slots s ON s.slot = i.slot AND s.epoch = i.epoch JOIN me ON me.id = s.owner),
h AS MATERIALIZED (
  SELECT ok.*, r.c, r.kind, r.order_key, r.order_seq FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c, kind, order_key, order_seq FROM ready_ordered r
    WHERE r.tenant_id = ok.tenant_id AND r.id = ok.id AND r.attempts_made = ok.no - 1 OFFSET 0) r),
d AS (
  DELETE FROM ready_ordered WHERE ctid = ANY (ARRAY(SELECT c FROM h WHERE final_status IS NOT NULL)) RETURNING id),
rt AS (
  UPDATE ready_ordered r SET attempts_made = h.made, attempts_charged = h.charged, due_at = h.due_at,
    first_at = coalesce(r.first_at, h.started_at, now())
  FROM h WHERE r.ctid = h.c AND h.final_status IS NULL RETURNING r.id),
gone AS MATERIALIZED (
  SELECT * FROM (SELECT h.*, h.id IN (SELECT id FROM d) OR h.id IN (SELECT id FROM rt) AS hit FROM h OFFSET 0) x WHERE hit),
dd AS (
  INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, outcome, status, reason, fingerprint, attempts_made, kind,
                            root_id, order_key, order_seq)
  SELECT tenant_id, id, endpoint_id, event_id, class, outcome, status, note, fingerprint, made, kind,
         CASE WHEN kind = 0 THEN id ELSE coalesce(
           (SELECT d.root_id FROM dead_letters d WHERE d.tenant_id = g.tenant_id AND d.replayed_as = g.id LIMIT 1), id) END,
         order_key, order_seq
  FROM gone g WHERE final_status = 5),
cl AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
  SELECT tenant_id, id, endpoint_id, event_id, final_status, close_reason, made
  FROM gone WHERE final_status IN (6, 7)),
"
);

/// The prepared statements of one session.
#[derive(Debug, Clone)]
pub(super) struct OrderedStatements {
    pub(super) scan: Statement,
    walk: Statement,
    due: Statement,
    next: Statement,
    record: Statement,
}

impl OrderedStatements {
    pub(super) async fn prepare(client: &Client) -> Result<Self, StoreError> {
        Ok(Self {
            scan: client.prepare(SCAN).await?,
            walk: client.prepare(WALK).await?,
            due: client.prepare(DUE).await?,
            next: client.prepare(NEXT).await?,
            record: client.prepare(RECORD).await?,
        })
    }
}

/// Heads to load for one endpoint.
#[derive(Debug, Clone)]
pub struct LineWant {
    /// Its slot.
    pub slot: Slot,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Whether a dead letter blocks its key.
    pub block: bool,
    /// The heads of these keys.
    pub keys: Vec<OrderKey>,
    /// At most so many rows that were tried, the one due first first.
    pub due_limit: i64,
    /// And the heads of keys after this one: where the last walk ended, or [`OrderKey::START`].
    pub after: OrderKey,
    /// ... until so many that may go are found; 0: no walk.
    pub limit: i64,
    /// ... or so many keys are seen: bounds what blocked keys cost.
    pub most_keys: i64,
}

/// The first row of a key's line.
#[derive(Debug)]
pub struct Head {
    /// Its key.
    pub key: OrderKey,
    /// The row; its event is there.
    pub row: Row,
}

/// What [`load_lines`] found. Each `usize` says which [`LineWant`] it answers, counted from 0.
#[derive(Debug, Default)]
pub struct Lines {
    /// Heads that may go. One may be there twice, from a walk and by its due time or key.
    pub heads: Vec<Head>,
    /// The first head of an endpoint that was tried and is not due, and when it is.
    pub next_due: Vec<(usize, OffsetDateTime)>,
    /// Where a walk ended before the last key; one that is absent came to the end, and the next one begins at
    /// [`OrderKey::START`].
    pub cursors: Vec<(usize, OrderKey)>,
}

/// Loads heads with their events. One pass over the table in three statements, pipelined.
///
/// # Errors
/// As any statement.
pub async fn load_lines(
    client: &Client,
    sql: &super::Statements,
    wants: &[LineWant],
    now: OffsetDateTime,
) -> Result<Lines, StoreError> {
    let sql = &sql.ordered;
    let (next, due, walked) = futures_util::future::try_join3(
        next(client, &sql.next, wants, now),
        due(client, &sql.due, wants, now),
        walk(client, &sql.walk, wants, now),
    )
    .await?;
    let mut lines = Lines::default();
    for (rows, asked) in [next, due, walked] {
        for row in &rows {
            lines.add(row, &asked)?;
        }
    }
    Ok(lines)
}

type Answer = (Vec<tokio_postgres::Row>, Vec<usize>);

async fn next(
    client: &Client,
    sql: &Statement,
    wants: &[LineWant],
    now: OffsetDateTime,
) -> Result<Answer, StoreError> {
    let (mut asked, mut slots, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
    let (mut keys, mut block) = (Vec::new(), Vec::new());
    for (index, want) in wants.iter().enumerate() {
        for key in &want.keys {
            asked.push(index);
            slots.push(want.slot.0);
            endpoints.push(want.endpoint.0);
            keys.push(key.0);
            block.push(want.block);
        }
    }
    if asked.is_empty() {
        return Ok(Answer::default());
    }
    let params: [&(dyn ToSql + Sync); 5] = [&slots, &endpoints, &keys, &block, &now];
    Ok((client.query(sql, &params).await?, asked))
}

async fn due(
    client: &Client,
    sql: &Statement,
    wants: &[LineWant],
    now: OffsetDateTime,
) -> Result<Answer, StoreError> {
    let asked = positions(wants, |want| want.due_limit);
    if asked.is_empty() {
        return Ok(Answer::default());
    }
    let slots = column(wants, &asked, |want| want.slot.0);
    let endpoints = column(wants, &asked, |want| want.endpoint.0);
    let limits = column(wants, &asked, |want| want.due_limit);
    let block = column(wants, &asked, |want| want.block);
    let params: [&(dyn ToSql + Sync); 5] = [&slots, &endpoints, &limits, &block, &now];
    Ok((client.query(sql, &params).await?, asked))
}

async fn walk(
    client: &Client,
    sql: &Statement,
    wants: &[LineWant],
    now: OffsetDateTime,
) -> Result<Answer, StoreError> {
    let asked = positions(wants, |want| want.limit);
    if asked.is_empty() {
        return Ok(Answer::default());
    }
    let slots = column(wants, &asked, |want| want.slot.0);
    let endpoints = column(wants, &asked, |want| want.endpoint.0);
    let cursors = column(wants, &asked, |want| want.after.0);
    let limits = column(wants, &asked, |want| want.limit);
    let most_keys = column(wants, &asked, |want| want.most_keys);
    let block = column(wants, &asked, |want| want.block);
    let params: [&(dyn ToSql + Sync); 7] = [
        &slots, &endpoints, &cursors, &limits, &most_keys, &block, &now,
    ];
    Ok((client.query(sql, &params).await?, asked))
}

/// Positions of the wants that ask for anything.
fn positions(wants: &[LineWant], limit: impl Fn(&LineWant) -> i64) -> Vec<usize> {
    let asking = wants.iter().enumerate().filter(|(_, want)| limit(want) > 0);
    asking.map(|(index, _)| index).collect()
}

fn column<T>(wants: &[LineWant], asked: &[usize], value: impl Fn(&LineWant) -> T) -> Vec<T> {
    asked
        .iter()
        .filter_map(|index| wants.get(*index))
        .map(value)
        .collect()
}

impl Lines {
    fn add(&mut self, row: &tokio_postgres::Row, asked: &[usize]) -> Result<(), StoreError> {
        let want = *asked_for(row, asked)?;
        if row.try_get::<_, bool>(14)? {
            let key = OrderKey(row.try_get(13)?);
            let row = read_row(row, want, true)?;
            self.heads.push(Head { key, row });
            return Ok(());
        }
        // The row that a walk began with, or the first that is not due.
        match (row.try_get(16)?, row.try_get(15)?) {
            (Some(true), _) => {}
            (Some(false), Some(key)) => self.cursors.push((want, OrderKey(key))),
            (_, _) => {
                let due: Option<OffsetDateTime> = row.try_get(11)?;
                self.next_due.extend(due.map(|at| (want, at)));
            }
        }
        Ok(())
    }
}

/// Records what came of deliveries that stood in line; the rest as `record`.
///
/// # Errors
/// As `record`.
pub async fn record_ordered(
    client: &Client,
    sql: &super::Statements,
    incarnation: Incarnation,
    rows: &[RecordRow<'_>],
) -> Result<Vec<(Uuid, bool)>, StoreError> {
    submit(client, &sql.ordered.record, incarnation, rows).await
}
