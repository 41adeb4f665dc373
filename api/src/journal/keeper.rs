//! The thread that owns the file that is written.
//!
//! It takes whatever waits, writes it, makes it durable with one `fdatasync`, and answers: as the writers do with commits.
//! A file that failed once is never written again: after a failed `fdatasync` the kernel may have dropped the pages, and
//! would report success the next time.

use std::sync::Arc;

use shared::fail_point;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::directory::{Directory, Held, Sealed, name};
use super::{record, segment};
use crate::ingest::{Accepted, NewEvent, Refusal, Reply};

/// A file's length from which on the next one is begun: what a crash in the middle of a replay makes it repeat.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Bytes of one `fdatasync`.
const GROUP_BYTES: u64 = 4 << 20;
/// Requests of one `fdatasync`.
const GROUP_JOBS: usize = 1_000;

/// What the keeper is asked.
#[derive(Debug)]
pub(super) enum Job {
    /// Make these durable.
    Append {
        events: Vec<NewEvent>,
        reply: oneshot::Sender<Vec<Reply>>,
        _room: OwnedSemaphorePermit,
    },
    /// End the file, if it holds anything.
    Seal { reply: oneshot::Sender<()> },
}

/// Starts the thread; it ends when nobody can ask any more.
pub(super) fn start(directory: Arc<Directory>, jobs: mpsc::Receiver<Job>) -> std::io::Result<()> {
    let keeper = Keeper {
        directory,
        file: None,
        records: 0,
    };
    let thread = std::thread::Builder::new().name("journal".to_owned());
    drop(thread.spawn(move || keeper.run(jobs))?);
    Ok(())
}

struct Keeper {
    directory: Arc<Directory>,
    file: Option<segment::Writer>,
    /// In the file.
    records: u64,
}

/// What becomes of an event if the `fdatasync` succeeds.
enum Fate {
    /// It is written.
    Written(NewEvent),
    /// Settled without a write.
    Settled(Reply),
}

/// An answer that waits for the `fdatasync`.
type Pending = (Vec<Fate>, oneshot::Sender<Vec<Reply>>);

impl Keeper {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = jobs.blocking_recv() {
            let (mut group, mut bytes, mut next) = (Vec::new(), 0, Some(first));
            while let Some(job) = next.take() {
                match job {
                    Job::Append {
                        events,
                        reply,
                        _room,
                    } => {
                        group.push((self.take(events, &mut bytes), reply));
                    }
                    Job::Seal { reply } => {
                        self.commit(std::mem::take(&mut group), std::mem::take(&mut bytes));
                        self.seal();
                        answer(reply, ());
                    }
                }
                if bytes < GROUP_BYTES && group.len() < GROUP_JOBS {
                    next = jobs.try_recv().ok();
                }
            }
            self.commit(group, bytes);
        }
    }

    /// Puts events into the file's buffer.
    fn take(&mut self, events: Vec<NewEvent>, bytes: &mut u64) -> Vec<Fate> {
        let take = |event| {
            self.take_one(event, bytes)
                .unwrap_or_else(|refusal| Fate::Settled(Err(refusal)))
        };
        events.into_iter().map(take).collect()
    }

    fn take_one(&mut self, event: NewEvent, bytes: &mut u64) -> Result<Fate, Refusal> {
        match self.directory.held(&event) {
            Held::New => {}
            Held::Same(id) => return Ok(Fate::Settled(Ok(Accepted::local(id)))),
            Held::Other(space) => return Err(Refusal::Mismatch(space)),
        }
        let record = record::encode(&event, None).map_err(|error| {
            tracing::error!(%error, "an event cannot be written to the journal");
            Refusal::Internal
        })?;
        let weight = segment::weight(&record);
        if !self.directory.fits(*bytes + weight) {
            return Err(Refusal::JournalFull);
        }
        // When no file can be made, nothing of this group is in one.
        let pushed = self.open().and_then(|file| file.push(&record));
        pushed.map_err(|error| failed(&error))?;
        *bytes += weight;
        // Equal keys of the same group are one event already.
        self.directory.hold(&event);
        Ok(Fate::Written(event))
    }

    /// The file that is written, begun if there is none.
    fn open(&mut self) -> std::io::Result<&mut segment::Writer> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let file = segment::Writer::create(&self.directory.next_segment())?;
                self.directory.grow(file.length(), 0);
                file
            }
        };
        Ok(self.file.insert(file))
    }

    /// Makes a group durable and answers it.
    fn commit(&mut self, group: Vec<Pending>, bytes: u64) {
        if group.is_empty() {
            return;
        }
        fail_point!("api.journal_writing");
        let synced = self.file.as_mut().map_or(Ok(()), segment::Writer::sync);
        fail_point!("api.journal_written");
        let written = group.iter().flat_map(|(fates, _)| fates);
        let written = written
            .filter(|fate| matches!(fate, Fate::Written(_)))
            .count() as u64;
        match &synced {
            Ok(()) => {
                self.records += written;
                self.directory.grow(bytes, written);
            }
            Err(error) => {
                failed(error);
                // Nothing is known of its end. What it holds is replayed.
                self.seal();
            }
        }
        for (fates, reply) in group {
            let replies = fates.into_iter().map(|fate| match (fate, &synced) {
                (Fate::Written(event), Ok(())) => {
                    event.id.map(Accepted::local).ok_or(Refusal::Internal)
                }
                (Fate::Written(event), Err(_)) => {
                    self.directory.release(&event);
                    Err(Refusal::JournalFailed)
                }
                // What it repeats may be of this very group.
                (Fate::Settled(Ok(_)), Err(_)) => Err(Refusal::JournalFailed),
                (Fate::Settled(settled), _) => settled,
            });
            answer(reply, replies.collect());
        }
        if self
            .file
            .as_ref()
            .is_some_and(|file| file.length() >= SEGMENT_BYTES)
        {
            self.seal();
        }
    }

    fn seal(&mut self) {
        let Some(file) = self.file.take() else { return };
        let records = std::mem::take(&mut self.records);
        tracing::debug!(file = %name(file.path()), records, "a file of the journal is complete");
        self.directory.seal(Sealed {
            path: file.path().to_owned(),
            bytes: file.length(),
            records,
        });
    }
}

fn answer<T>(reply: oneshot::Sender<T>, with: T) {
    if reply.send(with).is_err() {
        tracing::debug!("a request went away before its answer");
    }
}

fn failed(error: &std::io::Error) -> Refusal {
    tracing::error!(%error, "the journal cannot be written: events are refused while the database is away");
    Refusal::JournalFailed
}
