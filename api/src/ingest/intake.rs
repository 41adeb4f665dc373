//! Where an event goes: to the writers, or, while the database does not answer, to the journal if there is one.
//!
//! # Invariants
//! - The budgets nest: with a journal an event waits for the database for half of the deadline, and then for the disk.
//! - No event twice: it has its id before it is handed to anybody.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared::ids::new_v7;
use shared::runtime::clock::DatabaseClock;

use super::{NewEvent, Queues, Refusal, Reply, writer};
use crate::journal::Journal;

/// See the module. Shared by all requests of a process.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) queues: Arc<Queues>,
    pub(crate) journal: Option<Arc<Journal>>,
    pub(crate) writers: Arc<writer::Shared>,
    pub(crate) clock: Arc<DatabaseClock>,
    /// How long a request may wait for its event to be durable.
    pub(crate) deadline: Duration,
}

impl Intake {
    /// Waits until an event is durable.
    pub(crate) async fn submit(&self, event: NewEvent) -> Reply {
        let Some(journal) = &self.journal else {
            return self.queues.submit(event, self.deadline).await;
        };
        let replies = self.with_journal(journal, vec![event]).await?;
        replies.into_iter().next().unwrap_or(Err(Refusal::Internal))
    }

    /// Waits until each event is durable or refused. All of them, or none when there is no room for one.
    pub(crate) async fn submit_all(&self, events: Vec<NewEvent>) -> Result<Vec<Reply>, Refusal> {
        match &self.journal {
            None => self.queues.submit_all(events, self.deadline).await,
            Some(journal) => self.with_journal(journal, events).await,
        }
    }

    async fn with_journal(
        &self,
        journal: &Journal,
        mut events: Vec<NewEvent>,
    ) -> Result<Vec<Reply>, Refusal> {
        for event in &mut events {
            event.id.get_or_insert_with(|| new_v7(self.clock.now()));
        }
        let patience = self.deadline / 2;
        if journal.is_empty() {
            let spare = events.clone();
            let replies = match self.queues.submit_all(events, patience).await {
                Ok(replies) => replies,
                // A queue that is full because the database is slow is back pressure, and stays it.
                Err(refusal) if self.writers.connected.load(Ordering::Relaxed) => {
                    return Err(refusal);
                }
                Err(_away) => spare.iter().map(|_| Err(Refusal::Late)).collect(),
            };
            return Ok(take_over(journal, spare, replies).await);
        }
        // What is in the journal comes first, and it holds nothing that has an order.
        let ordered: Vec<NewEvent> = events
            .iter()
            .filter(|it| it.order_key.is_some())
            .cloned()
            .collect();
        let (replies, journaled) = tokio::join!(
            async {
                if ordered.is_empty() {
                    Ok(Vec::new())
                } else {
                    self.queues.submit_all(ordered, patience).await
                }
            },
            async {
                let unordered = events.iter().filter(|it| it.order_key.is_none());
                let unordered: Vec<NewEvent> = unordered.cloned().collect();
                if unordered.is_empty() {
                    Vec::new()
                } else {
                    journal.append(unordered).await
                }
            }
        );
        // One that finds no room does not undo the others.
        let mut replies = replies.unwrap_or_default().into_iter();
        let mut journaled = journaled.into_iter();
        let reply = |event: &NewEvent| match event.order_key {
            Some(_) => replies.next().unwrap_or(Err(Refusal::Late)),
            None => journaled.next().unwrap_or(Err(Refusal::Late)),
        };
        Ok(events.iter().map(reply).collect())
    }
}

/// What the database did not confirm in time goes to the journal, but for what has an order.
async fn take_over(
    journal: &Journal,
    events: Vec<NewEvent>,
    mut replies: Vec<Reply>,
) -> Vec<Reply> {
    let (mut places, mut late) = (Vec::new(), Vec::new());
    for (place, event) in events.into_iter().enumerate() {
        if event.order_key.is_none() && matches!(replies.get(place), Some(Err(Refusal::Late))) {
            places.push(place);
            late.push(event);
        }
    }
    if late.is_empty() {
        return replies;
    }
    tracing::debug!(
        events = late.len(),
        "the database did not take events in time: they go to the journal"
    );
    for (place, local) in places.into_iter().zip(journal.append(late).await) {
        if let Some(reply) = replies.get_mut(place) {
            *reply = local;
        }
    }
    replies
}
