//! The first event: published through the API, awaited at the receiver.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::program::Failure;
use shared::runtime::spawn_driver;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::ApiClient;
use crate::listen::Printer;
use crate::output::note;
use crate::receiver::Received;
use crate::send::{self, NewEvent};
use crate::signature::Verdict;

const EVENT_TYPE: &str = "order.created";
const PAYLOAD: &str = r#"{"id":1,"total":"49.90","currency":"EUR"}"#;
/// Longest wait for the first delivery. Above a lease: after a crash the last run's worker still
/// holds its slots that long.
const PATIENCE: Duration = Duration::from_secs(30);
/// When to say that it takes long.
const LONG: Duration = Duration::from_secs(3);
/// Deliveries noticed while the first event is on its way.
const NOTICED: usize = 256;

/// The event that was accepted.
pub(super) struct Accepted {
    id: String,
    posted: BootTime,
}

/// Deliveries as they are printed.
pub(super) struct Delivered(mpsc::Receiver<(String, Verdict, BootTime)>);

/// Prints deliveries until the receiver ends, and tells who wants to know.
pub(super) fn watch(
    mut received: mpsc::Receiver<Received>,
    mut printer: Printer,
) -> (JoinHandle<()>, Delivered) {
    let (sender, receiver) = mpsc::channel(NOTICED);
    let printing = spawn_driver(async move {
        while let Some(request) = received.recv().await {
            let at = boot_time();
            printer.print(&request);
            let id = request.header("webhook-id").unwrap_or_default().to_owned();
            if sender.try_send((id, request.verdict, at)).is_err() {
                // Nobody waits any more: the first event has arrived.
            }
        }
    });
    (printing, Delivered(receiver))
}

/// Publishes the event.
pub(super) async fn publish(client: &ApiClient) -> Result<Accepted, Failure> {
    let payload = RawValue::from_string(PAYLOAD.to_owned())
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let event = NewEvent {
        event_type: EVENT_TYPE,
        payload: &payload,
        channels: &[],
    };
    let posted = boot_time();
    let accepted = send::publish(client, &event).await?;
    note(&format!("first event  {}\n", send::text(&accepted)));
    match accepted.get("id").and_then(Value::as_str) {
        Some(id) => Ok(Accepted {
            id: id.to_owned(),
            posted,
        }),
        None => Err(Failure::Failed("the API's 202 names no event".to_owned())),
    }
}

impl Delivered {
    /// Waits for the event's delivery, verified; how long it took from the POST.
    pub(super) async fn wait_for(
        mut self,
        event: &Accepted,
        client: &ApiClient,
    ) -> Result<Duration, Failure> {
        let arrival = async {
            while let Some((id, verdict, at)) = self.0.recv().await {
                if id == event.id {
                    return Some((verdict, at));
                }
            }
            None
        };
        tokio::pin!(arrival);
        let arrived = match tokio::time::timeout(LONG, &mut arrival).await {
            Ok(arrived) => Ok(arrived),
            Err(_elapsed) => {
                note("waiting for the delivery; after a crash, old leases have to run out first …");
                tokio::time::timeout(PATIENCE, &mut arrival).await
            }
        };
        match arrived {
            Ok(Some((Verdict::Valid, at))) => Ok(at.since(event.posted)),
            Ok(Some((verdict, _))) => Err(Failure::Failed(format!(
                "the delivery arrived, but its signature is {}",
                verdict.text()
            ))),
            Ok(None) => Err(Failure::Failed("the demo receiver ended".to_owned())),
            Err(_elapsed) => Err(not_delivered(event, client).await),
        }
    }
}

/// What is known about an event that did not arrive.
async fn not_delivered(event: &Accepted, client: &ApiClient) -> Failure {
    let path = format!("/v1/events/{}/deliveries", event.id);
    let known = match client.get(&path).await {
        Ok(answer) => answer.json().to_string(),
        Err(failure) => failure.to_string(),
    };
    Failure::Failed(format!(
        "the event {} did not arrive within {:?}; its deliveries: {known}",
        event.id,
        LONG + PATIENCE
    ))
}
