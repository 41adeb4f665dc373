//! The loader: answers the scheduler's questions to the database: which endpoints have work, which
//! rows are theirs, what their configuration is.
//!
//! Two connections: scans (the truth, which may be slow under a held snapshot) never delay loads
//! (the fast path). A question that cannot be answered is answered with its failure; the scheduler asks
//! again.

mod chores;
mod rows;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::fail_point;
use shared::ids::{EndpointKey, Epoch, Slot};
use shared::runtime::clock::{DatabaseClock, boot_time};
use shared::runtime::jitter;
use shared::sealing::MasterKeys;
use shared::store::endpoint_configs::{self, StoredEndpoint};
use shared::store::endpoint_runtime;
use shared::store::pool::{IDLE, within};
use shared::store::queue::{self, Statements};
use shared::store::{Database, Role, Session, StoreError};
use time::OffsetDateTime;
use tokio::sync::mpsc;

pub(crate) use self::rows::live;
pub use self::rows::{Known, answers, wants};
use crate::endpoint_config::{EndpointConfig, SharedConfig};
use crate::lines;
use crate::pulse::Pulse;
use crate::scheduler::{Chore, Found, Input, LoadRequest};

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
    /// A change.
    Chore(Chore),
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
        let mut connection: Option<(Session, Statements)> = None;
        let mut pause = FIRST_PAUSE;
        let mut asked = boot_time();
        while let Some(question) = self.questions.recv().await {
            // What a node says that takes no more writes has been overtaken: it would be sent again.
            if boot_time().since(std::mem::replace(&mut asked, boot_time())) > IDLE
                && let Some((session, _)) = &connection
                && let Err(error) = session.check().await
            {
                tracing::info!(%error, "the connection was lost while nothing was asked");
                connection = None;
            }
            let answer = match self.answer(&mut connection, &question).await {
                Ok(answer) => {
                    if matches!(question, Question::Chore(_)) {
                        fail_point!("worker.chore_done");
                    }
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
            Question::Chore(chore) => {
                chores::carry_out(session, sql, chore, self.clock.now()).await
            }
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
        fail_point!("worker.loaded");
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

/// What the scheduler is told when a question could not be answered.
#[must_use]
pub fn failure(question: Question) -> Input {
    match question {
        Question::Scan(slots) => Input::ScanFailed(slots),
        Question::Load(requests) => Input::LoadFailed(requests),
        Question::Chore(chore) => chores::failure(chore),
    }
}
