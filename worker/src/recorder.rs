//! The recorder: writes down what came of each delivery, in batches, and tells the engine.
//!
//! Whatever queued while the previous batch was written goes into the next: no timer, so no latency
//! when idle and full batches under load. A permit comes back when its record is *acknowledged*, so what
//! is sent and not recorded is bounded, whatever happens to the database.
//!
//! # Invariants
//! - Nothing is dropped: a batch is submitted until it is acknowledged. The statement is idempotent, so
//!   a lost acknowledgement is no harm; it is fenced (D3), so lateness is none either.
//! - One bad row never fails its batch: halves are submitted until the culprit stands alone, which is
//!   then stored without its texts.
//! - A batch that takes too long is halved as well: a slow database gets on with what it can do in time.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::domain::notice::NoticeKind;
use shared::fail_point;
use shared::ids::{DeliveryId, EventId, Incarnation};
use shared::policy::decide::Decision;
use shared::runtime::clock::boot_time;
use shared::runtime::{budgets, jitter};
use shared::store::pool::within;
use shared::store::queue::{AttemptRow, Next, RecordRow, Statements};
use shared::store::{Database, Role, Session, StoreError, commands, queue, slots};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::job::Record;
use crate::metrics;
use crate::scheduler::{Input, Recorded};
use crate::transitions::{Change, Changes, Facts};

/// Rows in one statement; larger batches gain nothing and lengthen the wait of their first row.
const BATCH: usize = 500;
/// One statement: past this, a new connection.
const STATEMENT_BUDGET: Duration = budgets::RECORD_BUDGET;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Since when the oldest outcome that is not recorded has waited; the engine stops sending when it is
/// too long ago.
#[derive(Debug, Default)]
pub struct RecordLag(AtomicU64);

impl RecordLag {
    fn begin(&self) {
        let now = u64::try_from(boot_time().0.as_millis()).unwrap_or(u64::MAX);
        self.0.store(now.max(1), Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// How long the batch at hand has been tried.
    #[must_use]
    pub fn lag(&self) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => boot_time().0.saturating_sub(Duration::from_millis(since)),
        }
    }
}

/// See the module.
pub struct Recorder {
    /// The database.
    pub database: Database,
    /// From the deliveries.
    pub records: mpsc::Receiver<Record>,
    /// To the engine.
    pub engine: mpsc::Sender<Input>,
    /// Watched by the engine.
    pub lag: Arc<RecordLag>,
    /// For those who want to know that an endpoint was disabled.
    pub changes: Arc<Changes>,
}

impl Recorder {
    /// Records until every sender of `records` is gone and all is written.
    pub async fn run(mut self) {
        let mut connection = None;
        let mut batch = Vec::with_capacity(BATCH);
        while self.records.recv_many(&mut batch, BATCH).await > 0 {
            self.lag.begin();
            let timer = metrics::RECORD_SECONDS.start_timer();
            for alike in by_statement(&mut batch) {
                self.submit(&mut connection, alike).await;
            }
            timer.observe_duration();
            self.lag.end();
        }
    }

    /// Submits records of one statement until they are acknowledged, then tells the engine.
    async fn submit(&self, connection: &mut Option<(Session, Statements)>, records: Vec<Record>) {
        let mut waiting = vec![(0, records.len())];
        let mut applied = HashSet::new();
        let mut pause = FIRST_PAUSE;
        while let Some((from, to)) = waiting.pop() {
            let Some(part) = records.get(from..to).filter(|part| !part.is_empty()) else {
                continue;
            };
            match self.write(connection, part, Texts::Kept).await {
                Ok(ids) => {
                    applied.extend(ids);
                    pause = FIRST_PAUSE;
                }
                Err(error) if !is_about_rows(&error) => {
                    tracing::warn!(%error, records = part.len(), "outcomes could not be recorded; trying again");
                    *connection = None;
                    if matches!(error, StoreError::Timeout(_)) {
                        // In the time that was too short for all, some of them may be written.
                        waiting.extend(halves(from, to));
                    } else {
                        waiting.push((from, to));
                    }
                    tokio::time::sleep(pause.mul_f64(0.5 + jitter::fraction())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) if part.len() == 1 => {
                    applied.extend(self.write_alone(connection, part, &error).await);
                }
                Err(_) => waiting.extend(halves(from, to)),
            }
        }
        self.follow_up(connection.as_ref(), &records, &applied)
            .await;
        let recorded = records.iter().map(acknowledged).collect();
        if self.engine.send(Input::Recorded(recorded)).await.is_err() {
            tracing::debug!("the engine has ended");
        }
    }

    /// Writes records of one statement; the deliveries of those that were applied.
    async fn write(
        &self,
        connection: &mut Option<(Session, Statements)>,
        records: &[Record],
        texts: Texts,
    ) -> Result<Vec<Uuid>, StoreError> {
        let Some(first) = records.first() else {
            return Ok(Vec::new());
        };
        if connection.is_none() {
            let session = self.database.connect(Role::Worker).await?;
            let statements = within(STATEMENT_BUDGET, Statements::prepare(&session)).await?;
            *connection = Some((session, statements));
        }
        let Some((session, statements)) = connection else {
            return Ok(Vec::new());
        };
        fail_point!("worker.recording");
        let rows: Vec<RecordRow<'_>> = records.iter().map(|record| row(record, texts)).collect();
        let life = first.owner.incarnation;
        let answers = if first.in_line {
            let writing = queue::record_ordered(session, statements, life, &rows);
            within(STATEMENT_BUDGET, writing).await?
        } else {
            let writing = queue::record(session, statements, life, &rows);
            within(STATEMENT_BUDGET, writing).await?
        };
        fail_point!("worker.recorded");
        let stale = answers.iter().filter(|(_, applied)| !applied).count();
        if stale > 0 {
            tracing::info!(stale, "outcomes came too late or twice and changed nothing");
        }
        let applied = answers.into_iter().filter(|(_, applied)| *applied);
        Ok(applied.map(|(delivery, _)| delivery).collect())
    }

    /// A row that the database refuses by itself: stored without its texts, so that it cannot hold
    /// up the others, or come back for ever.
    async fn write_alone(
        &self,
        connection: &mut Option<(Session, Statements)>,
        record: &[Record],
        why: &StoreError,
    ) -> Vec<Uuid> {
        let delivery = record
            .first()
            .map(|record| shared::ids::DeliveryId(record.delivery));
        tracing::error!(delivery.id = ?delivery, error = %why, "an outcome is refused by the database; storing it without its texts");
        let mut texts = Texts::Dropped;
        loop {
            match self.write(connection, record, texts).await {
                Ok(applied) => return applied,
                Err(error) if !is_about_rows(&error) => {
                    tracing::warn!(delivery.id = ?delivery, %error, "an outcome could not be recorded; trying again");
                    *connection = None;
                    tokio::time::sleep(LONGEST_PAUSE.mul_f64(0.5 + jitter::fraction())).await;
                }
                Err(error) => {
                    tracing::error!(delivery.id = ?delivery, %error, "an outcome is refused again");
                    if texts == Texts::AttemptDropped {
                        return Vec::new();
                    }
                    texts = Texts::AttemptDropped;
                }
            }
        }
    }

    /// What follows from applied records besides themselves; from one that came too late follows
    /// nothing (D3). Best effort: the next 410 disables the endpoint as well, and a suspicion ages out.
    async fn follow_up(
        &self,
        connection: Option<&(Session, Statements)>,
        records: &[Record],
        applied: &HashSet<Uuid>,
    ) {
        let Some((session, _)) = connection else {
            return;
        };
        let cleared: Vec<_> = records
            .iter()
            .filter(|record| record.suspect && applied.contains(&record.delivery))
            .map(|record| record.delivery)
            .collect();
        if !cleared.is_empty()
            && let Err(error) =
                within(STATEMENT_BUDGET, slots::clear_suspects(session, &cleared)).await
        {
            tracing::warn!(%error, "suspects could not be cleared");
        }
        // Also those that seem to have come too late: the database knows whether the 410 counted.
        for record in records {
            if matches!(record.decision, Decision::DisableEndpoint(_)) {
                self.disable(session, record).await;
            }
        }
    }

    /// The receiver of this endpoint, as it was when the request was made, is gone. The engine hears of
    /// it before the permit comes back, so that nothing follows the first 410.
    async fn disable(&self, session: &Session, record: &Record) {
        let Some(attempt) = &record.attempt else {
            return;
        };
        let endpoint = (record.endpoint, attempt.endpoint_version);
        let evidence = (record.delivery, attempt.started_at);
        let reason = "the receiver answered 410 Gone";
        fail_point!("worker.disabling");
        let disabling = commands::disable_gone(session, endpoint, record.tenant, evidence, reason);
        match within(STATEMENT_BUDGET, disabling).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(
                    endpoint.key = record.endpoint.0,
                    "an endpoint was disabled: 410 Gone"
                );
                self.changes.put(Change {
                    owner: record.owner,
                    endpoint: record.endpoint,
                    tenant: record.tenant,
                    runtime: None,
                    notices: vec![(NoticeKind::EndpointDisabled, gone())],
                    disable: None,
                });
                let reload = Input::Reload {
                    slot: record.owner.slot,
                    endpoint: record.endpoint,
                };
                if self.engine.send(reload).await.is_err() {
                    tracing::debug!("the engine has ended");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "an endpoint that answered 410 could not be disabled");
            }
        }
    }
}

/// The first half comes last, to be taken first; of a single row the other half is empty.
const fn halves(from: usize, to: usize) -> [(usize, usize); 2] {
    let middle = to - (to - from) / 2;
    [(middle, to), (from, middle)]
}

/// What a notice says of an endpoint whose receiver is gone.
fn gone() -> Facts {
    Facts {
        outcome: Some(Outcome::Gone),
        ..Facts::default()
    }
}

/// Whether a row is to blame, so that halving finds it. Any other error (the database is away, a grant
/// is missing, the schema does not fit) would refuse each row alone as well, and outcomes given up for it
/// would be found by the scan and sent again, without end.
const fn is_about_rows(error: &StoreError) -> bool {
    matches!(error, StoreError::BadData(_) | StoreError::Conflict(_))
}

/// How much of a record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Texts {
    Kept,
    Dropped,
    AttemptDropped,
}

/// Splits a batch by life, of which there is nearly always one, and by whether its rows stand in line.
fn by_statement(batch: &mut Vec<Record>) -> Vec<Vec<Record>> {
    let mut parts: Vec<((Incarnation, bool), Vec<Record>)> = Vec::new();
    for record in batch.drain(..) {
        let kind = (record.owner.incarnation, record.in_line);
        match parts.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, records)) => records.push(record),
            None => parts.push((kind, vec![record])),
        }
    }
    parts.into_iter().map(|(_, records)| records).collect()
}

fn row(record: &Record, texts: Texts) -> RecordRow<'_> {
    let attempt = record
        .attempt
        .as_ref()
        .filter(|_| texts != Texts::AttemptDropped);
    RecordRow {
        slot: record.owner.slot,
        epoch: record.owner.epoch,
        endpoint: record.endpoint,
        delivery: record.delivery,
        event_id: record.event_id,
        tenant: record.tenant,
        attempts_before: record.attempts_before,
        attempts_charged: record.attempts_charged,
        outcome: record.outcome,
        next: next(record.decision),
        note: record.note.as_deref().filter(|_| texts == Texts::Kept),
        attempt: attempt.map(|attempt| AttemptRow {
            started_at: attempt.started_at,
            endpoint_version: attempt.endpoint_version,
            status: attempt.status,
            phases: attempt.phases,
            total_ms: attempt.total_ms,
            addr: attempt.addr,
            dialled: &attempt.dialled,
            response: if texts == Texts::Kept {
                &attempt.response
            } else {
                &[]
            },
        }),
    }
}

const fn next(decision: Decision) -> Next {
    match decision {
        Decision::Complete => Next::Delivered,
        Decision::RetryAt(at) => Next::Retry(at),
        Decision::DeadLetter(class) => Next::DeadLetter(class),
        Decision::Close(reason) | Decision::DisableEndpoint(reason) => Next::Closed(reason),
    }
}

fn acknowledged(record: &Record) -> Recorded {
    let next_due = match record.decision {
        Decision::RetryAt(at) => Some(at),
        Decision::Complete
        | Decision::DeadLetter(_)
        | Decision::Close(_)
        | Decision::DisableEndpoint(_) => None,
    };
    count(record);
    Recorded {
        owner: record.owner,
        endpoint: record.endpoint,
        delivery: record.delivery,
        next_due,
        observed: record.observed,
        dead: matches!(record.decision, Decision::DeadLetter(_)),
    }
}

/// Counts what a record says, and logs it where a delivery has ended undelivered.
fn count(record: &Record) {
    if record.attempt.is_some() {
        metrics::ATTEMPTS
            .with_label_values(&[record.outcome.name()])
            .inc();
    }
    let (delivery, event) = (DeliveryId(record.delivery), EventId(record.event_id));
    let (endpoint, outcome) = (record.endpoint.0, record.outcome.name());
    match record.decision {
        Decision::DeadLetter(class) => {
            let class: DeadLetterClass = class;
            let class = class.name();
            metrics::DEAD_LETTERS.with_label_values(&[class]).inc();
            tracing::info!(delivery.id = %delivery, event.id = %event, endpoint.key = endpoint, outcome.kind = outcome, class, "a delivery was given up");
        }
        Decision::Close(reason) | Decision::DisableEndpoint(reason) => {
            let reason: CloseReason = reason;
            tracing::info!(delivery.id = %delivery, event.id = %event, endpoint.key = endpoint, reason = reason.name(), "a delivery was closed");
        }
        Decision::Complete | Decision::RetryAt(_) => {}
    }
}
