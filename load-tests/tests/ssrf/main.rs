//! S1: no URL and no answer of DNS leads a request to this machine, in whatever spelling.
//!
//! Each of the corpus goes through the check at creation and, where that lets it pass, through the
//! sender; and all that a URL parser takes at all goes through the sender as well, as a row that is
//! older than the rules would. Listeners on loopback count who comes.

#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "helpers of tests; a table has as many lines as rows"
)]

mod corpus;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Method};
use shared::policy::address::{AddressRules, parse_endpoint_url, vet_literal};
use shared::policy::classify::{SendError, SendResult};
use shared::testing::dns::DnsServer;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use worker::sender::{OutboundRequest, ResolverSettings, Sender, SenderSettings, Timings};

use self::corpus::{literals, names, tricks};

/// Counts who comes to any IPv4 address of this machine and to `::1`, on one port.
struct Victim {
    port: u16,
    visits: Arc<AtomicUsize>,
}

impl Victim {
    async fn start() -> Self {
        let visits = Arc::new(AtomicUsize::new(0));
        let (v4, v6, port) = loop {
            let v4 = TcpListener::bind("0.0.0.0:0").await.unwrap();
            let port = v4.local_addr().unwrap().port();
            if let Ok(v6) = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await {
                break (v4, v6, port);
            }
        };
        for listener in [v4, v6] {
            let visits = Arc::clone(&visits);
            #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    visits.fetch_add(1, Ordering::SeqCst);
                    let answer =
                        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                    let _gone = stream.write_all(answer).await;
                }
            });
        }
        Self { port, visits }
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

fn sender(rules: &str, dns: &DnsServer) -> Sender {
    Sender::new(SenderSettings {
        rules: AddressRules::parse(rules).unwrap(),
        resolver: ResolverSettings {
            servers: vec![dns.addr()],
            ..ResolverSettings::default()
        },
        ..SenderSettings::default()
    })
    .unwrap()
}

async fn post(sender: &Sender, url: url::Url) -> (SendResult, Timings) {
    let request = OutboundRequest {
        method: Method::POST,
        url,
        headers: HeaderMap::from_iter([(http::header::HOST, http::HeaderValue::from_static("a"))]),
        body: Bytes::from_static(b"{}"),
        timeout: Duration::from_secs(10),
        fresh: false,
        identity: None,
    };
    sender.send(request).await
}

/// Whether the server was told an address of the URL's name.
fn is_told(names: &[String], url: &url::Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host != "none.test" && names.iter().any(|name| name == host)
}

#[tokio::test]
async fn s1_nothing_of_the_corpus_reaches_this_machine() {
    let victim = Victim::start().await;
    let dns = DnsServer::start().await;
    let port = victim.port;
    let names = names(&dns);
    let hosts = literals().into_iter().chain(names.iter().cloned());
    let mut corpus: Vec<String> = hosts
        .map(|host| format!("http://{host}:{port}/hooks"))
        .collect();
    corpus.extend(tricks(port));
    assert!(corpus.len() >= 300, "{}", corpus.len());
    let closed = sender("", &dns);
    let rules = AddressRules::default();

    // A URL that the API would take must not lead here; one that it refuses could be in an older row.
    let parsed = corpus.iter().filter_map(|text| {
        let checked = parse_endpoint_url(text, false).ok();
        let url = checked.or_else(|| url::Url::parse(text).ok())?;
        url.has_host().then_some(url)
    });
    // What turns out to be a stranger's address is not bothered: no test sends anything outside.
    let is_literal = |url: &url::Url| !matches!(url.host(), Some(url::Host::Domain(_)));
    let (others, urls): (Vec<url::Url>, Vec<url::Url>) =
        parsed.partition(|url| is_literal(url) && vet_literal(url, &rules).is_ok());
    assert!(
        others.iter().all(|url| url.host_str() == Some("1.1.1.1")),
        "{others:?}"
    );
    assert!(urls.len() >= 200, "{}", urls.len());
    let sending = stream::iter(urls.iter().cloned()).map(|url| {
        let closed = &closed;
        async move { (url.clone(), post(closed, url).await) }
    });
    let outcomes: Vec<(url::Url, (SendResult, Timings))> =
        sending.buffer_unordered(32).collect().await;

    assert_eq!(victim.visits(), 0, "somebody came");
    for (url, (result, timings)) in &outcomes {
        let kind = result.as_ref().err().map(SendError::kind);
        assert_eq!(timings.dialled, Vec::<IpAddr>::new(), "{url}: {result:?}");
        let is_refused = kind == Some("address_denied");
        // A name of the corpus that nobody told the server of does not exist.
        let is_unknown = kind == Some("dns") && !is_told(&names, url);
        // Neither http nor https, in an older row.
        let is_other = kind == Some("internal") && !matches!(url.scheme(), "http" | "https");
        assert!(is_refused || is_unknown || is_other, "{url}: {result:?}");
    }
    // The listener is alive, and the very sender that refuses would have reached it.
    let open = sender("127.0.0.0/8 ::1", &dns);
    for host in ["127.0.0.1", "[::1]", "2130706433", "localhost", "a0.test"] {
        let url = format!("http://{host}:{port}/hooks").parse().unwrap();
        let (answer, _) = post(&open, url).await;
        assert!(answer.is_ok(), "{host}: {answer:?}");
    }
    assert_eq!(victim.visits(), 5);
}
