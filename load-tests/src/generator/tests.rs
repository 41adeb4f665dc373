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
        most: None,
        batch: 1,
        keys: 0,
        warmup: Duration::from_millis(50),
        measured: Duration::from_millis(300),
    }
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
    let receiver = receiver(Answers {
        status: 200,
        delay_ms: 30,
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
        fan_out: 1,
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

#[tokio::test]
async fn no_more_events_are_posted_than_asked_for_and_no_time_is_waited_out_then() {
    let receiver = receiver(Answers::default()).await;
    let generator = Generator::new(Plan {
        most: Some(50),
        measured: Duration::from_secs(600),
        ..plan(receiver.addr, "/raw", Pace::Closed { backlog: None })
    });

    generator.run().await;

    assert_eq!(generator.tally().accepted(), 50);
}

#[tokio::test]
async fn each_key_is_posted_in_its_order_over_one_connection() {
    let receiver = receiver(Answers::default()).await;
    let generator = Generator::new(Plan {
        keys: 7,
        ..plan(receiver.addr, "/raw", Pace::Closed { backlog: None })
    });

    let mut senders: Vec<Sender> = (0..4).map(|it| Sender::new(&generator, it)).collect();
    let keys: Vec<Vec<_>> = senders
        .iter_mut()
        .map(|sender| {
            std::iter::repeat_with(|| sender.next_key().unwrap())
                .take(4)
                .collect()
        })
        .collect();

    assert_eq!(keys[0], [(0, 1, 1), (4, 5, 1), (0, 1, 2), (4, 5, 2)]);
    assert_eq!(keys[3], [(3, 4, 1), (3, 4, 2), (3, 4, 3), (3, 4, 4)]);
}
