//! F17: the operator's proxy, and the address policy in front of it.

use std::sync::Mutex;

use shared::policy::address::DenyReason;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;

use super::*;

/// A proxy that opens tunnels and writes down what it was asked.
async fn tunnels(asked: Arc<Mutex<Vec<String>>>, refusal: Option<&'static str>) -> Receiver {
    Receiver::start(move |mut connection, _| {
        let asked = Arc::clone(&asked);
        async move {
            let request = String::from_utf8(connection.request().await.unwrap()).unwrap();
            let target = request.split(' ').nth(1).unwrap().to_owned();
            asked.lock().unwrap().push(request);
            if let Some(refusal) = refusal {
                connection.say(refusal).await;
                return;
            }
            let mut other = TcpStream::connect(target).await.unwrap();
            connection
                .say("HTTP/1.1 200 Connection established\r\n\r\n")
                .await;
            // Ends when either side does.
            let _ended = copy_bidirectional(&mut connection.0, &mut other).await;
            let _closed = other.shutdown().await;
        }
    })
    .await
}

fn through(proxy: &Receiver, authority: &Authority, rules: &str) -> Sender {
    let url = format!("http://us%65r:secret@{}", proxy.addr);
    Sender::new(SenderSettings {
        rules: AddressRules::parse(rules).unwrap(),
        roots: authority.trusted(),
        proxy: Some(Proxy::parse(&url).unwrap()),
        ..SenderSettings::default()
    })
    .unwrap()
}

#[tokio::test]
async fn s1_a_proxy_is_asked_for_the_vetted_address_and_never_for_a_name() {
    let authority = Authority::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let proxy = tunnels(Arc::clone(&asked), None).await;
    let sender = through(&proxy, &authority, "127.0.0.0/8");
    let plain = Receiver::answering(OK).await;
    let secure = authority.receiver("localhost").await;
    let urls = [
        format!("http://localhost:{}/token", plain.addr.port()),
        format!("https://localhost:{}/token", secure.addr.port()),
    ];

    for url in urls {
        let (result, timings) = sender.send(request(url.parse().unwrap(), AMPLE)).await;
        assert_eq!(result.map(|answer| answer.status), Ok(200), "{url}");
        assert_eq!(timings.addr, Some([127, 0, 0, 1].into()));
    }

    let asked = asked.lock().unwrap();
    for (request, receiver) in asked.iter().zip([&plain, &secure]) {
        let target = format!("127.0.0.1:{}", receiver.addr.port());
        let expected = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\
             Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n"
        );
        assert_eq!(*request, expected);
    }
    assert_eq!(asked.len(), 2);
}

#[tokio::test]
async fn s1_a_private_target_is_refused_before_the_proxy_sees_it() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let proxy = tunnels(Arc::clone(&asked), None).await;
    let sender = through(&proxy, &Authority::new(), "10.0.0.0/8");

    for host in ["127.0.0.1", "localhost", "[::1]"] {
        let url = format!("http://{host}:{}/", proxy.addr.port())
            .parse()
            .unwrap();
        let (result, _) = sender.send(request(url, AMPLE)).await;
        assert_eq!(
            result,
            Err(SendError::AddressDenied(DenyReason::Loopback)),
            "{host}"
        );
    }
    assert_eq!(proxy.connections(), 0);
}

#[tokio::test]
async fn a_proxy_that_opens_no_tunnel_is_named_and_shows_no_password() {
    let receiver = Receiver::answering(OK).await;
    let authority = Authority::new();
    let cases = [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "407",
            "proxy_away",
        ),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", "502", "proxy"),
        ("nonsense\r\n\r\n", "not HTTP", "proxy_away"),
        ("", "closed", "proxy"),
    ];
    for (refusal, expected, kind) in cases {
        let proxy = tunnels(Arc::default(), Some(refusal)).await;
        let sender = through(&proxy, &authority, "127.0.0.0/8");
        let (result, _) = post(&sender, &receiver).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind);
        let text = error.to_string();
        assert!(
            text.contains(expected) && !text.contains("secret"),
            "{text}"
        );
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        proxy: Some(Proxy::parse(&format!("http://{closed}")).unwrap()),
        ..SenderSettings::default()
    })
    .unwrap();
    let (result, _) = post(&sender, &receiver).await;
    assert_eq!(result.unwrap_err().kind(), "proxy_away");
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn f13_an_address_that_the_proxy_waits_for_in_vain_leaves_time_for_the_next() {
    let receiver = Receiver::answering(OK).await;
    let target = receiver.addr;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let proxy = Receiver::start(move |mut connection, _| {
        let asked = Arc::clone(&seen);
        async move {
            let request = String::from_utf8(connection.request().await.unwrap()).unwrap();
            let is_first = {
                let mut asked = asked.lock().unwrap();
                asked.push(request.split(' ').nth(1).unwrap().to_owned());
                asked.len() == 1
            };
            if is_first {
                return std::future::pending().await;
            }
            let mut other = TcpStream::connect(target).await.unwrap();
            connection.say("HTTP/1.1 200 OK\r\n\r\n").await;
            let _ended = copy_bidirectional(&mut connection.0, &mut other).await;
        }
    })
    .await;
    let sender = through(&proxy, &Authority::new(), "127.0.0.0/8,::1/128");

    let url = format!("http://localhost:{}/", target.port());
    let (result, timings) = sender.send(request(url.parse().unwrap(), AMPLE)).await;

    assert_eq!(result.map(|answer| answer.status), Ok(200));
    let asked = asked.lock().unwrap();
    let [first, second] = &asked[..] else {
        panic!("asked for {asked:?}")
    };
    assert_ne!(first, second);
    assert_eq!(timings.dialled.len(), 2);
}
