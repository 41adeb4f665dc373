//! Replays: what people ask to be sent again, and how far that has come.
//!
//! - [`again`]: a new delivery of an old event.
//! - [`walk`]: what a replay finds at an endpoint.
//! - [`work`]: what the job does, a chunk at a time.
//!
//! # Invariants
//! - The same is not done twice at once: one running replay per tenant and fingerprint of what was asked for.
//! - S3: every statement here names the tenant.

pub mod again;
pub mod walk;
pub mod work;

use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row, Transaction};
use uuid::Uuid;

pub use self::again::{Retried, again};
use super::StoreError;
use crate::domain::delivery::Status;
use crate::domain::replay::{NotReplayable, ReplayFilter, ReplayStatus};
use crate::ids::{EndpointKey, TenantKey, lower_bound};

/// So many replays of one tenant may run at a time.
pub const MOST_RUNNING: i64 = 10;

macro_rules! replay_columns {
    ($rest:literal) => {
        concat!(
            "SELECT r.public_id, e.public_id, r.statuses, r.missing, r.classes, r.event_type, r.delivery_ids, r.since, r.until,
       r.per_second, r.status, r.total, r.done, r.failed, r.skipped, r.not_replayable, r.created_at, r.finished_at,
       ARRAY(SELECT s.reason FROM replay_skips s WHERE s.replay_id = r.id ORDER BY s.reason),
       ARRAY(SELECT s.count FROM replay_skips s WHERE s.replay_id = r.id ORDER BY s.reason),
       ARRAY(SELECT array_to_string(s.first, ',') FROM replay_skips s WHERE s.replay_id = r.id ORDER BY s.reason),
       EXISTS (SELECT FROM replay_parts p WHERE p.replay_id = r.id AND p.phase < 3) AND r.status = 1
FROM replays r LEFT JOIN endpoints e ON e.id = r.endpoint_id ",
            $rest
        )
    };
}

/// Nothing at the limit, nor while the same runs. Index: `replays_running`.
const CREATE: &str = "
INSERT INTO replays (public_id, tenant_id, endpoint_id, statuses, missing, classes, event_type, delivery_ids, since, until,
                     fingerprint, per_second, status)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1
WHERE (SELECT count(*) FROM replays WHERE tenant_id = $2 AND status = 1) < $13
ON CONFLICT (tenant_id, fingerprint) WHERE status = 1 DO NOTHING
RETURNING id, created_at";

const ADD_PART: &str =
    "INSERT INTO replay_parts (replay_id, endpoint_id, phase, cursor) VALUES ($1, $2, $3, $4)";

/// One part per endpoint of the tenant that has a dead letter of the time. Indexes: `endpoints_tenant`, and one probe
/// of `dead_letters_endpoint` for each endpoint.
const ADD_PARTS: &str = "
INSERT INTO replay_parts (replay_id, endpoint_id, phase, cursor)
SELECT $1, e.id, 1, $3 FROM endpoints e CROSS JOIN LATERAL (
  SELECT FROM dead_letters d WHERE d.endpoint_id = e.id AND d.id > $3 AND d.id < $4
  ORDER BY d.endpoint_id, d.id LIMIT 1) d
WHERE e.tenant_id = $2";

/// Nothing was found to be sent again.
const NOTHING_TO_DO: &str =
    "UPDATE replays SET status = 2, finished_at = clock_timestamp() WHERE id = $1";

/// Index: `replays_running`.
const SAME: &str =
    "SELECT public_id FROM replays WHERE tenant_id = $1 AND fingerprint = $2 AND status = 1";

/// Index: `replays_public_id_key`.
const FIND: &str = replay_columns!("WHERE r.public_id = $2 AND r.tenant_id = $1");

/// Newest first, ids below $2. Index: `replays_tenant`; rows are compared so that no walk is through everybody's.
const LIST: &str = replay_columns!(
    "WHERE r.tenant_id >= $1 AND (r.tenant_id, r.public_id) < ($1, $2) ORDER BY r.tenant_id DESC, r.public_id DESC LIMIT $3"
);

/// Waits for the chunk that is being made. The job does the rest.
const CANCEL: &str =
    "UPDATE replays SET status = 3 WHERE tenant_id = $1 AND public_id = $2 AND status = 1";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("replays.create", CREATE),
    ("replays.add_part", ADD_PART),
    ("replays.add_parts", ADD_PARTS),
    ("replays.nothing_to_do", NOTHING_TO_DO),
    ("replays.same", SAME),
    ("replays.find", FIND),
    ("replays.list", LIST),
    ("replays.cancel", CANCEL),
];

/// A replay, as people are shown it.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// UUIDv7.
    pub id: Uuid,
    /// The endpoint's public id; `None`: dead letters of whichever.
    pub endpoint: Option<Uuid>,
    /// What was asked for.
    pub filter: ReplayFilter,
    /// How fast at most.
    pub per_second: f64,
    /// How it stands.
    pub status: ReplayStatus,
    /// Found so far.
    pub total: i64,
    /// More may be found.
    pub finding: bool,
    /// Delivered.
    pub done: i64,
    /// Dead letters once more.
    pub failed: i64,
    /// Made, and then cancelled or skipped.
    pub skipped: i64,
    /// Not made, with the reasons, how often, and the first events of each.
    pub not_replayable: Vec<(NotReplayable, i64, Vec<Uuid>)>,
    /// When it was asked for.
    pub created_at: OffsetDateTime,
    /// When the last of it ended.
    pub finished_at: Option<OffsetDateTime>,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The new replay's public id: a UUIDv7 of database time.
    pub id: Uuid,
    /// Whose deliveries.
    pub tenant: TenantKey,
    /// Of which endpoint; `None`: dead letters of whichever.
    pub endpoint: Option<EndpointKey>,
    /// Which.
    pub filter: ReplayFilter,
    /// How fast at most.
    pub per_second: f64,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is begun within a second.
    Running,
    /// The same runs already, by this public id.
    Same(Uuid),
    /// The tenant has as many running as it may.
    TooMany,
}

/// Starts a replay.
///
/// # Errors
/// Any [`StoreError`].
pub async fn create(transaction: &Transaction<'_>, ask: Ask) -> Result<Created, StoreError> {
    let filter = ask.filter.normalized();
    let statuses: Vec<i16> = filter.statuses.iter().map(|it| it.code()).collect();
    let classes: Vec<i16> = filter.classes.iter().map(|it| it.code()).collect();
    let classes = Some(classes).filter(|it| !it.is_empty());
    let ids = Some(&filter.deliveries).filter(|it| !it.is_empty());
    let fingerprint = fingerprint(ask.endpoint, &filter);
    let endpoint = ask.endpoint.map(|key| key.0);
    let params: [&(dyn ToSql + Sync); 13] = [
        &ask.id,
        &ask.tenant.0,
        &endpoint,
        &statuses,
        &filter.missing,
        &classes,
        &filter.event_type,
        &ids,
        &filter.since,
        &filter.until,
        &fingerprint,
        &ask.per_second,
        &MOST_RUNNING,
    ];
    let Some(row) = transaction.query_opt(CREATE, &params).await? else {
        let same = transaction
            .query_opt(SAME, &[&ask.tenant.0, &fingerprint])
            .await?;
        return same.map_or(Ok(Created::TooMany), |row| {
            Ok(Created::Same(row.try_get(0)?))
        });
    };
    let replay: i32 = row.try_get(0)?;
    let (after, before) = range(&filter, row.try_get(1)?);
    let parts = if let Some(endpoint) = endpoint {
        let phase: i16 = if filter.wants_undelivered() { 1 } else { 2 };
        let params: [&(dyn ToSql + Sync); 4] = [&replay, &endpoint, &phase, &after];
        transaction.execute(ADD_PART, &params).await?
    } else {
        let params: [&(dyn ToSql + Sync); 4] = [&replay, &ask.tenant.0, &after, &before];
        transaction.execute(ADD_PARTS, &params).await?
    };
    if parts == 0 {
        transaction.execute(NOTHING_TO_DO, &[&replay]).await?;
    }
    Ok(Created::Running)
}

/// The ids that a replay looks at: after the first and before the second. Never what came after it was asked for:
/// what it makes itself is no source of it.
pub(super) fn range(filter: &ReplayFilter, created_at: OffsetDateTime) -> (Uuid, Uuid) {
    let first = filter.since.map_or(Uuid::nil(), first_id);
    let after = Uuid::from_u128(first.as_u128().saturating_sub(1));
    let asked = lower_bound(created_at);
    let before = filter
        .until
        .map_or(asked, |until| first_id(until).min(asked));
    (after, before)
}

/// The first id of the first millisecond that is not before an instant.
fn first_id(at: OffsetDateTime) -> Uuid {
    lower_bound(at.saturating_add(time::Duration::nanoseconds(999_999)))
}

fn fingerprint(endpoint: Option<EndpointKey>, filter: &ReplayFilter) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(format!("{endpoint:?} {filter:?}").as_bytes());
    hash.finalize().to_vec()
}

/// Finds a replay of a tenant.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Replay>, StoreError> {
    let row = client.query_opt(FIND, &[&tenant.0, &id]).await?;
    row.as_ref().map(read).transpose()
}

/// A tenant's replays, newest first, those before this id.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list(
    client: &impl GenericClient,
    tenant: TenantKey,
    before: Uuid,
    limit: i64,
) -> Result<Vec<Replay>, StoreError> {
    let rows = client.query(LIST, &[&tenant.0, &before, &limit]).await?;
    rows.iter().map(read).collect()
}

/// Stops a replay that runs; whether it did. What it made and was not sent yet is cancelled by the job.
///
/// # Errors
/// Any [`StoreError`].
pub async fn cancel(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<bool, StoreError> {
    Ok(client.execute(CANCEL, &[&tenant.0, &id]).await? > 0)
}

fn statuses(codes: Vec<i16>) -> Result<Vec<Status>, StoreError> {
    let codes = codes.into_iter().map(Status::try_from);
    Ok(codes.collect::<Result<_, _>>()?)
}

/// What a replay looks for: columns 2 to 8 of every statement that reads it.
fn filter(row: &Row) -> Result<ReplayFilter, StoreError> {
    Ok(ReplayFilter {
        statuses: statuses(row.try_get(2)?)?,
        missing: row.try_get(3)?,
        classes: walk::classes(row.try_get(4)?)?,
        event_type: row.try_get(5)?,
        deliveries: row.try_get::<_, Option<_>>(6)?.unwrap_or_default(),
        since: row.try_get(7)?,
        until: row.try_get(8)?,
    })
}

fn read(row: &Row) -> Result<Replay, StoreError> {
    let reasons: Vec<i16> = row.try_get(18)?;
    let counts: Vec<i64> = row.try_get(19)?;
    let first: Vec<String> = row.try_get(20)?;
    let mut not_replayable = Vec::with_capacity(reasons.len());
    for ((reason, count), first) in reasons.into_iter().zip(counts).zip(first) {
        let events = first.split(',').filter_map(|id| id.parse().ok()).collect();
        not_replayable.push((NotReplayable::try_from(reason)?, count, events));
    }
    Ok(Replay {
        id: row.try_get(0)?,
        endpoint: row.try_get(1)?,
        filter: filter(row)?,
        per_second: row.try_get(9)?,
        status: ReplayStatus::try_from(row.try_get::<_, i16>(10)?)?,
        total: row.try_get(11)?,
        finding: row.try_get(21)?,
        done: row.try_get(12)?,
        failed: row.try_get(13)?,
        skipped: row.try_get(14)?,
        not_replayable,
        created_at: row.try_get(16)?,
        finished_at: row.try_get(17)?,
    })
}
