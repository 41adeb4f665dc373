//! The journal's directory: its lock, its files, and what is in them.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, bail};
use serde::Serialize;
use shared::domain::idempotency::KeySpace;
use shared::ids::{TenantKey, created_at};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{record, segment};
use crate::ingest::NewEvent;

/// Files with events that are to be replayed.
const SEGMENT: &str = "journal";
/// Files with events that the database would not take.
const REFUSED: &str = "refused";
/// Files that were replayed as far as they could be read.
const DAMAGED: &str = "damaged";

/// What a key of an event in the journal stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing: it is new.
    New,
    /// The event with this id, of the same body.
    Same(Uuid),
    /// Another body.
    Other(KeySpace),
}

/// A file that nobody writes any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

type Keys = HashMap<(TenantKey, String), ([u8; 32], Uuid)>;

/// See the module. Shared by the keeper, which adds, and the replay, which removes.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    most_bytes: u64,
    /// Of all files, the one that is written included.
    bytes: AtomicU64,
    /// Events that are not replayed.
    records: AtomicU64,
    sealed: Mutex<VecDeque<Sealed>>,
    keys: Mutex<Keys>,
    next: AtomicU64,
    _lock: File,
}

impl Directory {
    /// Opens it, or makes it; reads what is there.
    pub(super) fn open(path: &Path, most_bytes: u64) -> anyhow::Result<Self> {
        let shown = path.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("the directory {shown} cannot be made"))?;
        let lock = File::create(path.join("lock"))
            .with_context(|| format!("the directory {shown} cannot be written"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "another process uses the journal {shown}: each API process needs a directory of its own"
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("{shown}/lock cannot be locked"));
            }
        }
        let directory = Self {
            path: path.to_owned(),
            most_bytes,
            bytes: AtomicU64::new(0),
            records: AtomicU64::new(0),
            sealed: Mutex::default(),
            keys: Mutex::default(),
            next: AtomicU64::new(1),
            _lock: lock,
        };
        directory.read_all()?;
        Ok(directory)
    }

    fn read_all(&self) -> anyhow::Result<()> {
        for path in files(&self.path, SEGMENT)? {
            let scan = segment::read(&path)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            if scan.torn > 0 || scan.damaged > 0 {
                tracing::warn!(
                    file = %name(&path), torn_bytes = scan.torn, damaged = scan.damaged,
                    "the journal ends in the middle of a record, or is damaged: what was acknowledged before that is there"
                );
            }
            for bytes in &scan.records {
                if let Ok(event) = record::decode(bytes) {
                    self.hold(&event);
                }
            }
            let bytes = fs::metadata(&path)?.len();
            let records = scan.records.len() as u64;
            self.grow(bytes, records);
            self.lock().push_back(Sealed {
                path,
                bytes,
                records,
            });
        }
        if self.records() > 0 {
            tracing::info!(
                events = self.records(),
                "the journal holds events of an earlier process; they are replayed"
            );
        }
        // Names go on after every file that was ever here, so that none is reused.
        let all = [SEGMENT, REFUSED, DAMAGED]
            .into_iter()
            .map(|kind| files(&self.path, kind));
        let all: Vec<Vec<PathBuf>> = all.collect::<Result<_, _>>()?;
        let last = all
            .iter()
            .flatten()
            .filter_map(|path| number(path))
            .max()
            .unwrap_or(0);
        self.next.store(last + 1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn records(&self) -> u64 {
        self.records.load(Ordering::Acquire)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes() < self.most_bytes
    }

    /// Whether so many bytes more may be written.
    pub(super) fn fits(&self, more: u64) -> bool {
        self.bytes() + more <= self.most_bytes
    }

    /// A name for the next file of events.
    pub(super) fn next_segment(&self) -> PathBuf {
        self.next_file(SEGMENT)
    }

    fn next_file(&self, kind: &str) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.path.join(format!("{number:020}.{kind}"))
    }

    /// So much more is durable.
    pub(super) fn grow(&self, bytes: u64, records: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Release);
    }

    /// A file that nobody writes any more waits for the replay.
    pub(super) fn seal(&self, sealed: Sealed) {
        self.lock().push_back(sealed);
    }

    /// The oldest file that nobody writes any more.
    pub(super) fn oldest(&self) -> Option<Sealed> {
        self.lock().front().cloned()
    }

    /// What an event's keys stand for here.
    pub(super) fn held(&self, event: &NewEvent) -> Held {
        let keys = self.lock_keys();
        for key in &event.idempotency {
            let Some((fingerprint, id)) = keys.get(&(event.tenant, key.stored.clone())) else {
                continue;
            };
            if *fingerprint == key.fingerprint {
                return Held::Same(*id);
            }
            return Held::Other(KeySpace::of(&key.stored).unwrap_or(KeySpace::Header));
        }
        Held::New
    }

    /// The event's keys stand for it, until [`Directory::release`].
    pub(super) fn hold(&self, event: &NewEvent) {
        let Some(id) = event.id else { return };
        let mut keys = self.lock_keys();
        for key in &event.idempotency {
            keys.entry((event.tenant, key.stored.clone()))
                .or_insert((key.fingerprint, id));
        }
    }

    /// The database knows the event's keys now, or never will.
    pub(super) fn release(&self, event: &NewEvent) {
        let mut keys = self.lock_keys();
        for key in &event.idempotency {
            let place = (event.tenant, key.stored.clone());
            if keys
                .get(&place)
                .is_some_and(|(_, id)| Some(*id) == event.id)
            {
                keys.remove(&place);
            }
        }
    }

    /// Keeps events that the database would not take, each with the reason, in a file of their own.
    pub(super) fn keep_refused(&self, refused: &[(NewEvent, String)]) -> anyhow::Result<()> {
        if refused.is_empty() {
            return Ok(());
        }
        let mut writer = segment::Writer::create(&self.next_file(REFUSED))?;
        for (event, why) in refused {
            writer.push(&record::encode(event, Some(why))?)?;
        }
        Ok(writer.sync()?)
    }

    /// The oldest file was replayed. One with damage is kept under another name.
    pub(super) fn remove(&self, sealed: &Sealed, damaged: bool) -> std::io::Result<()> {
        if damaged {
            fs::rename(&sealed.path, sealed.path.with_extension(DAMAGED))?;
        } else {
            fs::remove_file(&sealed.path)?;
        }
        segment::sync_directory(&sealed.path)?;
        self.lock().retain(|other| other != sealed);
        self.bytes.fetch_sub(sealed.bytes, Ordering::Relaxed);
        self.records.fetch_sub(sealed.records, Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Sealed>> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is in a journal, for people.
#[derive(Debug, Serialize)]
pub struct Contents {
    /// Events that are to be replayed.
    pub events: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// When the first of them was accepted.
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest: Option<OffsetDateTime>,
    /// Events that the database would not take.
    pub refused: usize,
    /// Files that could not be read to their end.
    pub damaged_files: usize,
}

/// Looks into a journal, also into one that a process uses.
///
/// # Errors
/// When there is no such directory, or a file cannot be read.
pub fn inspect(path: &Path) -> anyhow::Result<Contents> {
    let mut contents = Contents {
        events: 0,
        bytes: 0,
        oldest: None,
        refused: 0,
        damaged_files: files(path, DAMAGED)?.len(),
    };
    for file in files(path, SEGMENT)? {
        let scan = segment::read(&file)?;
        contents.events += scan.records.len();
        contents.bytes += fs::metadata(&file)?.len();
        contents.damaged_files += usize::from(scan.damaged > 0);
        let ids = scan
            .records
            .iter()
            .filter_map(|bytes| record::decode(bytes).ok()?.id);
        contents.oldest = contents.oldest.into_iter().chain(ids.map(created_at)).min();
    }
    for file in files(path, REFUSED)? {
        contents.refused += segment::read(&file)?.records.len();
    }
    Ok(contents)
}

/// The files of a kind, oldest first.
fn files(directory: &Path, kind: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("the directory {} cannot be read", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == kind) && number(&path).is_some() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// Without the directory: no path of the machine is logged.
pub(super) fn name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}
