//! The loader: answers the scheduler's questions to the database: which endpoints have work, which
//! rows are theirs, what their configuration is.
//!
//! Two connections: scans (the truth, which may be slow under a held snapshot) never delay loads
//! (the fast path). A question that cannot be answered is answered with its failure; the scheduler asks
//! again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shared::domain::attempt::Outcome;
use shared::domain::order::OrderKey;
use shared::ids::{EndpointKey, Epoch, Slot, TenantKey, lower_bound, new_v7};
use shared::runtime::clock::{DatabaseClock, boot_time};
use shared::runtime::jitter;
use shared::sealing::MasterKeys;
use shared::store::endpoint_configs::{self, StoredEndpoint};
use shared::store::endpoint_runtime::{self, Recovery};
use shared::store::pool::within;
use shared::store::queue::{self, Row, Statements, Want};
use shared::store::{Database, Role, Session, StoreError, pauses, recovery};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::endpoint_config::{EndpointConfig, SharedConfig};
use crate::job::{EventData, LiveRow, Ownership};
use crate::lines;
use crate::pulse::Pulse;
use crate::scheduler::{Found, Input, LoadRequest, LoadedEndpoint};

const STATEMENT_BUDGET: Duration = Duration::from_secs(8);
/// While the database is away: doubled from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How far back the attempts before a take-over matter: a run of failures that is older says little.
const HISTORY: Duration = Duration::from_secs(2 * 86_400);
/// As many as the highest threshold of a breaker.
const HISTORY_ATTEMPTS: i64 = 1_000;

/// A question of the scheduler.
#[derive(Debug)]
pub enum Question {
    /// Which endpoints of these slots have live rows?
    Scan(Vec<(Slot, Epoch)>),
    /// Rows and configurations.
    Load(Vec<LoadRequest>),
    /// Close live rows of an endpoint.
    Close(Close),
    /// Make dead letters live again.
    Revive(Revive),
    /// End live rows that are too old.
    Expire(Expire),
    /// Put live rows aside.
    Park(Park),
    /// Which endpoints of these slots were left in an outage that nobody stored, when they were taken?
    Outages(Vec<(Slot, Epoch)>, OffsetDateTime),
}

/// See [`crate::scheduler::Effect::Close`].
#[derive(Debug)]
pub struct Close {
    /// The fence.
    pub owner: Ownership,
    /// Whose rows.
    pub endpoint: EndpointKey,
    /// Why.
    pub reason: shared::domain::delivery::CloseReason,
    /// On the wire.
    pub except: Vec<uuid::Uuid>,
}

/// See [`crate::scheduler::Effect::Revive`].
#[derive(Debug)]
pub struct Revive {
    /// The fence.
    pub owner: Ownership,
    /// Whose dead letters.
    pub endpoint: EndpointKey,
    /// When they died.
    pub window: Recovery,
    /// At most so many.
    pub count: usize,
}

/// See [`crate::scheduler::Effect::Expire`].
#[derive(Debug)]
pub struct Expire {
    /// The fence.
    pub owner: Ownership,
    /// Whose rows.
    pub endpoint: EndpointKey,
    /// Made before this.
    pub older_than: time::OffsetDateTime,
    /// On the wire.
    pub except: Vec<uuid::Uuid>,
}

/// See [`crate::scheduler::Effect::Park`].
#[derive(Debug)]
pub struct Park {
    /// The fence.
    pub owner: Ownership,
    /// Whose rows.
    pub endpoint: EndpointKey,
    /// Whose endpoint.
    pub tenant: TenantKey,
    /// Which.
    pub deliveries: Vec<uuid::Uuid>,
    /// When those in line are looked at again.
    pub look_again: time::OffsetDateTime,
}

/// Answers questions on one connection, one after the other.
pub struct Loader {
    /// The database.
    pub database: Database,
    /// From the engine, which asks a bounded number at a time.
    pub questions: mpsc::Receiver<Question>,
    /// To the engine.
    pub engine: mpsc::Sender<Input>,
    /// For due times.
    pub clock: Arc<DatabaseClock>,
    /// To open secrets.
    pub keys: Arc<MasterKeys>,
    /// Whether endpoints with plain `http://` are refused.
    pub https_only: bool,
    /// How its questions are answered.
    pub pulse: Arc<Pulse>,
}

impl Loader {
    /// Answers until the engine is gone.
    pub async fn run(mut self) {
        let mut connection = None;
        let mut pause = FIRST_PAUSE;
        while let Some(question) = self.questions.recv().await {
            let answer = match self.answer(&mut connection, &question).await {
                Ok(answer) => {
                    pause = FIRST_PAUSE;
                    self.pulse.answered();
                    answer
                }
                Err(error) => {
                    tracing::warn!(%error, "the database did not answer a question of the scheduler");
                    self.pulse.failed();
                    connection = None;
                    tokio::time::sleep(pause.mul_f64(0.5 + jitter::fraction())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    failure(question)
                }
            };
            if self.engine.send(answer).await.is_err() {
                return;
            }
        }
    }

    async fn answer(
        &self,
        connection: &mut Option<(Session, Statements)>,
        question: &Question,
    ) -> Result<Input, StoreError> {
        if connection.is_none() {
            let session = self.database.connect(Role::Worker).await?;
            let statements = within(STATEMENT_BUDGET, Statements::prepare(&session)).await?;
            *connection = Some((session, statements));
        }
        let Some((session, sql)) = connection else {
            return Err(StoreError::Unavailable("no connection".to_owned()));
        };
        match question {
            Question::Scan(slots) => scan(session, sql, slots).await,
            Question::Load(requests) => self.load(session, sql, requests).await,
            Question::Close(close) => close_rows(session, sql, close).await,
            Question::Revive(revive) => self.revive(session, revive).await,
            Question::Expire(expire) => self.expire(session, expire).await,
            Question::Park(park) => park_rows(session, park).await,
            Question::Outages(slots, taken_at) => self.outages(session, slots, *taken_at).await,
        }
    }

    async fn load(
        &self,
        session: &Session,
        sql: &Statements,
        requests: &[LoadRequest],
    ) -> Result<Input, StoreError> {
        let unknown: Vec<EndpointKey> = requests
            .iter()
            .filter(|request| request.config)
            .map(|request| request.endpoint)
            .collect();
        // The configuration is read before the rows: what is sent is never older than what was read.
        let configs = if unknown.is_empty() {
            HashMap::new()
        } else {
            let stored =
                within(STATEMENT_BUDGET, endpoint_configs::read(session, &unknown)).await?;
            self.open_all(&unknown, stored)
        };
        let wants = wants(requests);
        let now = self.clock.now();
        let (asked, line_wants) = lines::wants(requests, &configs);
        let loading = futures_util::future::try_join(
            queue::load(session, sql, &wants, now),
            queue::load_lines(session, sql, &line_wants, now),
        );
        let ((ready, retry), in_line) = within(STATEMENT_BUDGET, loading).await?;
        let history = self.history(session, requests, now).await?;
        let known = Known { configs, history };
        let mut answers = answers(requests, known, (ready, retry), now);
        lines::hand_out(&mut answers, requests, (&asked, in_line), now);
        Ok(Input::Loaded(answers))
    }

    /// The last attempts of endpoints that fail under a new owner.
    async fn history(
        &self,
        session: &Session,
        requests: &[LoadRequest],
        now: OffsetDateTime,
    ) -> Result<HashMap<EndpointKey, Vec<(Outcome, OffsetDateTime)>>, StoreError> {
        let asked: Vec<EndpointKey> = requests
            .iter()
            .filter(|request| request.history)
            .map(|request| request.endpoint)
            .collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        let reading = endpoint_runtime::history(session, &asked, now - HISTORY, HISTORY_ATTEMPTS);
        let found = within(STATEMENT_BUDGET, reading).await?;
        let mut history: HashMap<_, _> = asked.iter().map(|key| (*key, Vec::new())).collect();
        history.extend(found);
        Ok(history)
    }

    async fn revive(&self, session: &mut Session, revive: &Revive) -> Result<Input, StoreError> {
        let owner = revive.owner;
        let now = self.clock.now();
        let ids: Vec<Uuid> = std::iter::repeat_with(|| new_v7(now))
            .take(revive.count)
            .collect();
        let what = recovery::Revive {
            window: revive.window,
            ids: &ids,
        };
        let fence = (owner.incarnation, owner.slot, owner.epoch);
        let reviving = recovery::revive(session, fence, revive.endpoint, what);
        let deliveries = match within(STATEMENT_BUDGET, reviving).await {
            Ok(deliveries) => Some(deliveries),
            Err(StoreError::NotOwner) => None,
            Err(error) => return Err(error),
        };
        Ok(Input::Revived {
            slot: owner.slot,
            epoch: owner.epoch,
            endpoint: revive.endpoint,
            deliveries,
        })
    }

    async fn expire(&self, session: &Session, expire: &Expire) -> Result<Input, StoreError> {
        let owner = expire.owner;
        let fence = (owner.incarnation, owner.slot, owner.epoch);
        let age = (lower_bound(expire.older_than), self.clock.now());
        let expiring = queue::expire(session, fence, expire.endpoint, age, &expire.except);
        let more = match within(STATEMENT_BUDGET, expiring).await {
            Ok(expired) => expired > 0,
            Err(StoreError::NotOwner) => false,
            Err(error) => return Err(error),
        };
        Ok(Input::Expired {
            slot: owner.slot,
            epoch: owner.epoch,
            endpoint: expire.endpoint,
            more,
        })
    }

    async fn outages(
        &self,
        session: &Session,
        slots: &[(Slot, Epoch)],
        taken_at: OffsetDateTime,
    ) -> Result<Input, StoreError> {
        let numbers: Vec<Slot> = slots.iter().map(|(slot, _)| *slot).collect();
        let since = self.clock.now() - HISTORY;
        let found = within(
            STATEMENT_BUDGET,
            recovery::outages(session, &numbers, (since, taken_at)),
        )
        .await?;
        Ok(Input::Outages {
            slots: slots.to_vec(),
            found: Some(found),
        })
    }

    /// Opens what is sealed. An endpoint whose secrets cannot be opened is locked: its deliveries wait,
    /// because a wrong master key is our mistake, not a reason to give up on them.
    fn open_all(
        &self,
        asked: &[EndpointKey],
        stored: Vec<StoredEndpoint>,
    ) -> HashMap<EndpointKey, SharedConfig> {
        let vanished = asked
            .iter()
            .map(|key| (*key, Arc::new(EndpointConfig::vanished(*key))));
        let mut configs: HashMap<_, _> = vanished.collect();
        for endpoint in stored {
            let config = EndpointConfig::open(&self.keys, &endpoint, self.https_only).unwrap_or_else(|error| {
                tracing::error!(endpoint.id = %endpoint.id, %error, "an endpoint cannot be read; its deliveries wait");
                EndpointConfig::locked(&endpoint)
            });
            configs.insert(endpoint.key, Arc::new(config));
        }
        configs
    }
}

/// What was read beside rows.
#[derive(Debug, Default)]
pub struct Known {
    /// Of endpoints whose configuration was asked for.
    pub configs: HashMap<EndpointKey, SharedConfig>,
    /// Of endpoints whose last attempts were.
    pub history: HashMap<EndpointKey, Vec<(Outcome, OffsetDateTime)>>,
}

/// Gives each request its rows and what is known of its endpoint. Pure; `tests/model` answers with it as
/// well. Rows say which of [`wants`] they answer.
#[must_use]
pub fn answers(
    requests: &[LoadRequest],
    mut known: Known,
    (ready, retry): (Vec<Row>, Vec<Row>),
    now: OffsetDateTime,
) -> Vec<LoadedEndpoint> {
    let mut results: Vec<LoadedEndpoint> = requests
        .iter()
        .map(|request| LoadedEndpoint {
            slot: request.slot,
            epoch: request.epoch,
            endpoint: request.endpoint,
            rows: Vec::new(),
            more_ready: false,
            fresh: Vec::new(),
            more_fresh: false,
            walked: None,
            retries_read: request.retry_limit > 0,
            next_due: None,
            config: known.configs.remove(&request.endpoint),
            history: known.history.remove(&request.endpoint),
        })
        .collect();
    hand_out_retries(&mut results, requests, retry, now);
    hand_out_ready(&mut results, requests, ready);
    results
}

/// What to ask the store for: one entry per request, in their order, then those for what came in since an
/// outage ended.
#[must_use]
pub fn wants(requests: &[LoadRequest]) -> Vec<Want> {
    let fresh = requests.iter().filter_map(|request| {
        let (cursor, limit) = request.fresh?;
        Some(Want {
            slot: request.slot,
            endpoint: request.endpoint,
            cursor,
            ready_limit: rows(limit),
            retry_limit: 0,
        })
    });
    requests.iter().map(want).chain(fresh).collect()
}

async fn scan(
    session: &Session,
    sql: &Statements,
    slots: &[(Slot, Epoch)],
) -> Result<Input, StoreError> {
    let numbers: Vec<Slot> = slots.iter().map(|(slot, _)| *slot).collect();
    let started = boot_time();
    let waiting = within(STATEMENT_BUDGET, queue::scan(session, sql, &numbers)).await?;
    let awake = within(STATEMENT_BUDGET, endpoint_runtime::awake(session, &numbers)).await?;
    let mut found: BTreeMap<EndpointKey, Found> = waiting
        .into_iter()
        .map(|waiting| {
            let found = Found {
                slot: waiting.slot,
                endpoint: waiting.endpoint,
                tenant: waiting.tenant,
                ready: waiting.ready,
                next_due: waiting.next_due,
                lines: waiting.ordered,
                awake: false,
            };
            (found.endpoint, found)
        })
        .collect();
    for (slot, endpoint, tenant) in awake {
        let new = Found {
            slot,
            endpoint,
            tenant,
            ready: false,
            next_due: None,
            lines: false,
            awake: false,
        };
        found.entry(endpoint).or_insert(new).awake = true;
    }
    let found = found.into_values().collect();
    Ok(Input::Scanned {
        slots: slots.to_vec(),
        found,
        took: boot_time().since(started),
    })
}

async fn close_rows(
    session: &Session,
    sql: &Statements,
    close: &Close,
) -> Result<Input, StoreError> {
    let owner = close.owner;
    let fence = (owner.incarnation, owner.slot, owner.epoch);
    let what = (close.endpoint, close.reason);
    let closing = queue::close(session, sql, fence, what, &close.except);
    let more = match within(STATEMENT_BUDGET, closing).await {
        Ok(closed) => closed > 0,
        Err(StoreError::NotOwner) => false,
        Err(error) => return Err(error),
    };
    Ok(Input::Closed {
        slot: owner.slot,
        epoch: owner.epoch,
        endpoint: close.endpoint,
        more,
    })
}

async fn park_rows(session: &Session, park: &Park) -> Result<Input, StoreError> {
    let owner = park.owner;
    let fence = (owner.incarnation, owner.slot, owner.epoch);
    let whose = (park.tenant, park.endpoint);
    let parking = pauses::park(session, fence, whose, &park.deliveries, park.look_again);
    let done = match within(STATEMENT_BUDGET, parking).await {
        Ok(()) => true,
        Err(StoreError::NotOwner) => false,
        Err(error) => return Err(error),
    };
    Ok(parked(park, done))
}

const fn parked(park: &Park, done: bool) -> Input {
    Input::Parked {
        slot: park.owner.slot,
        epoch: park.owner.epoch,
        endpoint: park.endpoint,
        done,
    }
}

/// What the scheduler is told when a question could not be answered.
#[must_use]
pub fn failure(question: Question) -> Input {
    match question {
        Question::Scan(slots) => Input::ScanFailed(slots),
        Question::Load(requests) => Input::LoadFailed(requests),
        Question::Close(close) => Input::Closed {
            slot: close.owner.slot,
            epoch: close.owner.epoch,
            endpoint: close.endpoint,
            more: true,
        },
        Question::Revive(revive) => Input::Revived {
            slot: revive.owner.slot,
            epoch: revive.owner.epoch,
            endpoint: revive.endpoint,
            deliveries: None,
        },
        // The next sweep asks again.
        Question::Expire(expire) => Input::Expired {
            slot: expire.owner.slot,
            epoch: expire.owner.epoch,
            endpoint: expire.endpoint,
            more: false,
        },
        Question::Park(park) => parked(&park, false),
        Question::Outages(slots, _) => Input::Outages { slots, found: None },
    }
}

fn rows(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn want(request: &LoadRequest) -> Want {
    Want {
        slot: request.slot,
        endpoint: request.endpoint,
        cursor: request.cursor,
        ready_limit: rows(request.ready_limit),
        retry_limit: rows(request.retry_limit),
    }
}

fn hand_out_ready(results: &mut [LoadedEndpoint], requests: &[LoadRequest], rows: Vec<Row>) {
    let with_fresh: Vec<usize> = (0..requests.len())
        .filter(|index| requests.get(*index).is_some_and(|it| it.fresh.is_some()))
        .collect();
    let mut counts = vec![(0_usize, 0_usize); requests.len()];
    for row in rows {
        let fresh = row
            .want
            .checked_sub(requests.len())
            .and_then(|index| with_fresh.get(index));
        let index = fresh.copied().unwrap_or(row.want);
        let (Some(result), Some(count)) = (results.get_mut(index), counts.get_mut(index)) else {
            continue;
        };
        if fresh.is_some() {
            count.1 += 1;
            result.fresh.push(live(row, None));
        } else {
            count.0 += 1;
            result.rows.push(live(row, None));
        }
    }
    for ((result, request), (count, fresh)) in results.iter_mut().zip(requests).zip(counts) {
        result.more_ready = request.ready_limit > 0 && count >= request.ready_limit;
        result.more_fresh = request.fresh.is_some_and(|(_, limit)| fresh >= limit);
    }
}

fn hand_out_retries(
    results: &mut [LoadedEndpoint],
    requests: &[LoadRequest],
    rows: Vec<Row>,
    now: OffsetDateTime,
) {
    let mut counts = vec![0_usize; requests.len()];
    for row in rows {
        let (Some(result), Some(count)) = (results.get_mut(row.want), counts.get_mut(row.want))
        else {
            continue;
        };
        match row.due_at {
            Some(due) if due > now => result.next_due = result.next_due.or(Some(due)),
            Some(_) | None => {
                *count += 1;
                result.rows.push(live(row, None));
            }
        }
    }
    for ((result, request), count) in results.iter_mut().zip(requests).zip(counts) {
        if request.retry_limit > 0 && count >= request.retry_limit {
            // All that were asked for are due: there may be more, due already.
            result.next_due = Some(now);
        }
    }
}

/// A row as it travels through the worker; `order`: in whose line it stands.
pub(crate) fn live(row: Row, order: Option<OrderKey>) -> LiveRow {
    let event = row.event.map(|(event_type, payload, deliver_before)| {
        Arc::new(EventData {
            event_type,
            payload: Bytes::from(payload),
            deliver_before,
        })
    });
    LiveRow {
        id: row.id,
        event_id: row.event_id,
        tenant: row.tenant,
        attempts_made: row.attempts_made,
        attempts_charged: row.attempts_charged,
        kind: row.kind,
        first_at: row.first_at,
        order,
        event,
    }
}
