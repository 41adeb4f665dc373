//! Where something may have been written, and the search.

use std::collections::HashSet;

use load_tests::client::{Connection, request};
use rustix::process::Signal;
use shared::policy::classify::SendError;

use super::Scene;
use crate::process::{Process, read};

/// The kinds of failures that nothing can force here: no lists of revoked certificates are read, and a worker
/// that has no socket has none for its database (`sender::tests::files` of the worker).
const NEVER: [&str; 2] = ["no_socket", "certificate_revoked"];

/// The kinds of failures that are not in these logs.
fn missing_kinds(logs: &str) -> Vec<&'static str> {
    let told: HashSet<String> = logs
        .lines()
        .filter_map(read)
        .filter_map(|line| Some(line["error.kind"].as_str()?.trim_matches('"').to_owned()))
        .collect();
    let mut missing = SendError::KINDS.to_vec();
    missing.retain(|kind| !told.contains(*kind));
    missing
}

impl Scene {
    /// Where this process, which said so when it `started`, answers for metrics and health.
    pub(super) async fn look_at_metrics(&mut self, process: &mut Process, started: &str) {
        let line = process.logs(started, 1).await;
        self.look_at(line["metrics"].as_str().unwrap()).await;
    }

    async fn look_at(&mut self, addr: &str) {
        for path in ["/metrics", "/health/live", "/health/ready"] {
            let question = request("GET", path, None, b"");
            let addr = addr.parse().unwrap();
            let mut connection = Connection::open(addr).await.unwrap();
            let reply = connection.exchange(&question).await.unwrap();
            let text = String::from_utf8_lossy(reply.body).into_owned();
            assert!(!text.is_empty(), "{path}");
            self.written(format!("{path} of {addr}"), text);
        }
    }

    /// Ends the API and searches all that was written.
    pub(super) async fn end(mut self) {
        let listens = self.world.api_process.logs("the API listens", 1).await;
        self.look_at(listens["metrics"].as_str().unwrap()).await;
        for path in ["/health/live", "/health/ready", "/nothing-here"] {
            self.ask(None, "GET", path, b"").await;
        }
        self.look_at_tables().await;
        self.world.api_process.signal(Signal::TERM);
        assert!(self.world.api_process.ends().await.success());
        self.written("the log of the API", self.world.api_process.log());

        let logs = self
            .written
            .iter()
            .filter(|(place, _)| place.starts_with("the log"));
        let logs: Vec<_> = logs.map(|(_, text)| text.as_str()).collect();
        let logs = logs.join("\n");
        assert_eq!(missing_kinds(&logs), NEVER);
        let mut found = Vec::new();
        for (place, text) in &self.written {
            let what = self.needles.in_text(text);
            found.extend(what.into_iter().map(|what| format!("{what} in {place}")));
        }
        assert_eq!(found, Vec::<String>::new());
        eprintln!(
            "{} places, {} bytes of logs, no hit",
            self.written.len(),
            logs.len()
        );
    }

    /// What is kept about failures, and what is kept of secrets: nothing that is not sealed.
    async fn look_at_tables(&mut self) {
        let hidden = self.not_even_readable();
        let sql = self.world.sql().await;
        for (table, left_out) in [
            ("dead_letters", ""),
            // The answer is the tenant's own to see.
            ("attempts", " - 'response'"),
            ("ready", ""),
            ("retry", ""),
            ("closed", ""),
            ("notices", ""),
            ("commands", ""),
            ("suspects", ""),
            ("workers", ""),
            ("endpoint_runtime", ""),
            ("api_keys", ""),
            ("endpoint_secrets", ""),
            ("endpoints", " - 'url'"),
        ] {
            let all = format!(
                "SELECT coalesce(string_agg((to_jsonb(t){left_out})::text, E'\n'), '') FROM {table} t"
            );
            let text: String = sql.query_one(&all, &[]).await.unwrap().get(0);
            self.written(format!("the table {table}"), text);
        }
        let notices = "SELECT coalesce(string_agg(convert_from(payload, 'UTF8'), E'\n'), '') FROM events e JOIN event_types t ON t.id = e.type_id WHERE t.name LIKE 'postrider.%'";
        let notices: String = sql.query_one(notices, &[]).await.unwrap().get(0);
        assert!(notices.len() > 100, "there are notices: {notices}");
        self.written("notices", notices);
        let urls = "SELECT string_agg(url, ' ') FROM endpoints";
        let urls: String = sql.query_one(urls, &[]).await.unwrap().get(0);
        assert_eq!(hidden.in_text(&urls), Vec::<String>::new());
    }
}
