//! Keeps what is accepted and not yet received below a bound, by asking the receiver.

use std::sync::Arc;
use std::time::Duration;

use shared::runtime::spawn_driver;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{Backlog, Generator};
use crate::client::{Connection, request};

/// How often the receiver is asked: a small part of the time that the bound's worth of events takes.
const POLL: Duration = Duration::from_millis(10);

/// The room that is left, watched until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    room: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Watch {
    /// A permit per event that may be sent now; the sender forgets it.
    pub(super) fn room(&self) -> Arc<Semaphore> {
        Arc::clone(&self.room)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Begins with room for `bound.most` events.
pub(super) fn watch(bound: Backlog, generator: Arc<Generator>) -> Watch {
    let room = Arc::new(Semaphore::new(usize::try_from(bound.most).unwrap_or(0)));
    let task = spawn_driver(poll(bound, generator, Arc::clone(&room)));
    Watch { room, task }
}

/// Gives a permit back for each event that was received, and for each that was not accepted.
async fn poll(bound: Backlog, generator: Arc<Generator>, room: Arc<Semaphore>) {
    let ask = request("GET", "/control/taken", None, b"");
    let mut connection = None;
    let mut given_back = None;
    loop {
        let taken = match &mut connection {
            Some(connection) => taken(connection, &ask).await,
            None => None,
        };
        match taken {
            Some(deliveries) => {
                let taken = deliveries / bound.fan_out.max(1);
                let done = taken.saturating_add(generator.tally().not_accepted());
                // What was received before this run began gives no room.
                let before = given_back.replace(done).unwrap_or(done.min(taken));
                room.add_permits(usize::try_from(done.saturating_sub(before)).unwrap_or(0));
            }
            None => connection = Connection::open(bound.receiver).await.ok(),
        }
        if generator.over() {
            // Whoever still waits for room sees that the time is over.
            room.close();
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn taken(connection: &mut Connection, ask: &[u8]) -> Option<u64> {
    let reply = connection.exchange(ask).await.ok()?;
    std::str::from_utf8(reply.body).ok()?.parse().ok()
}
