use shared::runtime::spawn_driver;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::receiver::{Answers, Receiver, Verify};

async fn receiver(answers: Answers) -> Receiver {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Receiver::start(any, answers, Verify::None).await.unwrap()
}

fn plan(addr: SocketAddr, path: &str, pace: Pace) -> Plan {
    Plan {
        addr,
        targets: vec![Target {
            path: path.to_owned(),
            key: None,
            event_type: None,
        }],
        connections: 4,
        pace,
        payload_bytes: 512,
        warmup: Duration::from_millis(50),
        measured: Duration::from_millis(300),
    }
}

#[test]
fn a_request_carries_the_payload_with_its_stamp_as_an_event() {
    let target = Target {
        path: "/v1/events".to_owned(),
        key: Some("prk_x".to_owned()),
        event_type: Some("load.t1".to_owned()),
    };

    let mut template = template(&target, 512);
    payload::write_stamp(&mut template.bytes[template.stamp.clone()], 42);

    let request = crate::http::request(&template.bytes).unwrap().unwrap();
    assert_eq!(request.length, template.bytes.len());
    assert_eq!((request.method, request.path), ("POST", "/v1/events"));
    let event: serde_json::Value = serde_json::from_slice(request.body).unwrap();
    assert_eq!(event["type"], "load.t1");
    assert_eq!(event["payload"]["sent_ns"], "00000000000000000042");
    let payload_at = template.stamp.start - 12;
    assert_eq!(
        payload::stamp(&template.bytes[payload_at..payload_at + 512]),
        Some(42)
    );
}

#[tokio::test]
async fn a_closed_loop_uses_its_time_and_counts_every_reply() {
    let receiver = receiver(Answers::default()).await;
    let generator = Generator::new(plan(receiver.addr, "/raw", Pace::Closed { backlog: None }));

    generator.run().await;

    let report = generator.tally().report();
    assert!(report.accepted_in_window > 0);
    assert!(report.accepted >= report.accepted_in_window);
    assert_eq!(report.statuses.get(&200), Some(&report.accepted));
    assert_eq!(report.broken, 0);
}

#[tokio::test]
async fn an_open_loop_sends_what_is_due_and_counts_latency_from_then() {
    let delay = Duration::from_millis(30);
    let receiver = receiver(Answers {
        status: 200,
        delay,
        ..Answers::default()
    })
    .await;
    // Not a delivery, but on that path the answer is held back. 4 connections · 33/s < 500/s.
    let pace = Pace::Open { per_second: 500.0 };
    let generator = Generator::new(plan(receiver.addr, "/e/0", pace));

    generator.run().await;

    let report = generator.tally().report();
    let replies: u64 = report.statuses.values().sum();
    assert!((170..=176).contains(&replies), "{replies} of 175 were sent");
}

#[tokio::test]
async fn latency_of_an_overloaded_open_loop_includes_the_wait_for_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let slow = spawn_driver(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4_096];
        while stream.read(&mut request).await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream
                .write_all(b"HTTP/1.1 202 -\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
        }
    });
    // 100/s are due, at most 50/s are answered: after 300 ms the last has waited for as long.
    let generator = Generator::new(Plan {
        connections: 1,
        ..plan(addr, "/raw", Pace::Open { per_second: 100.0 })
    });

    generator.run().await;

    slow.abort();
    let report = generator.tally().report();
    assert!(report.accepted >= 34, "{report:?}");
    assert!(report.latency_ms.max > 200.0, "{report:?}");
}

#[tokio::test]
async fn a_backlog_that_is_never_received_stops_the_closed_loop_at_its_bound() {
    let receiver = receiver(Answers::default()).await;
    let backlog = Some(Backlog {
        most: 100,
        receiver: receiver.addr,
    });
    let generator = Generator::new(plan(receiver.addr, "/raw", Pace::Closed { backlog }));

    generator.run().await;

    assert_eq!(generator.tally().accepted(), 100);
}

#[tokio::test]
async fn an_address_that_refuses_is_counted_and_not_hammered() {
    let addr = receiver(Answers::default()).await.addr;
    // The receiver is dropped: its port refuses.
    let generator = Generator::new(plan(addr, "/raw", Pace::Closed { backlog: None }));

    generator.run().await;

    let report = generator.tally().report();
    assert_eq!(report.accepted, 0);
    assert!((1..=4 * 36).contains(&report.broken), "{}", report.broken);
    assert!(report.first_trouble.is_some());
}
