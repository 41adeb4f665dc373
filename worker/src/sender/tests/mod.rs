//! Requests over real sockets to receivers that behave, misbehave and lie.

mod addresses;
mod files;
mod host_names;
mod http2;
mod leftovers;
mod moves;
mod proxied;
mod receiver;
mod tls;

use std::io;

use http::{HeaderName, HeaderValue};
use shared::domain::attempt::{KEPT_OF_FAILURE, KEPT_OF_SUCCESS};
use shared::policy::classify::{BodyEnd, Phase, Response};

use self::receiver::{Authority, OK, Receiver};
use super::*;

/// Short, so that tests of it are; long enough for a busy machine.
const DEADLINE: Duration = Duration::from_millis(600);
const AMPLE: Duration = Duration::from_secs(15);

fn sender(rules: &str) -> Sender {
    Sender::new(SenderSettings {
        rules: AddressRules::parse(rules).unwrap(),
        ..SenderSettings::default()
    })
    .unwrap()
}

fn local() -> Sender {
    sender("127.0.0.0/8")
}

fn request(url: Url, timeout: Duration) -> OutboundRequest {
    let headers = HeaderMap::from_iter([(
        HeaderName::from_static("webhook-id"),
        HeaderValue::from_static("evt_1"),
    )]);
    OutboundRequest {
        method: Method::POST,
        identity: None,
        url,
        headers,
        body: Bytes::from_static(b"{ \"b\":1, \"a\":2, \"a\":3 }\n"),
        timeout,
        fresh: false,
    }
}

async fn post(sender: &Sender, receiver: &Receiver) -> (SendResult, Timings) {
    sender.send(request(receiver.url(), AMPLE)).await
}

async fn answer(sender: &Sender, receiver: &Receiver) -> Response {
    post(sender, receiver).await.0.unwrap()
}

/// Sends with [`DEADLINE`] and checks that it holds.
async fn at_the_deadline(url: Url) -> SendResult {
    let sender = local();
    let started = Instant::now();
    let (result, timings) = sender.send(request(url, DEADLINE)).await;
    let took = started.elapsed();
    assert!(took >= DEADLINE, "ended early, after {took:?}: {result:?}");
    assert!(
        took < DEADLINE + Duration::from_secs(2),
        "ended late, after {took:?}"
    );
    assert!(timings.total >= DEADLINE && timings.total <= took);
    result
}

#[tokio::test]
async fn p1_the_request_arrives_byte_for_byte() {
    let (seen, mut requests) = tokio::sync::mpsc::channel(16);
    let receiver = Receiver::start(move |mut connection, _| {
        let seen = seen.clone();
        async move {
            while let Some(request) = connection.request().await {
                seen.send(request).await.unwrap();
                connection.say(OK).await;
            }
        }
    })
    .await;
    let mut sent = request(receiver.url(), AMPLE);
    sent.headers = HeaderMap::from_iter([
        (
            http::header::HOST,
            HeaderValue::from_static("named.example"),
        ),
        (
            HeaderName::from_static("webhook-id"),
            HeaderValue::from_static("evt_1"),
        ),
    ]);

    let (result, timings) = local().send(sent).await;

    let expected = Response {
        status: 200,
        retry_after: None,
        redirect: None,
        excerpt: Bytes::from_static(b"ok"),
        body: BodyEnd::Whole,
    };
    assert_eq!(result, Ok(expected));
    let text = String::from_utf8(requests.recv().await.unwrap()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines[0], "POST /path?a=b HTTP/1.1");
    assert_eq!(lines[1..3], ["host: named.example", "webhook-id: evt_1"]);
    assert!(lines.contains(&"content-length: 24"), "{head}");
    assert!(
        !head.contains("accept-encoding") && !head.contains("chunked"),
        "{head}"
    );
    assert_eq!(body, "{ \"b\":1, \"a\":2, \"a\":3 }\n");
    assert_eq!(timings.addr, Some(receiver.addr.ip()));
    assert!(timings.first_byte.unwrap() <= timings.total);
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let receiver = Receiver::answering(OK).await;
    let sender = local();

    let (_, first) = post(&sender, &receiver).await;
    let (_, second) = post(&sender, &receiver).await;

    assert_eq!(receiver.connections(), 1);
    assert!(first.connect.is_some());
    assert_eq!((second.dns, second.connect, second.tls), (None, None, None));
    assert_eq!(second.addr, Some(receiver.addr.ip()));
}

#[tokio::test]
async fn a_dripping_body_ends_at_the_deadline_and_the_status_counts() {
    let receiver = Receiver::start(|mut connection, _| async move {
        connection.request().await;
        connection
            .say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            .await;
        while connection.say(".").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    let answer = at_the_deadline(receiver.url()).await.unwrap();

    assert_eq!((answer.status, answer.body), (200, BodyEnd::TooSlow));
    assert!(answer.excerpt.starts_with(b"..."), "{:?}", answer.excerpt);
}

#[tokio::test]
async fn dripping_headers_end_at_the_deadline() {
    let receiver = Receiver::start(|mut connection, _| async move {
        connection.request().await;
        connection.say("HTTP/1.1 200 OK\r\nX-Long: ").await;
        while connection.say(".").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    let result = at_the_deadline(receiver.url()).await;

    assert_eq!(result, Err(SendError::Timeout(Phase::Response)));
}

#[tokio::test]
async fn silence_ends_at_the_deadline_and_the_connection_is_closed() {
    let (closed, mut was_closed) = tokio::sync::mpsc::channel(16);
    let receiver = Receiver::start(move |mut connection, _| {
        let closed = closed.clone();
        async move {
            connection.closed().await;
            closed.send(()).await.unwrap();
        }
    })
    .await;

    let result = at_the_deadline(receiver.url()).await;

    assert_eq!(result, Err(SendError::Timeout(Phase::Response)));
    tokio::time::timeout(AMPLE, was_closed.recv())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_receiver_that_does_not_read_ends_at_the_deadline() {
    let receiver = Receiver::start(|connection, _| async move {
        std::future::pending::<()>().await;
        drop(connection);
    })
    .await;
    let sender = local();
    let mut big = request(receiver.url(), DEADLINE);
    big.body = Bytes::from(vec![b'x'; 32 << 20]);

    let (result, timings) = sender.send(big).await;

    assert_eq!(result, Err(SendError::Timeout(Phase::Response)));
    assert!(timings.total >= DEADLINE && timings.total < DEADLINE + Duration::from_secs(2));
}

#[tokio::test]
async fn a_reset_on_a_new_connection_is_a_reset() {
    for linger in [false, true] {
        let receiver = Receiver::start(move |mut connection, _| async move {
            connection.request().await;
            if linger {
                connection.0.set_zero_linger().unwrap();
            }
        })
        .await;

        let (result, _) = post(&local(), &receiver).await;

        assert_eq!(result, Err(SendError::Reset), "linger {linger}");
    }
}

#[tokio::test]
async fn a_reset_on_a_reused_connection_is_maybe_sent() {
    for linger in [false, true] {
        let receiver = Receiver::start(move |mut connection, _| async move {
            connection.request().await;
            connection.say(OK).await;
            connection.request().await;
            if linger {
                connection.0.set_zero_linger().unwrap();
            }
        })
        .await;
        let sender = local();

        assert_eq!(answer(&sender, &receiver).await.status, 200);
        let (second, _) = post(&sender, &receiver).await;
        let (third, _) = post(&sender, &receiver).await;

        assert_eq!(second, Err(SendError::MaybeSent), "linger {linger}");
        assert_eq!(third.unwrap().status, 200);
    }
}

#[tokio::test]
async fn an_endless_body_is_cut_and_its_connection_closed() {
    let (closed, mut was_closed) = tokio::sync::mpsc::channel(16);
    let receiver = Receiver::start(move |mut connection, _| {
        let closed = closed.clone();
        async move {
            connection.request().await;
            connection
                .say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            let chunk = [b"1000\r\n".as_slice(), &[0xff; 0x1000], b"\r\n"].concat();
            let mut written = 0_usize;
            while connection.say(&chunk).await {
                written += chunk.len();
            }
            closed.send(written).await.unwrap();
        }
    })
    .await;

    let answer = answer(&local(), &receiver).await;

    assert_eq!((answer.status, answer.body), (200, BodyEnd::Longer));
    assert_eq!(answer.excerpt, vec![0xff; KEPT_OF_SUCCESS]);
    let written = tokio::time::timeout(AMPLE, was_closed.recv())
        .await
        .unwrap()
        .unwrap();
    assert!(
        written < 64 << 20,
        "the socket's buffers, not more: {written}"
    );
}

#[tokio::test]
async fn of_a_failure_more_is_kept_and_the_connection_kept_too() {
    let body = vec![b'e'; 40_000];
    let head = format!(
        "HTTP/1.1 500 Oops\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let receiver = Receiver::answering([head.into_bytes(), body].concat()).await;
    let sender = local();

    for _ in 0..2 {
        let answer = answer(&sender, &receiver).await;
        assert_eq!((answer.status, answer.body), (500, BodyEnd::Longer));
        assert_eq!(answer.excerpt.len(), KEPT_OF_FAILURE);
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn a_body_of_just_the_kept_size_is_whole() {
    for (status, size) in [(200, KEPT_OF_SUCCESS), (400, KEPT_OF_FAILURE)] {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n\r\n");
        let receiver = Receiver::answering([head.into_bytes(), vec![0; size]].concat()).await;

        let answer = answer(&local(), &receiver).await;

        assert_eq!(answer.body, BodyEnd::Whole);
        assert_eq!(answer.excerpt.len(), size);
    }
}

#[tokio::test]
async fn the_rest_of_a_body_is_not_waited_for_once_enough_is_kept() {
    let receiver = Receiver::start(|mut connection, _| async move {
        connection.request().await;
        connection
            .say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            .await;
        connection.say([b'x'; 500]).await;
        connection.closed().await;
    })
    .await;

    let (result, timings) = post(&local(), &receiver).await;

    assert_eq!(result.unwrap().body, BodyEnd::Longer);
    assert!(timings.total < AMPLE / 2, "{:?}", timings.total);
}

#[tokio::test]
async fn compressed_bytes_are_kept_as_they_are() {
    let gzip: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b, 0xcf, 7, 0, 1, 2];
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        gzip.len()
    );
    let receiver = Receiver::answering([head.as_bytes(), gzip].concat()).await;

    assert_eq!(answer(&local(), &receiver).await.excerpt, gzip);
}

#[tokio::test]
async fn a_2xx_with_a_cut_body_is_an_answer() {
    let receiver = Receiver::start(|mut connection, _| async move {
        connection.request().await;
        connection
            .say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
            .await;
    })
    .await;

    let answer = answer(&local(), &receiver).await;

    assert_eq!((answer.status, answer.body), (200, BodyEnd::Broken));
    assert_eq!(answer.excerpt, "abc");
}

#[tokio::test]
async fn every_retry_after_is_handed_on() {
    let receiver = Receiver::answering(
        "HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n",
    )
    .await;

    let answer = answer(&local(), &receiver).await;

    assert_eq!(
        (answer.status, answer.retry_after.as_deref()),
        (429, Some("7,9"))
    );
}

#[tokio::test]
async fn bytes_after_an_answer_are_never_taken_for_the_next_one() {
    let receiver = Receiver::start(|mut connection, number| async move {
        while connection.request().await.is_some() {
            let status = 201 + number;
            let stray = "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n";
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\nok{stray}");
            connection.say(answer).await;
        }
    })
    .await;
    let sender = local();

    for number in 0..5 {
        let (result, _) = post(&sender, &receiver).await;
        match result {
            Ok(answer) => assert_ne!(answer.status, 500, "request {number}"),
            Err(error) => assert_eq!(error, SendError::MaybeSent, "request {number}"),
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_a_protocol_error() {
    for nonsense in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\0\0\0",
        "HTTP/1.1 9999 X\r\n\r\n",
    ] {
        let receiver = Receiver::answering(nonsense).await;
        let (result, _) = post(&local(), &receiver).await;
        assert_eq!(result, Err(SendError::Protocol), "{nonsense:?}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "X-Long: y\r\n".repeat(100_000));
    let receiver = Receiver::answering(endless).await;
    let (result, _) = post(&local(), &receiver).await;
    assert_eq!(result, Err(SendError::Protocol));
}

/// The receiver answers early and keeps the connection, but the rest of the request is never read.
#[tokio::test]
async fn an_answer_before_the_request_was_read_holds_up_no_other_request() {
    let receiver = Receiver::start(|mut connection, _| async move {
        let head = connection.0.readable().await;
        assert!(head.is_ok());
        connection.say(OK).await;
        std::future::pending::<()>().await;
    })
    .await;
    let sender = local();
    let long = || {
        let mut long = request(receiver.url(), DEADLINE);
        long.body = Bytes::from(vec![b' '; 8 << 20]);
        long
    };

    for _ in 0..2 {
        let (result, _) = sender.send(long()).await;
        assert_eq!(result.map(|answer| answer.status), Ok(200));
    }
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_receiver_that_asks_for_ages_of_keep_alive_is_sent_to_as_any_other() {
    let ages = "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=18446744073709551615\r\nContent-Length: 2\r\n\r\nok";
    let receiver = Receiver::answering(ages).await;
    let sender = local();

    for _ in 0..2 {
        assert_eq!(answer(&sender, &receiver).await.status, 200);
    }
    assert_eq!(receiver.connections(), 1);
}

/// A receiver that ends a connection which was not used for so long, as servers do.
async fn patient_for(limit: Duration, says: &'static str) -> Receiver {
    Receiver::start(move |mut connection, _| async move {
        while let Ok(Some(_)) = tokio::time::timeout(limit, connection.request()).await {
            let head = format!("HTTP/1.1 200 OK\r\n{says}Content-Length: 0\r\n\r\n");
            connection.say(head).await;
        }
    })
    .await
}

/// F01: what may have been sent once over a connection that broke goes over another the next time.
#[tokio::test]
async fn f01_a_request_that_asks_for_a_connection_of_its_own_gets_one() {
    let (receiver, sender) = (Receiver::answering(OK).await, local());
    let mut connections = Vec::new();
    for fresh in [false, false, true, false, true] {
        let (result, _) = sender
            .send(OutboundRequest {
                fresh,
                ..request(receiver.url(), AMPLE)
            })
            .await;
        assert_eq!(result.map(|answer| answer.status), Ok(200));
        connections.push(receiver.connections());
    }
    assert_eq!(connections, [1, 1, 2, 2, 3]);
}

/// F01: the pauses between requests are what this is about, so they are slept.
#[tokio::test]
async fn f01_no_connection_is_used_that_its_receiver_may_be_closing() {
    let millis = Duration::from_millis;
    let five = (millis(5_000), "");
    let two = (millis(2_000), "Keep-Alive: timeout=2\r\n");
    let cases = [
        (five, millis(100), true),
        (five, millis(4_100), false),
        (five, millis(4_900), false),
        (five, millis(4_998), false),
        (five, millis(5_000), false),
        (two, millis(100), true),
        (two, millis(1_100), false),
        (two, millis(1_998), false),
        (two, millis(2_000), false),
    ];
    let mut pauses = tokio::task::JoinSet::new();
    for ((limit, says), pause, is_reused) in cases {
        pauses.spawn(async move {
            let (receiver, sender) = (patient_for(limit, says).await, local());
            assert_eq!(answer(&sender, &receiver).await.status, 200);
            tokio::time::sleep(pause).await;
            let (result, timings) = post(&sender, &receiver).await;
            let got = (result.map(|answer| answer.status), timings.reused);
            assert_eq!(got, (Ok(200), is_reused), "{limit:?}, {pause:?}");
        });
    }
    pauses.join_all().await;
}

/// SSH and SMTP: whether the greeting comes before or after the request went out is chance.
#[tokio::test]
async fn a_server_that_speaks_first_is_told_from_one_that_closes() {
    let greets = Receiver::start(|mut connection, _| async move {
        connection.say("220 mail.example ESMTP\r\n").await;
        connection.closed().await;
    })
    .await;
    for _ in 0..20 {
        assert_eq!(post(&local(), &greets).await.0, Err(SendError::Protocol));
    }
    let closes = Receiver::start(|connection, _| async move { drop(connection) }).await;
    for _ in 0..20 {
        assert_eq!(post(&local(), &closes).await.0, Err(SendError::Reset));
    }
}
