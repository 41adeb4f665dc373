//! One connection, and one request over it.
//!
//! # Why
//! A request that was certainly not processed may go over another connection, as if nothing had
//! happened: it was never handed to this one, or its receiver says so (RFC 9113 8.7: a stream above
//! the last one named by GOAWAY, or refused). All else is somebody's answer to "did it arrive?".

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use shared::policy::classify::SendError;
use shared::runtime::spawn_driver;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::explain;
use super::line::{IDLE_SHARED, Line, Place, shared};
use super::paced::Paced;
use super::resolver::LONGEST_TTL;

/// How long a connection is used. With the 30 s that a name's addresses are believed, a receiver that
/// moved is followed within a minute, however busy its connections are.
pub const MAX_AGE: Duration = Duration::from_secs(30);

/// How long an unused connection of HTTP/1 is kept where its server says nothing: the least of what
/// common servers allow is 5 s (Node.js, Apache, uvicorn). One that is being closed costs a *maybe
/// sent*.
const IDLE: Duration = Duration::from_secs(4);

/// How much sooner than its server says we give a connection up.
const IDLE_MARGIN: Duration = Duration::from_secs(1);

/// More than this of what a server says is of no use: it may say any number, also one that no clock
/// holds.
const LONGEST_IDLE: Duration = Duration::from_secs(3_600);

/// How long a connection whose answer has ended is waited for. It is busy with the rest of a request
/// where the receiver answered before it had read all of it, and may be so for ever.
const SETTLE: Duration = Duration::from_millis(100);

// F12: an address that was believed to the last moment, and a connection that was made to it just then.
const _: () = assert!(LONGEST_TTL.as_secs() + MAX_AGE.as_secs() <= 60);
// F01: the shortest limit of common servers, with half a second for a request to get there.
const _: () = assert!(IDLE.as_millis() + 500 < 5_000);
// An unused one is given up for being unused.
const _: () =
    assert!(IDLE.as_secs() < IDLE_SHARED.as_secs() && IDLE_SHARED.as_secs() < MAX_AGE.as_secs());

/// The longest head of an answer that is read, in bytes.
pub(super) const MAX_HEAD: usize = 64 * 1_024;
const MAX_HEADERS: usize = 256;

pub(super) type Body = Full<Bytes>;

/// An open connection with one request's place on it. Dropped before its answer was read to the end,
/// it is closed, or its stream is.
pub(super) struct Connection {
    channel: Channel,
    pub(super) address: IpAddr,
    /// From here on it is not used again.
    old_at: Instant,
    idle: Duration,
    /// It carried a request before.
    pub(super) used: bool,
}

enum Channel {
    Single {
        requests: http1::SendRequest<Body>,
        /// There as long as not all of the request's body was sent.
        unsent: Weak<()>,
        /// Drives it until it is dropped.
        driver: Driver,
    },
    Shared(Place),
}

/// Why there is no answer.
pub(super) enum Failure {
    /// The connection ended before it took the request; and what it died of, if that is known.
    NotTaken(Option<hyper::Error>),
    /// The receiver says that it has not acted on the request, or the request never had its turn.
    Refused,
    /// Anything else.
    Broken(hyper::Error),
}

impl Connection {
    pub(super) async fn http1<S>(
        stream: S,
        address: IpAddr,
        old_at: Instant,
    ) -> Result<Self, SendError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            // What old receivers write beside the status costs nobody a delivery.
            .allow_obsolete_multiline_headers_in_responses(true)
            .allow_spaces_after_header_name_in_responses(true)
            .ignore_invalid_headers_in_responses(true)
            .handshake(TokioIo::new(Paced::new(stream)))
            .await
            .map_err(|error| explain::broken(&error, false))?;
        let driver = Driver::of(connection);
        let channel = Channel::Single {
            requests,
            unsent: Weak::new(),
            driver,
        };
        Ok(Self::new(channel, address, old_at))
    }

    pub(super) async fn http2<S>(
        stream: S,
        address: IpAddr,
        old_at: Instant,
    ) -> Result<Self, SendError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let line = Line::open(stream, address, old_at).await?;
        let place = Place::on(line);
        Ok(Self::new(Channel::Shared(place), address, old_at))
    }

    fn new(channel: Channel, address: IpAddr, old_at: Instant) -> Self {
        Self {
            channel,
            address,
            old_at,
            idle: IDLE,
            used: false,
        }
    }

    /// A place on a connection that others use as well.
    pub(super) fn on(line: Arc<Line>) -> Self {
        Self {
            address: line.address,
            old_at: line.old_at,
            idle: IDLE_SHARED,
            used: true,
            channel: Channel::Shared(Place::on(line)),
        }
    }

    /// What others may use of it, if they may.
    pub(super) fn line(&self) -> Option<&Arc<Line>> {
        match &self.channel {
            Channel::Single { .. } => None,
            Channel::Shared(place) => Some(&place.line),
        }
    }

    /// Until when it may wait for its next request. One that was answered before its receiver took all of
    /// the body would hold the rest of it as long.
    pub(super) fn good_until(&self, now: Instant) -> Instant {
        match &self.channel {
            Channel::Single { unsent, .. } if unsent.strong_count() > 0 => now,
            Channel::Single { .. } | Channel::Shared(_) => (now + self.idle).min(self.old_at),
        }
    }

    /// Sends a request and waits for the head of its answer. `request` is in the form of HTTP/1 and is
    /// there again when it was not processed. `whole`: the URL of it, for a shared connection.
    pub(super) async fn send(
        &mut self,
        request: &mut Option<Request<Bytes>>,
        whole: Option<Uri>,
    ) -> Result<Response<Incoming>, Failure> {
        let answer = match &mut self.channel {
            Channel::Single {
                requests,
                unsent,
                driver,
            } => {
                let answer = single(requests, unsent, request).await;
                match answer {
                    Err(Failure::NotTaken(error)) => {
                        Err(Failure::NotTaken(driver.died_of().await.or(error)))
                    }
                    answer => answer,
                }
            }
            Channel::Shared(place) => shared(place, request, whole).await,
        };
        if let Ok(head) = &answer {
            self.idle = idle_limit(head.headers()).unwrap_or(self.idle);
        }
        self.used = true;
        answer
    }

    /// Whether it can still take a request, as far as is known.
    pub(super) async fn is_ready(&mut self) -> bool {
        match &mut self.channel {
            Channel::Single { requests, .. } => {
                let settled = timeout(SETTLE, requests.ready()).await;
                settled.is_ok_and(|ready| ready.is_ok())
            }
            Channel::Shared(place) => place.line.is_open(),
        }
    }
}

async fn single(
    requests: &mut http1::SendRequest<Body>,
    unsent: &mut Weak<()>,
    request: &mut Option<Request<Bytes>>,
) -> Result<Response<Incoming>, Failure> {
    let Some(whole) = request.take() else {
        return Err(Failure::NotTaken(None));
    };
    let body = whole.body().clone();
    let (watched, there) = watched(body.clone());
    *unsent = there;
    let sent = requests.try_send_request(whole.map(|_same| watched)).await;
    sent.map_err(|mut error| match error.take_message() {
        Some(untaken) => {
            *request = Some(untaken.map(|_same| body));
            Failure::NotTaken(Some(error.into_error()))
        }
        None => Failure::Broken(error.into_error()),
    })
}

/// How long the server says it keeps an unused connection (`Keep-Alive: timeout=5, max=100`).
fn idle_limit(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("keep-alive")?.to_str().ok()?;
    let seconds = text
        .split(',')
        .find_map(|part| part.trim().strip_prefix("timeout="))?;
    let allowed = Duration::from_secs(seconds.trim().parse().ok()?);
    Some(allowed.saturating_sub(IDLE_MARGIN).min(LONGEST_IDLE))
}

/// A body, and what is there as long as any of it is.
pub(super) fn watched(body: Bytes) -> (Body, Weak<()>) {
    struct Watched(Bytes, #[expect(dead_code, reason = "is there")] Arc<()>);
    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let there = Arc::new(());
    let unsent = Arc::downgrade(&there);
    (Full::new(Bytes::from_owner(Watched(body, there))), unsent)
}

/// The task that reads and writes a connection of HTTP/1; it ends with whoever uses it.
struct Driver(JoinHandle<Result<(), hyper::Error>>);

impl Driver {
    fn of(connection: impl Future<Output = Result<(), hyper::Error>> + Send + 'static) -> Self {
        Self(spawn_driver(connection))
    }

    /// What the connection ended with before anybody waited for an answer: such an error is told to
    /// nobody else.
    async fn died_of(&mut self) -> Option<hyper::Error> {
        let ended = timeout(SETTLE, &mut self.0).await;
        ended.ok()?.ok()?.err()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::HeaderValue;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

    use super::*;

    /// A connection that is to be used for another `life`, after an answer with these headers.
    async fn after_an_answer(headers: &str, life: Duration) -> (Connection, Instant) {
        let (ours, mut theirs) = tokio::io::duplex(4_096);
        let start = Instant::now();
        let address = [127, 0, 0, 1].into();
        let made = Connection::http1(ours, address, start + life).await;
        let Ok(mut connection) = made else {
            panic!("no connection");
        };
        let answer = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\n\r\n");
        let answering = async {
            assert!(theirs.read(&mut [0; 4_096]).await.unwrap() > 0);
            theirs.write_all(answer.as_bytes()).await.unwrap();
        };
        let mut request = Some(Request::new(Bytes::new()));
        let (sent, ()) = tokio::join!(connection.send(&mut request, None), answering);
        assert!(sent.is_ok());
        (connection, start)
    }

    #[tokio::test]
    async fn f01_f12_a_connection_is_good_while_it_is_neither_idle_for_too_long_nor_old() {
        let seconds = Duration::from_secs;
        let cases = [
            ("", seconds(30), seconds(4)),
            ("", seconds(3), seconds(3)),
            ("", seconds(0), seconds(0)),
            ("Keep-Alive: timeout=5\r\n", seconds(30), seconds(4)),
            ("Keep-Alive: timeout=2\r\n", seconds(30), seconds(1)),
            ("Keep-Alive: timeout=1\r\n", seconds(30), seconds(0)),
            ("Keep-Alive: timeout=75\r\n", seconds(30), seconds(30)),
            ("Keep-Alive: timeout=75\r\n", seconds(100), seconds(74)),
        ];
        for (headers, life, expected) in cases {
            let (connection, start) = after_an_answer(headers, life).await;
            assert_eq!(
                connection.good_until(start),
                start + expected,
                "{headers:?}, {life:?}"
            );
            let late = start + life + seconds(9);
            assert_eq!(connection.good_until(late), start + life, "old is old");
        }
    }

    /// A stream whose reader is told by TLS that the server wants a certificate.
    struct Refused;

    impl AsyncRead for Refused {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let alert = rustls::AlertDescription::CertificateRequired;
            let alert = rustls::Error::AlertReceived(alert);
            Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
        }
    }

    impl AsyncWrite for Refused {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_refused_certificate_is_named_whether_it_is_met_before_the_request_or_after() {
        let address = [127, 0, 0, 1].into();
        for met_before in [true, false] {
            let made = Connection::http1(Refused, address, Instant::now() + MAX_AGE).await;
            let Ok(mut connection) = made else {
                panic!("no connection");
            };
            if met_before {
                assert!(!connection.is_ready().await);
            }
            let mut request = Some(Request::new(Bytes::new()));
            let error = match connection.send(&mut request, None).await {
                Ok(_) => panic!("an answer"),
                Err(Failure::NotTaken(error)) => explain::untaken(error.as_ref()),
                Err(Failure::Broken(error)) => explain::broken(&error, false),
                Err(Failure::Refused) => panic!("nobody refused the request alone"),
            };
            assert!(
                matches!(&error, SendError::Tls(text) if text.contains("CertificateRequired")),
                "{met_before}: {error}"
            );
        }
    }

    #[test]
    fn a_server_that_says_how_long_it_waits_is_believed_less_a_second() {
        let cases = [
            ("timeout=5", Some(4)),
            ("timeout=5, max=100", Some(4)),
            ("max=100, timeout=75", Some(74)),
            ("timeout=1", Some(0)),
            ("timeout=0", Some(0)),
            ("timeout=18446744073709551615", Some(3_600)),
            ("timeout=18446744073709551616", None),
            ("timeout=-1", None),
            ("max=3", None),
            ("", None),
        ];
        for (text, seconds) in cases {
            let header = HeaderValue::from_static(text);
            let headers = HeaderMap::from_iter([(
                http::header::HeaderName::from_static("keep-alive"),
                header,
            )]);
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(idle_limit(&headers), expected, "{text}");
        }
        assert_eq!(idle_limit(&HeaderMap::new()), None);
    }
}
