//! A file of records, written at its end and read as a whole.
//!
//! `postrjn1`, then for each record its length and its CRC-32 (IEEE), 4 bytes each, little-endian, and its bytes.
//!
//! # Invariants
//! - A record is acknowledged after a `fdatasync` that followed its last byte, so whatever a crash leaves of a file begins
//!   with every acknowledged record.
//! - What follows the last whole record (a torn tail) was never acknowledged. A whole record with a wrong checksum is
//!   damage, and what comes after it is still read.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;

const MAGIC: &[u8; 8] = b"postrjn1";
/// Length and checksum.
const FRAME: usize = 8;

/// A file that grows.
#[derive(Debug)]
pub(super) struct Writer {
    file: File,
    path: PathBuf,
    /// What was not written yet.
    buffer: Vec<u8>,
    length: u64,
}

impl Writer {
    /// A new file, which only this process's user can read; its name is durable.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let options = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .clone();
        let mut file = options.open(path)?;
        file.write_all(MAGIC)?;
        file.sync_all()?;
        sync_directory(path)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            buffer: Vec::new(),
            length: MAGIC.len() as u64,
        })
    }

    /// Adds a record to what the next [`Writer::sync`] writes.
    pub(super) fn push(&mut self, record: &[u8]) -> io::Result<()> {
        let length = u32::try_from(record.len()).map_err(|_too_long| {
            io::Error::new(io::ErrorKind::InvalidInput, "a record is too long")
        })?;
        self.buffer.extend(length.to_le_bytes());
        self.buffer.extend(crc32fast::hash(record).to_le_bytes());
        self.buffer.extend_from_slice(record);
        Ok(())
    }

    /// Writes what was pushed and makes it durable. After an error nothing is known of the file's end, also not after
    /// another `fdatasync`: it must not be written again.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.file.write_all(&self.buffer)?;
        self.file.sync_data()?;
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        // One burst's buffer is not kept for good.
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its length on disk.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }
}

/// How many bytes a record takes.
pub(super) const fn weight(record: &[u8]) -> u64 {
    (record.len() + FRAME) as u64
}

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) records: Vec<Bytes>,
    /// Bytes after the last whole record.
    pub(super) torn: usize,
    /// Whole records with a wrong checksum, or a file of another kind.
    pub(super) damaged: usize,
}

/// Reads a file.
pub(super) fn read(path: &Path) -> io::Result<Scan> {
    Ok(scan(&Bytes::from(std::fs::read(path)?)))
}

/// Finds the records in a file's bytes.
pub(super) fn scan(bytes: &Bytes) -> Scan {
    let mut found = Scan::default();
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        // Made, and not yet written: a crash in between.
        let is_torn = MAGIC.starts_with(bytes) || bytes.iter().all(|byte| *byte == 0);
        *(if is_torn {
            &mut found.torn
        } else {
            &mut found.damaged
        }) = bytes.len().max(1);
        return found;
    };
    let mut rest = rest;
    while !rest.is_empty() {
        let whole = frame(rest);
        let Some((checksum, record, after)) = whole else {
            found.torn = rest.len();
            break;
        };
        if record.is_empty() {
            // Zeros: space that a file system gave and nobody wrote.
            found.torn = rest.len();
            break;
        }
        if crc32fast::hash(record) == checksum {
            found.records.push(bytes.slice_ref(record));
        } else {
            found.damaged += 1;
        }
        rest = after;
    }
    found
}

/// Checksum and bytes of the first record, and what comes after it; none if it is not whole.
fn frame(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (record, after) = rest.split_at_checked(length)?;
    Some((u32::from_le_bytes(*checksum), record, after))
}

/// Makes the names in a file's directory durable.
pub(super) fn sync_directory(of: &Path) -> io::Result<()> {
    match of.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
