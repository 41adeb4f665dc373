//! The statements behind every list of the API look at a page or a stretch of rows, and by the index that they are meant to.
//!
//! Each is executed as the API's sessions would, by a plan for its values and by one for any values, with statistics of
//! the full tables and with those of empty ones. What counts is what every step of the plan has really read.

use serde_json::Value;
use shared::ids::lower_bound;
use shared::store::{Role, Session, partitions, statements};
use shared::testing::TestDatabase;
use tokio_postgres::SimpleQueryMessage;

use crate::world::now;

/// Rows of one table that a step may read: a stretch (2,000), the row after it, and what a bitmap or a merge takes in advance.
const MOST_READ: u64 = 2_100;
/// Rows that are sorted: a stretch of each of six tables.
const MOST_SORTED: u64 = 12_100;
/// Events that are looked up for their type: those of a shorter stretch of each of six tables.
const MOST_PROBED: u64 = 6 * 801;
/// Across tenants a day is looked at as a whole: what is not a list's own is passed over in it.
const MOST_OF_DAY: u64 = 20_000;
/// Tables that only grow, or grow with the traffic.
const GROWING: &[&str] = &[
    "events",
    "ready",
    "ready_ordered",
    "retry",
    "dead_letters",
    "closed",
    "attempts",
    "audit_log",
    "replays",
    "removals",
    "event_types",
    "tenants",
    "organizations",
    "endpoints",
    "api_keys",
];

/// Tenant 1 has 20,000 deliveries of each kind to its endpoint 1, the busy one, and three to its endpoint 2.
const FILL: &str = "
INSERT INTO organizations (public_id, name) SELECT load(1, n), 'o' FROM generate_series(1, 5000) n;
INSERT INTO tenants (public_id, organization_id, external_id, name)
SELECT load(2, n), CASE WHEN n < 20 THEN 1 END, 'n' || n, 'n' FROM generate_series(1, 5000) n;
INSERT INTO endpoints (public_id, tenant_id, slot, url) SELECT load(3, n), 1 + n % 500, n % 256, 'http://127.0.0.1/' FROM generate_series(1, 5000) n;
INSERT INTO endpoints (public_id, tenant_id, slot, url) VALUES (load(3, 0), 1, 1, 'http://127.0.0.1/'), (load(3, 10000), 1, 2, 'http://127.0.0.1/');
INSERT INTO event_types (tenant_id, name, declared_at)
SELECT 1 + n % 5, 'n' || n, CASE WHEN n % 3 = 0 THEN now() END FROM generate_series(1, 5000) n;
INSERT INTO events (id, tenant_id, type_id, payload, external_id, fan_endpoint, fan_delivery)
SELECT load(0, n), 1, CASE WHEN n = 10 THEN 5 ELSE 10 END, '1', CASE WHEN n % 500 = 0 THEN 'x' END, ARRAY[{busy}], ARRAY[load(1, n)]
FROM generate_series(1, 20000) n;
INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, status, final_status, applied)
SELECT 1, load(1, n), 1, 1, now() - interval '2 s', CASE WHEN n IN (5, 10000, 15000) THEN {quiet} ELSE {busy} END, load(0, n), 1, 1, 1, 200::int2,
       CASE WHEN n < 12000 THEN 3 END, true FROM generate_series(1, 20000) n;
INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id) SELECT 1, 1, {busy}, load(2, n), load(0, n) FROM generate_series(1, 20000) n;
INSERT INTO ready_ordered (slot, tenant_id, endpoint_id, id, event_id, order_key, order_seq)
SELECT 1, 1, {busy}, load(3, n), load(0, n), n % 50, n FROM generate_series(1, 20000) n;
INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at)
SELECT 1, 1, {busy}, load(4, n), load(0, n), now() FROM generate_series(1, 20000) n;
INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, replayed_as)
SELECT 1, load(5, n), {busy}, load(0, n), 1, 1, 0, load(5, n), CASE WHEN n % 2 = 0 THEN load(5, n) END FROM generate_series(1, 20000) n;
INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
SELECT 1, load(6, n), {busy}, load(0, n), CASE WHEN n = 10 THEN 6 ELSE 7 END, 2 FROM generate_series(1, 20000) n;
INSERT INTO audit_log (id, tenant_id, organization_id, actor, action, object_type, object_id, changed)
SELECT load(7, n), 1 + n % 50, 1 + n % 25, 2, CASE WHEN n = 10 THEN 'rare' ELSE 'common' END, 'endpoint', load(3, n % 1000), '{}' FROM generate_series(1, 20000) n;
INSERT INTO replays (public_id, tenant_id, statuses, missing, fingerprint, per_second, status)
SELECT load(8, n), 1 + n % 50, '{5}', false, '', 1, 2 FROM generate_series(1, 5000) n;
INSERT INTO removals (public_id, kind, tenant_id, object_id) SELECT load(9, n), 4, 1, load(0, n) FROM generate_series(1, 5000) n;
INSERT INTO api_keys (public_id, tenant_id, organization_id, hash, hint, name, scopes)
SELECT load(10, n), CASE WHEN n % 2 = 0 THEN 1 + n % 100 END, CASE WHEN n % 2 = 1 THEN n % 100 END, decode(md5('k' || n), 'hex'), 'k', 'k', '{read}' FROM generate_series(1, 5000) n;
INSERT INTO workers (id, expires_at, in_flight) SELECT load(11, 1), now() + interval '1 h', ARRAY(SELECT id FROM ready ORDER BY id DESC LIMIT 500)";

const BUSY: &str = "5001";
const QUIET: &str = "5002";

/// A statement, its values, and the indexes of growing tables that it has to use.
type Case = (&'static str, &'static str, &'static [&'static str]);

/// Modules whose statements are executed in a snapshot.
const IN_A_SNAPSHOT: &[&str] = &[
    "deliveries.",
    "organization_lists.",
    "dead_letters.analysis",
];

/// `{lo}`, `{mid}` and `{hi}` are ids before, amid and after all others.
const CASES: &[Case] = &[
    ("events.page", "1, {lo}, {hi}, 51", &["events_pkey"]),
    ("events.page", "1, {lo}, {mid}, 51", &["events_pkey"]),
    (
        "events.page_of_type",
        "1, {lo}, {hi}, 51, 'n10'",
        &["events_type"],
    ),
    (
        "events.page_of_type",
        "1, {lo}, {hi}, 51, 'n5'",
        &["events_type"],
    ),
    (
        "events.page_of_external_id",
        "1, {lo}, {hi}, 51, 'x', NULL",
        &["events_external"],
    ),
    (
        "events.page_of_external_id",
        "1, {lo}, {hi}, 51, 'x', 'n5'",
        &["events_external"],
    ),
    (
        "events.deliveries",
        "1, load(0, 7), {hi}, 51",
        &["events_pkey"],
    ),
    ("events.payload", "1, load(0, 7)", &["events_pkey"]),
    (
        "deliveries.floor",
        "1, {lo}, {hi}, 2000, NULL, '-infinity'",
        &[
            "ready_by_id",
            "ready_ordered_by_id",
            "retry_by_id",
            "dead_letters_pkey",
            "closed_pkey",
            "attempts_pkey",
        ],
    ),
    (
        "deliveries.floor",
        "1, {lo}, {mid}, 2000, 3::int2, '-infinity'",
        &["attempts_pkey"],
    ),
    (
        "deliveries.page",
        "1, {floor}, {hi}, 51, NULL, NULL, 51, '-infinity'",
        &[
            "ready_by_id",
            "ready_ordered_by_id",
            "retry_by_id",
            "dead_letters_pkey",
            "closed_pkey",
            "attempts_pkey",
        ],
    ),
    (
        "deliveries.page",
        "1, {floor}, {hi}, 51, NULL, 3::int2, 51, '-infinity'",
        &["attempts_pkey"],
    ),
    (
        "deliveries.page",
        "1, {floor}, {hi}, 51, NULL, 6::int2, 51, '-infinity'",
        &["closed_pkey"],
    ),
    (
        "deliveries.page",
        "1, {floor}, {hi}, 51, 'n5', NULL, 801, '-infinity'",
        &["attempts_pkey", "events_pkey"],
    ),
    (
        "deliveries.page_in_flight",
        "1, {lo}, {hi}, 51, NULL, NULL",
        &["ready_by_id"],
    ),
    (
        "deliveries.page_in_flight",
        "1, {lo}, {hi}, 51, 'n5', {busy}",
        &["ready_by_id"],
    ),
    (
        "deliveries.days",
        "{busy}, 300, 51, '-infinity', now()",
        &["attempts_endpoint"],
    ),
    (
        "deliveries.days",
        "{quiet}, 300, 51, '-infinity', now()",
        &["attempts_endpoint"],
    ),
    (
        "deliveries.floor_of_endpoint",
        "1, {lo}, {hi}, 2000, NULL, {busy}, ARRAY[date_trunc('day', now())], ARRAY[{hi}::uuid]",
        &[
            "ready_pkey",
            "ready_ordered_by_id",
            "retry_by_id",
            "dead_letters_endpoint",
            "closed_endpoint",
            "attempts_pkey",
        ],
    ),
    (
        "deliveries.floor_of_endpoint",
        "1, {lo}, {hi}, 2000, NULL, {quiet}, ARRAY[]::timestamptz[], ARRAY[]::uuid[]",
        &["ready_pkey", "retry_pkey"],
    ),
    (
        "deliveries.page_of_endpoint",
        "1, {floor}, {hi}, 51, NULL, {busy}, NULL, 51, ARRAY[]::timestamptz[], ARRAY[date_trunc('day', now())], ARRAY[{hi}::uuid]",
        &[
            "ready_pkey",
            "ready_ordered_by_id",
            "retry_by_id",
            "dead_letters_endpoint",
            "closed_endpoint",
            "attempts_pkey",
        ],
    ),
    (
        "deliveries.page_of_endpoint",
        "1, {floor}, {hi}, 51, NULL, {busy}, 3::int2, 51, ARRAY[]::timestamptz[], ARRAY[date_trunc('day', now())], ARRAY[{hi}::uuid]",
        &["attempts_pkey"],
    ),
    (
        "deliveries.page_of_endpoint",
        "1, {lo}, {hi}, 51, NULL, {quiet}, NULL, 51, ARRAY[date_trunc('day', now())], ARRAY[]::timestamptz[], ARRAY[]::uuid[]",
        &["retry_pkey", "ready_ordered_pkey", "attempts_endpoint"],
    ),
    (
        "deliveries.by_ids",
        "ARRAY[1, 1, 1], ARRAY[load(1, 100), load(2, 100), load(5, 100)], ARRAY[now() - interval '1 h', now() - interval '1 h', now() - interval '1 h']",
        &[
            "ready_by_id",
            "retry_by_id",
            "dead_letters_pkey",
            "closed_pkey",
            "attempts_pkey",
        ],
    ),
    (
        "attempts.list",
        "1, load(1, 100), now() - interval '1 h', 32767::int2, 9223372036854775807, 51",
        &["attempts_pkey"],
    ),
    (
        "dead_letters.page",
        "1, {lo}, {hi}, 2000, 51, NULL, NULL",
        &["dead_letters_pkey"],
    ),
    (
        "dead_letters.page",
        "1, {lo}, {hi}, 2000, 51, 1::int2, 'n5'",
        &["dead_letters_pkey", "events_pkey"],
    ),
    (
        "dead_letters.page_of_endpoint",
        "1, {lo}, {hi}, 2000, 51, NULL, NULL, {busy}",
        &["dead_letters_endpoint"],
    ),
    (
        "dead_letters.page_of_endpoint",
        "1, {lo}, {hi}, 2000, 51, NULL, NULL, {quiet}",
        &["dead_letters_endpoint"],
    ),
    (
        "dead_letters.analysis",
        "1, now() - interval '1 day', 100, 1000, 900, '{401}'",
        &["dead_letters_open"],
    ),
    ("endpoints.list", "1, NULL, 51", &["endpoints_tenant"]),
    (
        "endpoints.list",
        "1, load(3, 100), 51",
        &["endpoints_tenant"],
    ),
    (
        "event_types.page",
        "1, 2000000000, 300, 51",
        &["event_types_tenant_id_name_key", "events_type"],
    ),
    ("replays.list", "1, {hi}, 51", &["replays_tenant"]),
    ("replays.list", "1, load(8, 100), 51", &["replays_tenant"]),
    ("removals.list", "NULL, 51", &["removals_pkey"]),
    ("removals.list", "load(9, 2500), 51", &["removals_pkey"]),
    (
        "audit_log.page_of_tenant",
        "1, {lo}, {hi}, 51, NULL, NULL, 2001",
        &["audit_log_tenant"],
    ),
    (
        "audit_log.page_of_tenant",
        "1, load(7, 18000), {hi}, 51, 'rare', NULL, 2001",
        &["audit_log_tenant"],
    ),
    (
        "audit_log.floor_of_tenant",
        "1, {hi}, 2000",
        &["audit_log_tenant"],
    ),
    (
        "audit_log.page_of_organization",
        "1, {lo}, {hi}, 51, NULL, NULL, 2001",
        &["audit_log_organization"],
    ),
    (
        "audit_log.floor_of_organization",
        "1, {hi}, 2000",
        &["audit_log_organization"],
    ),
    (
        "audit_log.page_of_all",
        "{lo}, {hi}, 51, NULL, NULL",
        &["audit_log_pkey"],
    ),
    ("audit_log.floor_of_all", "{hi}, 2000", &["audit_log_pkey"]),
    ("keys.list_of_tenant", "1, NULL, 51", &["api_keys_tenant"]),
    (
        "keys.list_of_organization",
        "1, {hi}, 51",
        &["api_keys_organization"],
    ),
    ("tenants.list", "NULL, 51", &["tenants_public_id_key"]),
    ("tenants.list_of_organization", "1, NULL, 51", &[]),
    (
        "tenants.list_organizations",
        "NULL, 51",
        &["organizations_public_id_key"],
    ),
    (
        "organization_lists.endpoints",
        "1, NULL, 51",
        &["endpoints_tenant"],
    ),
    (
        "organization_lists.events",
        "1, {lo}, {hi}, 51",
        &["events_pkey"],
    ),
    (
        "organization_lists.events_of_type",
        "1, {lo}, {hi}, 51, 'n5'",
        &["events_type"],
    ),
    (
        "organization_lists.deliveries",
        "1, {lo}, {hi}, 51, NULL, '-infinity'",
        &[
            "ready_by_id",
            "retry_by_id",
            "dead_letters_pkey",
            "closed_pkey",
            "attempts_pkey",
        ],
    ),
    (
        "organization_lists.deliveries_in_flight",
        "1, {lo}, {hi}, 51",
        &["ready_by_id"],
    ),
];

/// What a step of a plan did.
#[derive(Debug)]
struct Step {
    kind: String,
    table: Option<String>,
    index: Option<String>,
    /// Rows that it read to give what it gave.
    read: u64,
}

async fn session() -> (TestDatabase, Session) {
    let test = TestDatabase::new().await;
    let at = now(&test.session().await).await;
    partitions::ensure(&*test.session().await, at, 1)
        .await
        .unwrap();
    let session = test.database().connect(Role::Api).await.unwrap();
    // Ids in the order of n, made a second ago; their kind comes last.
    let first = lower_bound(at - time::Duration::minutes(1)).as_u128() >> 80;
    session
        .batch_execute(&format!(
            "CREATE FUNCTION load(kind int, n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS
             $$ SELECT (lpad(to_hex({first} + n), 12, '0') || '70008000' || lpad(to_hex(kind), 12, '0'))::uuid $$;
             SET statement_timeout = '5min'"
        ))
        .await
        .unwrap();
    (test, session)
}

fn filled_in(sql: &str) -> String {
    sql.replace("{busy}", BUSY)
        .replace("{quiet}", QUIET)
        .replace("{lo}", "'00000000-0000-0000-0000-000000000000'")
        .replace("{floor}", "load(0, 18000)")
        .replace("{mid}", "load(0, 10000)")
        .replace("{hi}", "'ffffffff-ffff-ffff-ffff-ffffffffffff'")
}

/// What the plan of a statement did with these values.
async fn steps(session: &Session, (name, values, _): Case) -> Vec<Step> {
    let (_, sql) = statements().find(|(known, _)| *known == name).unwrap();
    session
        .batch_execute(&format!("PREPARE list AS {sql}"))
        .await
        .unwrap();
    let values = filled_in(values);
    let explain = format!("EXPLAIN (ANALYZE, TIMING off, FORMAT json) EXECUTE list({values})");
    let lines = session
        .simple_query(&explain)
        .await
        .unwrap_or_else(|error| panic!("{name}({values}): {error:?}"));
    session.batch_execute("DEALLOCATE list").await.unwrap();
    let text = |line: &SimpleQueryMessage| {
        let SimpleQueryMessage::Row(row) = line else {
            return None;
        };
        row.get(0).map(str::to_owned)
    };
    let json: String = lines.iter().filter_map(text).collect();
    let plan: Value = serde_json::from_str(&json).unwrap();
    let mut steps = Vec::new();
    walk(plan.pointer("/0/Plan").unwrap(), &mut steps);
    steps
}

fn walk(plan: &Value, steps: &mut Vec<Step>) {
    let text = |name: &str| plan[name].as_str().map(str::to_owned);
    let count = |name: &str| plan[name].as_u64().unwrap_or(0);
    let below = plan["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    let kind = text("Node Type").unwrap_or_default();
    // A sort gives fewer rows than it takes where a limit follows.
    let given = match (kind.as_str(), below.first()) {
        ("Sort", Some(input)) => input["Actual Rows"].as_u64().unwrap_or(0),
        _ => count("Actual Rows"),
    };
    let removed = count("Rows Removed by Filter") + count("Rows Removed by Index Recheck");
    let loops = count("Actual Loops");
    if loops > 0 {
        steps.push(Step {
            table: text("Relation Name"),
            index: text("Index Name"),
            read: (given + removed) * loops,
            kind,
        });
    }
    for step in below {
        walk(step, steps);
    }
}

/// What is wrong with how a case was answered.
async fn faults(session: &Session, case: Case) -> Vec<String> {
    const PARENTS: &str = "
        SELECT c.relname::text, p.relname::text FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent";
    let (name, values, indexes) = case;
    let steps = steps(session, case).await;
    let parents = session.query(PARENTS, &[]).await.unwrap();
    let parent = |child: &str| {
        let row = parents.iter().find(|row| row.get::<_, &str>(0) == child);
        row.map_or(child.to_owned(), |row| row.get(1))
    };
    let mut faults = Vec::new();
    for step in &steps {
        let table = step.table.as_deref().map(parent);
        let grows = table.as_deref().is_some_and(|it| GROWING.contains(&it));
        let most = match step.kind.as_str() {
            "Sort" => MOST_SORTED,
            _ if name == "organization_lists.deliveries" => MOST_OF_DAY,
            "Bitmap Index Scan" => MOST_READ,
            _ if name == "deliveries.page" && table.as_deref() == Some("events") => MOST_PROBED,
            _ if grows => MOST_READ,
            _ => u64::MAX,
        };
        if grows && step.kind == "Seq Scan" || step.read > most {
            faults.push(format!("{name}({values}): {step:?}"));
        }
    }
    for index in indexes {
        let mut used = steps.iter().filter_map(|step| step.index.as_deref());
        if !used.any(|it| parent(it) == *index) {
            faults.push(format!("{name}({values}): no {index}"));
        }
    }
    faults
}

#[tokio::test]
async fn every_list_reads_a_page_or_a_stretch_by_its_indexes() {
    let mut all = Vec::new();
    for analysed in ["when full", "when empty"] {
        let (test, session) = session().await;
        let maintenance = test.session().await;
        let fill = filled_in(FILL);
        let steps = match analysed {
            "when full" => [&*fill, "VACUUM ANALYZE"],
            _ => ["VACUUM ANALYZE", &*fill],
        };
        for step in steps {
            maintenance.batch_execute(step).await.unwrap();
        }
        for mode in ["force_custom_plan", "force_generic_plan"] {
            for case in CASES {
                // As `snapshot` does.
                let sorts = if IN_A_SNAPSHOT.iter().any(|it| case.0.starts_with(it)) {
                    "off"
                } else {
                    "on"
                };
                let set = format!("SET plan_cache_mode = {mode}; SET enable_sort = {sorts}");
                session.batch_execute(&set).await.unwrap();
                let faults = faults(&session, *case).await;
                all.extend(
                    faults
                        .iter()
                        .map(|it| format!("{mode}, analysed {analysed}: {it}")),
                );
            }
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn every_statement_of_a_list_is_among_those_that_are_checked() {
    let of_a_list = |name: &str| {
        let (module, statement) = name.split_once('.').unwrap_or_default();
        let a_list = ["page", "list", "floor", "days"]
            .iter()
            .any(|it| statement.starts_with(it));
        a_list && !["partitions", "pauses"].contains(&module) || module == "organization_lists"
    };
    for (name, _) in statements().filter(|(name, _)| of_a_list(name)) {
        assert!(
            CASES.iter().any(|(known, ..)| *known == name),
            "{name} has no case"
        );
    }
}
