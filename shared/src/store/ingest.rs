//! Ingest: a batch of events with their deliveries in one statement and one commit.
//!
//! Not here: what goes into a batch and who is told (the API's writer).
//!
//! # Invariants
//! - D1: an event and its deliveries commit together: they are one statement.
//! - D2: the session commits synchronously (`Role::Api`); the caller answers only after [`Ingest::insert`].
//! - Exact fan-out: the caller's cached `config_version` is compared with the committed one in the
//!   snapshot of the inserting statement itself. Every change of a tenant's endpoints raises that
//!   version in its own transaction, so an equal version means an equal set of endpoints; events
//!   with an older one are not inserted but handed back as stale.
//! - Resubmitting is harmless: an id that exists is not inserted again, nor are its deliveries.
//!
//! Events with a key, of order or of idempotency, go by another statement, which costs a lock per
//! key: `keyed`.

mod batch;
mod keyed;

use std::collections::HashMap;
use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

pub use self::batch::{Batch, CHANNEL_SEPARATOR, DeliveryRow, EventRow};
pub use self::keyed::MOST_ORDERED;
use super::pool::within;
use super::{Database, Role, Session, StoreError};
use crate::domain::delivery::CloseReason;
use crate::domain::endpoint::EndpointState;
use crate::domain::idempotency::KeySpace;
use crate::ids::{EndpointKey, Slot, TenantKey};

/// How long one statement of the writer may take. A little over the server's `statement_timeout`,
/// so that the server gives up first and the outcome is known; and short enough that on another connection it still
/// succeeds within the deadline of who waits for it (`budgets::API_DEADLINE`).
const CALL_BUDGET: Duration = Duration::from_secs(8);

/// The most event types of one tenant: a type is a row that is kept for good.
pub const MAX_TYPES: i64 = 10_000;

/// The statement settings of this session: its plans are made once, while tables may be empty, and
/// must stay right when they are not.
const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET statement_timeout = '7s'";

/// Inserts events, their `ready` rows and the `closed` rows of what is skipped at once.
///
/// Uses `tenants_pkey` (LATERAL … OFFSET 0 keeps it a probe per tenant). Locks nothing that others
/// wait for, except a running insert of the same event id.
const INSERT: &str = "
WITH ev AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::int4[], $3::int4[], $4::timestamptz[], $5::text[], $6::bytea[], $7::int4[], $8::int4[], $18::bytea[])
    WITH ORDINALITY AS u(id, tenant_id, type_id, deliver_before, channels, payload, first, last, trace_context, ord)),
ver AS MATERIALIZED (
  SELECT t.id FROM unnest($15::int4[], $16::int8[]) AS v(id, version)
  CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.id = v.id AND t.config_version = v.version OFFSET 0) t),
fresh AS MATERIALIZED (
  SELECT * FROM (SELECT ev.*, ev.tenant_id IN (SELECT id FROM ver) AS known FROM ev OFFSET 0) x WHERE known),
made AS (
  INSERT INTO events (id, tenant_id, type_id, deliver_before, channels, payload, fan_endpoint, fan_delivery, trace_context)
  SELECT id, tenant_id, type_id, deliver_before, string_to_array(channels, E'\\x1f'), payload,
         ($10::int8[])[first:last], ($12::uuid[])[first:last], trace_context
  FROM fresh ON CONFLICT DO NOTHING RETURNING id),
put AS MATERIALIZED (
  SELECT * FROM (
    SELECT d.*, d.event_id IN (SELECT id FROM made) AS put
    FROM unnest($9::uuid[], $10::int8[], $11::int2[], $12::uuid[], $13::int2[], $14::int4[], $17::timestamptz[])
      AS d(event_id, endpoint_id, slot, id, reason, tenant_id, deliver_before) OFFSET 0) x WHERE put),
live AS (
  INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id, deliver_before)
  SELECT slot, tenant_id, endpoint_id, id, event_id, deliver_before FROM put WHERE reason = 0),
skipped AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
  SELECT tenant_id, id, endpoint_id, event_id, 7, reason FROM put WHERE reason <> 0)
SELECT clock_timestamp(),
       ARRAY(SELECT ord::int4 FROM ev WHERE NOT tenant_id IN (SELECT id FROM ver)),
       ARRAY(SELECT ord::int4 FROM fresh WHERE NOT id IN (SELECT id FROM made))";

/// The endpoints of tenants and the version that they belong to, in one snapshot.
/// Uses `tenants_pkey` and `endpoints_tenant`.
const LOAD: &str = "
SELECT t.id, t.config_version, e.id, e.public_id, e.slot, e.state, e.backlog_full, e.event_types, e.channels, e.ordered
FROM unnest($1::int4[]) AS u(id)
CROSS JOIN LATERAL (SELECT t.id, t.config_version FROM tenants t WHERE t.id = u.id OFFSET 0) t
LEFT JOIN LATERAL (
  SELECT e.id, e.public_id, e.slot, e.state, e.backlog_full, e.event_types, e.channels, e.ordered
  FROM endpoints e WHERE e.tenant_id = t.id AND e.state <> 3 OFFSET 0) e ON true";

/// The types of tenants that have a schema. Asked after [`LOAD`]: of a later change the version tells.
/// Uses `event_types_schema`.
const SCHEMAS: &str = "
SELECT t.tenant_id, t.name, t.schema_version FROM unnest($1::int4[]) AS u(id)
CROSS JOIN LATERAL (
  SELECT t.tenant_id, t.name, t.schema_version FROM event_types t
  WHERE t.tenant_id = u.id AND t.schema IS NOT NULL OFFSET 0) t";

/// Makes the types that do not exist. In the order of the unique index: no deadlock between writers.
const ADD_TYPES: &str = "
INSERT INTO event_types (tenant_id, name)
SELECT u.tenant_id, u.name FROM unnest($1::int4[], $2::text[]) AS u(tenant_id, name)
WHERE NOT EXISTS (SELECT FROM event_types t WHERE t.tenant_id = u.tenant_id AND t.name = u.name)
  AND (SELECT count(*) FROM event_types t WHERE t.tenant_id = u.tenant_id) < (
    SELECT least($3, (t.limits->>'max_event_types')::int8, CASE WHEN t.limits->>'max_event_types' IS NULL THEN (o.limits->>'max_event_types')::int8 END)
    FROM tenants t LEFT JOIN organizations o ON o.id = t.organization_id WHERE t.id = u.tenant_id)
ORDER BY u.tenant_id, u.name
ON CONFLICT DO NOTHING";

/// Uses `event_types_tenant_id_name_key`.
const FIND_TYPES: &str = "
SELECT t.tenant_id, t.name, t.id FROM unnest($1::int4[], $2::text[]) AS u(tenant_id, name)
CROSS JOIN LATERAL (
  SELECT t.tenant_id, t.name, t.id FROM event_types t
  WHERE t.tenant_id = u.tenant_id AND t.name = u.name OFFSET 0) t";

/// What a reply says of events that exist, with at most $3 deliveries of each. What was skipped at once
/// was inserted by the event's own transaction; what was closed later was not. Uses `events_pkey`,
/// `endpoints_pkey` and `closed_pkey`.
const STORED: &str = "
SELECT e.id, cardinality(e.fan_delivery), f.ids, f.endpoints, f.skipped
FROM unnest($1::int4[], $2::uuid[]) AS u(tenant_id, id)
CROSS JOIN LATERAL (
  SELECT e.id, e.tenant_id, e.xmin AS born, e.fan_endpoint, e.fan_delivery FROM events e
  WHERE e.tenant_id = u.tenant_id AND e.id = u.id OFFSET 0) e
CROSS JOIN LATERAL (
  SELECT array_agg(d.id ORDER BY d.ord) AS ids, array_agg(p.public_id ORDER BY d.ord) AS endpoints,
         array_agg(c.id IS NOT NULL ORDER BY d.ord) AS skipped
  FROM unnest(e.fan_delivery[1:$3], e.fan_endpoint[1:$3]) WITH ORDINALITY AS d(id, endpoint_id, ord)
  CROSS JOIN LATERAL (SELECT p.public_id FROM endpoints p WHERE p.id = d.endpoint_id OFFSET 0) p
  LEFT JOIN LATERAL (
    SELECT c.id FROM closed c WHERE c.tenant_id = e.tenant_id AND c.id = d.id AND c.xmin = e.born OFFSET 0) c ON true) f";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("ingest.insert", INSERT),
    ("ingest.lock_keys", keyed::LOCK_KEYS),
    ("ingest.claim", keyed::CLAIM),
    ("ingest.insert_keyed", keyed::INSERT_KEYED),
    ("ingest.load", LOAD),
    ("ingest.schemas", SCHEMAS),
    ("ingest.add_types", ADD_TYPES),
    ("ingest.find_types", FIND_TYPES),
    ("ingest.stored", STORED),
];

/// What became of a batch that committed. Positions count from 0, in the order of [`Batch::push`].
#[derive(Debug)]
pub struct Inserted {
    /// The database's clock, just before the commit.
    pub now: OffsetDateTime,
    /// Not inserted: their fan-out came from an outdated configuration.
    pub stale: Vec<usize>,
    /// Not inserted: their ids existed, from an earlier submission.
    pub repeated: Vec<usize>,
    /// Not inserted: their keys stand for these events, of the same body.
    pub replays: Vec<(usize, Uuid)>,
    /// Not inserted: a key of theirs, of this space, stands for another body.
    pub mismatches: Vec<(usize, KeySpace)>,
    /// Not inserted: nobody would be sent them any more.
    pub late: Vec<usize>,
}

/// An endpoint as ingest sees it.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its key.
    pub key: EndpointKey,
    /// Its public id.
    pub public: Uuid,
    /// Its slot.
    pub slot: Slot,
    /// Set: new deliveries are closed with this reason.
    pub closed: Option<CloseReason>,
    /// Patterns; see `domain::endpoint::wants_type`.
    pub event_types: Vec<String>,
    /// See `domain::endpoint::wants_channels`.
    pub channels: Vec<String>,
    /// Whether it takes the events of an ordering key one after the other.
    pub ordered: bool,
}

/// A tenant's endpoints, at one version.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// `tenants.config_version` in the snapshot that the endpoints were read in.
    pub version: i64,
    /// All that are not deleted.
    pub targets: Vec<Target>,
    /// By event type that has one, the version of its schema.
    pub schemas: HashMap<Box<str>, i64>,
}

/// An event that exists, as its reply shows it.
#[derive(Debug)]
pub struct Stored {
    /// How many deliveries were made when it was accepted.
    pub delivery_count: usize,
    /// The first of them.
    pub deliveries: Vec<StoredDelivery>,
}

/// A delivery of an event that exists.
#[derive(Debug, Clone, Copy)]
pub struct StoredDelivery {
    /// Its id.
    pub id: Uuid,
    /// Its endpoint's public id.
    pub endpoint: Uuid,
    /// Whether it was skipped when the event was accepted.
    pub skipped: bool,
}

/// The session of one writer, with its statements prepared.
pub struct Ingest {
    session: Session,
    insert: Statement,
    lock_keys: Statement,
    claim: Statement,
    insert_keyed: Statement,
    load: Statement,
    schemas: Statement,
    add_types: Statement,
    find_types: Statement,
    stored: Statement,
}

impl Ingest {
    /// Whether the session is still good, when nothing was asked of it for a while.
    ///
    /// # Errors
    /// As [`Ingest::open`]: open another.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.session.check().await
    }

    /// Connects and prepares.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database is away; [`StoreError::Other`] when the schema
    /// does not fit.
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        let session = database.connect(Role::Api).await?;
        let prepared = async {
            session.batch_execute(SETTINGS).await?;
            Ok::<_, tokio_postgres::Error>([
                session.prepare(INSERT).await?,
                session.prepare(keyed::LOCK_KEYS).await?,
                session.prepare(keyed::CLAIM).await?,
                session.prepare(keyed::INSERT_KEYED).await?,
                session.prepare(LOAD).await?,
                session.prepare(SCHEMAS).await?,
                session.prepare(ADD_TYPES).await?,
                session.prepare(FIND_TYPES).await?,
                session.prepare(STORED).await?,
            ])
        };
        let [
            insert,
            lock_keys,
            claim,
            insert_keyed,
            load,
            schemas,
            add_types,
            find_types,
            stored,
        ] = within(CALL_BUDGET, prepared).await?;
        Ok(Self {
            session,
            insert,
            lock_keys,
            claim,
            insert_keyed,
            load,
            schemas,
            add_types,
            find_types,
            stored,
        })
    }

    /// Whether the connection is known to be lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Inserts a batch; when this returns `Ok` it is durable (D2).
    ///
    /// # Errors
    /// [`StoreError::BadData`] or [`StoreError::Conflict`]: nothing was inserted, a row is to blame.
    /// A transient error: whether it took effect is unknown; ask [`Ingest::stored`] first.
    pub async fn insert(&self, batch: &Batch<'_>) -> Result<Inserted, StoreError> {
        let (tenants, versions): (Vec<i32>, Vec<i64>) = batch.versions.iter().unzip();
        debug_assert!(batch.keys.is_none(), "a batch with keys");
        let columns = batch.columns(&tenants, &versions);
        let row = within(CALL_BUDGET, self.session.query_one(&self.insert, &columns)).await?;
        inserted(&row)
    }

    /// The configurations of tenants; one that does not exist is absent.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn load(
        &self,
        tenants: &[i32],
    ) -> Result<HashMap<TenantKey, Configuration>, StoreError> {
        let rows = within(CALL_BUDGET, self.session.query(&self.load, &[&tenants])).await?;
        let mut found: HashMap<TenantKey, Configuration> = HashMap::new();
        for row in rows {
            let configuration = found
                .entry(TenantKey(row.try_get(0)?))
                .or_insert(Configuration {
                    version: row.try_get(1)?,
                    targets: Vec::new(),
                    schemas: HashMap::new(),
                });
            if let Some(key) = row.try_get::<_, Option<i64>>(2)? {
                configuration.targets.push(Target {
                    key: EndpointKey(key),
                    public: row.try_get(3)?,
                    slot: Slot(row.try_get(4)?),
                    closed: closed_at_once(row.try_get(5)?, row.try_get(6)?)?,
                    event_types: row.try_get(7)?,
                    channels: row.try_get(8)?,
                    ordered: row.try_get(9)?,
                });
            }
        }
        let rows = within(CALL_BUDGET, self.session.query(&self.schemas, &[&tenants])).await?;
        for row in rows {
            if let Some(configuration) = found.get_mut(&TenantKey(row.try_get(0)?)) {
                let name: String = row.try_get(1)?;
                configuration.schemas.insert(name.into(), row.try_get(2)?);
            }
        }
        Ok(found)
    }

    /// The ids of event types, made when they are new. One that would be more than [`MAX_TYPES`] of
    /// its tenant is absent.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn type_ids(
        &self,
        tenants: &[i32],
        names: &[&str],
    ) -> Result<Vec<(TenantKey, String, i32)>, StoreError> {
        within(
            CALL_BUDGET,
            self.session
                .execute(&self.add_types, &[&tenants, &names, &MAX_TYPES]),
        )
        .await?;
        within(
            CALL_BUDGET,
            self.session.query(&self.find_types, &[&tenants, &names]),
        )
        .await?
        .iter()
        .map(|row| Ok((TenantKey(row.try_get(0)?), row.try_get(1)?, row.try_get(2)?)))
        .collect()
    }

    /// Which of these events exist, with at most so many of their deliveries.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn stored(
        &self,
        tenants: &[i32],
        ids: &[Uuid],
        most_deliveries: i32,
    ) -> Result<HashMap<Uuid, Stored>, StoreError> {
        let parameters: [&(dyn ToSql + Sync); 3] = [&tenants, &ids, &most_deliveries];
        within(CALL_BUDGET, self.session.query(&self.stored, &parameters))
            .await?
            .iter()
            .map(|row| Ok((row.try_get(0)?, stored(row)?)))
            .collect()
    }
}

fn stored(row: &Row) -> Result<Stored, StoreError> {
    let count: i32 = row.try_get(1)?;
    let ids: Option<Vec<Uuid>> = row.try_get(2)?;
    let endpoints: Option<Vec<Uuid>> = row.try_get(3)?;
    let skipped: Option<Vec<bool>> = row.try_get(4)?;
    let rows = ids
        .into_iter()
        .flatten()
        .zip(endpoints.into_iter().flatten())
        .zip(skipped.into_iter().flatten());
    Ok(Stored {
        delivery_count: usize::try_from(count).unwrap_or(0),
        deliveries: rows
            .map(|((id, endpoint), skipped)| StoredDelivery {
                id,
                endpoint,
                skipped,
            })
            .collect(),
    })
}

/// Why new deliveries to an endpoint are closed at once, if they are.
fn closed_at_once(state: i16, backlog_full: bool) -> Result<Option<CloseReason>, StoreError> {
    Ok(match EndpointState::try_from(state)? {
        EndpointState::Enabled if backlog_full => Some(CloseReason::BacklogFull),
        EndpointState::Enabled => None,
        EndpointState::Disabled => Some(CloseReason::EndpointDisabled),
        EndpointState::Deleted => Some(CloseReason::EndpointDeleted),
    })
}

fn inserted(row: &Row) -> Result<Inserted, StoreError> {
    Ok(Inserted {
        now: row.try_get(0)?,
        stale: positions(row.try_get(1)?),
        repeated: positions(row.try_get(2)?),
        replays: Vec::new(),
        mismatches: Vec::new(),
        late: Vec::new(),
    })
}

fn positions(ordinals: Vec<i32>) -> Vec<usize> {
    ordinals
        .into_iter()
        .filter_map(|ordinal| usize::try_from(ordinal - 1).ok())
        .collect()
}
