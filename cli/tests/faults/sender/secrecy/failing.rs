//! Receivers that fail in every way there is, and what each failure is told as.

use std::net::SocketAddr;

use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use shared::runtime::spawn_driver;
use tokio::net::UdpSocket;

use crate::sender::authority::{Authority, self_signed_server};
use crate::sender::nowhere::{Closed, Full};
use crate::sender::scripted::{Act, Scripted};

/// A way to fail.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Scheme, host and port.
    pub(crate) base: String,
    /// What one of its attempts says: a status, a text that its error begins with, or both.
    pub(crate) told: (Option<i16>, &'static str),
}

/// All ways, and what makes them happen; ends when dropped.
pub(crate) struct Failing {
    pub(crate) ways: Vec<Way>,
    /// For `POSTRIDER_DNS_SERVERS`: denies `absent.test` and says nothing about others.
    pub(crate) dns: SocketAddr,
    receivers: Vec<Scripted>,
    _full: Full,
    _closed: Closed,
}

/// Where endpoints lead that are damaged before anything is sent to them (`Scene::damage`).
const DAMAGED: &str = "http://127.0.0.1:8443";

/// What receivers give back besides the request.
pub(crate) struct Said<'a> {
    pub(crate) body: &'a str,
    pub(crate) location: &'a str,
}

impl Failing {
    pub(crate) async fn start(authority: &Authority, said: &Said<'_>) -> Self {
        let full = Full::at(([127, 0, 0, 1], 0).into()).await;
        let closed = Closed::new();
        let way = |name, base: String, told| Way { name, base, told };
        let mut ways = vec![
            way(
                "dns",
                "http://absent.test".into(),
                (None, "the host name could not be resolved"),
            ),
            way(
                "dns-silent",
                "http://silent.test".into(),
                (None, "timed out resolving"),
            ),
            way(
                "closed",
                format!("http://{}", closed.addr),
                (None, "could not connect"),
            ),
            way(
                "full",
                format!("http://{}", full.addr),
                (None, "timed out connecting"),
            ),
        ];
        ways.extend(
            [
                ("url-denied", "the endpoint's url"),
                ("template", "the payload has no field `absent`"),
                (
                    "url-broken",
                    "the request could not be made: the stored URL",
                ),
                (
                    "header-broken",
                    "the request could not be made: configuration",
                ),
            ]
            .map(|(name, told)| way(name, DAMAGED.into(), (None, told))),
        );
        let mut all = Self {
            ways,
            dns: dns().await,
            receivers: Vec::new(),
            _full: full,
            _closed: closed,
        };
        all.without_an_answer().await;
        all.without_a_proof(authority).await;
        all.reset_over_tls(authority).await;
        all.giving_up(authority, said).await;
        all.with_an_answer(said).await;
        all
    }

    async fn without_an_answer(&mut self) {
        let stranger = Authority::new();
        let garbage = garbage();
        let ok = || Act::answer(200);
        for (name, scheme, tls, act, told) in [
            (
                "reset",
                "http",
                None,
                Act::Reset,
                "the connection was closed before",
            ),
            (
                "reuse",
                "http",
                None,
                Act::CloseUponReuse(500),
                "a reused connection was closed",
            ),
            ("silent", "http", None, Act::Silent, "timed out waiting"),
            (
                "garbage",
                "http",
                None,
                garbage,
                "the response is not valid HTTP",
            ),
            ("tls-cut", "https", None, Act::Close, "TLS: "),
            (
                "tls-silent",
                "https",
                None,
                Act::Silent,
                "timed out in the TLS",
            ),
            ("tls-plain", "https", None, ok(), "TLS: "),
            (
                "tls-client",
                "https",
                Some(stranger.server_of_known("127.0.0.1")),
                ok(),
                "TLS: ",
            ),
        ] {
            let receiver = Scripted::start(tls, act).await;
            let base = receiver.url(scheme, "");
            self.add(
                receiver,
                Way {
                    name,
                    base,
                    told: (None, told),
                },
            );
        }
    }

    /// Certificates that do not show who answers, each in its way.
    async fn without_a_proof(&mut self, authority: &Authority) {
        let here = "127.0.0.1";
        let clients = vec![ExtendedKeyUsagePurpose::ClientAuth];
        for (name, tls, told) in [
            (
                "tls-expired",
                authority.server_with(here, |it| it.not_after = date_time_ymd(2001, 1, 1)),
                "TLS: the certificate has expired",
            ),
            (
                "tls-future",
                authority.server_with(here, |it| it.not_before = date_time_ymd(2999, 1, 1)),
                "TLS: the certificate is not valid yet",
            ),
            (
                "tls-purpose",
                authority.server_with(here, |it| it.extended_key_usages = clients),
                "TLS: the certificate cannot be used",
            ),
            (
                "tls-name",
                authority.server("other.test"),
                "TLS: the certificate is not for",
            ),
            (
                "tls-self-signed",
                self_signed_server(here),
                "TLS: the certificate is self-signed",
            ),
            (
                "tls-intermediate",
                authority.intermediate().server(here),
                "TLS: the certificate's issuer is not trusted",
            ),
            (
                "tls-stranger",
                Authority::new().server_with_issuer(here),
                "TLS: the certificate was issued by nobody",
            ),
        ] {
            let receiver = Scripted::start(Some(tls), Act::answer(200)).await;
            let base = receiver.url("https", "");
            let told = (None, told);
            self.add(receiver, Way { name, base, told });
        }
    }

    /// Over TLS that stands.
    async fn reset_over_tls(&mut self, authority: &Authority) {
        let receiver = Scripted::start(Some(authority.server("127.0.0.1")), Act::Reset).await;
        let base = receiver.url("https", "");
        let told = (None, "the connection was closed before");
        self.add(
            receiver,
            Way {
                name: "tls-reset",
                base,
                told,
            },
        );
    }

    /// Over HTTP/2: the connection is given up before each request, with a text in the reason.
    async fn giving_up(&mut self, authority: &Authority, said: &Said<'_>) {
        // A frame is its length, its type, flags and stream: first SETTINGS, then GOAWAY, which names the
        // last stream (0) and an error (0).
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let length = u8::try_from(8 + said.body.len()).unwrap();
        let go_away = [0, 0, length, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let act = Act::Say {
            bytes: [&settings[..], &go_away, said.body.as_bytes()].concat(),
            close: false,
        };
        let tls = authority.server_of_http2("127.0.0.1");
        let receiver = Scripted::start(Some(tls), act).await;
        let base = receiver.url("https", "");
        let told = (None, "the receiver closed every connection before");
        self.add(
            receiver,
            Way {
                name: "go-away",
                base,
                told,
            },
        );
    }

    async fn with_an_answer(&mut self, said: &Said<'_>) {
        let echo = |status, headers: String, missing, close| Act::Echo {
            status,
            headers: format!(
                "x-said: {}\r\nset-cookie: {}\r\n{headers}",
                said.body, said.body
            ),
            prefix: said.body.to_owned(),
            missing,
            close,
        };
        for (name, status) in [
            ("200", 200),
            ("401", 401),
            ("404", 404),
            ("410", 410),
            ("422", 422),
            ("429", 429),
            ("500", 500),
            ("503", 503),
        ] {
            let wrong = format!("retry-after: {}\r\n", said.body);
            let act = echo(status, wrong, 0, false);
            self.answering(name, act, (i16::try_from(status).ok(), ""))
                .await;
        }
        for (name, status) in [("301", 301), ("302", 302), ("307", 307)] {
            let to = format!(
                "location: https://{0}.test/{0}?token={0}\r\n",
                said.location
            );
            let act = echo(status, to, 0, false);
            let told = (i16::try_from(status).ok(), "the receiver redirects");
            self.answering(name, act, told).await;
        }
        let head = "HTTP/1.1 200 -\r\ncontent-length: 99\r\n\r\n";
        let broken = Act::Say {
            bytes: [head, said.body].concat().into_bytes(),
            close: true,
        };
        self.answering(
            "truncated",
            broken,
            (Some(200), "the connection broke inside"),
        )
        .await;
        let slow = echo(500, String::new(), 10, false);
        self.answering(
            "slow",
            slow,
            (Some(500), "the response body was not complete"),
        )
        .await;
    }

    async fn answering(&mut self, name: &'static str, act: Act, told: (Option<i16>, &'static str)) {
        let receiver = Scripted::start(None, act).await;
        let base = receiver.url("http", "");
        self.add(receiver, Way { name, base, told });
    }

    fn add(&mut self, receiver: Scripted, way: Way) {
        self.receivers.push(receiver);
        self.ways.push(way);
    }
}

/// What is no HTTP.
pub(crate) fn garbage() -> Act {
    Act::Say {
        bytes: b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
        close: true,
    }
}

/// A name server that denies one name; ends with the test.
async fn dns() -> SocketAddr {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = socket.local_addr().unwrap();
    drop(spawn_driver(async move {
        let mut question = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut question).await {
            let asked = &mut question[..length];
            if asked
                .windows(6)
                .any(|six| six.eq_ignore_ascii_case(b"absent"))
            {
                // A response (QR), recursion available (RA), no such name (RCODE 3).
                asked[2] |= 0x80;
                asked[3] = 0x83;
                let _sent = socket.send_to(asked, peer).await;
            }
        }
    }));
    addr
}
