use shared::ids::{DeliveryId, EventId, new_v7};
use shared::runtime::clock::wall_time;
use shared::testing::eventually;
use uuid::Uuid;

use super::books::Counts;
use super::*;
use crate::client::{Connection, ask, ask_json, request};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn delivery(endpoint: usize, event: Uuid, id: Uuid, signature: &str) -> Vec<u8> {
    let body = payload::blank(128);
    let head = format!(
        "POST /e/{endpoint} HTTP/1.1\r\nhost: x\r\nwebhook-id: {}\r\nwebhook-timestamp: {}\r\n\
         webhook-signature: {signature}\r\npostrider-delivery-id: {}\r\ncontent-length: 128\r\n\r\n",
        EventId(event),
        wall_time().unix_timestamp(),
        DeliveryId(id),
    );
    [head.as_bytes(), &body].concat()
}

async fn counts(receiver: &Receiver) -> Counts {
    ask_json(receiver.addr, &request("GET", "/control/counts", None, b""))
        .await
        .unwrap()
}

#[tokio::test]
async fn deliveries_on_one_connection_are_answered_in_turn_and_counted_over_http() {
    let receiver = Receiver::start(ANY, Answers::default(), Verify::None)
        .await
        .unwrap();
    let (event, id) = (new_v7(wall_time()), new_v7(wall_time()));
    let mut connection = Connection::open(receiver.addr).await.unwrap();

    for (endpoint, delivery_id) in [(0, id), (1, new_v7(wall_time())), (0, id)] {
        let sent = delivery(endpoint, event, delivery_id, "");
        assert_eq!(connection.exchange(&sent).await.unwrap().status, 200);
    }

    let counts = counts(&receiver).await;
    assert_eq!(
        (counts.events, counts.deliveries, counts.duplicates),
        (1, 2, 1)
    );
    assert_eq!(
        counts.connections, 2,
        "one for the deliveries, one for this question"
    );
    let ask_events = request("GET", "/control/events", None, b"");
    let events = ask(receiver.addr, &ask_events).await.unwrap();
    assert_eq!(events, event.as_bytes());
    let taken = ask(receiver.addr, &request("GET", "/control/taken", None, b""))
        .await
        .unwrap();
    assert_eq!(taken, b"2");
}

#[tokio::test]
async fn a_wrong_signature_is_found_once_the_secrets_are_known() {
    let receiver = Receiver::start(ANY, Answers::default(), Verify::All)
        .await
        .unwrap();
    let secrets = br#"["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]"#;
    ask(
        receiver.addr,
        &request("POST", "/control/secrets", None, secrets),
    )
    .await
    .unwrap();

    let sent = delivery(0, new_v7(wall_time()), new_v7(wall_time()), "v1,AAAA");
    ask(receiver.addr, &sent).await.unwrap();

    let counts = counts(&receiver).await;
    assert_eq!((counts.signatures_good, counts.signatures_bad), (0, 1));
}

#[tokio::test]
async fn the_asked_share_of_deliveries_is_refused() {
    let answers = Answers {
        fail: 0.25,
        ..Answers::default()
    };
    let receiver = Receiver::start(ANY, answers, Verify::None).await.unwrap();
    let mut connection = Connection::open(receiver.addr).await.unwrap();

    for _ in 0..1_000 {
        let sent = delivery(0, new_v7(wall_time()), new_v7(wall_time()), "");
        connection.exchange(&sent).await.unwrap();
    }

    let counts = receiver.books().counts();
    assert_eq!(counts.refused + counts.deliveries, 1_000);
    assert!((150..350).contains(&counts.refused), "{}", counts.refused);
}

#[tokio::test]
async fn what_is_no_delivery_is_refused_and_counted_and_nothing_breaks() {
    let receiver = Receiver::start(ANY, Answers::default(), Verify::None)
        .await
        .unwrap();
    let not_ours = request("POST", "/e/0", None, b"{}");

    assert!(ask(receiver.addr, &not_ours).await.is_err());
    assert!(ask(receiver.addr, b"\x16\x03\x01\r\n\r\n").await.is_err());
    assert!(
        ask(receiver.addr, &request("GET", "/control/no", None, b""))
            .await
            .is_err()
    );
    let bad_secrets = request("POST", "/control/secrets", None, b"[1]");
    assert!(ask(receiver.addr, &bad_secrets).await.is_err());
    assert!(
        ask(receiver.addr, &request("POST", "/raw", None, b"{}"))
            .await
            .is_ok()
    );

    assert_eq!(counts(&receiver).await.malformed, 2);
}

#[tokio::test]
async fn a_receiver_that_hangs_takes_nothing_and_answers_nothing() {
    let answers = Answers {
        hang: true,
        ..Answers::default()
    };
    let receiver = Receiver::start(ANY, answers, Verify::None).await.unwrap();
    let mut connection = Connection::open(receiver.addr).await.unwrap();
    let sent = delivery(0, new_v7(wall_time()), new_v7(wall_time()), "");

    let answer = tokio::time::timeout(Duration::from_millis(100), connection.exchange(&sent)).await;

    assert!(answer.is_err(), "it answered");
    let counts = counts(&receiver).await;
    assert_eq!((counts.deliveries, counts.refused), (0, 1));
}

#[tokio::test]
async fn an_endpoint_that_is_told_to_limit_answers_429_with_the_time_and_says_what_it_was_asked() {
    let receiver = Receiver::start(ANY, Answers::default(), Verify::None)
        .await
        .unwrap();
    let changes = br#"[{"endpoints": [{"start": 1, "end": 2}], "journal": true,
        "answers": {"limit": {"window": {"most": 1, "length_ms": 60000}}}}]"#;
    let control =
        |path: &str, body: &[u8]| request("POST", &format!("/control/{path}"), None, body);
    ask(receiver.addr, &control("answers", changes))
        .await
        .unwrap();
    let mut stream = TcpStream::connect(receiver.addr).await.unwrap();
    let event = new_v7(wall_time());

    let both = [1, 1].map(|endpoint| delivery(endpoint, event, new_v7(wall_time()), ""));
    stream.write_all(&both.concat()).await.unwrap();
    let expected = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n\
         HTTP/1.1 429 -\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n";
    let mut answers = vec![0; expected.len()];
    stream.read_exact(&mut answers).await.unwrap();

    assert_eq!(String::from_utf8_lossy(&answers), expected);
    let range = br#"{"start": 0, "end": 2}"#;
    let counts: Vec<EndpointCounts> = ask_json(receiver.addr, &control("endpoints", range))
        .await
        .unwrap();
    assert_eq!((counts[1].requests, counts[1].throttled), (2, 1));
    let arrivals: Vec<Vec<Arrival>> = ask_json(receiver.addr, &control("arrivals", range))
        .await
        .unwrap();
    assert_eq!(arrivals[0], []);
    assert_eq!(
        arrivals[1].iter().map(|it| it.status).collect::<Vec<_>>(),
        [200, 429]
    );
}

#[tokio::test]
async fn the_order_per_key_is_that_of_answers_not_of_arrivals() {
    let answers = Answers {
        delay_ms: 50,
        ..Answers::default()
    };
    let receiver = Receiver::start(ANY, answers, Verify::None).await.unwrap();
    let keyed = |number| {
        let mut sent = delivery(0, new_v7(wall_time()), new_v7(wall_time()), "");
        let body_at = sent.len() - 128;
        let stamp = Stamp {
            sent_ns: 1,
            key: 5,
            number,
        };
        payload::write(&mut sent[body_at..], stamp);
        sent
    };
    let mut first = Connection::open(receiver.addr).await.unwrap();
    let mut second = Connection::open(receiver.addr).await.unwrap();

    first.exchange(&keyed(1)).await.unwrap();
    let (two, three) = (keyed(2), keyed(3));
    let (slow, hasty) = tokio::join!(first.exchange(&two), second.exchange(&three));

    assert_eq!((slow.unwrap().status, hasty.unwrap().status), (200, 200));
    let order = receiver.books().order();
    assert_eq!((order.requests, order.overtaking + order.backwards), (3, 1));
}

#[tokio::test]
async fn a_receiver_that_hangs_up_takes_nothing_and_ends_the_connection() {
    let answers = Answers {
        hang_up: true,
        ..Answers::default()
    };
    let receiver = Receiver::start(ANY, answers, Verify::None).await.unwrap();
    let mut connection = Connection::open(receiver.addr).await.unwrap();
    let sent = delivery(0, new_v7(wall_time()), new_v7(wall_time()), "");

    let error = connection.exchange(&sent).await.unwrap_err();

    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let counts = counts(&receiver).await;
    assert_eq!((counts.deliveries, counts.refused), (0, 1));
}

#[tokio::test]
async fn a_body_is_on_the_wire_from_its_head_until_its_answer_or_the_end_of_its_connection() {
    let receiver = Receiver::start(ANY, Answers::default(), Verify::None)
        .await
        .unwrap();
    let wire = async || {
        let question = request("GET", "/control/wire", None, b"");
        let seen: OnTheWire = ask_json(receiver.addr, &question).await.unwrap();
        seen
    };
    let sent = delivery(0, new_v7(wall_time()), new_v7(wall_time()), "");
    let (begun, rest) = sent.split_at(sent.len() - 100);
    let mut both = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(receiver.addr).await.unwrap();
        stream.write_all(begun).await.unwrap();
        both.push(stream);
    }

    let seen = eventually(Duration::from_secs(10), async || {
        Some(wire().await).filter(|seen| seen.requests == 2)
    });
    assert_eq!(seen.await.bytes, 2 * 128);

    both[0].write_all(rest).await.unwrap();
    let mut answer = [0; 15];
    both[0].read_exact(&mut answer).await.unwrap();
    drop(both.pop());
    let seen = eventually(Duration::from_secs(10), async || {
        Some(wire().await).filter(|seen| seen.requests == 0)
    });
    assert_eq!(seen.await.bytes, 0);
    assert_eq!(wire().await, OnTheWire::default());
}
