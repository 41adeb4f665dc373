//! The journal: events on local disk while the database is away (`POSTRIDER_JOURNAL_DIR`).
//!
//! ```text
//! request → queue → database                        as long as it answers
//!        └→ Journal::append → keeper (fsync) → 202 {"durability": "local"}      when it does not
//!                                └→ replay → queue → database                   when it is back
//! ```
//! An event that waited in vain for half of the API's deadline goes here, under the id that it had there; while anything
//! is here, the events that come later queue up behind it. What has an ordering key never comes here: its order against
//! what other processes accept cannot be kept.
//!
//! - [`record`], [`segment`]: the bytes of an event, and of a file of events.
//! - [`keeper`]: the thread that owns the files: many events, one `fdatasync`, then the answers.
//! - [`replay`]: hands what is here to the writers, as new posts, and removes it afterwards.
//!
//! # Invariants
//! - D2, locally: an answer comes after the `fdatasync` of its event. What disk and process lose together is lost, which
//!   the reply says (`durability`), and the operator confirms (`POSTRIDER_JOURNAL_PERSISTENT`).
//! - No event twice: it keeps its id from the first try on, and an id is inserted once.
//! - A key stands for one event here as well; where another process accepted the same key meanwhile, the id that was
//!   given here becomes an alias of that event (`store::aliases`).
//! - Nothing that was acknowledged is removed before it is in the database, an alias, or among the refused.
//! - Bounded: bytes on disk, bytes and requests that wait, a segment's size.
//! - One process: the directory is locked.
//! - S2: files are the process's own (0600), and no log line has anything of a payload.

mod directory;
mod keeper;
mod offline;
mod record;
pub(crate) mod replay;
mod segment;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use self::directory::Directory;
pub use self::directory::{Contents, inspect};
use self::keeper::Job;
pub use self::offline::replay as replay_offline;
pub use self::replay::Replayed;
use crate::ingest::{NewEvent, Refusal, Reply};
use crate::metrics::JOURNAL_EVENTS;

/// Requests that wait for the keeper at most.
const MOST_JOBS: usize = 4_096;
/// Bytes that wait for the keeper at most.
const MOST_BYTES: usize = 64 << 20;

/// Takes events while the database is away.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: Arc<Directory>,
    jobs: mpsc::Sender<Job>,
    room: Arc<Semaphore>,
}

impl Journal {
    /// Opens the directory, or makes it, and starts its keeper. What an earlier process left is still there.
    ///
    /// # Errors
    /// When it cannot be written, or another process has it.
    pub(crate) fn open(path: &Path, most_bytes: u64) -> anyhow::Result<Arc<Self>> {
        let directory = Arc::new(Directory::open(path, most_bytes)?);
        let (jobs, arriving) = mpsc::channel(MOST_JOBS);
        keeper::start(Arc::clone(&directory), arriving)?;
        Ok(Arc::new(Self {
            directory,
            jobs,
            room: Arc::new(Semaphore::new(MOST_BYTES)),
        }))
    }

    /// Whether nothing is here: events go to the database.
    pub(crate) fn is_empty(&self) -> bool {
        self.directory.records() == 0
    }

    /// Whether it would take another event.
    pub(crate) fn has_room(&self) -> bool {
        self.directory.has_room()
    }

    /// What it takes of the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.directory.bytes()
    }

    /// Makes events durable on the local disk, each with an id already; the answers in their order.
    pub(crate) async fn append(&self, events: Vec<NewEvent>) -> Vec<Reply> {
        let count = events.len();
        let all = |refusal: fn() -> Refusal| (0..count).map(|_| Err(refusal())).collect();
        let bytes = events
            .iter()
            .map(|event| event.payload.len() + 1)
            .sum::<usize>();
        let Ok(bytes) = u32::try_from(bytes) else {
            return all(|| Refusal::QueueFull);
        };
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) else {
            return all(|| Refusal::QueueFull);
        };
        let (reply, answer) = oneshot::channel();
        if self
            .jobs
            .try_send(Job::Append {
                events,
                reply,
                _room: room,
            })
            .is_err()
        {
            return all(|| Refusal::QueueFull);
        }
        // The keeper answers everything that it takes; without it nothing is known.
        let replies = answer.await.unwrap_or_else(|_gone| all(|| Refusal::Late));
        let accepted = replies.iter().filter(|reply| reply.is_ok()).count();
        JOURNAL_EVENTS
            .with_label_values(&["accepted"])
            .inc_by(accepted as u64);
        replies
    }

    /// Ends the file that events go to, so that it can be replayed.
    async fn seal(&self) {
        let (reply, answer) = oneshot::channel();
        if self.jobs.send(Job::Seal { reply }).await.is_ok() && answer.await.is_err() {
            tracing::debug!("the journal's keeper ended");
        }
    }
}
