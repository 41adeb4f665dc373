//! Sends what was recorded to the collector, in batches, over HTTP/1.1: OTLP with protobuf.
//!
//! Not here: another try. A batch that the collector does not take is counted and gone; what comes after it is
//! more use than what waited. Nor TLS: a collector is a neighbour, which sends on.
//!
//! # Invariants
//! - Bounded in time: a batch by [`TIMEOUT`], what is left at the end of the process by [`TRACES_FLUSH`].

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{DROPPED, EXPORTED, FAILED, Span, count, otlp};
use crate::runtime::budgets::TRACES_FLUSH;

/// The most spans of a batch: some 200 KiB.
const MOST_SPANS: usize = 512;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long the collector may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Where HTTP is when an address does not say.
const HTTP_PORT: u16 = 80;

/// See the module.
#[derive(Debug)]
pub struct Exporter {
    collector: Url,
    service: &'static str,
    waiting: Receiver<Span>,
    /// Taken out of the queue and not sent.
    batch: Vec<Span>,
    /// Whether the last batch was not taken.
    failing: bool,
}

impl Exporter {
    pub(super) fn new(collector: Url, service: &'static str, waiting: Receiver<Span>) -> Self {
        Self {
            collector,
            service,
            waiting,
            batch: Vec::new(),
            failing: false,
        }
    }

    /// Sends until it is told to stop, then what is left, for as long as there is time.
    pub async fn run(&mut self, stop: CancellationToken) {
        let out_of_time = async {
            stop.cancelled().await;
            tokio::time::sleep(TRACES_FLUSH).await;
        };
        tokio::select! {
            () = async { self.send_all(&stop).await; stop.cancelled().await } => {}
            () = out_of_time => {
                let left = self.batch.len() + self.waiting.len();
                count(DROPPED, left);
                tracing::warn!(spans = left, "there was no time to send the last spans");
            }
        }
    }

    /// Returns when nothing waits and nothing more will come: it was told to stop, or nobody records any more.
    async fn send_all(&mut self, stop: &CancellationToken) {
        loop {
            self.gather(stop).await;
            if self.batch.is_empty() {
                return;
            }
            let sent = tokio::time::timeout(TIMEOUT, self.post()).await;
            self.note(sent.unwrap_or_else(|_elapsed| Err("it does not answer".to_owned())));
            self.batch.clear();
        }
    }

    /// Takes a batch; an empty one when nothing waits and nothing more will come.
    async fn gather(&mut self, stop: &CancellationToken) {
        let filled = async {
            if self.waiting.recv_many(&mut self.batch, MOST_SPANS).await == 0 {
                return;
            }
            let fill = async {
                while let Some(room) = room(&self.batch)
                    && self.waiting.recv_many(&mut self.batch, room).await > 0
                {}
            };
            // Full, or as many as came in time.
            let _in_time = tokio::time::timeout(LINGER, fill).await.is_ok();
        };
        if stop.run_until_cancelled(filled).await.is_none() {
            while room(&self.batch).is_some()
                && let Ok(span) = self.waiting.try_recv()
            {
                self.batch.push(span);
            }
        }
    }

    fn note(&mut self, sent: Result<(), String>) {
        let spans = self.batch.len();
        match sent {
            Ok(()) => {
                count(EXPORTED, spans);
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the trace collector takes spans again");
                }
            }
            Err(error) => {
                count(FAILED, spans);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "the trace collector does not take spans; they are lost until it does");
                }
            }
        }
    }

    async fn post(&self) -> Result<(), String> {
        let host = self.collector.host_str().unwrap_or_default();
        let port = self.collector.port().unwrap_or(HTTP_PORT);
        // Brackets are of URLs, not of addresses.
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((name, port)).await.map_err(text)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
        let body = otlp::request(self.service, &self.batch).encode_to_vec();
        let request = Request::post(self.collector.path())
            .header(HOST, format!("{host}:{port}"))
            .header(USER_AGENT, concat!("Postrider/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(Bytes::from(body)))
            .map_err(text)?;
        let answer = sender.send_request(request);
        tokio::pin!(connection, answer);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            _closed = &mut connection => answer.await,
        };
        let status = answer.map_err(text)?.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("it answers {status}"))
        }
    }
}

/// How many more a batch takes, if any.
fn room(batch: &[Span]) -> Option<usize> {
    MOST_SPANS.checked_sub(batch.len()).filter(|room| *room > 0)
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
