//! A receiver that does one thing to every request, most of them wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use load_tests::http;
use shared::runtime::spawn_driver;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a [`Scripted`] does.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Closes each connection as soon as it stands.
    Close,
    /// Reads half of a request and closes: the rest makes it a reset.
    Reset,
    /// Answers 200, so long after each request.
    Late(Duration),
    /// Reads and says nothing.
    Silent,
    /// Answers the first request of each connection with this status, and closes when it has read another.
    CloseUponReuse(u16),
    /// Answers with these bytes as they are, and closes if it is told to.
    Say { bytes: Vec<u8>, close: bool },
    /// Answers with this status and header lines, and gives the whole request back behind `prefix`. More
    /// is announced than comes by `missing` bytes.
    Echo {
        status: u16,
        headers: String,
        prefix: String,
        missing: usize,
        close: bool,
    },
}

impl Act {
    /// This status and nothing else.
    pub(crate) fn answer(status: u16) -> Self {
        let bytes = format!("HTTP/1.1 {status} -\r\ncontent-length: 0\r\n\r\n").into_bytes();
        Self::Say {
            bytes,
            close: false,
        }
    }
}

/// See the module. Ends when dropped.
pub(crate) struct Scripted {
    addr: SocketAddr,
    requests: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Scripted {
    pub(crate) async fn start(tls: Option<TlsAcceptor>, act: Act) -> Self {
        Self::start_late(tls, Duration::ZERO, act).await
    }

    /// The same, which begins to speak so long after each connection.
    pub(crate) async fn start_late(tls: Option<TlsAcceptor>, after: Duration, act: Act) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::default();
        let stop = CancellationToken::new();
        let (counter, stopped) = (Arc::clone(&requests), stop.clone());
        drop(spawn_driver(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let (act, tls, requests) = (act.clone(), tls.clone(), Arc::clone(&counter));
                let stopped = stopped.clone();
                drop(spawn_driver(async move {
                    let serving = async {
                        if !after.is_zero() {
                            tokio::time::sleep(after).await;
                        }
                        serve(stream, tls, &act, &requests).await;
                    };
                    stopped.run_until_cancelled(serving).await;
                }));
            }
        }));
        Self {
            addr,
            requests,
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{}{path}", self.addr)
    }

    /// How many requests arrived.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, act: &Act, requests: &AtomicUsize) {
    if matches!(act, Act::Close) {
        return;
    }
    match tls {
        None => play(stream, act, requests).await,
        Some(tls) => {
            match tls.accept(stream).into_fallible().await {
                Ok(stream) => play(stream, act, requests).await,
                // Whoever closes with something unread takes its own alert away.
                Err((_refused, mut stream)) => {
                    let _end = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                }
            }
        }
    }
}

/// Until the peer is gone or the act is over.
async fn play(mut stream: impl AsyncRead + AsyncWrite + Unpin, act: &Act, requests: &AtomicUsize) {
    let mut buffer = Vec::new();
    let mut answered = false;
    loop {
        let wanted = if matches!(act, Act::Reset) { 1 } else { 4_096 };
        let mut read = (&mut stream).take(wanted);
        if read.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
            return;
        }
        let length = match act {
            Act::Close | Act::Reset => return,
            Act::Late(_)
            | Act::Silent
            | Act::CloseUponReuse(_)
            | Act::Say { .. }
            | Act::Echo { .. } => {
                match http::request(&buffer) {
                    Ok(Some(request)) => request.length,
                    Ok(None) => continue,
                    // What is not HTTP is answered all the same.
                    Err(_malformed) => buffer.len(),
                }
            }
        };
        let request: Vec<u8> = buffer.drain(..length).collect();
        requests.fetch_add(1, Ordering::Relaxed);
        if answered && matches!(act, Act::CloseUponReuse(_)) {
            return;
        }
        answered = true;
        if let Act::Late(after) = act {
            tokio::time::sleep(*after).await;
        }
        let Some((answer, close)) = answer(act, &request) else {
            continue;
        };
        let said = stream.write_all(&answer).await.is_ok() && stream.flush().await.is_ok();
        if close || !said {
            return;
        }
    }
}

/// What it says to a request, and whether it closes then; `None`: nothing.
fn answer(act: &Act, request: &[u8]) -> Option<(Vec<u8>, bool)> {
    match act {
        Act::Close | Act::Reset | Act::Silent => None,
        Act::Late(_) => answer(&Act::answer(200), request),
        Act::CloseUponReuse(status) => answer(&Act::answer(*status), request),
        Act::Say { bytes, close } => Some((bytes.clone(), *close)),
        Act::Echo {
            status,
            headers,
            prefix,
            missing,
            close,
        } => {
            let length = prefix.len() + request.len() + missing;
            let head =
                format!("HTTP/1.1 {status} -\r\n{headers}content-length: {length}\r\n\r\n{prefix}");
            Some(([head.as_bytes(), request].concat(), *close))
        }
    }
}
