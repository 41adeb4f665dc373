//! F20: a host that people write in their own script.

use std::sync::Mutex;

use shared::domain::signature::SignatureStyle;
use shared::ids::{DeliveryId, EventId};
use shared::policy::address::parse_endpoint_url;
use shared::testing::dns::{DnsServer, Reply};
use time::OffsetDateTime;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use uuid::Uuid;

use super::receiver::read_request;
use super::*;
use crate::signing_keys::SigningKeys;

const ASCII: &str = "xn--bcher-kva.test";

/// What a receiver saw of its name: in TLS, and in the request.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

#[tokio::test]
async fn f20_an_international_host_is_ascii_in_dns_in_tls_and_in_the_request() {
    let authority = Authority::new();
    let seen = Seen::default();
    let http1 = {
        let seen = Arc::clone(&seen);
        let script = move |stream, _| answer_http1(stream, Arc::clone(&seen));
        authority.receiver_of(ASCII, "http/1.1", script).await
    };
    let http2 = {
        let seen = Arc::clone(&seen);
        let script = move |stream, _| answer_http2(stream, Arc::clone(&seen));
        authority.receiver_of(ASCII, "h2", script).await
    };
    let dns = DnsServer::start().await;
    dns.answer(ASCII, Reply::address([127, 0, 0, 1], 60));
    let sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        roots: authority.trusted(),
        resolver: ResolverSettings {
            servers: vec![dns.addr()],
            ..ResolverSettings::default()
        },
        ..SenderSettings::default()
    })
    .unwrap();
    let unsigned = SigningKeys {
        style: SignatureStyle::None,
        ..SigningKeys::default()
    };

    for receiver in [&http1, &http2] {
        let port = receiver.addr.port();
        for host in ["b\u{fc}cher.test", "B\u{dc}CHER.test.", ASCII] {
            let text = format!("https://{host}:{port}/");
            let url = parse_endpoint_url(&text, true).unwrap();
            let mut sent = request(url, AMPLE);
            let stamp = stamp(&unsigned, &sent.body);
            sent.headers = headers_for(&stamp, &sent.url, &HeaderMap::new()).unwrap();
            let (result, _) = sender.send(sent).await;
            assert_eq!(result.map(|answer| answer.status), Ok(200), "{text}");
            let told = seen.lock().unwrap().pop().unwrap();
            let named = (ASCII.to_owned(), format!("{ASCII}:{port}"));
            assert_eq!(told, named, "{text}");
        }
    }
    assert_eq!(dns.names().into_iter().collect::<Vec<_>>(), [ASCII]);
}

fn stamp<'a>(keys: &'a SigningKeys, body: &'a [u8]) -> Stamp<'a> {
    Stamp {
        event_id: EventId(Uuid::nil()),
        event_type: "a",
        delivery_id: DeliveryId(Uuid::nil()),
        attempt: 1,
        started_at: OffsetDateTime::UNIX_EPOCH,
        keys,
        body,
        content_type: None,
        trace: None,
    }
}

async fn answer_http1(mut stream: TlsStream<TcpStream>, seen: Seen) {
    let name = name_in_tls(&stream);
    while let Some(bytes) = read_request(&mut stream).await {
        let text = String::from_utf8(bytes).unwrap();
        let host = text.lines().find_map(|line| line.strip_prefix("host: "));
        let told = (name.clone(), host.unwrap().to_owned());
        seen.lock().unwrap().push(told);
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
}

async fn answer_http2(stream: TlsStream<TcpStream>, seen: Seen) {
    let name = name_in_tls(&stream);
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let authority = request.uri().authority().unwrap().to_string();
        assert!(!request.headers().contains_key("host"));
        seen.lock().unwrap().push((name.clone(), authority));
        http2::answer_200(respond);
    }
}

fn name_in_tls(stream: &TlsStream<TcpStream>) -> String {
    stream.get_ref().1.server_name().unwrap().to_owned()
}
