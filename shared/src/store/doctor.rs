//! The facts that `postrider doctor` asks for. What they mean is `policy::doctor`.
//!
//! # Invariants
//! - Reads only, in bounded steps: the queues in pages of [`PAGE`] rows, the newest events by their pages.
//! - D8: [`page`] finds every delivery that nobody would look at again; D1, D6: [`newest`] finds those that are nowhere.
//! - Nothing of a tenant leaves: only counts. Of other sessions their process id, program name and age, never a query.

use std::time::Duration;

use time::{OffsetDateTime, UtcOffset};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::{StoreError, partitions};
use crate::domain::delivery::DeadLetterClass;
use crate::domain::endpoint::EndpointSettings;
use crate::ids::lower_bound;
use crate::policy::doctor::{
    Astray, DeadLetters, Endpoints, Holder, Jobs, Newest, Server, Table, Workers,
};

/// Rows of a queue in one statement: some tenths of a second.
const PAGE: i64 = 20_000;
/// Pages (8 KiB) at the end of today's events that are looked at: some ten thousand events.
const NEWEST_PAGES: i64 = 1_024;
/// Dead letters that are counted.
const MOST_DEAD_LETTERS: i64 = 100_000;
/// Who is named of those that hold the horizon.
const MOST_HOLDERS: i64 = 3;

/// Reads no table. What a session without `pg_read_all_stats` may not see of others is left out.
const SERVER: &str = "
SELECT current_setting('server_version_num')::int4,
  ARRAY['fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts'],
  ARRAY[current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
        current_setting('autovacuum'), current_setting('track_counts')],
  current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8,
  s.clients, s.ours, s.waiting, s.longest_wait::float8, s.longest_idle::float8,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
  (SELECT count(*) FROM pg_stat_replication),
  (SELECT age(datfrozenxid)::int8 FROM pg_database WHERE datname = current_database())
FROM (
  SELECT count(*) AS clients, count(*) FILTER (WHERE application_name LIKE 'postrider-%') AS ours,
    count(*) FILTER (WHERE wait_event_type = 'Lock' AND datname = current_database()) AS waiting,
    coalesce(extract(epoch FROM max(clock_timestamp() - query_start)
      FILTER (WHERE wait_event_type = 'Lock' AND datname = current_database())), 0) AS longest_wait,
    coalesce(extract(epoch FROM max(clock_timestamp() - state_change)
      FILTER (WHERE state LIKE 'idle in transaction%' AND application_name LIKE 'postrider-%')), 0) AS longest_idle
  FROM pg_stat_activity WHERE backend_type = 'client backend' OR backend_type IS NULL) s";

/// Reads no table. The oldest who keep VACUUM from cleaning, as `gauges.horizon` counts them.
const HOLDERS: &str = "
SELECT kind, who, open FROM (
  SELECT 'session' AS kind, pid || ' (' || coalesce(nullif(application_name, ''), 'no name') || ', ' || coalesce(state, 'hidden') || ')' AS who,
         extract(epoch FROM clock_timestamp() - xact_start)::float8 AS open, greatest(age(backend_xmin), age(backend_xid)) AS age
  FROM pg_stat_activity
  WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
    AND backend_type <> 'autovacuum worker' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  UNION ALL
  SELECT 'prepared transaction', gid, extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
  FROM pg_prepared_xacts WHERE database = current_database()
  UNION ALL
  SELECT 'replication slot', slot_name::text, NULL, age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL) x
ORDER BY age DESC LIMIT $1";

/// Reads no table. The queues, and what is updated in place.
const TABLES: &str = "
SELECT relname::text, n_live_tup, n_dead_tup FROM pg_stat_user_tables
WHERE schemaname = current_schema()
  AND relname IN ('ready', 'retry', 'ready_ordered', 'slots', 'workers', 'endpoint_runtime', 'replayed', 'idempotency_keys')
ORDER BY relname";

/// Reads two small tables.
const WORKERS: &str = "
SELECT count(*) FILTER (WHERE alive), count(*) FILTER (WHERE alive AND draining), count(*) FILTER (WHERE NOT alive),
  extract(epoch FROM min(expires_at) FILTER (WHERE alive) - clock_timestamp())::float8,
  (SELECT count(*) FROM slots s WHERE NOT EXISTS (SELECT FROM workers w WHERE w.id = s.owner AND w.expires_at > clock_timestamp())),
  coalesce(max(slots) FILTER (WHERE alive), 0)
FROM (SELECT w.expires_at, w.draining, w.expires_at > clock_timestamp() AS alive,
             (SELECT count(*) FROM slots s WHERE s.owner = w.id) AS slots FROM workers w) x";

/// Reads a table of a row per job.
const JOBS: &str = "
SELECT l.name FROM leases l JOIN workers w ON w.id = l.owner AND w.expires_at > clock_timestamp()
WHERE l.name = ANY($1) ORDER BY l.name";

/// Reads the table. $1: the longest timeout in milliseconds, $2: the longest age in seconds.
const ENDPOINTS: &str = "
SELECT count(*), count(*) FILTER (WHERE (settings->>'timeout_ms')::int8 > $1),
       count(*) FILTER (WHERE (settings->>'max_age_seconds')::int8 > $2)
FROM endpoints WHERE ctid >= '(0,0)'::tid AND state = 1";

/// Index: `dead_letters_age` from its end. $2 is how many are looked at, $3 the class *internal*.
const DEAD_LETTERS: &str = "
SELECT count(*), count(*) FILTER (WHERE class = $3) FROM (
  SELECT class, replayed_as FROM dead_letters WHERE dead_at >= $1 ORDER BY dead_at DESC LIMIT $2) d
WHERE replayed_as IS NULL";

/// A page of a queue in the order of its index by tenant and id; per row one probe of `endpoints_pkey` and of
/// `events_pkey` (or `events_kept_pkey`). $1 and $2: where the page begins, $3: its rows, $4: now, $5: the default of
/// `max_age_seconds`. A pause that ended ten minutes ago excuses nothing any more.
macro_rules! page {
    ($queue:literal, $due:literal) => {
        concat!(
            "
WITH p AS MATERIALIZED (
  SELECT tenant_id, id, slot, endpoint_id, event_id, ",
            $due,
            " AS due_at FROM ",
            $queue,
            "
  WHERE (tenant_id, id) > ($1, $2) ORDER BY tenant_id, id LIMIT $3),
paused AS MATERIALIZED (SELECT tenant_id FROM pauses WHERE until > $4::timestamptz - interval '10 min'),
x AS (
  SELECT p.*, e.id IS NULL OR e.slot <> (p.slot + 256) % 256 AS unowned, e.state <> 1 AND e.updated_at < $4::timestamptz - interval '10 min' AS unclosed,
    NOT EXISTS (SELECT FROM events v WHERE v.tenant_id = p.tenant_id AND v.id = p.event_id)
      AND NOT EXISTS (SELECT FROM events_kept v WHERE v.tenant_id = p.tenant_id AND v.id = p.event_id) AS bodyless,
    coalesce((e.settings->>'max_age_seconds')::int8, $5) AS max_age,
    EXISTS (SELECT FROM paused WHERE paused.tenant_id IS NULL OR paused.tenant_id = p.tenant_id) AS paused
  FROM p LEFT JOIN LATERAL (SELECT * FROM endpoints e WHERE e.id = p.endpoint_id OFFSET 0) e ON true)
SELECT count(*), count(*) FILTER (WHERE unowned), count(*) FILTER (WHERE unclosed), count(*) FILTER (WHERE bodyless),
  count(*) FILTER (WHERE due_at > $4::timestamptz + interval '25 h'),
  count(*) FILTER (WHERE slot >= 0 AND NOT paused AND to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::int8 / 1000.0) < $4::timestamptz - (max_age + 86400) * interval '1 s'),
  count(*) FILTER (WHERE slot < 0 AND NOT paused),
  (SELECT tenant_id FROM p ORDER BY tenant_id DESC, id DESC LIMIT 1), (SELECT id FROM p ORDER BY tenant_id DESC, id DESC LIMIT 1)
FROM x"
        )
    };
}

/// See [`page`].
const READY: &str = page!("ready", "NULL::timestamptz");
/// See [`page`].
const RETRY: &str = page!("retry", "due_at");
/// See [`page`].
const READY_ORDERED: &str = page!("ready_ordered", "due_at");

/// How large a day's events are, in pages.
const EVENT_PAGES: &str =
    "SELECT coalesce(pg_relation_size(to_regclass($1)) / current_setting('block_size')::int8, 0)";

/// The deliveries of the events from page $2 on in the partitions from the id $1 on, and in how many places each is:
/// per delivery one probe of each queue's index by id, of `dead_letters_pkey`, `closed_pkey` and `attempts_pkey`. Not of
/// endpoints that were deleted: their rows go with them.
const NEWEST: &str = "
WITH d AS MATERIALIZED (
  SELECT v.tenant_id, u.endpoint_id, u.id FROM events v, unnest(v.fan_endpoint, v.fan_delivery) u(endpoint_id, id)
  WHERE v.id >= $1 AND v.ctid >= $2::text::tid)
SELECT count(*), count(*) FILTER (WHERE places = 0), count(*) FILTER (WHERE places > 1) FROM (
  SELECT (SELECT count(*) FROM ready q WHERE q.tenant_id = d.tenant_id AND q.id = d.id)
    + (SELECT count(*) FROM retry q WHERE q.tenant_id = d.tenant_id AND q.id = d.id)
    + (SELECT count(*) FROM ready_ordered q WHERE q.tenant_id = d.tenant_id AND q.id = d.id)
    + (SELECT count(*) FROM dead_letters q WHERE q.tenant_id = d.tenant_id AND q.id = d.id)
    + (SELECT count(*) FROM closed q WHERE q.tenant_id = d.tenant_id AND q.id = d.id)
    + (SELECT count(*) FROM attempts a WHERE a.tenant_id = d.tenant_id AND a.delivery_id = d.id AND a.final_status = 3) AS places
  FROM d CROSS JOIN LATERAL (SELECT FROM endpoints e WHERE e.id = d.endpoint_id AND e.state <> 3 OFFSET 0) e) x";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("doctor.server", SERVER),
    ("doctor.holders", HOLDERS),
    ("doctor.tables", TABLES),
    ("doctor.workers", WORKERS),
    ("doctor.jobs", JOBS),
    ("doctor.endpoints", ENDPOINTS),
    ("doctor.dead_letters", DEAD_LETTERS),
    ("doctor.ready", READY),
    ("doctor.retry", RETRY),
    ("doctor.ready_ordered", READY_ORDERED),
    ("doctor.event_pages", EVENT_PAGES),
    ("doctor.newest", NEWEST),
];

/// The server and its sessions.
///
/// # Errors
/// Any [`StoreError`].
pub async fn server(client: &Client) -> Result<Server, StoreError> {
    let row = client.query_one(SERVER, &[]).await?;
    let names: Vec<String> = row.try_get(1)?;
    let values: Vec<String> = row.try_get(2)?;
    Ok(Server {
        version: row.try_get(0)?,
        switches: names.into_iter().zip(values).collect(),
        most_connections: row.try_get(3)?,
        connections: row.try_get(4)?,
        ours: row.try_get(5)?,
        waiting_for_lock: (row.try_get(6)?, seconds(row.try_get(7)?)),
        idle_in_transaction: seconds(row.try_get(8)?),
        replicas: (row.try_get(9)?, row.try_get(10)?),
        oldest_id_age: row.try_get(11)?,
    })
}

/// Who keeps VACUUM from cleaning, the oldest first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn holders(client: &Client) -> Result<Vec<Holder>, StoreError> {
    let read = |row: &Row| {
        Ok(Holder {
            kind: row.try_get(0)?,
            who: row.try_get(1)?,
            open: row.try_get::<_, Option<f64>>(2)?.map(seconds),
        })
    };
    let rows = client.query(HOLDERS, &[&MOST_HOLDERS]).await?;
    rows.iter().map(read).collect()
}

/// What the tables carry that live by deletion and by updates.
///
/// # Errors
/// Any [`StoreError`].
pub async fn tables(client: &Client) -> Result<Vec<Table>, StoreError> {
    let read = |row: &Row| {
        Ok(Table {
            name: row.try_get(0)?,
            live: row.try_get(1)?,
            dead: row.try_get(2)?,
        })
    };
    client.query(TABLES, &[]).await?.iter().map(read).collect()
}

/// Who owns the slots.
///
/// # Errors
/// Any [`StoreError`].
pub async fn workers(client: &Client) -> Result<Workers, StoreError> {
    let row = client.query_one(WORKERS, &[]).await?;
    let (alive, draining): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let sharing = (alive - draining).max(1);
    Ok(Workers {
        alive,
        draining,
        expired: row.try_get(2)?,
        shortest_lease: row.try_get::<_, Option<f64>>(3)?.map(seconds),
        free_slots: row.try_get(4)?,
        most_slots: (row.try_get(5)?, (256 + sharing - 1) / sharing),
    })
}

/// Which of these jobs have a leader.
///
/// # Errors
/// Any [`StoreError`].
pub async fn jobs(client: &Client, names: &[&str]) -> Result<Jobs, StoreError> {
    let rows = client.query(JOBS, &[&names]).await?;
    let mut led = Vec::new();
    for row in &rows {
        led.push(row.try_get::<_, String>(0)?);
    }
    let idle = names
        .iter()
        .filter(|name| !led.iter().any(|one| one == *name));
    Ok(Jobs {
        idle: idle.map(|name| (*name).to_owned()).collect(),
        led,
    })
}

/// Endpoints whose own times are longer than these.
///
/// # Errors
/// Any [`StoreError`].
pub async fn endpoints(
    client: &Client,
    timeout: Duration,
    max_age: Duration,
) -> Result<Endpoints, StoreError> {
    let timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
    let max_age = i64::try_from(max_age.as_secs()).unwrap_or(i64::MAX);
    let row = client
        .query_one(ENDPOINTS, &[&timeout_ms, &max_age])
        .await?;
    Ok(Endpoints {
        enabled: row.try_get(0)?,
        slow: row.try_get(1)?,
        lasting: row.try_get(2)?,
    })
}

/// Dead letters of the last 24 hours that were not replayed.
///
/// # Errors
/// Any [`StoreError`].
pub async fn dead_letters(client: &Client, now: OffsetDateTime) -> Result<DeadLetters, StoreError> {
    let since = now - time::Duration::DAY;
    let internal = DeadLetterClass::Internal.code();
    let params: [&(dyn ToSql + Sync); 3] = [&since, &MOST_DEAD_LETTERS, &internal];
    let row = client.query_one(DEAD_LETTERS, &params).await?;
    Ok(DeadLetters {
        all: row.try_get(0)?,
        internal: row.try_get(1)?,
        most: MOST_DEAD_LETTERS,
    })
}

/// A queue of deliveries that are not final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// May go now.
    Ready,
    /// Wait for their next attempt.
    Retry,
    /// Stand in lines.
    ReadyOrdered,
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ready, Self::Retry, Self::ReadyOrdered];
}

/// Where a page begins: after this tenant's delivery.
pub type After = (i32, Uuid);

/// Looks at the next rows of a queue: what is wrong with them, and where the next page begins, if there is one.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &Client,
    queue: Queue,
    after: Option<After>,
    now: OffsetDateTime,
) -> Result<(Astray, Option<After>), StoreError> {
    let statement = match queue {
        Queue::Ready => READY,
        Queue::Retry => RETRY,
        Queue::ReadyOrdered => READY_ORDERED,
    };
    let (tenant, id) = after.unwrap_or((i32::MIN, Uuid::nil()));
    let max_age = i64::from(EndpointSettings::default().max_age_seconds);
    let params: [&(dyn ToSql + Sync); 5] = [&tenant, &id, &PAGE, &now, &max_age];
    let row = client.query_one(statement, &params).await?;
    let astray = Astray {
        waiting: row.try_get(0)?,
        unowned: row.try_get(1)?,
        unclosed: row.try_get(2)?,
        bodyless: row.try_get(3)?,
        too_late: row.try_get(4)?,
        too_old: row.try_get(5)?,
        forgotten: row.try_get(6)?,
        cut: false,
    };
    let last: (Option<i32>, Option<Uuid>) = (row.try_get(7)?, row.try_get(8)?);
    let next = match last {
        (Some(tenant), Some(id)) if astray.waiting >= PAGE => Some((tenant, id)),
        _ => None,
    };
    Ok((astray, next))
}

/// Looks for the deliveries of the newest events of today.
///
/// # Errors
/// Any [`StoreError`].
pub async fn newest(client: &Client, now: OffsetDateTime) -> Result<Newest, StoreError> {
    let day = now.to_offset(UtcOffset::UTC).date();
    let today = partitions::Partition {
        parent: partitions::Parent::Events,
        day,
        state: partitions::State::Attached,
    };
    let pages: i64 = client
        .query_one(EVENT_PAGES, &[&today.name()])
        .await?
        .try_get(0)?;
    let first = format!("({},0)", (pages - NEWEST_PAGES).max(0));
    let begins = lower_bound(today.begins_at());
    let row = client.query_one(NEWEST, &[&begins, &first]).await?;
    Ok(Newest {
        looked_for: row.try_get(0)?,
        nowhere: row.try_get(1)?,
        twice: row.try_get(2)?,
    })
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}
