//! Receivers that move, and names with addresses of which some lead nowhere.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::num::NonZeroUsize;

use shared::runtime::clock::BootTime;
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

/// F22: a thousand tries against names that are public, or not, as they were not, or were, a second before.
/// The clock of what is remembered of names is the test's, and no connection is used twice: so each try is
/// a look-up, a judgement and a dial of its own.
#[tokio::test]
async fn f22_no_try_of_a_thousand_leads_a_name_to_a_denied_address() {
    const NAMES: usize = 500;
    const CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    let victim = Receiver::answering(CLOSE).await;
    let port = victim.addr.port();
    let allowed = Receiver::answering_at(SocketAddr::from(([127, 0, 0, 2], port)), CLOSE).await;
    let dns = DnsServer::start().await;
    let now = Arc::new(Mutex::new(Duration::from_secs(1_000_000)));
    let sender = asking_at(&dns, &now);
    let (good, evil) = (good(&dns), evil(&dns));
    for number in 0..NAMES {
        let good = good[number / 2 % good.len()].clone();
        let evil = evil[number / 8 % evil.len()].clone();
        let turns = if number % 2 == 0 {
            vec![good, evil]
        } else {
            vec![evil, good]
        };
        dns.answer_in_turn(&format!("n{number}.test"), turns);
    }

    let mut tries = Vec::new();
    for _ in 0..2 {
        for number in 0..NAMES {
            tries.push(leads_there(&sender, &format!("n{number}.test"), port).await);
        }
        *now.lock().unwrap() += Duration::from_secs(1);
    }

    let (first, second) = tries.split_at(NAMES);
    let changes = |from: bool| {
        let both = first.iter().zip(second);
        both.filter(|(a, b)| (**a, **b) == (from, !from)).count()
    };
    assert_eq!((changes(true), changes(false)), (NAMES / 2, NAMES / 2));
    assert_eq!(victim.connections(), 0);
    assert_eq!(allowed.connections(), NAMES, "one for each that is allowed");
}

/// A sender to `127.0.0.2` alone, whose resolver takes this for the time.
fn asking_at(dns: &DnsServer, now: &Arc<Mutex<Duration>>) -> Sender {
    let resolver = ResolverSettings {
        servers: vec![dns.addr()],
        ..ResolverSettings::default()
    };
    let mut sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.2").unwrap(),
        resolver: resolver.clone(),
        ..SenderSettings::default()
    })
    .unwrap();
    let clock = Arc::clone(now);
    sender.dialer.resolver = Resolver::with(
        &resolver,
        NonZeroUsize::new(1_024).unwrap(),
        Box::new(move || BootTime(*clock.lock().unwrap())),
    )
    .unwrap();
    sender
}

/// Answers that lead to the address that is allowed, whatever else they name; to be asked for again as soon
/// as may be.
fn good(dns: &DnsServer) -> Vec<Reply> {
    let there = IpAddr::from([127, 0, 0, 2]);
    let mixed = vec![[127, 0, 0, 1].into(), there, [10, 0, 0, 1].into()];
    with_aliases(dns, "good", [vec![there], mixed])
}

/// Answers that lead to none that is allowed.
fn evil(dns: &DnsServer) -> Vec<Reply> {
    let here = IpAddr::from([127, 0, 0, 1]);
    let here_v6 = "::1".parse().unwrap();
    let mapped = "::ffff:127.0.0.1".parse().unwrap();
    let mixed = vec![here, here_v6, mapped, [169, 254, 169, 254].into()];
    with_aliases(dns, "evil", [vec![here], mixed])
}

/// Each of these answers, directly and behind another name.
fn with_aliases(dns: &DnsServer, kind: &str, answers: [Vec<IpAddr>; 2]) -> Vec<Reply> {
    let mut all = Vec::new();
    for (number, addresses) in answers.into_iter().enumerate() {
        let name = format!("{kind}{number}.test");
        let direct = Reply::Addresses(addresses, 0);
        dns.answer(&name, direct.clone());
        all.extend([direct, Reply::Alias(name, 0)]);
    }
    all
}

/// Whether a request to this name arrives, which it may at the address that is allowed alone.
async fn leads_there(sender: &Sender, name: &str, port: u16) -> bool {
    let url = format!("http://{name}:{port}/").parse().unwrap();
    match sender.send(request(url, AMPLE)).await {
        (Ok(answer), timings) => {
            let there = IpAddr::from([127, 0, 0, 2]);
            assert_eq!((answer.status, timings.addr), (200, Some(there)));
            assert_eq!(timings.dialled, [there]);
            true
        }
        (Err(error), timings) => {
            assert_eq!(error.kind(), "address_denied", "{name}: {error}");
            assert_eq!(timings.dialled, Vec::<IpAddr>::new());
            false
        }
    }
}
