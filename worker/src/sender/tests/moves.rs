//! Receivers that move, and names with addresses of which some lead nowhere.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use shared::testing::dns::{DnsServer, Reply};
use shared::testing::eventually;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

fn asking(dns: &DnsServer, max_age: Duration) -> Sender {
    Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8 ::1").unwrap(),
        resolver: ResolverSettings {
            servers: vec![dns.addr()],
            ..ResolverSettings::default()
        },
        max_age,
        ..SenderSettings::default()
    })
    .unwrap()
}

fn named(port: u16) -> Url {
    format!("http://a.test:{port}/").parse().unwrap()
}

/// F12: with a connection that is never idle, and the old machine still answering.
#[tokio::test]
async fn f12_a_receiver_that_moved_is_followed_however_busy_its_connection_is() {
    let old = Receiver::answering(OK).await;
    let port = old.addr.port();
    let new = Receiver::answering_at(SocketAddr::from(([127, 0, 0, 2], port)), OK).await;
    let dns = DnsServer::start().await;
    dns.answer("a.test", Reply::address([127, 0, 0, 1], 1));
    let sender = asking(&dns, Duration::from_secs(1));
    let post = async || {
        let (result, timings) = sender.send(request(named(port), AMPLE)).await;
        assert_eq!(result.map(|answer| answer.status), Ok(200));
        timings.addr
    };
    assert_eq!(post().await, Some([127, 0, 0, 1].into()));

    dns.answer("a.test", Reply::address([127, 0, 0, 2], 1));
    eventually(AMPLE, async || {
        (post().await == Some([127, 0, 0, 2].into())).then_some(())
    })
    .await;

    let stayed = old.connections();
    dns.answer("a.test", Reply::ServerFailure);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(
            post().await,
            Some([127, 0, 0, 2].into()),
            "through an outage of DNS"
        );
    }
    assert_eq!(old.connections(), stayed);
    assert!(new.connections() >= 3, "each used for a second");
}

/// An address whose connections are never taken up: its line is full.
struct BlackHole {
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl BlackHole {
    async fn at(address: SocketAddr) -> (Self, SocketAddr) {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let patience = Duration::from_millis(100);
        while let Ok(stream) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            waiting.push(stream.unwrap());
        }
        let hole = Self {
            _listener: listener,
            _waiting: waiting,
        };
        (hole, address)
    }
}

/// F13 a: a family that leads nowhere costs one head start.
#[tokio::test]
async fn f13_a_black_hole_in_one_family_costs_less_than_a_second() {
    let receiver = Receiver::answering(OK).await;
    let port = receiver.addr.port();
    let v6 = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port));
    let (_hole, _) = BlackHole::at(v6).await;
    let dns = DnsServer::start().await;
    let both = vec![
        IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        [127, 0, 0, 1].into(),
    ];
    dns.answer("a.test", Reply::Addresses(both.clone(), 60));

    let (result, timings) = asking(&dns, AMPLE).send(request(named(port), AMPLE)).await;

    assert_eq!(result.map(|answer| answer.status), Ok(200));
    assert_eq!(
        (timings.addr, &timings.dialled),
        (Some([127, 0, 0, 1].into()), &both)
    );
    assert!(
        timings.connect.unwrap() < Duration::from_secs(1),
        "{timings:?}"
    );
}

/// F13 b: of eight addresses the last one alone is good.
#[tokio::test]
async fn f13_the_last_of_eight_addresses_is_reached_within_the_time_to_connect() {
    let receiver = Receiver::answering(OK).await;
    let port = receiver.addr.port();
    let bad: Vec<[u8; 4]> = (11..18).map(|last| [127, 0, 0, last]).collect();
    let mut holes = Vec::new();
    for address in &bad {
        let address = SocketAddrV4::new((*address).into(), port);
        holes.push(BlackHole::at(address.into()).await);
    }
    let all: Vec<IpAddr> = bad
        .iter()
        .copied()
        .chain([[127, 0, 0, 1]])
        .map(IpAddr::from)
        .collect();
    let dns = DnsServer::start().await;
    dns.answer("a.test", Reply::Addresses(all.clone(), 60));

    let (result, timings) = asking(&dns, AMPLE).send(request(named(port), AMPLE)).await;

    assert_eq!(result.map(|answer| answer.status), Ok(200));
    let mut dialled = timings.dialled;
    dialled.sort_unstable();
    assert_eq!(dialled.last(), Some(&bad[6].into()));
    assert!(dialled.contains(&[127, 0, 0, 1].into()));
    assert!(
        timings.connect.unwrap() < CONNECT_TIMEOUT,
        "{:?}",
        timings.connect
    );
}

/// F13 c: an address that accepts and stays silent; the next attempt begins elsewhere.
#[tokio::test]
async fn f13_after_an_address_that_stays_silent_the_next_attempt_takes_the_other() {
    let good = Receiver::answering(OK).await;
    let port = good.addr.port();
    let v6 = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port));
    let silent = Receiver::start_at(
        v6,
        |mut connection, _| async move { connection.closed().await },
    )
    .await;
    let dns = DnsServer::start().await;
    let both = vec![silent.addr.ip(), good.addr.ip()];
    dns.answer("a.test", Reply::Addresses(both, 60));
    let sender = asking(&dns, AMPLE);

    let (first, timings) = sender.send(request(named(port), DEADLINE)).await;
    assert_eq!(first, Err(SendError::Timeout(Phase::Response)));
    assert_eq!(timings.addr, Some(silent.addr.ip()));
    let (second, timings) = sender.send(request(named(port), DEADLINE)).await;
    assert_eq!(second.map(|answer| answer.status), Ok(200));
    assert_eq!(timings.addr, Some(good.addr.ip()));
}

/// F22: a thousand tries against a name that is public, or not, as the dice fall.
#[tokio::test]
async fn f22_no_try_of_a_thousand_leads_a_name_to_a_denied_address() {
    let victim = Receiver::answering(OK).await;
    let port = victim.addr.port();
    let allowed = Receiver::answering_at(SocketAddr::from(([127, 0, 0, 2], port)), OK).await;
    let dns = DnsServer::start().await;
    let sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.2").unwrap(),
        resolver: ResolverSettings {
            servers: vec![dns.addr()],
            ..ResolverSettings::default()
        },
        ..SenderSettings::default()
    })
    .unwrap();
    let (mut delivered, mut refused) = (0, 0);
    for number in 0..1_000 {
        // Each name is asked for once, or twice with another answer.
        let name = format!("n{}.test", number / 2);
        if number % 2 == 0 {
            let (good, evil) = (
                Reply::address([127, 0, 0, 2], 0),
                Reply::address([127, 0, 0, 1], 0),
            );
            let turns = if number % 4 == 0 {
                [good, evil]
            } else {
                [evil, good]
            };
            dns.answer_in_turn(&name, turns.to_vec());
        }
        let url = format!("http://{name}:{port}/").parse().unwrap();
        match sender.send(request(url, AMPLE)).await {
            (Ok(answer), timings) => {
                assert_eq!(
                    (answer.status, timings.addr),
                    (200, Some([127, 0, 0, 2].into()))
                );
                delivered += 1;
            }
            (Err(error), timings) => {
                assert_eq!(error.kind(), "address_denied");
                assert_eq!(timings.dialled, Vec::<IpAddr>::new());
                refused += 1;
            }
        }
    }
    assert_eq!(victim.connections(), 0);
    assert!(
        delivered >= 250 && refused >= 250,
        "{delivered} and {refused}"
    );
    assert!(allowed.connections() > 0);
}
