//! F73: no id runs out. F72: what fails a thousand times a second changes its endpoint's rows when its state changes,
//! not with each failure.

use std::time::Duration;

use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::short_or_long;
use crate::world::World;

/// Past what 32 bits hold, in the middle of a run.
const NEARLY: i64 = (1 << 31) - 3;
/// Columns of 32 bits or less that count what people make one by one: companies, tenants, names of types, and replays
/// (ten a second would last for six years).
const BY_HAND: [&str; 4] = [
    "organizations.id",
    "tenants.id",
    "event_types.id",
    "replays.id",
];

/// Sets every number to the last that 32 bits hold, but for those of [`BY_HAND`], and fails if there are others.
async fn nearly_used_up(world: &World) {
    let sql = world.sql().await;
    let numbered = "
      SELECT c.table_name || '.' || c.column_name, c.data_type, pg_get_serial_sequence(c.table_name, c.column_name)
      FROM information_schema.columns c WHERE c.table_schema = 'public'
      AND pg_get_serial_sequence(quote_ident(c.table_name), c.column_name) IS NOT NULL";
    let mut small = Vec::new();
    for row in sql.query(numbered, &[]).await.unwrap() {
        let (column, kind, sequence): (String, String, String) =
            (row.get(0), row.get(1), row.get(2));
        if kind == "bigint" {
            let raise = "SELECT setval($1::text::regclass, $2)";
            sql.execute(raise, &[&sequence, &NEARLY]).await.unwrap();
        } else {
            small.push(column);
        }
    }
    small.sort();
    let mut by_hand = BY_HAND.to_vec();
    by_hand.sort_unstable();
    assert_eq!(small, by_hand, "a number that may run out");
    let loose = "SELECT schemaname || '.' || sequencename FROM pg_sequences WHERE data_type::text <> 'bigint' AND schemaname = 'public'";
    let loose = sql.query(loose, &[]).await.unwrap().len();
    assert_eq!(loose, BY_HAND.len(), "a sequence that may run out");
    let unowned = "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, $1) FROM pg_sequences WHERE data_type::text = 'bigint' AND schemaname = 'public'";
    sql.query(unowned, &[&NEARLY]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_every_number_that_grows_with_traffic_passes_32_bits() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    nearly_used_up(&world).await;

    // Endpoints, lines, commands, replays, the audit log: all of them beyond it.
    let _workers = world.workers(1).await;
    let mut endpoints = Vec::new();
    for number in 0..6 {
        let ordered = json!({ "ordered": number % 2 == 0 });
        endpoints.push(world.endpoint(&format!("grown{number}"), ordered).await);
    }
    assert!(endpoints.last().unwrap().key > i64::from(i32::MAX));
    let mut events = Vec::new();
    for endpoint in endpoints.iter().cycle().take(24) {
        let event = json!({ "type": endpoint.event_type, "payload": 1, "ordering_key": "one" });
        let made = world.ask("POST", "/v1/events", &event).await;
        let id: shared::ids::EventId = made["id"].as_str().unwrap().parse().unwrap();
        events.push(id.0);
    }
    world.finished(&events).await;
    for endpoint in &endpoints {
        let path = format!("/v1/endpoints/{}", endpoint.id);
        world
            .ask("PATCH", &path, &json!({ "description": "changed" }))
            .await;
        world
            .ask("POST", &format!("{path}/disable"), &json!(null))
            .await;
        world
            .ask("POST", &format!("{path}/enable"), &json!(null))
            .await;
        let again = json!({ "since": "2000-01-01T00:00:00Z", "status": ["delivered"] });
        world.ask("POST", &format!("{path}/replay"), &again).await;
    }
    eventually(PATIENCE, || async {
        (world.receiver.count() >= 48).then_some(())
    })
    .await;
    world.finished(&events).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f72_failures_change_no_row_of_their_endpoint_unless_its_state_changes() {
    const CHANGED: &str = "SELECT coalesce(sum(n_tup_upd + n_tup_del + n_tup_ins), 0)::int8 FROM pg_stat_user_tables WHERE relname IN ('endpoints', 'endpoint_runtime', 'tenants')";
    const FAILED: &str = "SELECT count(*) FROM attempts WHERE outcome <> 1";
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let settings = json!({
        "max_attempts": 20, "max_in_flight": 200,
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 1000 },
    });
    let endpoint = world.endpoint("hot", settings).await;
    // Each succeeds in the end, so that the breaker stays closed.
    let script = [Answer::now(500), Answer::now(500), Answer::now(200)];
    world.receiver.answers(&endpoint.path, &script);
    let open = world.sql().await;
    let hold = "SET idle_in_transaction_session_timeout = '20min'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM endpoints";
    open.batch_execute(hold).await.unwrap();
    let before = world.count(CHANGED).await;

    let length = Duration::from_secs(short_or_long(4, 60));
    let began = boot_time();
    let poster = world.post(300, std::slice::from_ref(&endpoint));
    eventually(length * 3, || async {
        (boot_time().since(began) >= length).then_some(())
    })
    .await;
    let posted = poster.stop().await;
    posted.nothing_refused();
    let failures = world.count(FAILED).await;
    let took = boot_time().since(began);
    let reading = boot_time();
    world
        .ask(
            "GET",
            &format!("/v1/endpoints/{}", endpoint.id),
            &json!(null),
        )
        .await;
    let read = boot_time().since(reading);
    // What sessions counted becomes visible when they are idle, or after a second.
    eventually(Duration::from_secs(3), || async {
        (boot_time().since(reading).as_secs() >= 2).then_some(())
    })
    .await;
    let changed = world.count(CHANGED).await - before;
    let rate = failures / i64::try_from(took.as_secs()).unwrap().max(1);
    eprintln!(
        "{failures} failures ({rate}/s), {changed} rows changed; the endpoint was read in {read:?}"
    );
    assert!(failures > 500, "{failures} failures in {took:?}");
    assert!(
        changed <= 4,
        "{changed} rows changed for {failures} failures"
    );
    assert!(read < Duration::from_millis(500), "{read:?}");
    open.batch_execute("COMMIT").await.unwrap();
}
