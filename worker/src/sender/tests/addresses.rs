//! S1: where requests may not go, and what they say.

use std::process::Command;

use shared::policy::address::DenyReason;
use shared::testing::dns::{DnsServer, Reply};
use shared::testing::eventually;

use super::*;

#[tokio::test]
async fn s1_a_redirect_is_an_answer_and_not_followed() {
    let elsewhere = Receiver::answering(OK).await;
    for status in [301, 302, 303, 307, 308] {
        let head = format!(
            "HTTP/1.1 {status} Moved\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n",
            elsewhere.url()
        );
        let receiver = Receiver::answering(head).await;

        assert_eq!(answer(&local(), &receiver).await.status, status);
    }
    assert_eq!(elsewhere.connections(), 0);
}

/// A note is stored for each attempt and shown in lists; where it leads is a stranger's to say.
#[tokio::test]
async fn a_redirect_to_a_name_that_nobody_can_have_makes_no_long_note() {
    let name = ["x"; 30_000].join(".");
    let head = format!("HTTP/1.1 308 X\r\nLocation: https://{name}/\r\nContent-Length: 0\r\n\r\n");
    let receiver = Receiver::answering(head).await;

    let answer = answer(&local(), &receiver).await;

    assert_eq!(answer.status, 308);
    let note = answer.note().unwrap_or_default();
    assert!(note.len() < 1_000, "{} bytes", note.len());
}

/// Whatever passes for an endpoint's URL can be sent in both versions of HTTP.
#[test]
fn every_url_of_an_endpoint_can_be_sent() {
    let characters = (0x21..0x180).filter_map(char::from_u32);
    for character in characters.chain(['\u{3002}', '\u{1f600}', '\u{fffd}']) {
        for text in [
            format!("https://h.test/{character}"),
            format!("https://h.test//{character}//x?{character}"),
            format!("https://h.test?{character}{character}"),
            format!("https://h{character}t.test/"),
            format!("https://{character}.test"),
        ] {
            let Ok(url) = shared::policy::address::parse_endpoint_url(&text, false) else {
                continue;
            };
            let whole = uri(url.as_str());
            let name = url.host_str().unwrap().to_owned();
            let servable = rustls::pki_types::ServerName::try_from(name).is_ok();
            let expected = Uri::try_from(&url[url::Position::BeforePath..]).unwrap();
            let sent = prepared(request(url.clone(), AMPLE)).map(|(_, message, _)| message);
            assert_eq!(sent.unwrap().uri(), &expected, "{url}");
            // Over HTTP/2 there is TLS, and with it a name that a certificate can hold.
            if servable {
                assert_eq!(whole.unwrap().to_string(), url.as_str(), "{url}");
            }
        }
    }
}

#[tokio::test]
async fn s1_a_literal_that_is_not_opened_is_never_dialled() {
    let receiver = Receiver::answering(OK).await;
    let port = receiver.addr.port();
    let closed = sender("10.0.0.0/8");
    let cases = [
        ("127.0.0.1", DenyReason::Loopback),
        ("2130706433", DenyReason::Loopback),
        ("0x7f.1", DenyReason::Loopback),
        ("127.0.0.1.", DenyReason::Loopback),
        ("[::1]", DenyReason::Loopback),
        ("[::ffff:127.0.0.1]", DenyReason::Loopback),
        ("[64:ff9b::7f00:1]", DenyReason::Loopback),
        ("localhost", DenyReason::Loopback),
        ("x.localhost.", DenyReason::Loopback),
        ("0", DenyReason::Unspecified),
        ("169.254.169.254", DenyReason::Metadata),
        ("[::ffff:169.254.169.254]", DenyReason::Metadata),
        ("192.168.0.1", DenyReason::Private),
    ];
    for (host, reason) in cases {
        let url = format!("http://{host}:{port}/").parse().unwrap();
        let (result, timings) = closed.send(request(url, AMPLE)).await;
        assert_eq!(result, Err(SendError::AddressDenied(reason)), "{host}");
        assert_eq!(timings.connect, None);
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn s1_a_name_is_judged_by_the_addresses_that_would_be_dialled() {
    let receiver = Receiver::answering(OK).await;
    let url: Url = format!("http://localhost:{}/", receiver.addr.port())
        .parse()
        .unwrap();

    // Past the check of literals, to what the resolver says.
    let closed = sender("10.0.0.0/8");
    let origin = Origin::of(&url, None).unwrap();
    let refused = closed.dialer.connect(&origin, &mut Trace::start()).await;
    assert_eq!(
        refused.err(),
        Some(SendError::AddressDenied(DenyReason::Loopback))
    );
    assert_eq!(receiver.connections(), 0);

    let (result, timings) = local().send(request(url, AMPLE)).await;
    assert_eq!(result.unwrap().status, 200);
    assert!(timings.dns.is_some() && timings.connect.is_some());
    assert_eq!(timings.addr, Some(receiver.addr.ip()));
}

#[tokio::test]
async fn a_name_without_an_address_is_a_dns_error() {
    // Longer than a label may be: refused by every resolver without asking the network.
    let url = format!("http://{}.example/", "x".repeat(80))
        .parse()
        .unwrap();

    let (result, _) = local().send(request(url, AMPLE)).await;

    assert!(matches!(result, Err(SendError::Dns(_))), "{result:?}");
}

/// Sends to names that a server of the test's own knows; only 127.0.0.2 is open.
fn sender_asking(dns: &DnsServer) -> Sender {
    Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.2").unwrap(),
        resolver: ResolverSettings {
            servers: vec![dns.addr()],
            ..ResolverSettings::default()
        },
        ..SenderSettings::default()
    })
    .unwrap()
}

#[tokio::test]
async fn s1_a_name_that_moves_to_a_denied_address_is_refused_at_the_next_dial() {
    let receiver = Receiver::answering(OK).await;
    let dns = DnsServer::start().await;
    let turns = [[127, 0, 0, 2], [127, 0, 0, 1]];
    dns.answer_in_turn("a.test", turns.map(|it| Reply::address(it, 0)).to_vec());
    let sender = sender_asking(&dns);
    let url: Url = format!("http://a.test:{}/", receiver.addr.port())
        .parse()
        .unwrap();

    let (result, timings) = sender.send(request(url.clone(), AMPLE)).await;
    assert!(matches!(result, Err(SendError::Connect(_))), "{result:?}");
    assert_eq!(timings.addr, Some([127, 0, 0, 2].into()));

    let denied = Err(SendError::AddressDenied(DenyReason::Loopback));
    eventually(AMPLE, async || {
        let (result, _) = sender.send(request(url.clone(), AMPLE)).await;
        (result == denied).then_some(())
    })
    .await;
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn s1_no_name_leads_to_a_denied_address() {
    let receiver = Receiver::answering(OK).await;
    let dns = DnsServer::start().await;
    dns.lead_where_names_say("rebind.test");
    dns.answer(
        "alias.test",
        Reply::Alias("127.0.0.1.rebind.test".to_owned(), 60),
    );
    let both = [[127, 0, 0, 1], [127, 0, 0, 2]].map(Into::into);
    dns.answer("mixed.test", Reply::Addresses(both.to_vec(), 60));
    let sender = sender_asking(&dns);
    let send = async |name: &str| {
        let url = format!("http://{name}:{}/", receiver.addr.port());
        sender.send(request(url.parse().unwrap(), AMPLE)).await
    };

    for name in ["127.0.0.1.rebind.test", "alias.test"] {
        let denied = Err(SendError::AddressDenied(DenyReason::Loopback));
        assert_eq!(send(name).await.0, denied, "{name}");
    }
    let (result, timings) = send("mixed.test").await;
    assert!(matches!(result, Err(SendError::Connect(_))), "{result:?}");
    assert_eq!(timings.addr, Some([127, 0, 0, 2].into()));
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_closed_port_is_a_connect_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url: Url = format!("http://{}/", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(listener);

    let (result, timings) = local().send(request(url, AMPLE)).await;

    assert_eq!(
        result,
        Err(SendError::Connect(io::ErrorKind::ConnectionRefused))
    );
    assert_eq!(timings.addr, Some([127, 0, 0, 1].into()));
}

#[test]
fn s1_a_proxy_of_the_environment_is_not_used() {
    let mut again = Command::new(std::env::current_exe().unwrap());
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "all_proxy",
    ] {
        again.env(name, "http://127.0.0.1:1");
    }
    let output = again
        .env_remove("NO_PROXY")
        .args([
            "--exact",
            "sender::tests::p1_the_request_arrives_byte_for_byte",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}
