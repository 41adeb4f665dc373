//! What `/metrics` of a real API and real workers shows: contract §7 and docs/metrics.md, in both directions; and that
//! one worker alone shows what is true of the installation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use load_tests::client::{Connection, ask, request};
use rustix::process::Signal;
use serde_json::json;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::world::{TAKE_OVER, World};

const PAGE: &str = include_str!("../../../docs/metrics.md");
const ENDPOINTS: i64 = 50_000;
const MOST_SERIES: usize = 2_000;
/// How often a worker without a job's lease asks for it, with room for a loaded machine.
const STANDBY: Duration = Duration::from_secs(30);

/// Name, type, label, and the label's values; `*`: bounded otherwise, as said where it is shown.
type Definition = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const CLASSES: &[&str] = &[
    "transient",
    "misconfigured",
    "permanent",
    "throttled",
    "internal",
    "refused",
    "expired",
];
const OUTCOMES: &[&str] = &[
    "delivered",
    "transient",
    "misconfigured",
    "throttled",
    "permanent",
    "gone",
    "internal",
    "refused",
    "expired",
];
const REASONS: &[&str] = &[
    "in_flight",
    "not_enabled",
    "locked",
    "paused",
    "breaker",
    "rate_limited",
    "throttled",
];
const STATES: &[&str] = &["closed", "open", "half_open"];
const API_TASKS: &[&str] = &[
    "writer",
    "keyed writer",
    "ordered writer",
    "hints",
    "health",
    "key use",
    "changed tenants",
    "quotas",
    "pool metrics",
];
const JOBS: &[&str] = &[
    "maintenance",
    "removal",
    "pauses",
    "stats",
    "replays",
    "backlog",
    "gauges",
];
const WORKER_TASKS: &[&str] = &[
    "listener",
    "commands",
    "maintenance",
    "removal",
    "pauses",
    "stats",
    "replays",
    "backlog",
    "gauges",
];

const OF_THE_API: &[Definition] = &[
    ("postrider_events_accepted_total", "counter", "", &[]),
    ("postrider_ingest_seconds", "histogram", "", &[]),
    (
        "postrider_db_pool",
        "gauge",
        "state",
        &["idle", "in_use", "waiting", "max"],
    ),
    ("postrider_journal_bytes", "gauge", "", &[]),
    (
        "postrider_journal_events_total",
        "counter",
        "what",
        &["accepted", "stored", "alias", "refused"],
    ),
    (
        "postrider_task_restarts_total",
        "counter",
        "task",
        API_TASKS,
    ),
];
const OF_A_WORKER: &[Definition] = &[
    ("postrider_attempts_total", "counter", "outcome", OUTCOMES),
    (
        "postrider_attempt_seconds",
        "histogram",
        "phase",
        &["queue", "dns", "connect", "tls", "first_byte", "total"],
    ),
    ("postrider_delivery_lag_seconds", "histogram", "", &[]),
    ("postrider_dead_letters_total", "counter", "class", CLASSES),
    (
        "postrider_breaker_transitions_total",
        "counter",
        "to",
        STATES,
    ),
    ("postrider_deferred_total", "counter", "reason", REASONS),
    ("postrider_slots", "gauge", "state", &["owned", "unowned"]),
    ("postrider_lease_lost_total", "counter", "", &[]),
    ("postrider_record_lag_seconds", "gauge", "", &[]),
    ("postrider_record_seconds", "histogram", "", &[]),
    (
        "postrider_dns_lookups_total",
        "counter",
        "result",
        &["fresh", "asked", "stale", "failed"],
    ),
    (
        "postrider_task_restarts_total",
        "counter",
        "task",
        WORKER_TASKS,
    ),
    ("postrider_job_step_seconds", "histogram", "job", JOBS),
];
const OF_THE_INSTALLATION: &[Definition] = &[
    (
        "postrider_deliveries",
        "gauge",
        "status",
        &["pending", "failed", "in_flight", "dead_letter"],
    ),
    (
        "postrider_oldest_pending_seconds",
        "gauge",
        "reason",
        &["admissible", "breaker", "rate_limited", "ordered"],
    ),
    ("postrider_dead_letters", "gauge", "class", CLASSES),
    ("postrider_breaker_endpoints", "gauge", "state", STATES),
    ("postrider_slow_endpoints", "gauge", "", &[]),
    ("postrider_degrading_endpoints", "gauge", "", &[]),
    (
        "postrider_endpoint_p95_seconds",
        "gauge",
        "endpoint",
        &["*"],
    ),
    ("postrider_database_horizon_seconds", "gauge", "", &[]),
    (
        "postrider_gauges_updated_timestamp_seconds",
        "gauge",
        "job",
        &["gauges", "backlog"],
    ),
];
const OF_EACH_PROCESS: &[Definition] = &[
    ("postrider_build_info", "gauge", "version", &["*"]),
    (
        "postrider_trace_spans_total",
        "counter",
        "result",
        &["exported", "failed", "dropped"],
    ),
    ("process_cpu_seconds_total", "counter", "", &[]),
    ("process_max_fds", "gauge", "", &[]),
    ("process_open_fds", "gauge", "", &[]),
    ("process_resident_memory_bytes", "gauge", "", &[]),
    ("process_start_time_seconds", "gauge", "", &[]),
    ("process_threads", "gauge", "", &[]),
    ("process_virtual_memory_bytes", "gauge", "", &[]),
];

/// What a scrape says.
#[derive(Debug, Default)]
struct Scrape {
    /// By name: the type, and each series' label and value, `le` aside.
    families: BTreeMap<String, (String, BTreeSet<(String, String)>)>,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    async fn of(addr: SocketAddr) -> Self {
        let reply = ask(addr, &request("GET", "/metrics", None, b""))
            .await
            .unwrap();
        Self::read(&String::from_utf8(reply).unwrap())
    }

    fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').unwrap();
                let family = (kind.to_owned(), BTreeSet::new());
                let before = scrape.families.insert(name.to_owned(), family);
                assert!(before.is_none(), "{name} is declared twice");
            } else if !line.starts_with('#') {
                scrape.series(line);
            }
        }
        scrape
    }

    fn series(&mut self, line: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| {
            let family = name.strip_suffix(part)?;
            (self.families.get(family)?.0 == "histogram").then_some(family)
        });
        let labels = labels
            .strip_suffix('}')
            .unwrap()
            .split(',')
            .filter(|label| !label.is_empty());
        let labels: Vec<(String, String)> = labels
            .map(|label| label.split_once('=').unwrap())
            .filter(|(label, _)| of_histogram.is_none() || *label != "le")
            .map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned()))
            .collect();
        assert!(labels.len() <= 1, "{line}");
        let label = labels.into_iter().next().unwrap_or_default();
        let family = self.families.get_mut(of_histogram.unwrap_or(name));
        family
            .unwrap_or_else(|| panic!("no type: {line}"))
            .1
            .insert(label);
        self.values
            .insert(series.to_owned(), value.parse().unwrap());
    }

    fn value(&self, series: &str) -> Option<f64> {
        self.values.get(series).copied()
    }

    /// Whether this process leads the job of this name.
    fn leads(&self, job: &str) -> bool {
        let series = format!("postrider_gauges_updated_timestamp_seconds{{job=\"{job}\"}}");
        self.value(&series).is_some()
    }

    /// Compares names, types and label sets.
    fn must_be(&self, definitions: &[&[Definition]]) {
        let mut expected = BTreeMap::new();
        for (name, kind, label, values) in definitions.iter().copied().flatten() {
            let found = self
                .families
                .get(*name)
                .map(|family| family.1.clone())
                .unwrap_or_default();
            let labels: BTreeSet<(String, String)> = match *values {
                [] => BTreeSet::from([(String::new(), String::new())]),
                ["*"] => found
                    .into_iter()
                    .filter(|it| it.0 == *label)
                    .take(20)
                    .collect(),
                values => values
                    .iter()
                    .map(|value| ((*label).to_owned(), (*value).to_owned()))
                    .collect(),
            };
            assert!(!labels.is_empty(), "{name} has no series");
            expected.insert((*name).to_owned(), ((*kind).to_owned(), labels));
        }
        for (name, family) in &expected {
            assert_eq!(self.families.get(name), Some(family), "{name}");
        }
        let names: Vec<_> = self.families.keys().collect();
        assert_eq!(names, expected.keys().collect::<Vec<_>>());
    }
}

/// Endpoints of the world's tenant, with percentiles, and a dead letter of each class.
async fn fill(world: &World) {
    let fill = format!(
        "INSERT INTO endpoints (public_id, tenant_id, slot, url, event_types, settings)
           SELECT gen_random_uuid(), t.id, g % 256, 'https://example.com', ARRAY['none'], '{{\"signature\": \"none\"}}'
           FROM generate_series(1, {ENDPOINTS}) g CROSS JOIN (SELECT min(id) AS id FROM tenants) t;
         INSERT INTO endpoint_stats (endpoint_id, tenant_id, computed_at, since, samples, p50_ms, p95_ms, p99_ms, slow_since)
           SELECT id, tenant_id, now(), now() - interval '1 day', 100, 10, 1000 + id, 5000, now() FROM endpoints;
         INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, breaker, opened_at, next_probe_at)
           SELECT id, slot, tenant_id, 1, now(), now() + interval '1 h' FROM endpoints WHERE id % 100 = 0;
         INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
           SELECT tenant_id, gen_random_uuid(), id, gen_random_uuid(), 1 + id % 7, 1, 0, gen_random_uuid()
           FROM endpoints LIMIT 7000"
    );
    world.sql().await.batch_execute(&fill).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_are_those_of_the_contract_and_few_with_50_000_endpoints() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoint = world.endpoint("orders", json!({})).await;
    fill(&world).await;
    let worker = world.worker().await;
    let (api, worker) = (world.api_process.metrics(), worker.process.metrics());
    world.publish(&endpoint).await;

    let of_worker = eventually(PATIENCE, || async {
        let scrape = Scrape::of(worker).await;
        let delivered = scrape.value("postrider_attempts_total{outcome=\"delivered\"}");
        let all = scrape.leads("gauges") && scrape.leads("backlog");
        (all && delivered == Some(1.0)).then_some(scrape)
    })
    .await;
    let of_api = Scrape::of(api).await;

    of_api.must_be(&[OF_THE_API, OF_EACH_PROCESS]);
    of_worker.must_be(&[OF_A_WORKER, OF_THE_INSTALLATION, OF_EACH_PROCESS]);
    let series = of_api.values.len() + of_worker.values.len();
    assert!(series < MOST_SERIES / 5, "{series}");
    let value = |series: &str| of_worker.value(series).unwrap();
    assert_eq!(value("postrider_breaker_endpoints{state=\"open\"}"), 500.0);
    assert_eq!(value("postrider_dead_letters{class=\"internal\"}"), 1_000.0);
    assert_eq!(
        value("postrider_deliveries{status=\"dead_letter\"}"),
        7_000.0
    );
    assert_eq!(value("postrider_slow_endpoints"), 50_001.0);
    assert_eq!(of_api.value("postrider_events_accepted_total"), Some(1.0));
    // No name to look up, and no TLS.
    for phase in ["queue", "connect", "first_byte", "total"] {
        let count = value(&format!(
            "postrider_attempt_seconds_count{{phase=\"{phase}\"}}"
        ));
        assert_eq!(count, 1.0, "{phase}");
    }
}

#[test]
fn the_page_about_metrics_tells_of_each_of_them_and_of_no_other() {
    let all = [
        OF_THE_API,
        OF_A_WORKER,
        OF_THE_INSTALLATION,
        OF_EACH_PROCESS,
    ];
    let mut known = BTreeSet::new();
    for (name, kind, label, values) in all.into_iter().flatten() {
        known.insert(*name);
        if name.starts_with("process_") {
            assert!(PAGE.contains(&format!("`{name}`")), "{name}");
            continue;
        }
        let row = format!("| `{name}` | {kind} | ");
        let row = PAGE.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("no row about {name}, a {kind}"));
        let labels = row.split('|').nth(3).unwrap();
        assert_eq!(
            labels.contains(&format!("`{label}`")),
            !label.is_empty(),
            "{name}: {labels}"
        );
        let written_out =
            !matches!(*label, "task" | "version" | "endpoint") && !labels.contains("as above");
        for value in values.iter().filter(|_| written_out) {
            assert!(
                labels.contains(&format!("`{value}`")),
                "{name}: {labels} has no {value}"
            );
        }
    }
    let names = PAGE.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    for name in names.filter(|name| name.starts_with("postrider_")) {
        assert!(known.contains(name), "{name} is not shown by anybody");
    }
}

/// A process that stands still and wakes is asked at once, by a scrape that waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_alone_shows_what_is_true_of_the_installation() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let workers = world.workers(2).await;
    let addrs: Vec<SocketAddr> = workers.iter().map(|it| it.process.metrics()).collect();
    let leader = eventually(PATIENCE, || async {
        let leads = [
            Scrape::of(addrs[0]).await.leads("gauges"),
            Scrape::of(addrs[1]).await.leads("gauges"),
        ];
        assert_ne!(leads, [true, true]);
        leads.iter().position(|leads| *leads)
    })
    .await;
    let other = 1 - leader;

    workers[leader].process.signal(Signal::STOP);
    eventually(TAKE_OVER + STANDBY, || async {
        Scrape::of(addrs[other]).await.leads("gauges").then_some(())
    })
    .await;
    let mut asleep = Connection::open(addrs[leader]).await.unwrap();
    workers[leader].process.signal(Signal::CONT);
    let woken = asleep
        .exchange(&request("GET", "/metrics", None, b""))
        .await
        .unwrap();
    let woken = Scrape::read(&String::from_utf8_lossy(woken.body));

    for (name, ..) in OF_THE_INSTALLATION
        .iter()
        .filter(|it| it.0 != "postrider_deliveries")
    {
        let of_backlog =
            *name == "postrider_gauges_updated_timestamp_seconds" && woken.leads("backlog");
        assert!(of_backlog || !woken.families.contains_key(*name), "{name}");
    }
    assert!(!woken.leads("gauges"));

    workers[other].process.signal(Signal::TERM);
    eventually(STANDBY, || async {
        Scrape::of(addrs[leader])
            .await
            .leads("gauges")
            .then_some(())
    })
    .await;
}
