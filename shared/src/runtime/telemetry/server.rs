//! A server for three paths: `/metrics`, `/health/live`, `/health/ready`. Not a framework: requests
//! are a line and some headers, answers are short, and each connection carries one of them.
//!
//! Bounded: at most [`MOST_CONNECTIONS`] at a time, [`DEADLINE`] each, [`LONGEST_HEAD`] bytes read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Encoder as _, TextEncoder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::runtime::spawn_driver;

/// The paths that are served, for messages and documentation.
pub const SERVED: [&str; 3] = ["/metrics", "/health/live", "/health/ready"];

/// Scrapers and probes are few; more at once is a mistake or an attack.
const MOST_CONNECTIONS: usize = 32;
/// From accepted to answered: shorter than the usual probe's own patience would be a false alarm.
const DEADLINE: Duration = Duration::from_secs(5);
/// Request line and headers in bytes.
const LONGEST_HEAD: usize = 8 * 1024;
/// The pause after a failed accept (out of file descriptors): without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket that serves metrics and health.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    addr: SocketAddr,
}

impl MetricsServer {
    /// Takes the address; port 0 takes a free port, which [`MetricsServer::addr`] tells.
    ///
    /// # Errors
    /// When the address is taken or not ours.
    pub async fn bind(addr: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await.map_err(|error| {
            let detail = format!(
                "the metrics address {addr} (POSTRIDER_METRICS_ADDR) cannot be used: {error}"
            );
            io::Error::new(error.kind(), detail)
        })?;
        let addr = listener.local_addr()?;
        Ok(Self { listener, addr })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `shutdown`. `ready` says why this process cannot do its work, if it cannot; it
    /// is asked at each request and has the request's deadline.
    pub async fn run<R, F>(self, ready: R, shutdown: CancellationToken)
    where
        R: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let ready = Arc::new(ready);
        let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = shutdown.cancelled() => return,
            };
            let Ok((stream, _peer)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                continue;
            };
            let ready = Arc::clone(&ready);
            spawn_driver(async move {
                let _held = permit;
                match tokio::time::timeout(DEADLINE, answer(stream, &*ready)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "a scrape or probe went away"),
                    Err(_elapsed) => tracing::debug!("a scrape or probe took too long"),
                }
            });
        }
    }
}

async fn answer<R, F>(mut stream: TcpStream, ready: &R) -> io::Result<()>
where
    R: Fn() -> F,
    F: Future<Output = Result<(), String>>,
{
    let head = read_head(&mut stream).await?;
    let mut words = head.split(|byte| *byte == b' ');
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    let path = target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default();
    let answer = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => metrics(),
        (b"GET" | b"HEAD", b"/health/live") => Answer::text("200 OK", "live\n"),
        (b"GET" | b"HEAD", b"/health/ready") => match ready().await {
            Ok(()) => Answer::text("200 OK", "ready\n"),
            Err(why) => Answer::text("503 Service Unavailable", &format!("not ready: {why}\n")),
        },
        (b"GET" | b"HEAD", _) => {
            let known = SERVED.join(" ");
            Answer::text("404 Not Found", &format!("here are: {known}\n"))
        }
        _ => Answer::text("405 Method Not Allowed", "only GET\n"),
    };
    stream.write_all(&answer.bytes(method == b"HEAD")).await?;
    stream.shutdown().await
}

/// Reads to the empty line; what comes after it is nobody's business here.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() >= LONGEST_HEAD {
            return Err(io::Error::other("the request's head is too long"));
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

struct Answer {
    status: &'static str,
    content_type: String,
    body: Vec<u8>,
}

impl Answer {
    fn text(status: &'static str, body: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8".to_owned(),
            body: body.as_bytes().to_vec(),
        }
    }

    fn bytes(&self, head_only: bool) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
        .into_bytes();
        if !head_only {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

fn metrics() -> Answer {
    let encoder = TextEncoder::new();
    let mut body = Vec::new();
    match encoder.encode(&prometheus::gather(), &mut body) {
        Ok(()) => Answer {
            status: "200 OK",
            content_type: encoder.format_type().to_owned(),
            body,
        },
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written");
            Answer::text(
                "500 Internal Server Error",
                "the metrics cannot be written\n",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    async fn get(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn it_serves_metrics_and_says_whether_the_process_is_ready() {
        crate::runtime::telemetry::register_common("9.9.9");
        let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let addr = server.addr();
        let is_ready = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_ready);
        let ready = move || {
            let ready = asked.load(Ordering::SeqCst);
            async move { ready.then_some(()).ok_or_else(|| "no database".to_owned()) }
        };
        let shutdown = CancellationToken::new();
        let running = spawn_driver(server.run(ready, shutdown.clone()));

        let metrics = get(addr, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let live = get(addr, "GET /health/live HTTP/1.1\r\n\r\n").await;
        let before = get(addr, "GET /health/ready?x=1 HTTP/1.1\r\n\r\n").await;
        is_ready.store(true, Ordering::SeqCst);
        let after = get(addr, "HEAD /health/ready HTTP/1.1\r\n\r\n").await;
        let elsewhere = get(addr, "GET /secret HTTP/1.1\r\n\r\n").await;
        let posted = get(addr, "POST /metrics HTTP/1.1\r\n\r\n").await;

        assert!(
            metrics.contains("postrider_build_info{version=\"9.9.9\"} 1"),
            "{metrics}"
        );
        assert!(
            metrics.contains("process_resident_memory_bytes"),
            "{metrics}"
        );
        assert!(live.starts_with("HTTP/1.1 200"), "{live}");
        assert!(before.starts_with("HTTP/1.1 503"), "{before}");
        assert!(before.ends_with("not ready: no database\n"), "{before}");
        assert!(
            after.starts_with("HTTP/1.1 200") && after.ends_with("\r\n\r\n"),
            "{after}"
        );
        assert!(elsewhere.starts_with("HTTP/1.1 404"), "{elsewhere}");
        assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
        shutdown.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let first = MetricsServer::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();

        let error = MetricsServer::bind(first.addr()).await.unwrap_err();

        assert!(
            error.to_string().contains(&first.addr().to_string()),
            "{error}"
        );
        assert!(
            error.to_string().contains("POSTRIDER_METRICS_ADDR"),
            "{error}"
        );
    }
}
