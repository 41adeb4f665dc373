//! Every query of every panel, asked of a real Prometheus that scrapes a real system under load, has data.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};

use super::{Prometheus, folder};
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

const BOOKS: [&str; 3] = ["pipeline", "endpoints", "workers"];
/// Nothing listens there: for who asks and is not told of alerts.
const NOBODY: ([u8; 4], u16) = ([127, 0, 0, 1], 9);

fn book(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The title and the queries of each panel that has any.
fn panels(book: &Value) -> Vec<(String, Vec<String>)> {
    let of = |panel: &Value| {
        let targets = panel["targets"].as_array()?;
        let queries = targets.iter().map(|it| it["expr"].as_str().unwrap());
        let title = panel["title"].as_str().unwrap().to_owned();
        Some((title, queries.map(str::to_owned).collect()))
    };
    let panels = book["panels"].as_array().unwrap();
    panels.iter().filter_map(of).collect()
}

/// Names of our metrics in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter))
        .filter(|word| word.starts_with("postrider_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_dashboards_are_what_their_code_gives() {
    let root = folder().join("..");
    let checked = Command::new(root.join(".venv/bin/python"))
        .args(["dashboards/source/build.py", "--check"])
        .current_dir(&root)
        .output()
        .unwrap();

    let words = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_panel_is_empty_and_no_alert_asks_for_a_metric_that_is_not_there() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let quick = world.endpoint("quick", json!({})).await;
    let broken = json!({ "breaker": { "failures": 2 }, "max_attempts": 2, "backoff": "fast" });
    let broken = world.endpoint("broken", broken).await;
    let refusing = world.endpoint("refusing", json!({})).await;
    world.receiver.answers(&broken.path, &[Answer::now(500)]);
    world.receiver.answers(&refusing.path, &[Answer::now(422)]);
    world
        .receiver
        .answers(&quick.path, &[Answer::late(Duration::from_millis(5))]);
    compute_percentiles(&world, database.url(), quick.key).await;
    let worker = world.worker().await;
    let processes = [&world.api_process, &worker.process];
    let rules = std::fs::read_to_string(folder().join("alerts.yml")).unwrap();
    let prometheus = Prometheus::start(&processes, NOBODY.into(), &rules).await;
    let poster = world.post(50, &[quick, broken, refusing]);
    prometheus
        .shows(
            "max(postrider_oldest_pending_seconds{reason=\"admissible\"})",
            |it| !it.is_empty(),
        )
        .await;

    for name in BOOKS {
        let panels = panels(&book(name));
        assert!(panels.len() > 10, "{name}: {panels:?}");
        for (title, queries) in panels {
            assert!(!queries.is_empty(), "{name}: {title}");
            for query in queries {
                let query = query.replace("$__rate_interval", "10s");
                assert!(!query.contains('$'), "{name}: {title}: {query}");
                let asked = eventually(PATIENCE, || async {
                    (!prometheus.ask(&query).await.is_empty()).then_some(())
                });
                eprintln!("{name}: {title}: {query}");
                asked.await;
            }
        }
    }
    for metric in metrics(&rules) {
        prometheus.shows(&metric, |values| !values.is_empty()).await;
    }
    let healthy = "group(ALERTS{alertname=~\"Postrider(WorkersMissing|GaugesMissing|NothingDelivered)\"}) or vector(0)";
    assert_eq!(prometheus.ask(healthy).await, [0.0]);
    poster.stop().await.all_accepted();
}

/// Gives an endpoint attempts enough for percentiles, and computes these before the job would.
async fn compute_percentiles(world: &World, url: &str, endpoint: i64) {
    let attempts = "
        INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                              total_ms, outcome, final_status, applied)
        SELECT e.tenant_id, gen_random_uuid(), 1, 1, greatest(now() - interval '1 s' * n, date_trunc('day', now(), 'UTC')), e.id, gen_random_uuid(), 1, n, 1, 3, true
        FROM endpoints e, generate_series(1, 30) n WHERE e.id = $1";
    let made = world.sql().await.execute(attempts, &[&endpoint]).await;
    assert_eq!(made.unwrap(), 30);
    let computed = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["stats", "run", "--once"])
        .env("DATABASE_URL", url)
        .output()
        .unwrap();
    assert!(computed.status.success(), "{computed:?}");
}
