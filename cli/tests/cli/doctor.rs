//! `postrider doctor` on databases that are not well.

use serde_json::Value;
use shared::store::{Role, Session};
use shared::testing::{TestCluster, TestDatabase};

use crate::running::{Said, postrider, run};

fn doctor(url: &str, more: &[&str]) -> Said {
    let args = [&["doctor", "--output", "json"], more].concat();
    run(postrider(&args).env("DATABASE_URL", url))
}

fn finding(said: &Said, check: &str) -> Value {
    let report = said.json();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["check"] == check);
    found
        .unwrap_or_else(|| panic!("no {check}: {said:#?}"))
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrated_database_lacks_nothing_but_a_worker() {
    let database = TestDatabase::new().await;

    let said = doctor(database.url(), &[]).ended_with(1);

    assert_eq!(said.json()["worst"], "critical");
    // A server of tests is thrown away, and does without what makes it durable.
    assert!(
        said.stderr.contains("not well: durability, slots"),
        "{said:?}"
    );
    let slots = finding(&said, "slots");
    assert_eq!(slots["state"], "critical");
    assert!(
        slots["advice"]
            .as_str()
            .unwrap()
            .contains("postrider worker"),
        "{slots}"
    );
    // Other tests use the same server: what they hold open is not this database's fault.
    for check in [
        "budgets",
        "connection",
        "clock",
        "schema",
        "server_version",
        "partitions",
        "leases",
        "queues",
        "newest_events",
        "oldest_pending",
        "dead_letters",
        "endpoint_budgets",
    ] {
        assert_eq!(finding(&said, check)["state"], "good", "{said:#?}");
    }
    let jobs = finding(&said, "jobs");
    assert_eq!(jobs["state"], "warning");
    for name in worker::JOBS {
        assert!(jobs["found"].as_str().unwrap().contains(name), "{jobs}");
    }

    let text = run(postrider(&["doctor"]).env("DATABASE_URL", database.url())).ended_with(1);
    assert!(text.stdout.contains("CRITICAL  slots "), "{text:?}");
    assert!(text.stdout.contains("→ start a worker"), "{text:?}");
}

/// D8, F88: each row is one that no statement of ours leaves behind, and each is found.
#[tokio::test(flavor = "multi_thread")]
async fn d8_deliveries_that_nobody_would_look_at_again_are_counted() {
    let database = TestDatabase::new().await;
    let sql = database
        .database()
        .connect(Role::Maintenance)
        .await
        .unwrap();
    endpoint_and_event(&sql).await;

    let good = doctor(database.url(), &[]);
    assert_eq!(
        finding(&good, "queues")["found"],
        "each of 1 waiting deliveries has its place"
    );
    assert_eq!(
        finding(&good, "newest_events")["found"],
        "each of the newest 1 deliveries is in one place"
    );

    let row = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
               SELECT 3, 1, e.id, gen_random_uuid(), v.id FROM endpoints e, events v";
    let retry = "INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at)
                 SELECT slot, 1, e.id, gen_random_uuid(), v.id, now() + interval '3 days' FROM endpoints e, events v";
    let bodyless = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
                    SELECT e.slot, 1, e.id, gen_random_uuid(), gen_random_uuid() FROM endpoints e";
    let nobody = "INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id)
                  SELECT 9, 4711, 1, 1, gen_random_uuid(), v.id, 1 FROM events v";
    let parked = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
                  SELECT e.slot - 256, 1, e.id, gen_random_uuid(), v.id FROM endpoints e, events v";
    let old = "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
               SELECT e.slot, 1, e.id, '00000000-0000-7000-8000-000000000001', v.id FROM endpoints e, events v";
    for insert in [row, retry, bodyless, nobody, parked, old] {
        assert_eq!(sql.execute(insert, &[]).await.unwrap(), 1);
    }
    let astray = doctor(database.url(), &[]).ended_with(1);
    let found = finding(&astray, "queues");
    assert_eq!(found["state"], "critical");
    let words = found["found"].as_str().unwrap().to_owned();
    assert!(words.starts_with("of 7 waiting deliveries: "), "{words}");
    for part in [
        "2 of an endpoint that is not there or has another slot",
        "1 without their event",
        "1 due later than any rule allows",
        "1 parked without a pause",
        // Random ids are of any time: those of the other rows may be old as well.
        " older than they may become",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }

    // A pause that could mean it excuses what is parked.
    let pause =
        "INSERT INTO pauses (tenant_id, until, reason) VALUES (1, now() + interval '1 h', 'test')";
    sql.execute(pause, &[]).await.unwrap();
    let paused = doctor(database.url(), &[]).ended_with(1);
    let words = finding(&paused, "queues")["found"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(!words.contains("parked"), "{words}");

    // A disabled endpoint's deliveries are closed within ten minutes.
    sql.execute(
        "UPDATE endpoints SET state = 2, updated_at = now() - interval '11 min'",
        &[],
    )
    .await
    .unwrap();
    let disabled = doctor(database.url(), &[]).ended_with(1);
    let words = finding(&disabled, "queues")["found"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        words.contains("6 of a disabled endpoint and not closed"),
        "{words}"
    );
}

/// D1, D6: a delivery of an event that is nowhere, or in two places.
#[tokio::test(flavor = "multi_thread")]
async fn d1_d6_deliveries_that_are_nowhere_or_twice_are_found() {
    let database = TestDatabase::new().await;
    let sql = database
        .database()
        .connect(Role::Maintenance)
        .await
        .unwrap();
    endpoint_and_event(&sql).await;

    let dead = "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
                SELECT tenant_id, id, endpoint_id, event_id, 5, 1, 0, id FROM ready";
    sql.execute(dead, &[]).await.unwrap();
    let twice = doctor(database.url(), &[]).ended_with(1);
    let found = finding(&twice, "newest_events");
    assert_eq!(
        found["found"],
        "of the newest 1 deliveries 0 are nowhere, 1 in two places"
    );

    sql.batch_execute("DELETE FROM ready; DELETE FROM dead_letters")
        .await
        .unwrap();
    let nowhere = doctor(database.url(), &[]).ended_with(1);
    let found = finding(&nowhere, "newest_events");
    assert_eq!(found["state"], "critical");
    assert_eq!(
        found["found"],
        "of the newest 1 deliveries 1 are nowhere, 0 in two places"
    );

    // What belongs to a deleted endpoint goes with it.
    sql.execute("UPDATE endpoints SET state = 3", &[])
        .await
        .unwrap();
    let deleted = doctor(database.url(), &[]);
    assert_eq!(finding(&deleted, "newest_events")["state"], "good");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_database_that_break_a_promise_are_named() {
    let mut cluster = TestCluster::new().await;
    let url = cluster.url();
    let sql = cluster.database().connect(Role::Maintenance).await.unwrap();
    sql.batch_execute("ALTER SYSTEM SET autovacuum = off")
        .await
        .unwrap();
    sql.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let slow = "INSERT INTO tenants (public_id, name) VALUES (gen_random_uuid(), 't');
                INSERT INTO endpoints (public_id, tenant_id, slot, url, settings)
                VALUES (gen_random_uuid(), 1, 0, 'https://a.example/', '{\"timeout_ms\": 60000}')";
    sql.batch_execute(slow).await.unwrap();
    let said = doctor(&url, &[]).ended_with(1);
    let durability = finding(&said, "durability");
    assert_eq!(durability["state"], "critical", "D2: {said:#?}");
    // Servers of tests do without the first two: they are thrown away.
    assert_eq!(
        durability["found"],
        "fsync = off, full_page_writes = off, autovacuum = off"
    );
    assert_eq!(finding(&said, "endpoint_budgets")["state"], "warning");

    sql.batch_execute("ALTER DATABASE postrider SET default_transaction_read_only = on")
        .await
        .unwrap();
    let said = doctor(&url, &[]).ended_with(1);
    let connection = finding(&said, "connection");
    assert_eq!(connection["state"], "critical", "{said:#?}");

    drop(sql);
    cluster.stop().await.unwrap();
    let said = doctor(&url, &[]).ended_with(1);
    assert_eq!(finding(&said, "connection")["state"], "critical");
    assert!(said.stderr.contains("not well: connection"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_said_and_nothing_else_is_asked() {
    let cluster = TestCluster::new().await;
    let sql = cluster.database().connect(Role::Maintenance).await.unwrap();
    sql.batch_execute("CREATE DATABASE fresh").await.unwrap();
    let url = cluster.url().replacen("/postrider?", "/fresh?", 1);

    let said = doctor(&url, &[]).ended_with(1);

    let schema = finding(&said, "schema");
    assert_eq!(schema["state"], "critical");
    assert!(
        schema["advice"]
            .as_str()
            .unwrap()
            .contains("postrider migrate"),
        "{schema}"
    );
    assert!(!said.stdout.contains("\"slots\""), "{said:?}");
}

#[test]
fn wrong_addresses_and_lengths_are_refused_or_told() {
    let said = run(&mut postrider(&["doctor", "--deadline", "soon"])).ended_with(2);
    assert!(said.stderr.contains("--deadline"), "{said:?}");
    let said = run(&mut postrider(&["doctor"])).ended_with(2);
    assert!(said.stderr.contains("DATABASE_URL"), "{said:?}");
    let url = "postgres://nobody@127.0.0.1:1/none?connect_timeout=1";
    let said = doctor(url, &["--metrics", "127.0.0.1:1"]).ended_with(1);
    assert_eq!(finding(&said, "pool")["state"], "unknown");
}

/// A tenant's enabled endpoint in slot 5, an event of now, and its delivery in the queue.
async fn endpoint_and_event(sql: &Session) {
    let rows = "
        INSERT INTO tenants (public_id, name) VALUES (gen_random_uuid(), 't');
        INSERT INTO event_types (tenant_id, name) VALUES (1, 'a');
        INSERT INTO endpoints (public_id, tenant_id, slot, url) VALUES (gen_random_uuid(), 1, 5, 'https://a.example/');";
    sql.batch_execute(rows).await.unwrap();
    let now = shared::runtime::clock::wall_time();
    let (event, delivery) = (shared::ids::new_v7(now), shared::ids::new_v7(now));
    let made = "WITH v AS (
          INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
          SELECT $1, 1, t.id, '{}', ARRAY[e.id], ARRAY[$2::uuid] FROM event_types t, endpoints e RETURNING id)
        INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
        SELECT 5, 1, e.id, $2, v.id FROM v, endpoints e";
    assert_eq!(sql.execute(made, &[&event, &delivery]).await.unwrap(), 1);
}
