//! What a removal leaves, asked of the catalog: a table or column that is new fails here until somebody decides.

use std::collections::BTreeMap;

use shared::ids::{TenantKey, new_v7};
use shared::runtime::clock::wall_time;
use shared::store::{Session, removals};
use shared::testing::TestDatabase;
use uuid::Uuid;

use crate::removals::{tables_with, work_off};

const MARKER: &str = "needle-of-the-body";

/// Columns that say whose a row is.
const OWNERS: [&str; 5] = [
    "tenant_id",
    "endpoint_id",
    "event_id",
    "delivery_id",
    "replay_id",
];

/// Tables whose rows outlive their tenant, and why.
const OUTLIVE: [(&str, &str); 4] = [
    ("audit_log", "names and ids, for a retention of its own"),
    ("removals", "how far it is; as long as the audit log"),
    (
        "commands",
        "deleted by the slot's owner when it has read them",
    ),
    ("suspects", "an id, for seven days"),
];

/// Columns with the bytes of a payload, or of what was answered to it.
const BODIES: [&str; 4] = [
    "attempts.response",
    "events.payload",
    "events_kept.payload",
    "idempotency_keys.reply",
];

/// Columns of text or bytes with neither: names, settings, secrets, hashes, and words of our own about what happened.
const NO_BODIES: [&str; 38] = [
    "api_keys.hash",
    "api_keys.hint",
    "api_keys.name",
    "attempts.error",
    "audit_log.action",
    "audit_log.key_hint",
    "audit_log.object_type",
    "audit_log.request_id",
    "dead_letters.reason",
    "endpoint_key_pairs.public_key",
    "endpoint_key_pairs.sealed",
    "endpoint_secrets.sealed",
    "endpoint_urls.url",
    "endpoints.description",
    "endpoints.sealed_client_certificate",
    "endpoints.sealed_headers",
    "endpoints.state_reason",
    "endpoints.url",
    "event_types.description",
    "event_types.name",
    "event_types.schema",
    "events.external_id",
    "events.trace_context",
    "events_kept.external_id",
    "events_kept.trace_context",
    "idempotency_keys.body_hash",
    "idempotency_keys.key",
    "leases.name",
    "organizations.name",
    "pauses.event_type",
    "pauses.reason",
    "replays.event_type",
    "replays.fingerprint",
    "schema_migrations.checksum",
    "schema_migrations.name",
    "tenants.external_id",
    "tenants.name",
    "workers.name",
];

/// A tenant with a row in every table, made of statements only: what a row is worth does not matter here.
struct Owned {
    tenant: i32,
    endpoint: i64,
    replay: i32,
    event: Uuid,
    /// Waiting (three kinds), dead, closed, delivered; then a replay of the dead one, and what recovery made of it.
    deliveries: [Uuid; 8],
}

impl Owned {
    async fn new(session: &Session, tenant: i32) -> Self {
        let owned = Self {
            tenant,
            endpoint: i64::from(tenant) * 10,
            replay: tenant * 100,
            event: new_v7(wall_time()),
            deliveries: std::array::from_fn(|_| new_v7(wall_time())),
        };
        session.batch_execute(&owned.seeds()).await.unwrap();
        owned
    }

    fn seeds(&self) -> String {
        let Self {
            tenant: t,
            endpoint: k,
            replay: r,
            event: e,
            deliveries: [ready, retry, line, dead, closed, sent, again, revived],
        } = self;
        let fan = format!("{{{ready},{retry},{line},{dead},{closed},{sent}}}");
        let event = format!("'{e}', {t}, 1, '{MARKER}', '{{{k},{k},{k},{k},{k},{k}}}', '{fan}'");
        let attempts: String = [dead, sent, again, revived]
            .iter()
            .map(|id| {
                format!(
                    "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                       total_ms, outcome, applied, response)
                     VALUES ({t}, '{id}', 1, 1, now(), {k}, '{e}', 1, 5, 1, true, '{MARKER}');"
                )
            })
            .collect();
        format!(
            "INSERT INTO tenants (id, public_id, name) OVERRIDING SYSTEM VALUE VALUES ({t}, gen_random_uuid(), 'x');
             INSERT INTO api_keys (public_id, tenant_id, hash, hint, name, scopes)
               VALUES (gen_random_uuid(), {t}, sha256('{t}'), 'prk_', 'x', '{{}}');
             INSERT INTO endpoints (id, public_id, tenant_id, slot, url) OVERRIDING SYSTEM VALUE
               VALUES ({k}, gen_random_uuid(), {t}, 1, 'http://receiver.example/');
             INSERT INTO endpoint_secrets (endpoint_id, sealed) VALUES ({k}, 'x');
             INSERT INTO endpoint_key_pairs (endpoint_id, public_key, sealed) VALUES ({k}, sha256('x'), 'x');
             INSERT INTO endpoint_urls (endpoint_id, version, url) VALUES ({k}, 1, 'http://receiver.example/');
             INSERT INTO endpoint_runtime (endpoint_id, tenant_id, slot) VALUES ({k}, {t}, 1);
             INSERT INTO event_types (tenant_id, name) VALUES ({t}, 'x');
             INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery) VALUES ({event});
             INSERT INTO events_kept (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery) VALUES ({event});
             INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id) VALUES (1, {t}, {k}, '{ready}', '{e}');
             INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at) VALUES (1, {t}, {k}, '{retry}', '{e}', now());
             INSERT INTO ready_ordered (slot, tenant_id, endpoint_id, id, event_id, order_key, order_seq)
               VALUES (1, {t}, {k}, '{line}', '{e}', 1, 1);
             INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, replayed_as)
               VALUES ({t}, '{dead}', {k}, '{e}', 1, 1, 0, '{dead}', '{again}');
             INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason) VALUES ({t}, '{closed}', {k}, '{e}', 7, 1);
             {attempts}
             INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id, source_id)
               VALUES ({t}, '{again}', {k}, '{e}', '{dead}'), ({t}, '{revived}', {k}, '{e}', '{dead}');
             INSERT INTO idempotency_keys (tenant_id, key, body_hash, event_id, reply, expires_at)
               VALUES ({t}, 'k:test', '', '{e}', '{MARKER}', now() + interval '1 d'),
                      ({t}, 'k:other', '', NULL, 'other', now() + interval '1 d');
             INSERT INTO suspects (delivery_id, deaths) VALUES ('{ready}', 1);
             INSERT INTO commands (slot, tenant_id, endpoint_id, verb) VALUES (1, {t}, {k}, 1);
             INSERT INTO notices (endpoint_id, kind, window_start, tenant_id) VALUES ({k}, 1, now(), {t});
             INSERT INTO endpoint_stats (endpoint_id, tenant_id, computed_at, since, samples) VALUES ({k}, {t}, now(), now(), 0);
             INSERT INTO endpoint_stats_hours (endpoint_id, hour, samples, p50_ms, p95_ms, p99_ms) VALUES ({k}, now(), 1, 1, 1, 1);
             INSERT INTO pauses (tenant_id, until, reason) VALUES ({t}, now() + interval '1 d', 'x');
             INSERT INTO replays (id, public_id, tenant_id, endpoint_id, statuses, missing, fingerprint, per_second, status)
               OVERRIDING SYSTEM VALUE VALUES ({r}, gen_random_uuid(), {t}, {k}, '{{5}}', false, '', 1, 1);
             INSERT INTO replay_parts (replay_id, endpoint_id, phase, cursor) VALUES ({r}, {k}, 1, '{e}');
             INSERT INTO replay_outstanding (endpoint_id, replay_id, delivery_id) VALUES ({k}, {r}, '{again}');
             INSERT INTO replay_skips (replay_id, reason, count, first) VALUES ({r}, 1, 1, '{{{e}}}');
             INSERT INTO event_counts (tenant_id, day, events) VALUES ({t}, current_date, 1);
             INSERT INTO audit_log (id, tenant_id, actor, action, object_type, changed)
               VALUES (gen_random_uuid(), {t}, 1, 'x', 'x', '{{}}');
             INSERT INTO removals (public_id, kind, tenant_id, object_id, finished_at)
               VALUES (gen_random_uuid(), 3, {t}, gen_random_uuid(), now());"
        )
    }

    /// Its rows, by table: of every table that says whose its rows are.
    async fn rows(&self, session: &Session) -> BTreeMap<String, i64> {
        let tables = session
            .query(
                "SELECT c.relname::text, array_agg(a.attname::text) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                   AND a.attname = ANY ($1::text[]) AND NOT a.attisdropped GROUP BY 1",
                &[&&OWNERS[..]],
            )
            .await
            .unwrap();
        let mut rows = BTreeMap::new();
        for row in tables {
            let (table, columns): (String, Vec<String>) = (row.get(0), row.get(1));
            let mine: Vec<String> = columns.iter().map(|column| self.owns(column)).collect();
            let count = format!("SELECT count(*) FROM {table} WHERE {}", mine.join(" OR "));
            rows.insert(table, session.query_one(&count, &[]).await.unwrap().get(0));
        }
        rows
    }

    fn owns(&self, column: &str) -> String {
        match column {
            "tenant_id" => format!("tenant_id = {}", self.tenant),
            "endpoint_id" => format!("endpoint_id = {}", self.endpoint),
            "event_id" => format!("event_id = '{}'", self.event),
            "replay_id" => format!("replay_id = {}", self.replay),
            _ => {
                let ids = self.deliveries.map(|id| format!("'{id}'")).join(",");
                format!("delivery_id IN ({ids})")
            }
        }
    }

    /// Columns in which the marker is.
    async fn marked(&self, session: &Session) -> Vec<&'static str> {
        let mut marked = Vec::new();
        for body in BODIES {
            let (table, column) = body.split_once('.').unwrap();
            let find = format!(
                "SELECT FROM {table} WHERE tenant_id = {} AND position('{MARKER}'::bytea IN {column}) > 0 LIMIT 1",
                self.tenant
            );
            if !session.query(&find, &[]).await.unwrap().is_empty() {
                marked.push(body);
            }
        }
        marked
    }
}

#[tokio::test]
async fn a_deleted_tenant_has_no_row_in_any_table_but_where_that_is_meant() {
    let database = TestDatabase::new().await;
    let mut session = database.session().await;
    let (gone, stays) = (
        Owned::new(&session, 100).await,
        Owned::new(&session, 200).await,
    );
    let (before, others) = (gone.rows(&session).await, stays.rows(&session).await);
    let unseeded: Vec<_> = before.iter().filter(|(_, rows)| **rows == 0).collect();
    assert!(unseeded.is_empty(), "seed a row in {unseeded:?}");

    let transaction = session.transaction().await.unwrap();
    let whose = (TenantKey(gone.tenant), Uuid::new_v4());
    let begun = removals::begin_tenant(&transaction, whose).await.unwrap();
    assert!(begun.is_some());
    transaction.commit().await.unwrap();
    work_off(&database).await;

    let left: Vec<String> = gone
        .rows(&session)
        .await
        .into_iter()
        .filter_map(|(table, rows)| (rows > 0).then_some(table))
        .collect();
    let mut meant = OUTLIVE.map(|(table, _why)| table);
    meant.sort_unstable();
    assert_eq!(left, meant);
    assert_eq!(stays.rows(&session).await, others);
    let tenants = "SELECT id FROM tenants";
    let tenants = session.query(tenants, &[]).await.unwrap();
    assert_eq!(tenants.len(), 1, "the tenant's own row");
}

#[tokio::test]
async fn every_column_that_can_hold_a_body_is_known() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let columns = session
        .query(
            "SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
             WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
               AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid IN ('text'::regtype, 'bytea'::regtype)",
            &[],
        )
        .await
        .unwrap();
    let mut columns: Vec<String> = columns.iter().map(|row| row.get(0)).collect();
    let mut known: Vec<String> = BODIES
        .into_iter()
        .chain(NO_BODIES)
        .map(str::to_owned)
        .collect();
    columns.sort_unstable();
    known.sort_unstable();

    assert_eq!(columns, known);
}

#[tokio::test]
async fn an_expunged_body_is_in_no_column_of_any_table() {
    for all in [false, true] {
        let database = TestDatabase::new().await;
        let mut session = database.session().await;
        let (gone, stays) = (
            Owned::new(&session, 100).await,
            Owned::new(&session, 200).await,
        );
        assert_eq!(gone.marked(&session).await, BODIES, "seed every column");
        let tenant = TenantKey(gone.tenant);

        let transaction = session.transaction().await.unwrap();
        if all {
            // The end is excluded, and the event is of just now.
            let end = wall_time() + time::Duration::SECOND;
            let whose = (tenant, Uuid::new_v4());
            removals::begin_payloads(&transaction, whose, end)
                .await
                .unwrap();
        } else {
            let begun = removals::begin_payload(&transaction, tenant, gone.event).await;
            assert!(begun.unwrap().is_some());
        }
        transaction.commit().await.unwrap();
        work_off(&database).await;

        assert_eq!(gone.marked(&session).await, [""; 0], "all: {all}");
        assert_eq!(stays.marked(&session).await, BODIES);
        let count = async |from: &str| -> i64 {
            let count = format!(
                "SELECT count(*) FROM {from} AND tenant_id = {}",
                gone.tenant
            );
            session.query_one(&count, &[]).await.unwrap().get(0)
        };
        assert_eq!(count("closed WHERE reason = 7").await, 3, "what waited");
        assert_eq!(count("dead_letters WHERE class = 7").await, 1);
        assert_eq!(count("idempotency_keys WHERE reply = 'other'").await, 1);
        // Nowhere else either.
        let delete = format!("DELETE FROM tenants WHERE id = {}", stays.tenant);
        session.batch_execute(&delete).await.unwrap();
        for body in BODIES {
            let (table, _) = body.split_once('.').unwrap();
            let delete = format!("DELETE FROM {table} WHERE tenant_id = {}", stays.tenant);
            session.batch_execute(&delete).await.unwrap();
        }
        assert_eq!(tables_with(&session, MARKER).await, [""; 0]);
    }
}
