//! A connection of HTTP/2, which several requests share.
//!
//! # Invariants
//! - What is left of a request ends with the connection, and nobody new comes onto one that holds such
//!   leftovers or left a request without an answer.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use shared::policy::classify::SendError;
use shared::runtime::spawn_driver;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::exchange::{Body, Failure, MAX_HEAD, watched};
use super::explain;
use super::paced::Paced;
use super::pool::Shared;
use super::streams::{self, Streams};

/// How long an unused connection of HTTP/2 is kept: closing one is announced, and costs nothing.
pub(super) const IDLE_SHARED: Duration = Duration::from_secs(20);

/// How long a connection of HTTP/2 has to say that it ends: its receiver need not read that.
const FAREWELL: Duration = Duration::from_secs(1);

/// The most requests on one connection of HTTP/2 at once, whatever the server allows.
const MOST_STREAMS: usize = 100;

/// Room for what has not been read of one answer, and of all on a connection of HTTP/2.
const STREAM_WINDOW: u32 = 64 * 1_024;
const CONNECTION_WINDOW: u32 = 1_024 * 1_024;

/// A connection of HTTP/2.
pub(super) struct Line {
    requests: http2::SendRequest<Body>,
    /// Ends it with the last who uses it.
    _owned: DropGuard,
    streams: Streams,
    /// From here on it is not used again.
    pub(super) old_at: Instant,
    pub(super) address: IpAddr,
    places: AtomicUsize,
    left_at: Mutex<Instant>,
    retired: AtomicBool,
}

impl Line {
    /// A connection over this stream, with no request on it yet.
    pub(super) async fn open<S>(
        stream: S,
        address: IpAddr,
        old_at: Instant,
    ) -> Result<Arc<Self>, SendError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let streams = Streams::new();
        let tasks = Tasks::of(streams.clone());
        let (requests, connection) = http2::Builder::new(tasks.clone())
            .initial_max_send_streams(streams::AT_FIRST)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
            .handshake(TokioIo::new(Paced::new(stream)))
            .await
            .map_err(|error| explain::broken(&error, false))?;
        let told = streams.clone();
        let connection = async move {
            let mut connection = pin!(connection);
            poll_fn(|context| {
                told.is_asked_for(context);
                let ended = connection.as_mut().poll(context);
                told.are(connection.current_max_send_streams());
                ended
            })
            .await
        };
        let now = Instant::now();
        Ok(Arc::new(Self {
            requests,
            _owned: tasks.driving(connection),
            streams,
            old_at,
            address,
            places: AtomicUsize::new(0),
            left_at: Mutex::new(now),
            retired: AtomicBool::new(false),
        }))
    }

    /// Whether it takes requests, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    fn is_young(&self, now: Instant) -> bool {
        now < self.old_at && !self.retired.load(Ordering::Relaxed) && self.is_open()
    }

    fn left_at(&self) -> MutexGuard<'_, Instant> {
        self.left_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared for Arc<Line> {
    fn has_room(&self, now: Instant) -> bool {
        let most = self.streams.most().min(MOST_STREAMS);
        self.is_young(now) && self.places.load(Ordering::Relaxed) < most
    }

    fn is_over(&self, now: Instant) -> bool {
        !self.is_young(now) || now >= self.last_use(now) + IDLE_SHARED
    }

    fn last_use(&self, now: Instant) -> Instant {
        if self.places.load(Ordering::Relaxed) > 0 {
            now
        } else {
            *self.left_at()
        }
    }
}

/// A request under way. If nobody answers it, nobody new is to come onto its connection, which may
/// lead nowhere; one that is not shared is closed anyway.
struct Unanswered<'a>(&'a Line);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.retired.store(true, Ordering::Relaxed);
    }
}

/// One request's place on a connection of HTTP/2.
pub(super) struct Place {
    pub(super) line: Arc<Line>,
    /// There as long as not all of the request's body was sent.
    unsent: Weak<()>,
}

impl Place {
    pub(super) fn on(line: Arc<Line>) -> Self {
        line.places.fetch_add(1, Ordering::Relaxed);
        Self {
            line,
            unsent: Weak::new(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Answered before its receiver took all of it: what is left stays with the connection, which
        // nobody else is to come onto, or it would hold such leftovers for as long as it is used.
        if self.unsent.strong_count() > 0 {
            self.line.retired.store(true, Ordering::Relaxed);
        }
        *self.line.left_at() = Instant::now();
        self.line.places.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends a request from this place; `whole_uri`: its URL.
pub(super) async fn shared(
    place: &mut Place,
    request: &Option<Request<Bytes>>,
    whole_uri: Option<Uri>,
) -> Result<Response<Incoming>, Failure> {
    let (Some(original), Some(whole_uri)) = (request, whole_uri) else {
        return Err(Failure::NotTaken(None));
    };
    // HTTP/2 has no `Host`: it goes into the URI (RFC 9113 8.3.1).
    let (body, unsent) = watched(original.body().clone());
    place.unsent = unsent;
    let mut whole = original.clone().map(|_same| body);
    whole.headers_mut().remove(HOST);
    *whole.uri_mut() = whole_uri;
    let line = &place.line;
    let unanswered = Unanswered(line);
    let sent = line.requests.clone().try_send_request(whole).await;
    if sent.is_ok() {
        std::mem::forget(unanswered);
    }
    sent.map_err(|mut error| {
        if error.take_message().is_some() {
            Failure::NotTaken(Some(error.into_error()))
        } else if explain::was_not_processed(error.error()) || explain::was_waiting(error.error()) {
            Failure::Refused
        } else {
            Failure::Broken(error.into_error())
        }
    })
}

/// The tasks of one connection of HTTP/2: itself, and those that hyper starts for each request.
///
/// # Why
/// hyper ends them when all is sent and said. A receiver that takes no more bytes would keep them, the
/// socket and the rest of a body for ever.
#[derive(Clone)]
struct Tasks {
    all: CancellationToken,
    streams: Streams,
}

impl Tasks {
    fn of(streams: Streams) -> Self {
        Self {
            all: CancellationToken::new(),
            streams,
        }
    }

    /// Drives the connection as long as what is handed back is there, and ends all tasks soon after.
    fn driving<E>(
        self,
        connection: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> DropGuard
    where
        E: Send + 'static,
    {
        let owned = CancellationToken::new();
        let left = owned.clone();
        spawn_driver(async move {
            let _ended = left.run_until_cancelled(connection).await;
            // It takes no more requests, and those that it took may still be answered.
            left.cancelled().await;
            sleep(FAREWELL).await;
            self.all.cancel();
        });
        owned.drop_guard()
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let Self { all, streams } = self.clone();
        spawn_driver(async move {
            let _ended = all.run_until_cancelled(streams.watching(task)).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::{Connection, MAX_AGE};
    use super::*;

    #[tokio::test]
    async fn f12_a_shared_connection_is_good_while_it_is_neither_unused_for_too_long_nor_old() {
        let (ours, _theirs) = tokio::io::duplex(4_096);
        let start = Instant::now();
        let made = Connection::http2(ours, [127, 0, 0, 1].into(), start + MAX_AGE).await;
        let Ok(first) = made else {
            panic!("no connection");
        };
        let line = Arc::clone(first.line().unwrap());
        let (unused, old) = (start + IDLE_SHARED, start + MAX_AGE);
        let just_before = |at: Instant| at.checked_sub(Duration::from_millis(1)).unwrap();

        assert!(!line.has_room(start), "until it is known how many it takes");
        assert!(!line.is_over(just_before(old)), "it is in use");
        assert!(line.is_over(old));
        assert_eq!(line.last_use(old), old);
        drop(first);
        let left = *line.left_at();
        assert!(line.has_room(just_before(old)) && !line.has_room(old));
        assert!(!line.is_over(just_before(unused)));
        assert!(line.is_over(left + IDLE_SHARED));
        assert_eq!(line.last_use(old), left);
    }
}
