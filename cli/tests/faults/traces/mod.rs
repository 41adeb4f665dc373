//! Traces from the publisher's request to the receiver's, by a collector that decodes what it is sent; that nothing
//! is traced unless somebody asks; and that a collector which is away or silent costs spans and nothing else.

mod collector;

use std::net::TcpListener;
use std::time::Duration;

use load_tests::client::request_with;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rustix::process::Signal;
use serde_json::{Value, json};
use shared::domain::trace::TraceContext;
use shared::ids::EventId;
use shared::runtime::budgets::TRACES_FLUSH;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use self::collector::{Collector, Seen};
use crate::endpoint::Endpoint;
use crate::process::{PATIENCE, read};
use crate::receiver::Answer;
use crate::world::{Setting, World};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
/// What a process may take to end beside what it waits for: the machine is shared.
const ENDING: Duration = Duration::from_secs(8);

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn traced(url: String) -> [Setting; 1] {
    [("POSTRIDER_OTLP_ENDPOINT", url)]
}

/// Publishes with these headers; the reply.
async fn publish(world: &World, endpoint: &Endpoint, headers: &[(&str, &str)]) -> Value {
    let body = json!({ "type": endpoint.event_type, "payload": { "name": "a-persons-name" } });
    let to = ("POST", "/v1/events");
    let request = request_with(to, Some(&world.key), headers, body.to_string().as_bytes());
    let (status, reply) = world.exchange(&request).await;
    assert_eq!(status, 202, "{reply}");
    serde_json::from_str(&reply).unwrap()
}

/// The `traceparent`s of the requests of a path, once there are so many requests.
async fn sent_to(world: &World, path: &str, count: usize) -> Vec<Option<TraceContext>> {
    let arrivals = eventually(PATIENCE, || async {
        let arrivals = world.receiver.at(path);
        (arrivals.len() >= count).then_some(arrivals)
    });
    let headers = arrivals.await.into_iter();
    let headers = headers.map(|it| it.request.header("traceparent"));
    headers
        .map(|header| header.map(|text| TraceContext::parse(text.as_bytes()).unwrap()))
        .collect()
}

/// The spans of a trace, once there are so many: those of publishing, and those of attempts.
async fn spans(collector: &Collector, trace: &str, count: usize) -> (Vec<Seen>, Vec<Seen>) {
    let spans = eventually(PATIENCE, || async {
        let spans = collector.of(trace);
        (spans.len() >= count).then_some(spans)
    })
    .await;
    assert_eq!(spans.len(), count, "{spans:#?}");
    spans.into_iter().partition(|span| span.name == "publish")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn s2_a_trace_goes_from_the_publisher_to_the_receivers_that_ask_for_it() {
    let database = TestDatabase::new().await;
    let collector = Collector::start().await;
    let all = traced(collector.url());
    let world = World::start_with(database.url(), database.database(), &all, &[]).await;
    let secret = json!({ "X-Shop": "a-header-of-the-tenant" });
    let asking = json!({ "trace_context": true, "max_attempts": 1, "headers": secret });
    let asking = world.endpoint("asking", asking).await;
    let plain = world.endpoint("plain", json!({})).await;
    let refused = Answer::now(422).body(*b"the-receivers-words");
    world.receiver.answers(&asking.path, &[refused]);
    let mut worker = world.worker().await;

    let given = traceparent("01");
    let headers = [("traceparent", given.as_str()), ("tracestate", "shop=1")];
    let event = publish(&world, &asking, &headers).await;
    let (published, attempts) = spans(&collector, TRACE, 2).await;
    let [published, attempt] = [&published[0], &attempts[0]];

    assert_eq!(published.service, "postrider-api");
    assert_eq!(published.parent, PARENT);
    assert_eq!(published.kind, i32::from(SpanKind::Server));
    assert_eq!(published.attributes, json!({ "event.id": event["id"] }));
    assert!(!published.failed);
    assert_eq!(attempt.service, "postrider-worker");
    assert_eq!(
        (attempt.name.as_str(), &attempt.parent),
        ("attempt", &published.id)
    );
    assert_eq!(attempt.kind, i32::from(SpanKind::Client));
    assert!(attempt.failed);
    let delivery = &event["deliveries"][0]["id"];
    for (name, value) in [
        ("delivery.id", delivery.clone()),
        ("event.id", event["id"].clone()),
        ("endpoint.id", json!(asking.id)),
        ("attempt.number", json!(1)),
        ("outcome", json!("permanent")),
        ("http.response.status_code", json!(422)),
    ] {
        assert_eq!(attempt.attributes[name], value, "{name}");
    }
    assert!(
        attempt.attributes["timings_us.first_byte"]
            .as_i64()
            .unwrap()
            > 0
    );
    let sql = world.sql().await;
    let recorded = "SELECT started_at, total_ms FROM attempts";
    let recorded = eventually(PATIENCE, || async {
        sql.query_opt(recorded, &[]).await.unwrap()
    });
    let recorded = recorded.await;
    let started: time::OffsetDateTime = recorded.get(0);
    // PostgreSQL keeps microseconds.
    let micros = |nanos: u64| i128::from(nanos / 1_000);
    assert_eq!(
        micros(attempt.started),
        started.unix_timestamp_nanos() / 1_000
    );
    let took = (attempt.ended - attempt.started) / 1_000_000;
    assert_eq!(
        i64::try_from(took).unwrap(),
        i64::from(recorded.get::<_, i32>(1))
    );
    assert!(published.started < published.ended && published.started < attempt.started);

    let header = sent_to(&world, &asking.path, 1).await[0].unwrap();
    assert_eq!(header.to_string(), format!("00-{TRACE}-{}-01", attempt.id));
    let request = world.receiver.at(&asking.path)[0].request.clone();
    assert_eq!(request.header("tracestate"), None);

    // An endpoint that does not ask is traced and is told nothing.
    publish(&world, &plain, &headers).await;
    let (_, attempts) = spans(&collector, TRACE, 4).await;
    let delivered = attempts.iter().find(|it| !it.failed).unwrap();
    assert_eq!(delivered.attributes["outcome"], "delivered");
    assert_eq!(sent_to(&world, &plain.path, 1).await, [None]);

    // Two events of one request: one span of publishing, of which both attempts are children.
    let one = json!({ "type": plain.event_type, "payload": 1 });
    let batch = json!({ "events": [one, one, { "type": "no type!", "payload": 1 }] }).to_string();
    let other = given.replace(TRACE, &"c".repeat(32));
    let headers = [("traceparent", other.as_str())];
    let to = ("POST", "/v1/events/batch");
    let request = request_with(to, Some(&world.key), &headers, batch.as_bytes());
    assert_eq!(world.exchange(&request).await.0, 200);
    let (published, attempts) = spans(&collector, &"c".repeat(32), 3).await;
    assert_eq!(published[0].attributes, json!({ "event.count": 2 }));
    assert!(
        attempts.iter().all(|it| it.parent == published[0].id),
        "{attempts:?}"
    );

    // A publisher that does not record decides for all that follows.
    let unsampled = given.replace(TRACE, &"d".repeat(32)).replace("-01", "-00");
    publish(&world, &asking, &[("traceparent", &unsampled)]).await;
    let header = sent_to(&world, &asking.path, 2).await[1].unwrap();
    assert_eq!(
        (header.trace.to_string(), header.is_sampled()),
        ("d".repeat(32), false)
    );

    // Nobody began a trace: one of ours.
    let before = collector.spans().len();
    publish(&world, &asking, &[]).await;
    let header = sent_to(&world, &asking.path, 3).await[2].unwrap();
    let (published, attempts) = spans(&collector, &header.trace.to_string(), 2).await;
    assert_eq!(
        (published[0].parent.as_str(), &attempts[0].parent),
        ("", &published[0].id)
    );
    assert_eq!(header.span.to_string(), attempts[0].id);
    assert_eq!(collector.spans().len(), before + 2);
    assert!(collector.of(&"d".repeat(32)).is_empty());

    // What has not been sent when a process is told to end is sent.
    let last = given.replace(TRACE, &"e".repeat(32));
    publish(&world, &plain, &[("traceparent", &last)]).await;
    sent_to(&world, &plain.path, 4).await;
    worker.process.signal(Signal::TERM);
    assert!(worker.process.ends().await.success());
    world.api_process.signal(Signal::TERM);
    spans(&collector, &"e".repeat(32), 2).await;
    for kept in [
        "a-persons-name",
        "a-header-of-the-tenant",
        "the-receivers-words",
        "shop=1",
    ] {
        assert!(!collector.holds(kept), "{kept}");
    }
    assert!(!collector.holds(&world.key) && !collector.holds(&world.receiver.url("")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_traced_by_default_and_a_publishers_trace_is_carried_on() {
    let database = TestDatabase::new().await;
    let all = [("RUST_LOG", "debug".to_owned())];
    let world = World::start_with(database.url(), database.database(), &all, &[]).await;
    let asking = world
        .endpoint("asking", json!({ "trace_context": true }))
        .await;
    let plain = world.endpoint("plain", json!({})).await;
    let worker = world.worker().await;
    let given = traceparent("01");
    let context = TraceContext::parse(given.as_bytes()).unwrap();

    world
        .receiver
        .answers(&asking.path, &[Answer::now(500), Answer::now(200)]);
    let event = publish(&world, &asking, &[("traceparent", &given)]).await;
    eventually(PATIENCE, || async {
        (world.count("SELECT count(*) FROM retry").await == 1).then_some(())
    })
    .await;
    let deliveries = format!(
        "/v1/deliveries/{}/retry",
        event["deliveries"][0]["id"].as_str().unwrap()
    );
    world.ask("POST", &deliveries, &Value::Null).await;
    let headers = sent_to(&world, &asking.path, 2).await;
    let [first, second] = [headers[0].unwrap(), headers[1].unwrap()];
    assert_eq!((first.trace, second.trace), (context.trace, context.trace));
    assert!(first.is_sampled() && second.is_sampled());
    assert!(first.span != context.span && second.span != context.span);
    assert_ne!(first.span, second.span, "each attempt is a span of its own");

    publish(&world, &plain, &[("traceparent", &given)]).await;
    assert_eq!(sent_to(&world, &plain.path, 1).await, [None]);
    for wrong in [
        None,
        Some(given.replace("00-", "ff-")),
        Some(given.to_uppercase()),
    ] {
        let headers = wrong.as_deref().map(|text| ("traceparent", text));
        let before = world.receiver.count_at(&asking.path);
        world.receiver.answers(&asking.path, &[Answer::now(200)]);
        let event = publish(&world, &asking, headers.as_slice()).await;
        let headers = sent_to(&world, &asking.path, before + 1).await;
        assert_eq!(headers[before], None, "{wrong:?}");
        let id: EventId = event["id"].as_str().unwrap().parse().unwrap();
        let stored = format!("events WHERE id = '{}' AND trace_context IS NULL", id.0);
        assert_eq!(
            world.count(&format!("SELECT count(*) FROM {stored}")).await,
            1
        );
    }

    let line = |log: String, message: &str| {
        let mut lines = log.lines().filter_map(read).collect::<Vec<_>>().into_iter();
        lines.find(|line| line["message"] == message && line["event.id"] == event["id"])
    };
    let accepted = line(world.api_process.log(), "an event was accepted");
    assert_eq!(accepted.unwrap()["trace.id"], TRACE);
    for message in ["an attempt failed", "an attempt succeeded"] {
        let said = eventually(PATIENCE, || async { line(worker.process.log(), message) }).await;
        assert_eq!(said["trace.id"], TRACE, "{message}");
    }
}

/// F86: deliveries go on, and a process ends as it should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_or_silent_holds_up_nothing() {
    let database = TestDatabase::new().await;
    let away = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let nowhere = format!("http://{}", away.local_addr().unwrap());
    drop(away);
    let silent = Collector::silent().await;
    let all = traced(nowhere);
    let mut world = World::start_with(database.url(), database.database(), &all, &[]).await;
    let endpoint = world.endpoint("plain", json!({})).await;
    let mut worker = world.worker_with(&traced(silent.url())).await;
    for _ in 0..20 {
        publish(&world, &endpoint, &[]).await;
    }
    world.finished(&[]).await;
    assert_eq!(world.receiver.count_at(&endpoint.path), 20);
    let unreachable = "the trace collector does not take spans; they are lost until it does";
    world.api_process.logs(unreachable, 1).await;
    eventually(PATIENCE, || async {
        (silent.connections() > 0).then_some(())
    })
    .await;

    let told = boot_time();
    worker.process.signal(Signal::TERM);
    worker
        .process
        .logs("there was no time to send the last spans", 1)
        .await;
    assert!(worker.process.ends().await.success());
    let took = boot_time().since(told);
    assert!(
        took >= TRACES_FLUSH && took < TRACES_FLUSH + ENDING,
        "{took:?}"
    );

    let told = boot_time();
    world.api_process.signal(Signal::TERM);
    assert!(world.api_process.ends().await.success());
    let took = boot_time().since(told);
    assert!(took < ENDING, "{took:?}");
}
