//! The rules, with promtool; and one alert all the way: a worker that is killed, Prometheus, Alertmanager, the
//! operators' webhook.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use shared::runtime::spawn_driver;
use shared::testing::{TestDatabase, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Program, Prometheus, folder, replaced};
use crate::process::PATIENCE;
use crate::world::World;

#[test]
fn the_rules_are_valid_and_do_what_their_tests_say() {
    for arguments in [
        &["check", "config", "prometheus.yml"][..],
        &["check", "rules", "--lint-fatal", "alerts.yml"],
        &["test", "rules", "alerts.test.yml"],
    ] {
        let checked = Command::new("promtool")
            .args(arguments)
            .current_dir(folder())
            .output()
            .unwrap();

        let words =
            String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{arguments:?}: {words}");
    }
}

#[test]
fn each_alert_has_a_test_a_section_in_the_runbook_and_a_severity() {
    let read = |path: &str| std::fs::read_to_string(folder().join(path)).unwrap();
    let (rules, tests, runbook) = (
        read("alerts.yml"),
        read("alerts.test.yml"),
        read("../docs/runbook.md"),
    );
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();

    assert!(alerts.len() >= 7, "{}", alerts.len());
    for alert in alerts {
        let name = alert.split_whitespace().next().unwrap();
        let section = format!("\n## {name}\n");
        let link = format!("docs/runbook.md#{}\n", name.to_lowercase());
        assert!(runbook.contains(&section), "{name}: no section");
        assert!(alert.contains(&link), "{name}: no link");
        assert!(
            alert.contains("severity: page") || alert.contains("severity: ticket"),
            "{name}: no severity"
        );
        let fires = format!("alertname: {name}\n        exp_alerts:\n");
        let does_not = format!("alertname: {name}}}");
        assert!(tests.contains(&fires), "{name}: no test that it fires");
        // Before and after, at least.
        assert!(
            tests.matches(&does_not).count() >= 2,
            "{name}: no test that it does not"
        );
    }
}

/// F59: the process that would have to tell is the one that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f59_a_worker_that_is_killed_pages_the_operators_and_a_new_one_ends_it() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut worker = world.worker().await;
    let operators = Operators::start().await;
    let alertmanager = alertmanager(operators.addr).await;
    // What takes minutes in production takes seconds here; alerts.test.yml has the minutes.
    let rules = std::fs::read_to_string(folder().join("alerts.yml")).unwrap();
    let rules = replaced(&rules, "for: 1m", "for: 2s");
    let processes = [&world.api_process, &worker.process];
    let prometheus = Prometheus::start(&processes, alertmanager.addr, &rules).await;
    prometheus
        .shows("sum(postrider_slots{state=\"owned\"})", |owned| {
            owned == [256.0]
        })
        .await;
    assert_eq!(operators.told("firing").len(), 0);

    worker.process.kill().await;
    let page = operators.hear("PostriderWorkersMissing", "firing").await;

    assert_eq!(page["labels"]["severity"], "page");
    let link = page["annotations"]["runbook_url"].as_str().unwrap();
    assert_eq!(link, "docs/runbook.md#postriderworkersmissing");

    let next = world.worker().await;
    prometheus.watch(&[&world.api_process, &next.process]);
    operators.hear("PostriderWorkersMissing", "resolved").await;
}

/// An Alertmanager with the repository's configuration, whose operators listen there.
async fn alertmanager(operators: SocketAddr) -> Program {
    let place = tempfile::tempdir().unwrap();
    let written = std::fs::read_to_string(folder().join("alertmanager.yml")).unwrap();
    let quick = replaced(&written, "group_wait: 30s", "group_wait: 1s");
    let quick = replaced(&quick, "group_interval: 5m", "group_interval: 1s");
    let configuration = replaced(&quick, "127.0.0.1:9099", &operators.to_string());
    std::fs::write(place.path().join("alertmanager.yml"), configuration).unwrap();
    let names = ["prometheus-alertmanager", "alertmanager"];
    let arguments = [
        "--config.file=alertmanager.yml",
        "--storage.path=data",
        "--cluster.listen-address=",
    ];
    Program::start(&names, place, &arguments).await
}

/// A webhook receiver that keeps every alert that it was told of.
struct Operators {
    addr: SocketAddr,
    told: Arc<Mutex<Vec<Value>>>,
}

impl Operators {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        drop(spawn_driver(async move {
            while let Ok((stream, _peer)) = listener.accept().await {
                let body = post(stream).await;
                let alerts = body["alerts"].as_array().unwrap();
                into.lock().unwrap().extend(alerts.iter().cloned());
            }
        }));
        Self { addr, told }
    }

    /// What they were told of alerts with this status.
    fn told(&self, status: &str) -> Vec<Value> {
        let told = self.told.lock().unwrap();
        told.iter()
            .filter(|it| it["status"] == status)
            .cloned()
            .collect()
    }

    /// Waits until they are told that this alert has this status.
    async fn hear(&self, alert: &str, status: &str) -> Value {
        eventually(PATIENCE, || {
            let told = self.told(status);
            let found = told
                .into_iter()
                .find(|it| it["labels"]["alertname"] == alert);
            std::future::ready(found)
        })
        .await
    }
}

/// Reads one POST with a JSON body and answers 200.
async fn post(mut stream: TcpStream) -> Value {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap() {
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
                return serde_json::from_str(body).unwrap();
            }
        }
        assert!(stream.read_buf(&mut request).await.unwrap() > 0);
    }
}
