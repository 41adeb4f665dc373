//! Operational events: a tenant is told about one endpoint at others that ask for it (contract §6).
//!
//! Not here: what is told and how often at most (`policy::notice`), and what brings it about (the worker's
//! `transitions`).
//!
//! # Invariants
//! - At most one per endpoint, kind and window; further ones only count. One row per such window decides.
//! - No feedback (review finding 22): never sent to the endpoint it is about, nor to one whose patterns do
//!   not name `postrider.`; deliveries of it have [`Kind::Notice`], of which nobody is told anything.
//! - D1: the event, its deliveries and the row that says that it was told commit together.
//! - S2: of the endpoint's URL the host only. S3: endpoints of the same tenant only.

use std::time::Duration;

use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use super::StoreError;
use super::notify;
use crate::domain::delivery::Kind;
use crate::domain::endpoint::wants_type;
use crate::domain::notice::NoticeKind;
use crate::domain::replay::ReplayStatus;
use crate::ids::{EndpointId, EndpointKey, ReplayId, Slot, TenantKey, new_v7};
use crate::policy::notice as policy;

/// What the types of operational events begin with: reserved, nobody else may publish them.
pub const PREFIX: &str = "postrider.";
/// The most endpoints that one notice goes to, as any event.
const MOST_SUBSCRIBERS: i64 = 1_000;
/// A NOTIFY payload must be under 8,000 bytes.
const MOST_HINT_BYTES: usize = 7_900;
/// How far back failures are counted for a human's eye.
const MOST_FAILURES: i64 = 1_000;

/// By primary key. Waits for another that tells the same, and then counts.
const COUNT: &str = "
INSERT INTO notices (endpoint_id, kind, window_start, tenant_id)
VALUES ($1, $2, to_timestamp(floor(extract(epoch FROM clock_timestamp()) / $4::float8) * $4::float8), $3)
ON CONFLICT (endpoint_id, kind, window_start) DO UPDATE SET count = notices.count + 1
RETURNING count, window_start, clock_timestamp()";

/// The endpoint it is about, with what a human wants to know: `endpoints_pkey`, `attempts_endpoint`
/// backwards from now, 1,000 attempts at most.
const ABOUT: &str = "
SELECT e.public_id, e.url, l.status, l.started_at, f.failures FROM endpoints e
LEFT JOIN LATERAL (
  SELECT a.status, a.started_at FROM attempts a
  WHERE a.endpoint_id = e.id AND a.started_at >= $3 AND a.applied ORDER BY a.endpoint_id, a.started_at DESC LIMIT 1) l ON true
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE a.outcome <> 1) AS failures FROM (
    SELECT a.outcome FROM attempts a
    WHERE a.endpoint_id = e.id AND a.started_at >= $3 AND a.applied ORDER BY a.endpoint_id, a.started_at DESC LIMIT $4) a) f
WHERE e.id = $1 AND e.tenant_id = $2";

/// Uses `endpoints_tenant`. The patterns are matched in Rust, as for any event; channels are not: no
/// notice has one, and who names it wants it. One whose backlog is full gets none.
const SUBSCRIBERS: &str = "
SELECT e.id, e.slot, e.event_types FROM endpoints e
WHERE e.tenant_id = $1 AND e.id <> $2 AND e.state = 1 AND NOT e.backlog_full
  AND EXISTS (SELECT FROM unnest(e.event_types) p WHERE p LIKE 'postrider.%')
ORDER BY e.id LIMIT $3";

/// Uses `event_types_tenant_id_name_key`.
const ADD_TYPE: &str =
    "INSERT INTO event_types (tenant_id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Uses `event_types_tenant_id_name_key`. A statement of its own: it sees what another has just made.
const FIND_TYPE: &str = "SELECT id FROM event_types WHERE tenant_id = $1 AND name = $2";

/// An event with its deliveries, and that it was told.
const INSERT: &str = "
WITH ev AS (
  INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery) VALUES ($1, $2, $3, $4, $5, $7)),
told AS (
  UPDATE notices SET event_id = $1 WHERE endpoint_id = $9 AND kind = $10 AND window_start = $11)
INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id, kind)
SELECT d.slot, $2, d.endpoint_id, d.id, $1, $8
FROM unnest($5::int8[], $6::int2[], $7::uuid[]) d(endpoint_id, slot, id)";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("notices::count", COUNT),
    ("notices::about", ABOUT),
    ("notices::subscribers", SUBSCRIBERS),
    ("notices::add_type", ADD_TYPE),
    ("notices::find_type", FIND_TYPE),
    ("notices::insert", INSERT),
];

/// What is to be told.
#[derive(Debug, Clone)]
pub struct Notice {
    /// About which endpoint.
    pub endpoint: EndpointKey,
    /// Whose it is.
    pub tenant: TenantKey,
    /// What happened.
    pub kind: NoticeKind,
    /// At most once in each such length of time, of which windows are multiples; a second at least.
    pub window: Duration,
    /// Since when attempts are looked at for the last status and the number of failures.
    pub since: OffsetDateTime,
    /// The event's payload, but for the endpoint and its last attempts, which are added.
    pub payload: Map<String, Value>,
}

/// What became of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// It goes to so many endpoints, as this event.
    Sent(Uuid, usize),
    /// The same was told in this window: counted.
    Counted,
    /// Nobody subscribes, or the endpoint does not exist: counted.
    Unheard,
}

/// Tells the endpoints of the tenant that ask for it, and hints at their owners.
///
/// # Errors
/// As any statement. After a transient one it may have been told all the same; a second call then counts.
pub async fn publish(client: &mut Client, notice: &Notice) -> Result<Published, StoreError> {
    let transaction = client.transaction().await?;
    let window = notice.window.as_secs_f64().max(1.0);
    let (endpoint, kind) = (notice.endpoint.0, notice.kind.code());
    let row = transaction
        .query_one(COUNT, &[&endpoint, &kind, &notice.tenant.0, &window])
        .await?;
    if row.try_get::<_, i64>(0)? > 1 {
        transaction.commit().await?;
        return Ok(Published::Counted);
    }
    let subscribers = subscribers(&transaction, notice).await?;
    let payload = payload(&transaction, notice).await?;
    let (Some(payload), false) = (payload, subscribers.is_empty()) else {
        transaction.commit().await?;
        return Ok(Published::Unheard);
    };
    let told = Told {
        window_start: row.try_get(1)?,
        now: row.try_get(2)?,
    };
    let event = insert(&transaction, notice, told, &payload, &subscribers).await?;
    transaction.commit().await?;
    hint(client, &subscribers).await;
    Ok(Published::Sent(event, subscribers.len()))
}

/// A replay of which nothing is under way any more.
#[derive(Debug, Clone)]
pub(super) struct EndedReplay {
    /// Its public id.
    pub(super) id: Uuid,
    /// Whose it is.
    pub(super) tenant: TenantKey,
    /// Of which endpoint; `None`: of several.
    pub(super) endpoint: Option<EndpointKey>,
    /// How it ended.
    pub(super) status: ReplayStatus,
    /// What it brought.
    pub(super) counts: [(&'static str, i64); 5],
    /// When it began.
    pub(super) created_at: OffsetDateTime,
    /// The database's clock.
    pub(super) now: OffsetDateTime,
}

/// Tells of a replay that ended, in the transaction that ends it: once, and without a window, because nothing
/// else tells of this one. Returns whom to hint at after the commit.
pub(super) async fn replay_ended(
    transaction: &Transaction<'_>,
    replay: &EndedReplay,
) -> Result<Vec<(Slot, EndpointKey)>, StoreError> {
    let kind = NoticeKind::ReplayFinished;
    let mut payload = policy::payload(kind, &policy::Facts::default());
    payload.insert(
        "replay_id".to_owned(),
        ReplayId(replay.id).to_string().into(),
    );
    payload.insert("status".to_owned(), replay.status.name().into());
    let counts = replay.counts.iter();
    payload.extend(counts.map(|(name, count)| ((*name).to_owned(), Value::from(*count))));
    let notice = Notice {
        // There is no endpoint with the key 0: it is about none in particular, so no subscriber is left out.
        endpoint: replay.endpoint.unwrap_or(EndpointKey(0)),
        tenant: replay.tenant,
        kind,
        window: policy::window(kind),
        since: replay.created_at,
        payload,
    };
    let subscribers = subscribers(transaction, &notice).await?;
    if subscribers.is_empty() {
        return Ok(Vec::new());
    }
    let body = match self::payload(transaction, &notice).await? {
        Some(body) => body,
        None => bytes(&{
            let mut body = notice.payload.clone();
            body.insert("endpoint_id".to_owned(), Value::Null);
            body
        })?,
    };
    let told = Told {
        // No window counts it.
        window_start: replay.created_at,
        now: replay.now,
    };
    insert(transaction, &notice, told, &body, &subscribers).await?;
    let pairs = subscribers.iter();
    Ok(pairs
        .map(|it| (Slot(it.slot), EndpointKey(it.endpoint)))
        .collect())
}

/// The name of the events of a kind.
#[must_use]
pub fn event_type(kind: NoticeKind) -> String {
    format!("{PREFIX}{}", kind.name())
}

#[derive(Clone, Copy)]
struct Told {
    window_start: OffsetDateTime,
    now: OffsetDateTime,
}

struct Subscriber {
    endpoint: i64,
    slot: i16,
}

async fn subscribers(
    transaction: &Transaction<'_>,
    notice: &Notice,
) -> Result<Vec<Subscriber>, StoreError> {
    let rows = transaction
        .query(
            SUBSCRIBERS,
            &[&notice.tenant.0, &notice.endpoint.0, &MOST_SUBSCRIBERS],
        )
        .await?;
    let name = event_type(notice.kind);
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let patterns: Vec<String> = row.try_get(2)?;
        if asks_for(&patterns, &name) {
            found.push(Subscriber {
                endpoint: row.try_get(0)?,
                slot: row.try_get(1)?,
            });
        }
    }
    Ok(found)
}

/// Only a pattern that names `postrider.` asks for notices: not `*`, and not `p*`.
fn asks_for(patterns: &[String], name: &str) -> bool {
    let named: Vec<String> = patterns
        .iter()
        .filter(|pattern| pattern.starts_with(PREFIX))
        .cloned()
        .collect();
    !named.is_empty() && wants_type(&named, name)
}

async fn payload(
    transaction: &Transaction<'_>,
    notice: &Notice,
) -> Result<Option<Vec<u8>>, StoreError> {
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [
        &notice.endpoint.0,
        &notice.tenant.0,
        &notice.since,
        &MOST_FAILURES,
    ];
    let Some(row) = transaction.query_opt(ABOUT, &params).await? else {
        return Ok(None);
    };
    let mut body = about(&row)?;
    body.extend(notice.payload.clone());
    Ok(Some(bytes(&body)?))
}

fn bytes(body: &Map<String, Value>) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(body).map_err(|error| StoreError::Other(error.to_string()))
}

fn about(row: &Row) -> Result<Map<String, Value>, StoreError> {
    let id = EndpointId(row.try_get(0)?);
    let url: String = row.try_get(1)?;
    let host = url::Url::parse(&url)
        .ok()
        .and_then(|url| url.host_str().map(str::to_owned));
    let last_at: Option<OffsetDateTime> = row.try_get(3)?;
    let last_at = last_at.and_then(|at| {
        at.format(&time::format_description::well_known::Rfc3339)
            .ok()
    });
    let fields = [
        ("endpoint_id", Value::from(id.to_string())),
        ("url_host", host.map_or(Value::Null, Value::from)),
        (
            "last_status_code",
            row.try_get::<_, Option<i16>>(2)?
                .map_or(Value::Null, Value::from),
        ),
        ("last_attempt_at", last_at.map_or(Value::Null, Value::from)),
        ("failed_attempts", Value::from(row.try_get::<_, i64>(4)?)),
    ];
    Ok(fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

async fn insert(
    transaction: &Transaction<'_>,
    notice: &Notice,
    told: Told,
    payload: &[u8],
    subscribers: &[Subscriber],
) -> Result<Uuid, StoreError> {
    let tenant = notice.tenant.0;
    let event_type = own_type(transaction, notice.tenant, &event_type(notice.kind)).await?;
    let event = new_v7(told.now);
    let endpoints: Vec<i64> = subscribers.iter().map(|it| it.endpoint).collect();
    let slots: Vec<i16> = subscribers.iter().map(|it| it.slot).collect();
    let deliveries: Vec<Uuid> = subscribers.iter().map(|_| new_v7(told.now)).collect();
    let (kind, code) = (Kind::Notice.code(), notice.kind.code());
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 11] = [
        &event,
        &tenant,
        &event_type,
        &payload,
        &endpoints,
        &slots,
        &deliveries,
        &kind,
        &notice.endpoint.0,
        &code,
        &told.window_start,
    ];
    transaction.execute(INSERT, &params).await?;
    Ok(event)
}

/// The key of a type that is reserved for us.
pub(super) async fn own_type(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    name: &str,
) -> Result<i32, StoreError> {
    transaction.execute(ADD_TYPE, &[&tenant.0, &name]).await?;
    let row = transaction
        .query_one(FIND_TYPE, &[&tenant.0, &name])
        .await?;
    Ok(row.try_get(0)?)
}

/// Best effort: the scan finds them as well.
async fn hint(client: &Client, subscribers: &[Subscriber]) {
    let mut payload = String::new();
    for subscriber in subscribers {
        let pair = format!("{}:{}", subscriber.slot, subscriber.endpoint);
        if payload.len() + pair.len() + 1 > MOST_HINT_BYTES {
            notify::hint(client, &payload).await;
            payload.clear();
        }
        if !payload.is_empty() {
            payload.push(',');
        }
        payload.push_str(&pair);
    }
    notify::hint(client, &payload).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pattern_that_names_them_asks_for_notices() {
        let cases: &[(&[&str], bool)] = &[
            (&[], false),
            (&["*"], false),
            (&["post*"], false),
            (&["order.*"], false),
            (&["*", "postrider.endpoint.closed"], false),
            (&["postrider.*"], true),
            (&["postrider.endpoint.*"], true),
            (&["order.*", "postrider.endpoint.opened"], true),
        ];
        for (patterns, expected) in cases {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            let name = event_type(NoticeKind::EndpointOpened);
            assert_eq!(asks_for(&patterns, &name), *expected, "{patterns:?}");
        }
    }
}
