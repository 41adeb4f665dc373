//! Hints: telling workers where new work is, after the commit and on a connection of their own.
//!
//! Not the truth: a lost hint costs a worker the time to its next scan. So nothing waits for a
//! hint: a full channel or a lost connection drops it. Never inside the ingest transaction: NOTIFY
//! takes a database-wide lock at commit, which cut commits from 10k to 2.7k a second.
//!
//! Sent at once when the last one is [`PAUSE`] ago, gathered otherwise.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use shared::ids::{EndpointKey, Slot};
use shared::runtime::clock::{BootTime, boot_time};
use shared::store::{Database, StoreError, notify};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The least time between two notifications: a wake-up of every worker costs more than a commit.
const PAUSE: Duration = Duration::from_millis(3);
/// Batches that may wait for the hinting task.
const CAPACITY: usize = 1_024;
/// The longest payload; PostgreSQL takes less than 8,000 bytes.
const MOST_BYTES: usize = 7_900;
/// The pause after a failure to connect or send.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Where new deliveries wait.
pub(crate) type Places = Vec<(Slot, EndpointKey)>;

/// The writers' end.
#[derive(Debug, Clone)]
pub(crate) struct Hints(mpsc::Sender<Places>);

impl Hints {
    pub(crate) fn channel() -> (Self, mpsc::Receiver<Places>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self(sender), receiver)
    }

    /// Passes places on, or drops them.
    pub(crate) fn send(&self, places: Places) {
        if !places.is_empty() && self.0.try_send(places).is_err() {
            tracing::trace!("a hint was dropped; the workers' scan finds its deliveries");
        }
    }
}

/// Sends what arrives until shutdown.
pub(crate) async fn run(
    database: &Database,
    arriving: &mut mpsc::Receiver<Places>,
    shutdown: &CancellationToken,
) {
    while !shutdown.is_cancelled() {
        match serve(database, arriving, shutdown).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "hints pause"),
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT_PAUSE) => {}
            () = shutdown.cancelled() => return,
        }
        while arriving.try_recv().is_ok() {}
    }
}

async fn serve(
    database: &Database,
    arriving: &mut mpsc::Receiver<Places>,
    shutdown: &CancellationToken,
) -> Result<(), StoreError> {
    let notifier = notify::Notifier::open(database).await?;
    let mut gathered = BTreeSet::new();
    let mut sent: Option<BootTime> = None;
    loop {
        tokio::select! {
            places = arriving.recv() => match places {
                Some(places) => gathered.extend(places),
                None => return Ok(()),
            },
            () = shutdown.cancelled() => return Ok(()),
        }
        let wait = sent.map_or(Duration::ZERO, |sent| {
            PAUSE.saturating_sub(boot_time().since(sent))
        });
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        while let Ok(places) = arriving.try_recv() {
            gathered.extend(places);
        }
        sent = Some(boot_time());
        for payload in payloads(&std::mem::take(&mut gathered)) {
            notifier.hint(&payload).await?;
        }
    }
}

/// `slot:endpoint,slot:endpoint,…`, in as many payloads as it takes.
fn payloads(places: &BTreeSet<(Slot, EndpointKey)>) -> Vec<String> {
    let mut payloads = Vec::new();
    let mut payload = String::new();
    for (slot, endpoint) in places {
        let before = payload.len();
        let comma = if payload.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        if write!(payload, "{comma}{}:{}", slot.0, endpoint.0).is_err() {
            continue;
        }
        if payload.len() > MOST_BYTES {
            let overflow = payload.split_off(before);
            payloads.push(std::mem::replace(
                &mut payload,
                overflow.trim_start_matches(',').to_owned(),
            ));
        }
    }
    if !payload.is_empty() {
        payloads.push(payload);
    }
    payloads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_hold_every_place_once_and_stay_within_the_limit() {
        let places: BTreeSet<_> = (0..2_000)
            .map(|n| (Slot(255), EndpointKey(9_000_000_000 + n)))
            .collect();

        let payloads = payloads(&places);

        assert!(payloads.len() > 1);
        assert!(payloads.iter().all(|payload| payload.len() <= MOST_BYTES));
        let parsed: BTreeSet<_> = payloads
            .iter()
            .flat_map(|payload| payload.split(','))
            .map(|place| {
                let (slot, endpoint) = place.split_once(':').unwrap();
                (
                    Slot(slot.parse().unwrap()),
                    EndpointKey(endpoint.parse().unwrap()),
                )
            })
            .collect();
        assert_eq!(parsed, places);
        assert!(super::payloads(&BTreeSet::new()).is_empty());
    }
}
