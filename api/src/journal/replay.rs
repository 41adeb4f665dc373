//! From the journal into the database, when that is back.
//!
//! A file at a time, oldest first. Every event goes to the writers as if it were posted now, under the id that it was
//! given: its fan-out is that of the configuration of now. A file is removed when each of its events is in the database,
//! an alias, or among the refused; a crash before that makes all of it happen again, which changes nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use shared::fail_point;
use shared::runtime::clock::boot_time;
use shared::runtime::jitter;
use shared::store::StoreError;
use shared::store::aliases::{self, Alias};
use shared::store::pool::within;
use tokio_util::sync::CancellationToken;

use super::directory::{Sealed, name};
use super::{Journal, record, segment};
use crate::connections::Connections;
use crate::ingest::{NewEvent, Queues, Refusal, Reply};
use crate::metrics::{JOURNAL_BYTES, JOURNAL_EVENTS};

/// Events that are handed to the writers at once.
const CHUNK: usize = 500;
/// How long those may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look whether there is anything, and how long to wait after a failure: up to twice this.
const PAUSE: Duration = Duration::from_millis(250);
/// Storing the aliases of a chunk.
const ALIAS_BUDGET: Duration = Duration::from_secs(5);
/// How often an event may fail for a reason that is not known before it counts as refused.
const MOST_TRIES: u32 = 20;

/// Where the journal's events go.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) queues: Arc<Queues>,
    pub(crate) connections: Connections,
}

/// What became of the events of a file.
#[derive(Debug, Default, Clone, Copy)]
pub struct Replayed {
    /// They are in the database.
    pub stored: usize,
    /// Their keys stood for other events.
    pub aliases: usize,
    /// The database would not take them.
    pub refused: usize,
}

/// Replays whatever comes into the journal, until shutdown.
pub(crate) async fn run(journal: &Journal, target: &Target, stop: &CancellationToken) {
    loop {
        JOURNAL_BYTES.set(i64::try_from(journal.bytes()).unwrap_or(i64::MAX));
        let pause = PAUSE.mul_f64(1.0 + jitter::fraction());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let emptied = tokio::select! {
            () = stop.cancelled() => return,
            emptied = drain(journal, target, |_| ()) => emptied,
        };
        if let Err(error) = emptied {
            tracing::debug!(%error, "the journal cannot be replayed yet");
        }
    }
}

/// Replays until the journal is empty; `told` is called after each file.
///
/// # Errors
/// When the database does not take them just now, or a file cannot be read or removed. What is left is still there.
pub(crate) async fn drain(
    journal: &Journal,
    target: &Target,
    mut told: impl FnMut(Replayed),
) -> anyhow::Result<()> {
    loop {
        if journal.directory.oldest().is_none() && !journal.is_empty() {
            journal.seal().await;
        }
        let Some(oldest) = journal.directory.oldest() else {
            return Ok(());
        };
        told(replay(journal, target, &oldest).await?);
    }
}

async fn replay(journal: &Journal, target: &Target, sealed: &Sealed) -> anyhow::Result<Replayed> {
    let began = boot_time();
    let scan = segment::read(&sealed.path).context("a file of the journal cannot be read")?;
    let mut damaged = scan.damaged;
    let mut events = Vec::with_capacity(scan.records.len());
    for bytes in &scan.records {
        match record::decode(bytes) {
            Ok(event) => events.push(event),
            Err(error) => {
                tracing::error!(%error, "an event of the journal cannot be read; its file is kept");
                damaged += 1;
            }
        }
    }
    let mut replayed = Replayed::default();
    let mut refused = Vec::new();
    for chunk in events.chunks(CHUNK) {
        fail_point!("api.journal_replaying");
        let settled = settle(target, chunk).await?;
        fail_point!("api.journal_replayed");
        store_aliases(target, &settled.aliases).await?;
        replayed.stored += chunk.len() - settled.aliases.len() - settled.refused.len();
        replayed.aliases += settled.aliases.len();
        refused.extend(settled.refused);
    }
    replayed.refused = refused.len();
    for (what, count) in [
        ("stored", replayed.stored),
        ("alias", replayed.aliases),
        ("refused", replayed.refused),
    ] {
        JOURNAL_EVENTS
            .with_label_values(&[what])
            .inc_by(count as u64);
    }
    for (_, why) in &refused {
        tracing::error!(
            why,
            "an event that was accepted on local disk cannot be stored; it is kept among the refused"
        );
    }
    fail_point!("api.journal_aliased");
    journal.directory.keep_refused(&refused)?;
    fail_point!("api.journal_refused");
    for event in &events {
        journal.directory.release(event);
    }
    journal.directory.remove(sealed, damaged > 0)?;
    fail_point!("api.journal_removed");
    if !events.is_empty() {
        tracing::info!(
            file = %name(&sealed.path), events = events.len(), aliases = replayed.aliases, refused = replayed.refused,
            milliseconds = boot_time().since(began).as_millis(), "a file of the journal is in the database"
        );
    }
    Ok(replayed)
}

/// What became of a chunk.
#[derive(Default)]
struct Settled {
    aliases: Vec<Alias>,
    refused: Vec<(NewEvent, String)>,
}

/// Hands events to the writers until each is settled.
async fn settle(target: &Target, events: &[NewEvent]) -> anyhow::Result<Settled> {
    let mut settled = Settled::default();
    let mut left: Vec<NewEvent> = events.to_vec();
    let mut tries = 0;
    while !left.is_empty() {
        tries += 1;
        let replies = target.queues.submit_all(left.clone(), PATIENCE).await;
        let replies = replies.map_err(|refusal| anyhow::anyhow!("it is not taken: {refusal:?}"))?;
        let mut again = Vec::new();
        for (event, reply) in left.into_iter().zip(replies) {
            match fate(&event, reply, tries) {
                Fate::Stored => {}
                Fate::Alias(alias) => settled.aliases.push(alias),
                Fate::Refused(why) => settled.refused.push((event, why)),
                Fate::Late => anyhow::bail!("the database did not confirm an event in time"),
                Fate::Again => again.push(event),
            }
        }
        left = again;
    }
    Ok(settled)
}

enum Fate {
    Stored,
    Alias(Alias),
    Refused(String),
    /// The database does not answer: everything waits.
    Late,
    Again,
}

fn fate(event: &NewEvent, reply: Reply, tries: u32) -> Fate {
    let refusal = match reply {
        Ok(accepted) if Some(accepted.id) == event.id => return Fate::Stored,
        Ok(accepted) => {
            return match event.id {
                Some(id) => Fate::Alias(Alias {
                    tenant: event.tenant,
                    id,
                    of: accepted.id,
                }),
                None => Fate::Stored,
            };
        }
        Err(refusal) => refusal,
    };
    match refusal {
        Refusal::Late | Refusal::Stalled | Refusal::QueueFull => Fate::Late,
        Refusal::Restless | Refusal::Internal if tries < MOST_TRIES => Fate::Again,
        Refusal::FanOut(count) => Fate::Refused(format!("it would go to {count} endpoints")),
        Refusal::Types => {
            Fate::Refused("the tenant has as many event types as it may have".to_owned())
        }
        Refusal::TooLate => Fate::Refused("its deliver_before is over".to_owned()),
        Refusal::Mismatch(_) => {
            Fate::Refused("another body was accepted under its key meanwhile".to_owned())
        }
        Refusal::NotStorable => {
            Fate::Refused("the database refuses it: is it older than events are kept?".to_owned())
        }
        Refusal::Internal => Fate::Refused("was its tenant deleted meanwhile?".to_owned()),
        Refusal::Unchecked(_)
        | Refusal::Restless
        | Refusal::JournalFull
        | Refusal::JournalFailed => Fate::Refused("the cause is in the log".to_owned()),
    }
}

async fn store_aliases(target: &Target, aliases: &[Alias]) -> Result<(), StoreError> {
    if aliases.is_empty() {
        return Ok(());
    }
    within(ALIAS_BUDGET, async {
        let client = target.connections.get().await?;
        aliases::add(&**client, aliases).await
    })
    .await
}
