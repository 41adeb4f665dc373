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

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Method};
use shared::policy::address::{AddressRules, parse_endpoint_url, vet_literal};
use shared::policy::classify::SendResult;
use shared::testing::dns::{DnsServer, Reply};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use worker::sender::{OutboundRequest, ResolverSettings, Sender, SenderSettings};

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

async fn post(sender: &Sender, url: url::Url) -> SendResult {
    let request = OutboundRequest {
        method: Method::POST,
        url,
        headers: HeaderMap::from_iter([(http::header::HOST, http::HeaderValue::from_static("a"))]),
        body: Bytes::from_static(b"{}"),
        timeout: Duration::from_secs(10),
        identity: None,
    };
    sender.send(request).await.0
}

/// Hosts that are, or hide, an address of this machine or of its network.
fn literals() -> Vec<String> {
    let mut all: Vec<String> = [
        // Loopback as it is, whole and short, decimal, octal, hexadecimal, mixed and padded.
        "127.0.0.1",
        "127.0.0.2",
        "127.1",
        "127.0.1",
        "127.255.255.254",
        "2130706433",
        "2130706434",
        "0x7f000001",
        "0x7F000001",
        "0x7f.0x0.0x0.0x1",
        "0x7f.1",
        "0x7f.0.1",
        "0177.0.0.1",
        "0177.1",
        "017700000001",
        "00000177.0.0.1",
        "0x000000007f.0.0.1",
        "127.0.0.01",
        "127.00.00.01",
        "127.0.0.0x1",
        "127.0x0.0.1",
        "0177.0x0.0.1",
        "127.16777214",
        "127.0.257",
        // With a dot behind, in other digits and other dots.
        "127.0.0.1.",
        "127.1.",
        "2130706433.",
        "0x7f.1.",
        "１２７.０.０.１",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "127．0．0．1",
        "127｡0｡0｡1",
        "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
        "𝟙𝟚𝟟.0.0.1",
        "²¹³⁰⁷⁰⁶⁴³³",
        "127%2e0%2e0%2e1",
        "%31%32%37.0.0.1",
        "1%327.0.0.1",
        "127.0.0.%31",
        "%30%78%37%66.1",
        // Nobody, which the kernel takes for loopback.
        "0",
        "0.0.0.0",
        "00.0.0.0",
        "0x0",
        "0x0.0x0.0x0.0x0",
        "0.0",
        "0.0.0",
        "000000000000",
        "0.0.0.0.",
        // This machine by its names.
        "localhost",
        "LOCALHOST",
        "localhost.",
        "LocalHost",
        "a.localhost",
        "a.b.localhost.",
        "ｌｏｃａｌｈｏｓｔ",
        "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
        "%6cocalhost",
        "loc%61lhost",
        "local\u{ad}host",
        "localhost%2e",
        // IPv6: loopback, nobody, and every form with an IPv4 address inside.
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[0000:0000:0000:0000:0000:0000:0000:0001]",
        "[::0001]",
        "[0::1]",
        "[::]",
        "[0::0]",
        "[::0.0.0.1]",
        "[::0.0.0.0]",
        "[::127.0.0.1]",
        "[::7f00:1]",
        "[::ffff:127.0.0.1]",
        "[::FFFF:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[::ffff:0:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::127.0.0.1]",
        "[64:ff9b:1:7f00:0:100::]",
        "[2002:7f00:1::]",
        "[2002:7f00:1::1]",
        "[2002:7f00:0001:0:0:0:0:1]",
        "[2001:0:7f00:1::]",
        "[2001:0:101:101:0:0:80ff:fffe]",
        "[2001:db8::127.0.0.1]",
        "[fe80::5efe:127.0.0.1]",
        "[2606:4700::5efe:127.0.0.1]",
        "[2606:4700::200:5efe:127.0.0.1]",
        "[fe80::1]",
        "[fe80::1%25lo]",
        "[fe80::1%lo]",
        "[::1%25lo]",
        "[::1%lo]",
        "[fc00::1]",
        "[fd00::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[ff01::1]",
        "[100::1]",
        "[5f00::1]",
        "[4000::1]",
        "[::2]",
        // Private, shared, link-local, multicast, reserved, for text and for measuring.
        "10.0.0.1",
        "10.255.255.255",
        "10.1",
        "0xa.1",
        "012.0.0.1",
        "167772161",
        "172.16.0.1",
        "172.31.255.255",
        "0xac.0x10.1",
        "192.168.0.1",
        "192.168.1",
        "0xc0.0xa8.0.1",
        "3232235521",
        "0300.0250.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "169.254.0.1",
        "169.254.1",
        "198.18.0.1",
        "198.19.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "4294967295",
        "0xffffffff",
        "0377.0377.0377.0377",
        "0.0.0.1",
        "0.1.2.3",
        "192.88.99.1",
        "[::ffff:10.0.0.1]",
        "[::ffff:192.168.0.1]",
        "[64:ff9b::10.0.0.1]",
        "[2002:a00:1::1]",
        "[2001:db8::1]",
        "[3fff::1]",
        "[2001:2::1]",
        // Clouds' metadata.
        "169.254.169.254",
        "169.254.43518",
        "0xa9fea9fe",
        "2852039166",
        "0251.0376.0251.0376",
        "0xa9.0xfe.0xa9.0xfe",
        "169.254.169.254.",
        "169。254。169。254",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::169.254.169.254]",
        "[2002:a9fe:a9fe::1]",
        "[::169.254.169.254]",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "[fd00:ec2::254]",
        "[fd00:ec2::23]",
        "[fd20:ce::254]",
        "[fd00:42::42]",
        // What is no host at all.
        "",
        ".",
        "..",
        "127..0.0.1",
        "127.0.0.1..",
        "localhost..",
        "256.0.0.1",
        "127.0.0.1.1",
        "0x",
        "[",
        "[]",
        "[::1",
        "::1",
        "[::ffff:127.0.0.1.1]",
        "[v1.127]",
        "127.0.0.1\t",
        "127.0.0.1\u{0}",
        "127.0.0.1%00",
        "127.0.0.1\u{200b}",
        "loc\u{200b}alhost",
        "-",
        "*",
        "a b",
    ]
    .into_iter()
    .map(ToOwned::to_owned)
    .collect();
    all.extend((0..8).map(|bit| format!("127.{}.{}.1", 1 << bit, 255 - (1 << bit))));
    all
}

/// Whole URLs that people or parsers take for another one than they are.
fn tricks(port: u16) -> Vec<String> {
    [
        "http://1.1.1.1@127.0.0.1:PORT/",
        "http://127.0.0.1:PORT@1.1.1.1:PORT/",
        "http://1.1.1.1:80@127.0.0.1:PORT/",
        "http://user:pass@127.0.0.1:PORT/",
        "http://:@127.0.0.1:PORT/",
        "http://%40@127.0.0.1:PORT/",
        "http://1.1.1.1#@127.0.0.1:PORT/",
        "http://1.1.1.1?@127.0.0.1:PORT/",
        "http://127.0.0.1:PORT\\@1.1.1.1/",
        "http://1.1.1.1\\@127.0.0.1:PORT/",
        "http:\\\\127.0.0.1:PORT/",
        "http:/127.0.0.1:PORT/",
        "http:127.0.0.1:PORT/",
        "http:///127.0.0.1:PORT/",
        "http:////127.0.0.1:PORT/",
        "//127.0.0.1:PORT/",
        "127.0.0.1:PORT/",
        "/127.0.0.1",
        "http://127.0.0.1:PORT#x",
        "http://127.0.0.1:PORT?x",
        "http://127.0.0.1:0PORT/",
        "http://127.0.0.1:+PORT/",
        "http://127.0.0.1: PORT/",
        "http://127.0.0.1 :PORT/",
        " http://127.0.0.1:PORT/",
        "http://127.0.0.1:PORT/\t",
        "ht\ttp://127.0.0.1:PORT/",
        "http://127.0.\n0.1:PORT/",
        "h\u{9}ttp://localhost:PORT/",
        "HTTP://LOCALHOST:PORT/",
        "https://127.0.0.1:PORT/",
        "https://localhost:PORT/",
        "ftp://127.0.0.1:PORT/",
        "file://127.0.0.1/etc/passwd",
        "file:///etc/passwd",
        "gopher://127.0.0.1:PORT/_x",
        "dict://127.0.0.1:PORT/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "ws://127.0.0.1:PORT/",
        "unix:/run/x.sock",
        "http+unix://%2frun%2fx/",
        "http://127.0.0.1:PORT/..;/",
        "http://[::1]:PORT/",
        "http://[::1].example:PORT/",
        "http://[::1]@1.1.1.1/",
        "http://localhost:PORT/?url=http://1.1.1.1/",
        "http://1.1.1.1/?url=http://127.0.0.1:PORT/\u{0}",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:65536/",
        "http://127.0.0.1:-1/",
        "http://127.0.0.1:/",
    ]
    .into_iter()
    .map(|text| text.replace("PORT", &port.to_string()))
    .collect()
}

/// Names whose owner points them where they do not belong.
fn names(dns: &DnsServer) -> Vec<String> {
    dns.lead_where_names_say("rebind.test");
    let v4 = |a, b, c, d| IpAddr::from(Ipv4Addr::new(a, b, c, d));
    let v6 = |text: &str| IpAddr::from(text.parse::<Ipv6Addr>().unwrap());
    let targets = [
        v4(127, 0, 0, 1),
        v4(127, 1, 2, 3),
        v4(0, 0, 0, 0),
        v4(10, 0, 0, 1),
        v4(172, 16, 0, 1),
        v4(192, 168, 0, 1),
        v4(169, 254, 169, 254),
        v4(100, 64, 0, 1),
        v4(255, 255, 255, 255),
        v4(224, 0, 0, 1),
        v6("::1"),
        v6("::"),
        v6("::ffff:127.0.0.1"),
        v6("64:ff9b::7f00:1"),
        v6("2002:7f00:1::1"),
        v6("fe80::1"),
        v6("fd00::1"),
        v6("fd00:ec2::254"),
    ];
    let mut names = Vec::new();
    for (number, target) in targets.into_iter().enumerate() {
        let (direct, alias) = (format!("a{number}.test"), format!("c{number}.test"));
        dns.answer(&direct, Reply::address(target, 0));
        dns.answer(&alias, Reply::Alias(direct.clone(), 0));
        names.extend([direct, alias]);
    }
    let both = vec![v4(127, 0, 0, 1), v6("::1")];
    dns.answer("both.test", Reply::Addresses(both, 0));
    dns.answer("none.test", Reply::Addresses(Vec::new(), 0));
    let turns = [v4(10, 0, 0, 1), v4(127, 0, 0, 1)];
    dns.answer_in_turn("turns.test", turns.map(|it| Reply::address(it, 0)).to_vec());
    let said = [
        "127.0.0.1.rebind.test",
        "10.0.0.1.rebind.test",
        "169.254.169.254.rebind.test",
    ];
    let more = [
        "both.test",
        "none.test",
        "turns.test",
        "turns.test",
        "turns.test",
        "BOTH.test.",
    ];
    names.extend(said.into_iter().chain(more).map(ToOwned::to_owned));
    names
}

#[tokio::test]
async fn s1_nothing_of_the_corpus_reaches_this_machine() {
    let victim = Victim::start().await;
    let dns = DnsServer::start().await;
    let port = victim.port;
    let hosts = literals().into_iter().chain(names(&dns));
    let mut corpus: Vec<String> = hosts
        .map(|host| format!("http://{host}:{port}/hooks"))
        .collect();
    corpus.extend(tricks(port));
    assert!(corpus.len() >= 250, "{}", corpus.len());
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
    let outcomes: Vec<(url::Url, SendResult)> = sending.buffer_unordered(32).collect().await;

    assert_eq!(victim.visits(), 0, "somebody came");
    for (url, outcome) in &outcomes {
        assert!(outcome.is_err(), "{url}: {outcome:?}");
    }
    // The listener is alive, and the very sender that refuses would have reached it.
    let open = sender("127.0.0.0/8 ::1", &dns);
    for host in ["127.0.0.1", "[::1]", "2130706433", "localhost", "a0.test"] {
        let url = format!("http://{host}:{port}/hooks").parse().unwrap();
        let answer = post(&open, url).await;
        assert!(answer.is_ok(), "{host}: {answer:?}");
    }
    assert_eq!(victim.visits(), 5);
}
