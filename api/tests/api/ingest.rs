//! Publishing: D1, D2, P1, exact fan-out, bad rows, a database that goes away.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use api::Config;
use reqwest::Method;
use serde_json::{Value, json};
use shared::ids::EventId;
use shared::runtime::clock::boot_time;
use shared::store::Role;
use shared::testing::{TestCluster, TestDatabase, eventually};

use crate::app::{PATIENCE, Server, text, world};
use crate::proxy::Proxy;

fn uuid(id: &Value) -> uuid::Uuid {
    text(id).parse::<EventId>().unwrap().0
}

#[tokio::test]
async fn an_event_and_its_deliveries_commit_together_and_are_there_when_202_is_answered() {
    // D1, D2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let wanted = tenant.endpoint(json!({"event_types": ["order.*"]})).await;
    tenant
        .endpoint(json!({"event_types": ["invoice.paid"]}))
        .await;
    let disabled = tenant.endpoint(json!({"enabled": false})).await;

    let accepted = tenant.publishes("order.created", &json!({"n": 1})).await;

    assert_eq!(accepted["delivery_count"], 2);
    assert_eq!(accepted["type"], "order.created");
    let statuses: Vec<_> = accepted["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|delivery| (text(&delivery["endpoint_id"]), text(&delivery["status"])))
        .collect();
    assert!(
        statuses.contains(&(text(&wanted["id"]), "pending".to_owned())),
        "{statuses:?}"
    );
    assert!(
        statuses.contains(&(text(&disabled["id"]), "skipped".to_owned())),
        "{statuses:?}"
    );
    let row = database
        .session()
        .await
        .query_one(
            "SELECT cardinality(fan_delivery), (SELECT count(*) FROM ready r WHERE r.event_id = e.id),
                    (SELECT count(*) FROM closed c WHERE c.event_id = e.id AND c.status = 7 AND c.reason = 1)
             FROM events e WHERE id = $1",
            &[&uuid(&accepted["id"])],
        )
        .await
        .unwrap();
    assert_eq!(
        (
            row.get::<_, i32>(0),
            row.get::<_, i64>(1),
            row.get::<_, i64>(2)
        ),
        (2, 1, 1)
    );
}

#[tokio::test]
async fn a_payload_is_stored_byte_for_byte() {
    // P1
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let payloads = [
        r#"{ "b" : 1,"a":1.0,  "a":2e0, "nul":"\u0000", "lone":"\ud800", "é":"\u00e9" }"#,
        "null",
        "\"text\"",
        "123456789012345678901234567890.000",
        "[ ]",
    ];
    for payload in payloads {
        let body = format!("{{\"type\":\"a.b\",\n \"payload\":  {payload}  }}");

        let accepted = server
            .send(Method::POST, "/v1/events", Some(&tenant.key), body, &[])
            .await
            .expect(202);

        let row = database
            .session()
            .await
            .query_one(
                "SELECT payload FROM events WHERE id = $1",
                &[&uuid(&accepted["id"])],
            )
            .await
            .unwrap();
        assert_eq!(String::from_utf8(row.get(0)).unwrap(), payload);
    }
}

#[tokio::test]
async fn fan_out_is_exact_whichever_process_answers() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    // Both have the tenant's configuration in memory.
    assert_eq!(
        tenant.publishes_through(&one, "a", &json!(1)).await["delivery_count"],
        0
    );
    assert_eq!(
        tenant.publishes_through(&two, "a", &json!(1)).await["delivery_count"],
        0
    );

    for round in 0..10 {
        let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
        for server in [&two, &one] {
            let event = tenant.publishes_through(server, "a", &json!(round)).await;
            assert_eq!(
                event["delivery_count"], 1,
                "created before the POST, so in it"
            );
            assert_eq!(event["deliveries"][0]["endpoint_id"], endpoint);
        }
        let path = format!("/v1/endpoints/{endpoint}");
        one.delete(&path, &tenant.key).await.expect(204);
        for server in [&two, &one] {
            let event = tenant.publishes_through(server, "a", &json!(round)).await;
            assert_eq!(
                event["delivery_count"], 0,
                "deleted before the POST, so not in it"
            );
        }
    }
}

#[tokio::test]
async fn fan_out_is_exact_while_endpoints_change_under_load() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    let made = AtomicUsize::new(0);
    let changes = async {
        for _ in 0..30 {
            tenant.endpoint(json!({})).await;
            made.fetch_add(1, Ordering::SeqCst);
        }
    };
    let posts = async |server: &Server| {
        while made.load(Ordering::SeqCst) < 30 {
            let least = made.load(Ordering::SeqCst);
            let event = tenant.publishes_through(server, "a", &json!(1)).await;
            let most = made.load(Ordering::SeqCst) + 1;
            let count = usize::try_from(event["delivery_count"].as_u64().unwrap()).unwrap();
            assert!((least..=most).contains(&count), "{least} {count} {most}");
        }
    };
    tokio::join!(changes, posts(&one), posts(&two), posts(&one), posts(&two));
}

#[tokio::test]
async fn one_bad_row_never_fails_its_batch() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    // The database refuses one payload, as it would refuse data that our checks missed.
    database
        .session()
        .await
        .batch_execute(
            "ALTER TABLE events ADD CONSTRAINT no_poison CHECK (payload <> '\"poison\"'::bytea)",
        )
        .await
        .unwrap();

    let posts = (0..200).map(|n| {
        let payload = if n % 50 == 7 {
            json!("poison")
        } else {
            json!(n)
        };
        let tenant = &tenant;
        async move {
            let event = json!({"type": "a", "payload": payload});
            (n, tenant.post("/v1/events", &event).await)
        }
    });
    let replies = futures_util::future::join_all(posts).await;

    for (n, reply) in replies {
        if n % 50 == 7 {
            reply.problem(422, "not-storable");
        } else {
            reply.expect(202);
        }
    }
    let row = database
        .session()
        .await
        .query_one(
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM ready)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (196, 196));
}

#[tokio::test]
async fn a_backlog_that_is_full_skips_new_deliveries() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    database
        .session()
        .await
        .batch_execute("UPDATE endpoints SET backlog_full = true; UPDATE tenants SET config_version = config_version + 1")
        .await
        .unwrap();

    let event = tenant.publishes("a", &json!(1)).await;

    assert_eq!(event["deliveries"][0]["status"], "skipped");
    let delivery = tenant
        .get(&format!(
            "/v1/deliveries/{}",
            text(&event["deliveries"][0]["id"])
        ))
        .await
        .expect(200);
    assert_eq!(delivery["close_reason"], "backlog_full");
}

#[tokio::test]
async fn an_event_for_too_many_endpoints_is_refused_and_a_reply_lists_a_hundred_at_most() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let insert = "INSERT INTO endpoints (public_id, tenant_id, slot, url, event_types)
                  SELECT gen_random_uuid(), t.id, n % 256, 'http://127.0.0.1/', ARRAY[$1] FROM tenants t, generate_series(1, $2) n";
    let session = database.session().await;
    session
        .execute(insert, &[&"many", &1_000_i32])
        .await
        .unwrap();
    session
        .execute(insert, &[&"too.many", &1_001_i32])
        .await
        .unwrap();

    let event = tenant.publishes("many", &json!(1)).await;
    let problem = tenant
        .post("/v1/events", &json!({"type": "too.many", "payload": 1}))
        .await
        .problem(422, "limit-reached");

    assert_eq!(event["delivery_count"], 1_000);
    assert_eq!(event["deliveries"].as_array().unwrap().len(), 100);
    assert!(text(&problem["detail"]).contains("1001"));
}

#[tokio::test]
async fn a_full_queue_is_503_with_retry_after_at_once() {
    let mut cluster = TestCluster::new().await;
    let config = Config::for_testing(cluster.database()).with_most_waiting(5);
    let server = Server::start_with(config).await;
    let tenant = server.tenant("acme").await;
    tenant.publishes("a", &json!(1)).await;
    cluster.stop().await.unwrap();
    let event = json!({"type": "a", "payload": 1});

    let answered = AtomicUsize::new(0);
    let posts = futures_util::future::join_all((0..8).map(|_| async {
        let started = boot_time();
        let reply = tenant.post("/v1/events", &event).await;
        answered.fetch_add(1, Ordering::Relaxed);
        (reply, boot_time().since(started))
    }));
    // Nothing is accepted while the database is away: the first three answers are refusals.
    let restart = async {
        eventually(PATIENCE, || async {
            (answered.load(Ordering::Relaxed) >= 3).then_some(())
        })
        .await;
        cluster.start().await.unwrap();
    };
    let (replies, ()) = tokio::join!(posts, restart);

    let (waited, refused): (Vec<_>, Vec<_>) = replies
        .into_iter()
        .partition(|(reply, _)| reply.status == 202);
    assert!(waited.len() <= 5 && !waited.is_empty(), "{}", waited.len());
    assert!(refused.len() >= 3, "{}", refused.len());
    for (reply, took) in refused {
        assert_eq!(reply.header("retry-after"), "1");
        assert!(took < Duration::from_secs(2), "{took:?}");
        reply.problem(503, "overloaded");
    }
}

#[tokio::test]
async fn requests_that_waited_too_long_are_503_with_retry_after() {
    let mut cluster = TestCluster::new().await;
    let config = Config::for_testing(cluster.database()).with_deadline(Duration::from_millis(300));
    let server = Server::start_with(config).await;
    let tenant = server.tenant("acme").await;
    tenant.publishes("a", &json!(1)).await;
    cluster.stop().await.unwrap();

    let reply = tenant
        .post("/v1/events", &json!({"type": "a", "payload": 2}))
        .await;

    assert_eq!(reply.header("retry-after"), "1");
    reply.problem(503, "unavailable");
    cluster.start().await.unwrap();
    server.ready().await;
    tenant.publishes("a", &json!(3)).await;
    let session = cluster.database().connect(Role::Maintenance).await.unwrap();
    let row = session
        .query_one("SELECT count(*) FROM events WHERE payload = '2'", &[])
        .await
        .unwrap();
    assert_eq!(
        row.get::<_, i64>(0),
        0,
        "nobody waited any more, so it was not submitted"
    );
}

#[tokio::test]
async fn five_immediate_restarts_of_the_database_are_no_error_for_anyone() {
    // D2
    let mut cluster = TestCluster::new().await;
    let server = Server::start(cluster.database()).await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let finished = AtomicBool::new(false);
    let restarts = async {
        for _ in 0..5 {
            // Under load for a while between two crashes: by the clock, because that is the load.
            tokio::time::sleep(Duration::from_millis(700)).await;
            cluster.crash_and_restart().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        finished.store(true, Ordering::SeqCst);
    };
    let post = async |n: usize| {
        let mut accepted = Vec::new();
        let mut round = 0;
        while !finished.load(Ordering::SeqCst) {
            let next = tokio::time::sleep(Duration::from_millis(50));
            let event = tenant.publishes("a", &json!([n, round])).await;
            accepted.push(uuid(&event["id"]));
            round += 1;
            next.await;
        }
        accepted
    };

    let (accepted, ()) = tokio::join!(
        // Ten clients, twenty posts a second each.
        futures_util::future::join_all((0..10).map(post)),
        restarts
    );

    let accepted: Vec<_> = accepted.into_iter().flatten().collect();
    assert!(accepted.len() > 200, "{}", accepted.len());
    let session = cluster.database().connect(Role::Maintenance).await.unwrap();
    let row = session
        .query_one(
            "SELECT (SELECT count(*) FROM events WHERE id = ANY($1)), (SELECT count(*) FROM events),
                    (SELECT count(*) FROM ready), (SELECT count(DISTINCT payload) FROM events)",
            &[&accepted],
        )
        .await
        .unwrap();
    let count = i64::try_from(accepted.len()).unwrap();
    assert_eq!(row.get::<_, i64>(0), count, "every 202 is in the database");
    assert_eq!(row.get::<_, i64>(1), count, "and nothing else");
    assert_eq!(row.get::<_, i64>(2), count, "with its delivery");
    assert_eq!(row.get::<_, i64>(3), count, "no event twice");
}

#[tokio::test]
async fn a_writer_that_is_cut_off_makes_no_event_twice_and_loses_none() {
    // D2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    let finished = AtomicBool::new(false);
    let cuts = async {
        let mut cut = 0;
        while cut < 15 {
            // In the middle of a statement, whose outcome the writer then cannot know.
            cut += session
                .execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND state = 'active'
                       AND application_name = 'postrider-api' AND query LIKE '%INSERT INTO events%'",
                    &[],
                )
                .await
                .unwrap();
        }
        finished.store(true, Ordering::SeqCst);
    };
    let post = async |n: usize| {
        let mut accepted = Vec::new();
        while !finished.load(Ordering::SeqCst) {
            let payload = json!([n, accepted.len()]);
            accepted.push(uuid(&tenant.publishes("a", &payload).await["id"]));
        }
        accepted
    };

    let posts = futures_util::future::join_all((0..20).map(post));
    let (accepted, ()) = tokio::join!(posts, cuts);

    let accepted: Vec<_> = accepted.into_iter().flatten().collect();
    let row = session
        .query_one(
            "SELECT (SELECT count(*) FROM events WHERE id = ANY($1)), (SELECT count(*) FROM events),
                    (SELECT count(*) FROM ready), (SELECT count(DISTINCT payload) FROM events)",
            &[&accepted],
        )
        .await
        .unwrap();
    let count = i64::try_from(accepted.len()).unwrap();
    for column in 0..4 {
        assert_eq!(row.get::<_, i64>(column), count, "column {column}");
    }
}

#[tokio::test]
async fn a_lost_acknowledgement_is_asked_for_and_makes_no_second_event() {
    // D2
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let server = Server::start(proxy.database.clone()).await;
    let tenant = server.tenant("acme").await;
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    tenant.endpoint(json!({"enabled": false})).await;
    tenant.publishes("a", &json!("first")).await;
    let mut expected = 1;
    for _ in 0..10 {
        proxy.swallow(1);
        // Until the acknowledgement of one was lost on the way: it may be that of another statement.
        while proxy.left() > 0 {
            let event = tenant.publishes("a", &json!(expected)).await;
            expected += 1;

            assert_eq!(event["delivery_count"], 2);
            let live = event["deliveries"]
                .as_array()
                .unwrap()
                .iter()
                .find(|delivery| delivery["status"] == "pending")
                .unwrap();
            assert_eq!(live["endpoint_id"], endpoint);
            let path = format!("/v1/deliveries/{}", text(&live["id"]));
            assert_eq!(tenant.get(&path).await.expect(200)["event_id"], event["id"]);
        }
    }

    let row = database
        .session()
        .await
        .query_one(
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM ready), (SELECT count(*) FROM closed)",
            &[],
        )
        .await
        .unwrap();
    for column in 0..3 {
        assert_eq!(row.get::<_, i64>(column), expected, "column {column}");
    }
}

#[tokio::test]
async fn hints_name_the_slot_and_endpoint_of_new_deliveries() {
    let (database, server) = world().await;
    let (listening, mut hints) = database
        .database()
        .connect_listening(Role::Worker, 100)
        .await
        .unwrap();
    listening
        .batch_execute("LISTEN postrider_hint")
        .await
        .unwrap();
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let row = database
        .session()
        .await
        .query_one("SELECT slot, id FROM endpoints", &[])
        .await
        .unwrap();
    let expected = format!("{}:{}", row.get::<_, i16>(0), row.get::<_, i64>(1));

    // A hint may be lost, the first one while the hinting task connects: so more than one event.
    let received = tokio::time::timeout(PATIENCE, async {
        loop {
            tokio::select! {
                hint = hints.recv() => return hint.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(200)) => {
                    tenant.publishes("a", &json!(1)).await;
                }
            }
        }
    })
    .await
    .unwrap();

    assert_eq!(received.payload(), expected);
}
