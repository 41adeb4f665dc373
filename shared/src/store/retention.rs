//! Forgetting: partitions are dropped whole, after what they still owe was copied; what has no
//! partitions is deleted in bounded batches. History is never deleted row by row.
//!
//! An events partition past its age: raise `retention.replay_floor`, copy the events of live
//! deliveries and dead letters to `events_kept`, `DETACH … CONCURRENTLY`, drop. Every step may be
//! repeated; a run that was interrupted anywhere is finished by the next one.
//!
//! # Invariants
//! - A live delivery and a dead letter always find their payload, in `events` or `events_kept`.
//!   Deliveries move only between the tables that [`OWED`] reads in one snapshot, and new ones of
//!   old events stop at the floor: **who makes a delivery of an event that is not new** (replay,
//!   retry of a final one) holds `SELECT … FROM retention FOR SHARE` in its transaction and refuses
//!   an event from before the floor, unless it is in `events_kept`. Raising the floor and
//!   [`sweep_kept`] wait for those transactions.
//! - D3: each step is fenced by the job's lease ([`super::leases`]).
//! - Ingest never waits: DETACH and ATTACH let it pass, DROP touches a table that nobody reads.

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::leases::{self, Lease, fenced};
use super::partitions::{self, Parent, Partition, State};
use super::{Session, StoreError};
use crate::ids;
use crate::runtime::clock::{BootTime, boot_time};

/// Rows with payloads per statement: at 256 KiB each, 256 MB of WAL at most.
const COPY_BATCH: usize = 1_000;
/// Ids of owed events held in memory at a time; each page reads the live tables once.
const OWED_PAGE: i64 = 100_000;
/// Narrow rows per DELETE: milliseconds, so nobody waits for their locks.
const DELETE_BATCH: i64 = 5_000;
/// Rows with payloads per DELETE from `events_kept`.
const SWEEP_BATCH: i64 = 1_000;
/// A run begins no further batch after this; the next run goes on. Shorter than its interval.
const RUN_BUDGET: Duration = Duration::from_secs(240);
/// How long DETACH waits for readers that began before it. Past it the partition stays half
/// detached, which harms nobody, and the next run finishes it.
const DETACH_WAIT: Duration = Duration::from_secs(20);
/// How long counts of accepted events are kept. A quota asks for the days of its month; an API process whose clock is
/// behind may still ask for the month before.
const COUNTED: Duration = Duration::from_secs(40 * 86_400);
/// The least age: yesterday's partitions are always wanted.
const SHORTEST: Duration = Duration::from_secs(86_400);

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Age of events, and of deliveries that were skipped or cancelled.
    pub events: Duration,
    /// Age of attempts.
    pub attempts: Duration,
    /// Age of dead letters.
    pub dead_letters: Duration,
    /// Age of the audit log, and of removals that are done.
    pub audit_log: Duration,
}

impl RetentionSettings {
    /// Age of what is remembered of deliveries that were made of old events: whoever expunges the event finds them
    /// by it, so it outlives their dead letters and attempts. A delivery lives for no longer than its event is kept.
    fn replayed(&self) -> Duration {
        self.dead_letters.max(self.attempts) + self.events
    }

    /// Under a day means a day: today's and yesterday's partitions are in use.
    fn age(&self, parent: Parent) -> Duration {
        match parent {
            Parent::Events | Parent::Closed => self.events.max(SHORTEST),
            Parent::Attempts => self.attempts.max(SHORTEST),
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Partitions that are gone.
    pub dropped: Vec<String>,
    /// Events copied because somebody still owes them.
    pub kept: u64,
    /// Dead letters past their age.
    pub dead_letters: u64,
    /// Replays that ended as long ago.
    pub replays: u64,
    /// Kept events that nobody owes any more.
    pub kept_deleted: u64,
    /// Idempotency keys that expired.
    pub idempotency_keys: u64,
    /// Entries of the audit log past their age.
    pub audit_log: u64,
    /// Removals that were done as long ago.
    pub removals: u64,
    /// Days of counted events that no quota asks for any more.
    pub event_counts: u64,
    /// Windows of operational events past the age of events.
    pub notices: u64,
    /// Partitions that must wait for a reader; the next run goes on.
    pub waiting: Vec<String>,
}

/// Replays of older events stop here. One row; waits for replays that hold it.
const RAISE_FLOOR: &str = fenced!(
    ", raised AS (UPDATE retention SET replay_floor = $4
       WHERE replay_floor < $4 AND EXISTS (SELECT FROM mine))
     SELECT FROM mine"
);
/// The events of [$1, $2) that a live delivery or a dead letter refers to, after ($3, $4): one
/// snapshot of all tables that a delivery moves between. Reads them whole (no index by event: it
/// would cost every delivery), locks nothing.
const OWED: &str = "
SELECT tenant_id, event_id FROM (
  SELECT tenant_id, event_id FROM ready WHERE event_id >= $1 AND event_id < $2 UNION ALL
  SELECT tenant_id, event_id FROM retry WHERE event_id >= $1 AND event_id < $2 UNION ALL
  SELECT tenant_id, event_id FROM ready_ordered WHERE event_id >= $1 AND event_id < $2 UNION ALL
  SELECT tenant_id, event_id FROM dead_letters WHERE event_id >= $1 AND event_id < $2) o
WHERE (tenant_id, event_id) > ($3, $4)
GROUP BY tenant_id, event_id ORDER BY tenant_id, event_id LIMIT $5";
/// Both tables by primary key. `e.*`: a test keeps their columns equal.
const COPY: &str = fenced!(
    ", copied AS (
       INSERT INTO events_kept SELECT e.*
       FROM unnest($4::int4[], $5::uuid[]) o(tenant_id, id) CROSS JOIN LATERAL (
         SELECT * FROM events e WHERE e.tenant_id = o.tenant_id AND e.id = o.id OFFSET 0) e
       WHERE EXISTS (SELECT FROM mine)
       ON CONFLICT DO NOTHING RETURNING 1)
     SELECT (SELECT count(*) FROM copied) FROM mine"
);
/// Index dead_letters_age; skips rows that a replay marks just now.
const DELETE_DEAD_LETTERS: &str = fenced!(
    ", gone AS (
       DELETE FROM dead_letters WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
         SELECT ctid FROM dead_letters WHERE dead_at < $4 ORDER BY dead_at LIMIT $5
         FOR UPDATE SKIP LOCKED)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// Index idempotency_keys_expiry; skips keys that ingest uses just now.
const DELETE_KEYS: &str = fenced!(
    ", gone AS (
       DELETE FROM idempotency_keys WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
         SELECT ctid FROM idempotency_keys WHERE expires_at < $4 ORDER BY expires_at LIMIT $5
         FOR UPDATE SKIP LOCKED)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// Index notices_age; skips what is being told just now.
const DELETE_NOTICES: &str = fenced!(
    ", gone AS (
       DELETE FROM notices WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
         SELECT ctid FROM notices WHERE window_start < $4 ORDER BY window_start LIMIT $5
         FOR UPDATE SKIP LOCKED)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// By the time in its id, which is the primary key.
const DELETE_REPLAYED: &str = fenced!(
    ", gone AS (
       DELETE FROM replayed WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
         SELECT ctid FROM replayed
         WHERE delivery_id < (lpad(to_hex((extract(epoch FROM $4::timestamptz) * 1000)::int8), 12, '0') || repeat('0', 20))::uuid
         ORDER BY delivery_id LIMIT $5 FOR UPDATE SKIP LOCKED)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// Index replays_ended; with why some could not be replayed.
const DELETE_REPLAYS: &str = fenced!(
    ", gone AS (
       DELETE FROM replays WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
         SELECT ctid FROM replays WHERE finished_at < $4 ORDER BY finished_at LIMIT $5
         FOR UPDATE SKIP LOCKED)) RETURNING id),
     reasons AS (DELETE FROM replay_skips WHERE replay_id IN (SELECT id FROM gone))
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// By primary key: the instant is in the id.
const DELETE_AUDIT_LOG: &str = fenced!(
    ", gone AS (
       DELETE FROM audit_log WHERE EXISTS (SELECT FROM mine) AND id = ANY (ARRAY(
         SELECT id FROM audit_log WHERE id < (lpad(to_hex((extract(epoch FROM $4::timestamptz) * 1000)::int8), 12, '0') || repeat('0', 20))::uuid
         ORDER BY id LIMIT $5)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// Index removals_finished.
const DELETE_REMOVALS: &str = fenced!(
    ", gone AS (
       DELETE FROM removals WHERE EXISTS (SELECT FROM mine) AND id = ANY (ARRAY(
         SELECT id FROM removals WHERE finished_at < $4 ORDER BY finished_at LIMIT $5)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// Index event_counts_day.
const DELETE_EVENT_COUNTS: &str = fenced!(
    ", gone AS (
       DELETE FROM event_counts WHERE EXISTS (SELECT FROM mine) AND ctid = ANY (ARRAY(
         SELECT ctid FROM event_counts WHERE day < ($4::timestamptz AT TIME ZONE 'UTC')::date ORDER BY day LIMIT $5)) RETURNING 1)
     SELECT (SELECT count(*) FROM gone) FROM mine"
);
/// Waits for replays and holds further ones up until the end of the transaction. No row: nothing
/// was ever kept.
const LOCK_FLOOR: &str =
    "SELECT replay_floor FROM retention WHERE isfinite(replay_floor) FOR NO KEY UPDATE";
/// Everything in `events_kept` is from before the floor ($1, as an id), so only references to
/// events from before it count. Reads the live tables whole, as [`OWED`].
const SWEEP_KEPT: &str = "
WITH owed AS MATERIALIZED (
  SELECT tenant_id, event_id FROM ready WHERE event_id < $1 UNION ALL
  SELECT tenant_id, event_id FROM retry WHERE event_id < $1 UNION ALL
  SELECT tenant_id, event_id FROM ready_ordered WHERE event_id < $1 UNION ALL
  SELECT tenant_id, event_id FROM dead_letters WHERE event_id < $1)
DELETE FROM events_kept WHERE ctid = ANY (ARRAY(
  SELECT k.ctid FROM events_kept k
  WHERE NOT EXISTS (SELECT FROM owed o WHERE o.tenant_id = k.tenant_id AND o.event_id = k.id)
  LIMIT $2))";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("retention.raise_floor", RAISE_FLOOR),
    ("retention.owed", OWED),
    ("retention.copy", COPY),
    ("retention.delete_dead_letters", DELETE_DEAD_LETTERS),
    ("retention.delete_keys", DELETE_KEYS),
    ("retention.delete_notices", DELETE_NOTICES),
    ("retention.delete_replayed", DELETE_REPLAYED),
    ("retention.delete_replays", DELETE_REPLAYS),
    ("retention.delete_audit_log", DELETE_AUDIT_LOG),
    ("retention.delete_removals", DELETE_REMOVALS),
    ("retention.delete_event_counts", DELETE_EVENT_COUNTS),
    ("retention.lock_floor", LOCK_FLOOR),
    ("retention.sweep_kept", SWEEP_KEPT),
];

/// Forgets what is past its age. With nothing to forget it costs four look-ups.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is lost; else those of the database. What was done stays.
pub async fn run(
    client: &Client,
    lease: &Lease,
    settings: &RetentionSettings,
    now: OffsetDateTime,
) -> Result<Report, StoreError> {
    let deadline = boot_time().after(RUN_BUDGET);
    let mut report = Report::default();
    let mut past: Vec<Partition> = partitions::list(client)
        .await?
        .into_iter()
        .filter(|p| p.ends_at() + settings.age(p.parent) <= now)
        .collect();
    // A table has at most one partition that is half detached, and detaches no other before.
    past.sort_by_key(|p| (p.state != State::Detaching, p.day));
    let mut waiting = Vec::new();
    for partition in past {
        if boot_time() > deadline {
            break;
        }
        if waiting.contains(&partition.parent) {
            continue;
        }
        match forget(client, lease, partition, &mut report).await {
            Ok(()) => report.dropped.push(partition.name()),
            Err(StoreError::Contention(cause)) => {
                let name = partition.name();
                tracing::info!(
                    partition = name,
                    cause,
                    "a partition must wait for a reader"
                );
                report.waiting.push(name);
                waiting.push(partition.parent);
            }
            Err(error) => return Err(error),
        }
    }
    let oldest = now - settings.dead_letters;
    report.dead_letters = delete(client, lease, DELETE_DEAD_LETTERS, oldest, deadline).await?;
    report.replays = delete(client, lease, DELETE_REPLAYS, oldest, deadline).await?;
    let repeated_before = now - settings.replayed();
    delete(client, lease, DELETE_REPLAYED, repeated_before, deadline).await?;
    report.idempotency_keys = delete(client, lease, DELETE_KEYS, now, deadline).await?;
    let told_before = now - settings.events.max(SHORTEST);
    report.notices = delete(client, lease, DELETE_NOTICES, told_before, deadline).await?;
    let logged_before = now - settings.audit_log;
    report.audit_log = delete(client, lease, DELETE_AUDIT_LOG, logged_before, deadline).await?;
    report.removals = delete(client, lease, DELETE_REMOVALS, logged_before, deadline).await?;
    let counted_before = now - COUNTED;
    report.event_counts =
        delete(client, lease, DELETE_EVENT_COUNTS, counted_before, deadline).await?;
    Ok(report)
}

/// Deletes kept events that nobody owes any more. Reads the live tables and dead letters whole, so
/// it is for once in a few hours. Replays wait meanwhile: that long, and once per batch.
///
/// # Errors
/// As [`run`].
pub async fn sweep_kept(session: &mut Session, lease: &Lease) -> Result<u64, StoreError> {
    let deadline = boot_time().after(RUN_BUDGET);
    let mut total = 0;
    while boot_time() < deadline {
        let deleted = sweep_batch(session, lease).await?;
        total += deleted;
        if deleted == 0 {
            break;
        }
    }
    Ok(total)
}

/// Brings one partition a step, or all steps, closer to nothing.
async fn forget(
    client: &Client,
    lease: &Lease,
    partition: Partition,
    report: &mut Report,
) -> Result<(), StoreError> {
    let (parent, name) = (partition.parent.table(), partition.name());
    match partition.state {
        State::Attached => {
            if partition.parent == Parent::Events {
                report.kept += keep_owed(client, lease, partition).await?;
            }
            let detach = format!("ALTER TABLE {parent} DETACH PARTITION {name} CONCURRENTLY");
            patiently(client, lease, &detach).await?;
        }
        State::Detaching => {
            let finish = format!("ALTER TABLE {parent} DETACH PARTITION {name} FINALIZE");
            patiently(client, lease, &finish).await?;
        }
        State::Detached => {}
    }
    leases::still_mine(client, lease).await?;
    client
        .batch_execute(&format!("DROP TABLE IF EXISTS {name}"))
        .await?;
    tracing::info!(partition = name, "dropped a partition past its retention");
    Ok(())
}

/// DDL that may not run in a transaction, so the fence is looked at just before: done twice, or by
/// a leader that lost its lease a moment ago, it does the same.
async fn patiently(client: &Client, lease: &Lease, statement: &str) -> Result<(), StoreError> {
    leases::still_mine(client, lease).await?;
    let wait = DETACH_WAIT.as_millis();
    client
        .batch_execute(&format!("SET lock_timeout = {wait}"))
        .await?;
    let result = client.batch_execute(statement).await;
    client.batch_execute("RESET lock_timeout").await?;
    Ok(result?)
}

/// Copies what a partition owes. References to its events only disappear from here on, and a page
/// begins after the last event of the one before, so nothing is missed when a delivery moves.
async fn keep_owed(
    client: &Client,
    lease: &Lease,
    partition: Partition,
) -> Result<u64, StoreError> {
    let (from, to) = (
        ids::lower_bound(partition.begins_at()),
        ids::lower_bound(partition.ends_at()),
    );
    let floor = client
        .query_opt(
            RAISE_FLOOR,
            &[
                &lease.name,
                &lease.owner.0,
                &lease.epoch.0,
                &partition.ends_at(),
            ],
        )
        .await?;
    floor.ok_or(StoreError::NotOwner)?;
    let mut copied = 0;
    let mut last = (i32::MIN, Uuid::nil());
    loop {
        let page = client
            .query(OWED, &[&from, &to, &last.0, &last.1, &OWED_PAGE])
            .await?;
        let owed: Vec<(i32, Uuid)> = page.iter().map(|row| (row.get(0), row.get(1))).collect();
        let Some(end) = owed.last() else {
            return Ok(copied);
        };
        last = *end;
        for batch in owed.chunks(COPY_BATCH) {
            let (tenants, events): (Vec<i32>, Vec<Uuid>) = batch.iter().copied().unzip();
            let row = client
                .query_opt(
                    COPY,
                    &[
                        &lease.name,
                        &lease.owner.0,
                        &lease.epoch.0,
                        &tenants,
                        &events,
                    ],
                )
                .await?;
            copied += count(row)?;
        }
    }
}

async fn delete(
    client: &Client,
    lease: &Lease,
    statement: &str,
    before: OffsetDateTime,
    deadline: BootTime,
) -> Result<u64, StoreError> {
    let prepared = client.prepare(statement).await?;
    let mut total = 0;
    loop {
        let row = client
            .query_opt(
                &prepared,
                &[
                    &lease.name,
                    &lease.owner.0,
                    &lease.epoch.0,
                    &before,
                    &DELETE_BATCH,
                ],
            )
            .await?;
        let deleted = count(row)?;
        total += deleted;
        if deleted == 0 || boot_time() > deadline {
            return Ok(total);
        }
    }
}

/// The lock and the DELETE are two statements: the snapshot of the second begins after the wait.
async fn sweep_batch(session: &mut Session, lease: &Lease) -> Result<u64, StoreError> {
    let transaction = session.transaction().await?;
    transaction
        .batch_execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
        .await?;
    leases::still_mine(&transaction, lease).await?;
    let Some(row) = transaction.query_opt(LOCK_FLOOR, &[]).await? else {
        return Ok(0);
    };
    let floor = ids::lower_bound(row.get(0));
    let deleted = transaction
        .execute(SWEEP_KEPT, &[&floor, &SWEEP_BATCH])
        .await?;
    transaction.commit().await?;
    Ok(deleted)
}

/// The count of a fenced statement; no row means that the fence did not let it pass.
fn count(row: Option<Row>) -> Result<u64, StoreError> {
    let count: i64 = row.ok_or(StoreError::NotOwner)?.get(0);
    Ok(u64::try_from(count).unwrap_or(0))
}
