//! The batching writer: owns a connection, takes what queued during its last commit, writes it in
//! one statement, answers.
//!
//! # Invariants
//! - D2: an event is answered with success only after the commit that holds it, or after it was
//!   found in the database.
//! - No event twice: an id is given once; when an answer was lost, the writer first asks which ids
//!   exist, and the statement inserts no id twice.
//! - A bad row fails alone: a batch that the database refuses is halved until the row is found.
//! - An event of the wrong lane is handed over before it is submitted.
//! - A key stands for one event: what the statement found under it answers, whoever stored that.
//! - Rows whose requester went away are dropped *before* they are submitted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shared::fail_point;
use shared::runtime::clock::{DatabaseClock, boot_time};
use shared::runtime::jitter;
use shared::store::ingest::{Batch, Ingest, Inserted, MOST_ORDERED};
use shared::store::{Database, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::configuration::Configurations;
use super::hints::Hints;
use super::staged::Staged;
use super::{Lane, MOST_LISTED, Queues, Refusal};

/// The most deliveries of a batch: past it a batch gains nothing and its requests wait longer.
const MOST_DELIVERIES: usize = 500;
/// The most bytes of payload of a batch.
const MOST_BYTES: usize = 1 << 20;
/// What a reply lists of an event that exists.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "100"
)]
const LISTED: i32 = MOST_LISTED as i32;
/// Pauses between attempts to reach the database: doubled from the first to the longest, and
/// jittered, so that a fleet does not come back in step.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often an idle writer looks whether its connection still stands, to have a new one before a
/// request needs it.
const IDLE_CHECK: Duration = Duration::from_millis(500);

/// After so many looks it is asked: one that passes nothing any more looks well, and one to a node that takes no
/// more writes too.
const ASK_EVERY: u32 = 10;

/// What the writers of a process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) queues: Arc<Queues>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) hints: Hints,
    /// Whether the last thing a writer heard of the database was good.
    pub(crate) connected: AtomicBool,
}

/// Writes until shutdown. Ends only then: what waits at that moment has been answered, because the
/// HTTP server stops first.
pub(crate) async fn run(shared: Arc<Shared>, lane: Lane, shutdown: CancellationToken) {
    let mut writer = Writer {
        shared,
        lane,
        configurations: Configurations::default(),
        staged: VecDeque::new(),
    };
    let mut pause = FIRST_PAUSE;
    while !shutdown.is_cancelled() {
        let error = match writer.serve(&shutdown, &mut pause).await {
            Ok(()) => return,
            Err(error) => error,
        };
        writer.shared.connected.store(false, Ordering::Relaxed);
        tracing::warn!(%error, waiting = writer.staged.len(), "the writer lost the database; trying again");
        if !error.is_transient() {
            writer.refuse_all();
        }
        let jittered = pause.mul_f64(0.5 + jitter::fraction() / 2.0);
        tokio::select! {
            () = tokio::time::sleep(jittered) => pause = (pause * 2).min(LONGEST_PAUSE),
            () = shutdown.cancelled() => return,
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    lane: Lane,
    configurations: Configurations,
    /// Taken from the queue and not answered, oldest first.
    staged: VecDeque<Staged>,
}

impl Writer {
    /// Connects and writes until shutdown or until the connection is lost.
    async fn serve(
        &mut self,
        shutdown: &CancellationToken,
        pause: &mut Duration,
    ) -> Result<(), StoreError> {
        let ingest = Ingest::open(&self.shared.database).await?;
        self.shared.connected.store(true, Ordering::Relaxed);
        let mut idle = 0_u32;
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = self.gather() => {}
                () = tokio::time::sleep(IDLE_CHECK) => {
                    if ingest.is_closed() {
                        return Err(StoreError::Unavailable("the connection was closed".to_owned()));
                    }
                    idle = idle.wrapping_add(1);
                    if idle.is_multiple_of(ASK_EVERY) {
                        ingest.check().await?;
                    }
                    continue;
                }
            }
            self.step(&ingest).await?;
            *pause = FIRST_PAUSE;
        }
    }

    /// Waits until there is something to write, and takes a batch's worth of it.
    async fn gather(&mut self) {
        loop {
            let queue = self.shared.queues.of(self.lane);
            let taken = queue.take(self.most_events().saturating_sub(self.staged.len()));
            self.staged.extend(taken.into_iter().map(Staged::from));
            if !self.staged.is_empty() {
                return;
            }
            queue.arrival().await;
        }
    }

    const fn most_events(&self) -> usize {
        match self.lane {
            Lane::Plain | Lane::Keyed => MOST_DELIVERIES,
            Lane::Ordered => MOST_ORDERED,
        }
    }

    /// Writes one batch.
    async fn step(&mut self, ingest: &Ingest) -> Result<(), StoreError> {
        self.staged.retain(|staged| !staged.is_abandoned());
        self.settle_doubts(ingest).await?;
        for staged in &self.staged {
            self.configurations
                .forget_older(staged.event().tenant, staged.planned_with());
        }
        let events = self.staged.iter().map(Staged::event);
        self.configurations.prepare(ingest, events).await?;
        let batch = self.plan_batch();
        self.submit(ingest, batch).await
    }

    /// Answers what an earlier submission, whose acknowledgement was lost, did store.
    async fn settle_doubts(&mut self, ingest: &Ingest) -> Result<(), StoreError> {
        let doubtful = self.staged.iter().filter(|staged| staged.in_doubt);
        let (tenants, ids): (Vec<i32>, Vec<_>) = doubtful.filter_map(Staged::identity).unzip();
        if ids.is_empty() {
            return Ok(());
        }
        let stored = ingest.stored(&tenants, &ids, LISTED).await?;
        for mut staged in std::mem::take(&mut self.staged) {
            staged.in_doubt = false;
            let found = staged
                .identity()
                .and_then(|(_, id)| Some((id, stored.get(&id)?)));
            match found {
                Some((id, stored)) => staged.accept_stored(id, stored),
                None => self.staged.push_back(staged),
            }
        }
        Ok(())
    }

    /// Answers events with those that their keys stand for. One that is not there was of this batch
    /// and did not make it: the next batch decides anew.
    async fn replay(
        &mut self,
        ingest: &Ingest,
        replays: Vec<(Staged, Uuid)>,
    ) -> Result<(), StoreError> {
        if replays.is_empty() {
            return Ok(());
        }
        let (tenants, ids): (Vec<i32>, Vec<Uuid>) = replays
            .iter()
            .map(|(staged, id)| (staged.event().tenant.0, *id))
            .unzip();
        let stored = ingest.stored(&tenants, &ids, LISTED).await;
        let mut again = Vec::new();
        for (staged, id) in replays {
            match stored.as_ref().ok().and_then(|stored| stored.get(&id)) {
                Some(stored) => staged.accept_stored(id, stored),
                None => again.extend(staged.outdated()),
            }
        }
        self.restage(vec![again]);
        stored.map(drop)
    }

    /// Plans the oldest events up to a batch's limits; what cannot be accepted is answered.
    fn plan_batch(&mut self) -> Vec<Staged> {
        let now = self.shared.clock.now();
        let (mut weight, mut bytes) = (0, 0);
        let mut batch = Vec::with_capacity(self.staged.len());
        while let Some(mut staged) = self.staged.pop_front() {
            if let Err(why) = staged.plan(&mut self.configurations, now) {
                staged.turn_away(why);
                continue;
            }
            if staged.lane() != self.lane {
                self.hand_over(staged);
                continue;
            }
            weight += staged.weight();
            bytes += staged.event().payload.len();
            let full =
                weight > MOST_DELIVERIES || bytes > MOST_BYTES || batch.len() >= self.most_events();
            if full && !batch.is_empty() {
                self.staged.push_front(staged);
                break;
            }
            batch.push(staged);
        }
        batch
    }

    fn hand_over(&self, staged: Staged) {
        let lane = staged.lane();
        if let Some(waiting) = staged.handed_over() {
            self.shared.queues.of(lane).put(waiting);
        }
    }

    /// Submits a batch; one that the database refuses for its data is halved until the culprit
    /// stands alone. After any other error everything unanswered is staged again.
    async fn submit(&mut self, ingest: &Ingest, batch: Vec<Staged>) -> Result<(), StoreError> {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let error = match self.insert(ingest, &part).await {
                Ok(inserted) => {
                    self.answer(ingest, part, &inserted).await?;
                    continue;
                }
                Err(error) => error,
            };
            if !matches!(error, StoreError::BadData(_) | StoreError::Conflict(_)) {
                for staged in &mut part {
                    staged.in_doubt = true;
                }
                parts.push(part);
                self.restage(parts);
                return Err(error);
            }
            let second = part.split_off(part.len() / 2);
            if part.is_empty() {
                tracing::error!(%error, "the database refuses an event");
                for staged in second {
                    staged.refuse(Refusal::NotStorable);
                }
            } else {
                parts.extend([second, part]);
            }
        }
        Ok(())
    }

    async fn insert(&self, ingest: &Ingest, part: &[Staged]) -> Result<Inserted, StoreError> {
        let mut batch = match self.lane {
            Lane::Plain => Batch::default(),
            Lane::Keyed | Lane::Ordered => Batch::keyed(),
        };
        for staged in part {
            staged.add_to(&mut batch);
        }
        fail_point!("api.ingest_writing");
        let sent = boot_time();
        let inserted = match self.lane {
            Lane::Plain => ingest.insert(&batch).await?,
            Lane::Keyed | Lane::Ordered => {
                ingest.insert_keyed(&batch, self.shared.clock.now()).await?
            }
        };
        fail_point!("api.ingest_written");
        self.shared.clock.measured(sent, boot_time(), inserted.now);
        Ok(inserted)
    }

    /// Answers a part that committed; what was not inserted is staged again.
    async fn answer(
        &mut self,
        ingest: &Ingest,
        part: Vec<Staged>,
        inserted: &Inserted,
    ) -> Result<(), StoreError> {
        let mut places = Vec::with_capacity(part.len());
        let mut again = Vec::new();
        let mut stale = inserted.stale.iter().copied().peekable();
        let mut repeated = inserted.repeated.iter().copied().peekable();
        let mut replayed = inserted.replays.iter().copied().peekable();
        let mut mismatched = inserted.mismatches.iter().copied().peekable();
        let mut late = inserted.late.iter().copied().peekable();
        let mut replays = Vec::new();
        for (position, mut staged) in part.into_iter().enumerate() {
            if stale.next_if_eq(&position).is_some() {
                self.configurations.forget(staged.event().tenant);
                again.extend(staged.outdated());
            } else if repeated.next_if_eq(&position).is_some() {
                staged.in_doubt = true;
                again.push(staged);
            } else if let Some((_, id)) = replayed.next_if(|(at, _)| *at == position) {
                replays.push((staged, id));
            } else if let Some((_, space)) = mismatched.next_if(|(at, _)| *at == position) {
                staged.refuse(Refusal::Mismatch(space));
            } else if late.next_if_eq(&position).is_some() {
                staged.refuse(Refusal::TooLate);
            } else {
                places.extend(staged.live());
                staged.accept();
            }
        }
        self.shared.hints.send(places);
        self.restage(vec![again]);
        if !inserted.repeated.is_empty() {
            self.settle_doubts(ingest).await?;
        }
        self.replay(ingest, replays).await
    }

    /// Puts parts back in front, the last one first: the order in which they would have been sent.
    fn restage(&mut self, parts: Vec<Vec<Staged>>) {
        for part in parts {
            for staged in part.into_iter().rev() {
                self.staged.push_front(staged);
            }
        }
    }

    fn refuse_all(&mut self) {
        for staged in self.staged.drain(..) {
            staged.refuse(Refusal::Internal);
        }
    }
}
