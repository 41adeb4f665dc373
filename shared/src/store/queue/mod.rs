//! Live deliveries: finding, loading, recording, closing and ending them. The hot statements of a worker.
//!
//! Their forms are not a matter of taste. A queue table is empty when VACUUM looks and when plans
//! are cached; growth alone invalidates neither, and the obvious forms then take 30 s for 200 rows
//! (review finding 3). Hence `LATERAL (… OFFSET 0)` naming all columns of both indexes, `ctid = ANY`,
//! hashed `IN` in the select list, and `enable_seqscan = off` on the session ([`super::Role::Worker`]).
//!
//! # Invariants
//! - D3 [`record`], [`close`] and [`expire`] take `FOR KEY SHARE` on the incarnation's row in `workers` and compare
//!   owner *and* epoch: a worker that was declared dead changes nothing, however late it wakes up.
//! - D6 only what was really deleted from a live table goes on: a repeated, stale or cancelled record
//!   stops there, and its attempt is kept with `applied = false`.
//! - Idempotent: a record submitted twice (lost acknowledgement) changes nothing the second time.

mod close;
mod expire;
mod load;
mod ordered;
mod record;

pub use close::close;
pub use expire::expire;
pub use load::{Row, Want, load};
pub use ordered::{Head, LineWant, Lines, load_lines, record_ordered};
pub use record::{AttemptRow, Next, RecordRow, record};

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::StoreError;
use crate::ids::{EndpointKey, Slot, TenantKey};

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
    /// Whether `ready_ordered` has rows.
    pub ordered: bool,
    /// The earliest row of `retry`.
    pub next_due: Option<OffsetDateTime>,
}

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("queue::scan_ready", SCAN_READY),
    ("queue::scan_retry", SCAN_RETRY),
    ("queue::load_ready", load::LOAD_READY),
    ("queue::load_retry", load::LOAD_RETRY),
    ("queue::record", record::RECORD),
    ("queue::close", close::CLOSE),
    ("queue::expire", expire::EXPIRE),
    ("queue::scan_ordered", ordered::SCAN),
    ("queue::walk_ordered", ordered::WALK),
    ("queue::due_ordered", ordered::DUE),
    ("queue::next_ordered", ordered::NEXT),
    ("queue::record_ordered", ordered::RECORD),
];

/// The prepared hot statements of one session.
#[derive(Debug, Clone)]
pub struct Statements {
    scan_ready: Statement,
    scan_retry: Statement,
    load_ready: Statement,
    load_retry: Statement,
    record: Statement,
    close: Statement,
    ordered: ordered::OrderedStatements,
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
            load_ready: client.prepare(load::LOAD_READY).await?,
            load_retry: client.prepare(load::LOAD_RETRY).await?,
            record: client.prepare(record::RECORD).await?,
            close: client.prepare(close::CLOSE).await?,
            ordered: ordered::OrderedStatements::prepare(client).await?,
        })
    }
}

/// Which endpoints of these slots have live rows. One pass over the three tables, pipelined.
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
    let (ready, retry, ordered) = futures_util::future::try_join3(
        client.query(&sql.scan_ready, &params),
        client.query(&sql.scan_retry, &params),
        client.query(&sql.ordered.scan, &params),
    )
    .await?;
    let mut found = std::collections::BTreeMap::new();
    for row in &ready {
        let waiting = waiting(row)?;
        found.entry(waiting.endpoint).or_insert(waiting).ready = true;
    }
    for row in &retry {
        let due: OffsetDateTime = row.try_get(3)?;
        let waiting = waiting(row)?;
        found.entry(waiting.endpoint).or_insert(waiting).next_due = Some(due);
    }
    for row in &ordered {
        let waiting = waiting(row)?;
        found.entry(waiting.endpoint).or_insert(waiting).ordered = true;
    }
    Ok(found.into_values().collect())
}

/// An endpoint, in whichever table it was found.
fn waiting(row: &tokio_postgres::Row) -> Result<Waiting, StoreError> {
    Ok(Waiting {
        slot: Slot(row.try_get(0)?),
        endpoint: EndpointKey(row.try_get(1)?),
        tenant: TenantKey(row.try_get(2)?),
        ready: false,
        ordered: false,
        next_due: None,
    })
}
