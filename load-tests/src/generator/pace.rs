//! Says when each event of an open loop is due.
//!
//! A thread of its own: tokio's timer ticks in milliseconds, which would be a third of the latency
//! to be measured.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::payload;

/// How many events may be due and not yet sent. What is due later waits unqueued, and counts from
/// its instant all the same.
const LONGEST_QUEUE: usize = 65_536;

/// Sends the instants (boot-clock nanoseconds) at which events are due, each when it has come,
/// `per_second` of them until `end_ns`. Ends early when nobody listens.
pub(super) fn start(per_second: f64, end_ns: u64) -> mpsc::Receiver<u64> {
    let (due, receiver) = mpsc::channel(LONGEST_QUEUE);
    let interval = Duration::from_secs(1).div_f64(per_second.max(0.001));
    let interval_ns = u64::try_from(interval.as_nanos())
        .unwrap_or(u64::MAX)
        .max(1);
    std::thread::spawn(move || {
        let mut next_ns = payload::now_ns();
        while next_ns < end_ns {
            let now_ns = payload::now_ns();
            if now_ns < next_ns {
                std::thread::sleep(Duration::from_nanos(next_ns - now_ns));
            }
            if due.blocking_send(next_ns).is_err() {
                return;
            }
            next_ns = next_ns.saturating_add(interval_ns);
        }
    });
    receiver
}
