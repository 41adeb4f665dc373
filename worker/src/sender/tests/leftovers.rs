//! What a request leaves behind once it has ended: nothing, whatever its receiver does.

use h2::server::SendResponse;
use shared::testing::eventually;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::*;

fn https(receiver: &Receiver) -> Url {
    format!("https://{}/", receiver.addr).parse().unwrap()
}

fn long(receiver: &Receiver, bytes: usize) -> OutboundRequest {
    let mut long = request(https(receiver), AMPLE);
    long.body = Bytes::from(vec![b' '; bytes]);
    long
}

fn answer_at_once(mut respond: SendResponse<Bytes>) {
    let head = http::Response::builder().status(200).body(()).unwrap();
    respond.send_response(head, true).unwrap();
}

/// The receiver answers without having read, and lets nobody send the rest.
#[tokio::test]
async fn a_connection_of_http2_ends_though_its_receiver_never_takes_the_bodies_of_what_it_answered()
{
    let authority = Authority::new();
    let (ended, mut has_ended) = mpsc::channel(16);
    let receiver = authority
        .receiver_of_http2(move |mut connection, _| {
            let ended = ended.clone();
            async move {
                let mut unread = Vec::new();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    unread.push(request);
                    answer_at_once(respond);
                }
                ended.send(unread.len()).await.unwrap();
            }
        })
        .await;
    let sender = tls::trusting(&authority);

    for _ in 0..3 {
        let (result, _) = sender.send(long(&receiver, 100_000)).await;
        assert_eq!(result.map(|answer| answer.status), Ok(200));
    }

    for _ in 0..receiver.connections() {
        let ended = tokio::time::timeout(AMPLE, has_ended.recv()).await;
        assert!(ended.is_ok(), "a connection is still open");
    }
}

/// The receiver takes any number of bytes by its word, and then reads nothing.
#[tokio::test]
async fn a_connection_of_http2_ends_though_its_receiver_reads_nothing() {
    let authority = Authority::new();
    let mut settings = h2::server::Builder::new();
    settings
        .initial_window_size(i32::MAX.unsigned_abs())
        .initial_connection_window_size(i32::MAX.unsigned_abs());
    let receiver = authority
        .receiver_of_http2_with(settings, |mut connection, _| async move {
            if let Some(Ok((request, respond))) = connection.accept().await {
                std::future::pending::<()>().await;
                drop((request, respond));
            }
        })
        .await;
    let sender = tls::trusting(&authority);
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();

    let mut request = long(&receiver, 32 << 20);
    request.timeout = DEADLINE;
    let (result, _) = sender.send(request).await;

    assert_eq!(result, Err(SendError::Timeout(Phase::Response)));
    // One is the receiver's.
    eventually(AMPLE, async || (tasks() == before + 1).then_some(())).await;
}

/// The same over HTTP/1, where the receiver says how long an unused connection may wait.
#[tokio::test]
async fn a_connection_whose_receiver_answers_and_never_takes_the_body_is_not_kept() {
    let receiver = Receiver::start(|mut connection, _| async move {
        connection.0.readable().await.unwrap();
        let ages = "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=3600\r\nContent-Length: 0\r\n\r\n";
        connection.say(ages).await;
        std::future::pending::<()>().await;
    })
    .await;
    let sender = local();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();

    let mut long = request(receiver.url(), AMPLE);
    long.body = Bytes::from(vec![b' '; 32 << 20]);
    let (result, _) = sender.send(long).await;

    assert_eq!(result.map(|answer| answer.status), Ok(200));
    // One is the receiver's.
    eventually(AMPLE, async || (tasks() == before + 1).then_some(())).await;
}
