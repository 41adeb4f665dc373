//! What operators look at and are woken by: the dashboards' queries and the alerts, on a real Prometheus and a real
//! Alertmanager that watch real processes.

mod alerts;
mod dashboards;
mod observe;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use shared::testing::eventually;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::process::{PATIENCE, Process};

/// The folder `dashboards` of this repository.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards")
}

/// A program of Debian's packages, with a folder of its own; killed when dropped.
struct Program {
    addr: SocketAddr,
    folder: TempDir,
    _child: Child,
}

impl Program {
    /// Starts it on a free port; returns when its log says on which.
    async fn start(names: &[&str], folder: TempDir, arguments: &[&str]) -> Self {
        let path = std::env::var_os("PATH").unwrap();
        let program = names
            .iter()
            .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
            .find(|program| program.is_file())
            .unwrap_or_else(|| panic!("{names:?} is missing: scripts/bootstrap test installs it"));
        let mut child = Command::new(program)
            .args(arguments)
            .arg("--web.listen-address=127.0.0.1:0")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listens = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, addr)) = line.split_once("\"Listening on\" address=") {
                    return addr.trim().parse().unwrap();
                }
            }
            panic!("{names:?} ended before it listened");
        };
        let addr = tokio::time::timeout(PATIENCE, listens).await.unwrap();
        // Its log has to go somewhere, or it stops when the pipe is full.
        drop(shared::runtime::spawn_driver(async move {
            while let Ok(Some(_line)) = lines.next_line().await {}
        }));
        Self {
            addr,
            folder,
            _child: child,
        }
    }
}

/// Whether an HTTP server answers 200, and with what.
async fn get(addr: SocketAddr, path: &str) -> (bool, String) {
    // HTTP/1.0: the body ends with the connection, not in chunks.
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.unwrap();
    let reply = String::from_utf8(reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.contains(" 200 "), body.to_owned())
}

/// A Prometheus with the repository's configuration and rules, which scrapes every second.
struct Prometheus(Program);

impl Prometheus {
    /// Watches these processes; tells this Alertmanager.
    async fn start(processes: &[&Process], alertmanager: SocketAddr, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let written = std::fs::read_to_string(self::folder().join("prometheus.yml")).unwrap();
        let quick = replaced(&written, "scrape_interval: 5s", "scrape_interval: 1s");
        let quick = replaced(
            &quick,
            "evaluation_interval: 15s",
            "evaluation_interval: 1s",
        );
        let configuration = replaced(&quick, "127.0.0.1:9093", &alertmanager.to_string());
        std::fs::write(at("prometheus.yml"), configuration).unwrap();
        std::fs::write(at("alerts.yml"), rules).unwrap();
        write_targets(&at("targets.yml"), processes);
        let program = Program::start(
            &["prometheus"],
            folder,
            &[
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                "--storage.tsdb.retention.time=1h",
            ],
        )
        .await;
        // It listens before it has read what it kept.
        eventually(PATIENCE, || async {
            get(program.addr, "/-/ready").await.0.then_some(())
        })
        .await;
        Self(program)
    }

    /// Watches these from now on; Prometheus reads the file again by itself.
    fn watch(&self, processes: &[&Process]) {
        write_targets(&self.0.folder.path().join("targets.yml"), processes);
    }

    /// The values that a query has now, without those that are no number.
    async fn ask(&self, query: &str) -> Vec<f64> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?query={query}");
        let (is_ok, body) = get(self.0.addr, &path).await;
        assert!(is_ok, "{body}");
        let document: Value = serde_json::from_str(&body).unwrap();
        let result = document["data"]["result"].as_array().unwrap();
        let values = result.iter().map(|series| series["value"][1].as_str());
        let numbers = values.map(|text| text.unwrap().parse::<f64>().unwrap());
        numbers.filter(|value| value.is_finite()).collect()
    }

    /// Waits until a query has values that fit; returns them.
    async fn shows(&self, query: &str, fits: impl Fn(&[f64]) -> bool) -> Vec<f64> {
        eventually(PATIENCE, || async {
            let values = self.ask(query).await;
            fits(&values).then_some(values)
        })
        .await
    }
}

fn write_targets(path: &Path, processes: &[&Process]) {
    let addresses: Vec<SocketAddr> = processes.iter().map(|it| it.metrics()).collect();
    let targets = serde_json::json!([{ "targets": addresses }]);
    // Prometheus may read it at any moment: whole or not at all.
    let whole = path.with_extension("new");
    std::fs::write(&whole, targets.to_string()).unwrap();
    std::fs::rename(&whole, path).unwrap();
}

/// The text with another part in place of one that is there.
fn replaced(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old} is not there any more");
    text.replace(old, new)
}
