//! HTTP/2: shared connections, and requests that were not processed.

use std::sync::Mutex;

use h2::server::SendResponse;
use http::StatusCode;
use tokio::task::JoinSet;

use super::receiver::Http2;
use super::*;

fn answer_200(mut respond: SendResponse<Bytes>) {
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
