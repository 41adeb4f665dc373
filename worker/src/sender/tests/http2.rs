//! HTTP/2: shared connections, and requests that were not processed.

use std::sync::Mutex;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use h2::server::SendResponse;
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::receiver::Http2;
use super::*;

pub(super) fn answer_200(mut respond: SendResponse<Bytes>) {
    let head = http::Response::builder().status(200).body(()).unwrap();
    let mut body = respond.send_response(head, false).unwrap();
    body.send_data(Bytes::from_static(b"ok"), true).unwrap();
}

fn https(receiver: &Receiver) -> Url {
    format!("https://{}/path?a=b", receiver.addr)
        .parse()
        .unwrap()
}

async fn all_ok(mut connection: Http2) {
    while let Some(Ok((_, respond))) = connection.accept().await {
        answer_200(respond);
    }
}

#[tokio::test]
async fn p1_over_http2_the_request_is_the_same_and_its_host_is_in_the_authority() {
    let authority = Authority::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let receiver = {
        let seen = Arc::clone(&seen);
        authority
            .receiver_of_http2(move |mut connection, _| {
                let seen = Arc::clone(&seen);
                async move {
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        let (head, mut body) = request.into_parts();
                        // Both at once: the body comes while the connection is polled.
                        let reading = async {
                            let mut bytes = Vec::new();
                            while let Some(chunk) = body.data().await {
                                bytes.extend_from_slice(&chunk.unwrap());
                            }
                            bytes
                        };
                        let bytes = tokio::select! {
                            bytes = reading => bytes,
                            _ = connection.accept() => panic!("a second request"),
                        };
                        seen.lock().unwrap().push((head, bytes));
                        answer_200(respond);
                    }
                }
            })
            .await
    };
    let sender = tls::trusting(&authority);
    let mut sent = request(https(&receiver), AMPLE);
    sent.headers.insert(
        http::header::HOST,
        HeaderValue::from_static("ignored.example"),
    );

    let (result, timings) = sender.send(sent).await;

    let answer = result.unwrap();
    assert_eq!((answer.status, answer.body), (200, BodyEnd::Whole));
    assert_eq!(answer.excerpt, "ok");
    assert!(timings.tls.is_some() && !timings.reused);
    let seen = seen.lock().unwrap();
    let [(head, body)] = seen.as_slice() else {
        panic!("{seen:?}")
    };
    assert_eq!(head.uri.to_string(), https(&receiver).to_string());
    assert_eq!(head.method, Method::POST);
    assert_eq!(head.headers["webhook-id"], "evt_1");
    assert_eq!(head.headers["content-length"], "24");
    assert!(!head.headers.contains_key("host"));
    assert_eq!(body, b"{ \"b\":1, \"a\":2, \"a\":3 }\n");
}

#[tokio::test]
async fn one_connection_serves_all_requests_to_an_origin() {
    let authority = Authority::new();
    let receiver = authority
        .receiver_of_http2(|connection, _| all_ok(connection))
        .await;
    let sender = Arc::new(tls::trusting(&authority));
    assert_eq!(
        sender
            .send(request(https(&receiver), AMPLE))
            .await
            .0
            .unwrap()
            .status,
        200
    );

    let mut requests = JoinSet::new();
    for _ in 0..50 {
        let (sender, url) = (Arc::clone(&sender), https(&receiver));
        requests.spawn(async move { sender.send(request(url, AMPLE)).await });
    }
    for (result, timings) in requests.join_all().await {
        assert_eq!(result.unwrap().status, 200);
        assert!(timings.reused);
    }
    assert_eq!(receiver.connections(), 1);
}

/// F02: what a GOAWAY leaves out was not processed, and goes over another connection.
#[tokio::test]
async fn f02_a_receiver_that_recycles_its_connections_gets_everything_once() {
    const PER_CONNECTION: usize = 5;
    let authority = Authority::new();
    let served = Arc::new(Mutex::new(0));
    let receiver = {
        let served = Arc::clone(&served);
        authority
            .receiver_of_http2(move |mut connection, _| {
                let served = Arc::clone(&served);
                async move {
                    let mut count = 0;
                    while let Some(Ok((_, respond))) = connection.accept().await {
                        count += 1;
                        *served.lock().unwrap() += 1;
                        answer_200(respond);
                        if count == PER_CONNECTION {
                            connection.graceful_shutdown();
                        }
                    }
                }
            })
            .await
    };
    let sender = Arc::new(tls::trusting(&authority));

    for _ in 0..10 {
        let mut requests = JoinSet::new();
        for _ in 0..20 {
            let (sender, url) = (Arc::clone(&sender), https(&receiver));
            requests.spawn(async move { sender.send(request(url, AMPLE)).await.0 });
        }
        for result in requests.join_all().await {
            assert_eq!(result.map(|answer| answer.status), Ok(200));
        }
    }
    assert_eq!(*served.lock().unwrap(), 200, "each once");
    assert!(receiver.connections() > 1);
}

/// A request that waits for its turn, because its receiver takes one at a time, was not sent at all.
#[tokio::test]
async fn f02_a_request_that_waits_on_a_connection_that_ends_goes_over_another() {
    let authority = Authority::new();
    let mut one_at_a_time = h2::server::Builder::new();
    one_at_a_time.max_concurrent_streams(1);
    for graceful in [true, false] {
        let (seen, mut was_seen) = tokio::sync::mpsc::channel(16);
        let goes_on = Arc::new(tokio::sync::Notify::new());
        let receiver = {
            let goes_on = Arc::clone(&goes_on);
            authority
                .receiver_of_http2_with(one_at_a_time.clone(), move |mut connection, number| {
                    let (seen, goes_on) = (seen.clone(), Arc::clone(&goes_on));
                    async move {
                        if number > 0 {
                            return all_ok(connection).await;
                        }
                        // The first tells the sender how many it may send at once.
                        let (_, respond) = connection.accept().await.unwrap().unwrap();
                        answer_200(respond);
                        let (_, respond) = connection.accept().await.unwrap().unwrap();
                        seen.send(()).await.unwrap();
                        goes_on.notified().await;
                        if graceful {
                            connection.graceful_shutdown();
                            answer_200(respond);
                            all_ok(connection).await;
                        }
                    }
                })
                .await
        };
        let sender = Arc::new(tls::trusting(&authority));
        let mut requests = JoinSet::new();
        let mut post = || {
            let (sender, url) = (Arc::clone(&sender), https(&receiver));
            requests.spawn(async move { sender.send(request(url, AMPLE)).await.0 });
        };
        let (first, _) = sender.send(request(https(&receiver), AMPLE)).await;
        assert_eq!(first.map(|answer| answer.status), Ok(200));

        post();
        was_seen.recv().await.unwrap();
        post();
        // All tasks share one thread: the request gets as far as it can.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        goes_on.notify_one();

        let results = requests.join_all().await;
        let delivered = results.iter().filter(|it| it.is_ok()).count();
        assert_eq!(delivered, 1 + usize::from(graceful), "{results:?}");
        assert!(
            graceful || results.contains(&Err(SendError::MaybeSent)),
            "{results:?}"
        );
    }
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_and_one_that_always_is_was_not_sent() {
    let authority = Authority::new();
    let refusing = |always: bool| {
        authority.receiver_of_http2(move |mut connection, number| async move {
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                if always || number == 0 {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                } else {
                    answer_200(respond);
                }
            }
        })
    };
    let sender = tls::trusting(&authority);

    let once = refusing(false).await;
    let (result, _) = sender.send(request(https(&once), AMPLE)).await;
    assert_eq!(result.map(|answer| answer.status), Ok(200));
    assert_eq!(once.connections(), 2);

    let always = refusing(true).await;
    let (result, _) = sender.send(request(https(&always), AMPLE)).await;
    assert_eq!(result, Err(SendError::NotSent));
    assert_eq!(always.connections(), MOST_TRIES);
}

#[tokio::test]
async fn a_stream_that_is_reset_is_a_reset_and_a_lost_connection_maybe_sent() {
    let authority = Authority::new();
    let resets = authority
        .receiver_of_http2(|mut connection, _| async move {
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                respond.send_reset(h2::Reason::CANCEL);
            }
        })
        .await;
    let breaks = authority
        .receiver_of_http2(|mut connection, _| async move {
            if let Some(Ok((_, respond))) = connection.accept().await {
                answer_200(respond);
            }
            // The next request is seen, and then the connection is gone.
            let _seen = connection.accept().await;
        })
        .await;
    let sender = tls::trusting(&authority);

    let (reset, _) = sender.send(request(https(&resets), AMPLE)).await;
    assert_eq!(reset, Err(SendError::Reset));
    let (first, _) = sender.send(request(https(&breaks), AMPLE)).await;
    assert_eq!(first.map(|answer| answer.status), Ok(200));
    let (second, timings) = sender.send(request(https(&breaks), AMPLE)).await;
    assert_eq!((second, timings.reused), (Err(SendError::MaybeSent), true));
}

#[tokio::test]
async fn a_stream_without_an_answer_ends_at_the_deadline_and_nobody_follows_it() {
    let authority = Authority::new();
    let receiver = authority
        .receiver_of_http2(|mut connection, number| async move {
            let mut silent = Vec::new();
            while let Some(Ok((_, respond))) = connection.accept().await {
                if number == 0 {
                    silent.push(respond);
                } else {
                    answer_200(respond);
                }
            }
        })
        .await;
    let sender = tls::trusting(&authority);

    let (result, _) = sender.send(request(https(&receiver), DEADLINE)).await;
    assert_eq!(result, Err(SendError::Timeout(Phase::Response)));
    let (result, _) = sender.send(request(https(&receiver), AMPLE)).await;
    assert_eq!(result.map(|answer| answer.status), Ok(200));
    assert_eq!(receiver.connections(), 2);
}

/// Makes so many requests at once, and says how many were answered with a 200 and how long all took.
async fn at_once(sender: &Arc<Sender>, url: &Url, count: usize) -> (usize, Duration) {
    let started = Instant::now();
    let mut requests = JoinSet::new();
    for _ in 0..count {
        let (sender, url) = (Arc::clone(sender), url.clone());
        requests.spawn(async move { sender.send(request(url, AMPLE)).await.0 });
    }
    let results = requests.join_all().await;
    let is_ok = |result: &&SendResult| result.as_ref().is_ok_and(|answer| answer.status == 200);
    (results.iter().filter(is_ok).count(), started.elapsed())
}

/// What waits for its turn inside a connection may wait past its deadline.
#[tokio::test]
async fn a_receiver_that_takes_one_request_at_a_time_gets_more_connections() {
    let authority = Authority::new();
    let receiver = authority
        .receiver_over_h2(|stream, _| async move {
            let mut one_at_a_time = h2::server::Builder::new();
            one_at_a_time.max_concurrent_streams(1);
            let mut connection = one_at_a_time.handshake(stream).await.unwrap();
            let mut open = FuturesUnordered::new();
            loop {
                tokio::select! {
                    asked = connection.accept() => match asked {
                        Some(Ok((_, respond))) => {
                            open.push(async move {
                                tokio::time::sleep(Duration::from_secs(1)).await;
                                answer_200(respond);
                            });
                        }
                        Some(Err(_)) | None => return,
                    },
                    Some(()) = open.next() => {}
                }
            }
        })
        .await;
    let (sender, url) = (Arc::new(tls::trusting(&authority)), https(&receiver));
    assert_eq!(at_once(&sender, &url, 1).await.0, 1);

    for _ in 0..2 {
        let (delivered, took) = at_once(&sender, &url, 10).await;
        assert_eq!(delivered, 10);
        assert!(
            took < Duration::from_secs(4),
            "one after the other: {took:?}"
        );
    }
    assert_eq!(receiver.connections(), 10, "each is used again");
}

/// SETTINGS with the most streams at once (RFC 9113 6.5).
fn settings(most: u8) -> [u8; 15] {
    [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, most]
}

/// A receiver that takes 100 requests at once until it has answered the first one, and then one.
async fn shrinks(mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>) {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    stream.write_all(&settings(100)).await.unwrap();
    stream.flush().await.unwrap();
    let mut answered = 0;
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let [length @ .., kind, flags, _, _, _, _] = head;
        let length = u32::from_be_bytes([0, length[0], length[1], length[2]]);
        let mut body = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let ends_the_request = matches!(kind, 0 | 1) && flags & 1 != 0;
        if !ends_the_request {
            continue;
        }
        if answered > 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        answered += 1;
        // HEADERS: `:status: 200`, END_HEADERS and END_STREAM.
        let answer = [&[0, 0, 1, 1, 5], &head[5..], &[0x88]].concat();
        let wrote = stream
            .write_all(&[&settings(1), answer.as_slice()].concat())
            .await;
        if wrote.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn nothing_is_lost_where_a_receiver_takes_fewer_at_once_than_before() {
    let authority = Authority::new();
    let receiver = authority
        .receiver_over_h2(|stream, _| shrinks(stream))
        .await;
    let (sender, url) = (Arc::new(tls::trusting(&authority)), https(&receiver));

    for count in [1, 10, 10] {
        assert_eq!(at_once(&sender, &url, count).await.0, count);
    }
    let before = receiver.connections();
    assert_eq!(at_once(&sender, &url, 10).await.0, 10);
    assert!((2..=10).contains(&before), "{before}");
}

#[tokio::test]
async fn a_failure_over_http2_keeps_its_status_and_its_retry_after() {
    let authority = Authority::new();
    let receiver = authority
        .receiver_of_http2(|mut connection, _| async move {
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let head = http::Response::builder()
                    .status(StatusCode::SERVICE_UNAVAILABLE)
                    .header("retry-after", "7")
                    .body(())
                    .unwrap();
                respond.send_response(head, true).unwrap();
            }
        })
        .await;

    let (result, _) = tls::trusting(&authority)
        .send(request(https(&receiver), AMPLE))
        .await;

    let answer = result.unwrap();
    assert_eq!(
        (answer.status, answer.retry_after.as_deref()),
        (503, Some("7"))
    );
}
