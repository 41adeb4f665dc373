//! Leases of jobs: what runs in one process at a time (partitions, retention, the backlog's limits).
//!
//! Not the slots: those are `slots`, which move in bulk. The rule is the same: a lease belongs to a
//! worker *incarnation* until that one gives it back or is declared dead (its row in `workers` is
//! deleted); each take-over adds one to the epoch.
//!
//! # Invariants
//! - D3: a leader that was declared dead and replaced changes nothing, however late it wakes. Every
//!   step of a job checks owner and epoch under a share lock on the lease's row, in the transaction
//!   of the step ([`still_mine`], or [`fenced`] for a step of one statement). A take-over skips a row
//!   that is locked, so it happens before the step (which then finds another epoch) or after it.
//!
//! # Why the lock is on the lease and not on the worker
//! The recorder locks its row in `workers`, which makes declaring it dead wait for its last record:
//! milliseconds. A job's step may take seconds, and nobody's slots may wait for that.

use tokio_postgres::{Client, GenericClient, Row};

use super::StoreError;
use crate::ids::{Epoch, Incarnation};

/// A job of which one process is in charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub name: &'static str,
    /// Who is in charge.
    pub owner: Incarnation,
    /// How often it was taken over.
    pub epoch: Epoch,
}

/// Begins a statement that does nothing unless the lease is still ours: binds $1–$3 to name, owner
/// and epoch, and offers the table `mine` (one row, or none). By primary key; share lock on the row.
macro_rules! fenced {
    ($statement:literal) => {
        concat!(
            "WITH mine AS MATERIALIZED (
               SELECT 1 FROM leases l WHERE l.name = $1 AND l.owner = $2 AND l.epoch = $3
               AND EXISTS (SELECT FROM workers w WHERE w.id = l.owner) FOR SHARE OF l) ",
            $statement
        )
    };
}
pub(crate) use fenced;

/// A lease has its row from the first time that somebody wants it.
const CREATE: &str = "INSERT INTO leases (name) VALUES ($1) ON CONFLICT DO NOTHING";
/// By primary key. Taken when free, when its owner is dead, or when it is ours from before (a job
/// that was started again). `SKIP LOCKED`: while a step of the owner runs, there is nothing to take.
const ACQUIRE: &str = "
UPDATE leases SET owner = $2, epoch = epoch + 1
WHERE name = (
  SELECT l.name FROM leases l
  WHERE l.name = $1 AND (l.owner IS NULL OR l.owner = $2
    OR NOT EXISTS (SELECT FROM workers w WHERE w.id = l.owner))
  FOR UPDATE SKIP LOCKED)
AND EXISTS (SELECT FROM workers w WHERE w.id = $2)
RETURNING epoch";
/// See [`fenced`].
const STILL_MINE: &str = fenced!("SELECT FROM mine");
/// By primary key.
const RELEASE: &str =
    "UPDATE leases SET owner = NULL WHERE name = $1 AND owner = $2 AND epoch = $3";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("leases.create", CREATE),
    ("leases.acquire", ACQUIRE),
    ("leases.still_mine", STILL_MINE),
    ("leases.release", RELEASE),
];

/// Takes a lease, if it is to be had and `owner` is alive.
///
/// # Errors
/// Those of the database.
pub async fn acquire(
    client: &Client,
    name: &'static str,
    owner: Incarnation,
) -> Result<Option<Lease>, StoreError> {
    client.execute(CREATE, &[&name]).await?;
    let row = client.query_opt(ACQUIRE, &[&name, &owner.0]).await?;
    Ok(row.map(|row| Lease {
        name,
        owner,
        epoch: Epoch(row.get(0)),
    }))
}

/// Whether a step may go on: in a transaction, the lease stays ours until its end.
///
/// # Errors
/// [`StoreError::NotOwner`] when it is somebody else's, or we were declared dead (D3).
pub async fn still_mine(client: &impl GenericClient, lease: &Lease) -> Result<(), StoreError> {
    let row: Option<Row> = client
        .query_opt(STILL_MINE, &[&lease.name, &lease.owner.0, &lease.epoch.0])
        .await?;
    row.map(|_mine| ()).ok_or(StoreError::NotOwner)
}

/// Gives a lease back, so that another process need not wait for this one to be declared dead.
///
/// # Errors
/// Those of the database. A lease that is no longer ours is left alone.
pub async fn release(client: &Client, lease: &Lease) -> Result<(), StoreError> {
    client
        .execute(RELEASE, &[&lease.name, &lease.owner.0, &lease.epoch.0])
        .await?;
    Ok(())
}
