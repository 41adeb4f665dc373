//! The database of one endpoint: answers at once, loses nothing, and is never away.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::domain::attempt::Outcome;
use shared::domain::delivery::Kind;
use shared::domain::endpoint::{
    Backoff, BreakerSettings, EndpointSettings, EndpointState, RateLimit,
};
use shared::ids::{EndpointId, EndpointKey, Slot, TenantKey};
use shared::policy::decide::Decision;
use shared::store::endpoint_runtime::Runtime;
use shared::store::queue::{Row, Want};
use time::OffsetDateTime;
use uuid::Uuid;
use worker::endpoint_config::{EndpointConfig, SharedConfig, Target};
use worker::job::Record;
use worker::scheduler::Found;

use crate::reference::{
    BREAKER_COOLDOWN, LONGEST_COOLDOWN, MAX_ATTEMPTS, MAX_IN_FLIGHT, THRESHOLD,
};

type At = OffsetDateTime;

pub(crate) const ENDPOINT: EndpointKey = EndpointKey(7);
pub(crate) const TENANT: TenantKey = TenantKey(1);
pub(crate) const SLOT: Slot = Slot(3);

/// A live row.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) id: Uuid,
    pub(crate) made: u16,
    charged: u16,
    pub(crate) due: Option<OffsetDateTime>,
    first_at: Option<OffsetDateTime>,
}

/// A delivery that exhausted its ladder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dead {
    pub(crate) began: OffsetDateTime,
    pub(crate) at: OffsetDateTime,
}

pub(crate) struct Store {
    pub(crate) live: BTreeMap<Uuid, Live>,
    /// Started when, ended how; the ends in order.
    pub(crate) attempts: Vec<(OffsetDateTime, Outcome)>,
    pub(crate) dead: Vec<Dead>,
    pub(crate) state: EndpointState,
    pub(crate) limit: Option<RateLimit>,
    version: i32,
    runtime: Runtime,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            live: BTreeMap::new(),
            attempts: Vec::new(),
            dead: Vec::new(),
            state: EndpointState::Enabled,
            limit: None,
            version: 1,
            runtime: Runtime::default(),
        }
    }

    pub(crate) fn insert(&mut self, id: Uuid) {
        let row = Live {
            id,
            made: 0,
            charged: 0,
            due: None,
            first_at: None,
        };
        self.live.insert(id, row);
    }

    pub(crate) fn change(&mut self, state: EndpointState, limit: Option<RateLimit>) {
        self.version += 1;
        self.state = state;
        self.limit = limit;
    }

    /// As the transaction that enables an endpoint does.
    pub(crate) fn start_with_probe(&mut self, now: OffsetDateTime) {
        self.runtime = Runtime {
            opened_at: Some(now),
            cooldown: BREAKER_COOLDOWN,
            next_probe_at: Some(now),
            failing_since: None,
            refusing_since: None,
            enabled_at: Some(now),
            ..self.runtime.clone()
        };
    }

    pub(crate) fn save(&mut self, runtime: Runtime) {
        self.runtime = Runtime {
            bucket: self.runtime.bucket,
            parked_until: self.runtime.parked_until,
            p95_ms: None,
            enabled_at: self.runtime.enabled_at,
            ..runtime
        };
    }

    pub(crate) fn hand_over(&mut self, bucket: Option<(At, i32)>, parked_until: Option<At>) {
        self.runtime.bucket = bucket;
        self.runtime.parked_until = parked_until;
    }

    pub(crate) fn config(&self) -> SharedConfig {
        let settings = EndpointSettings {
            timeout_ms: 2_000,
            max_attempts: MAX_ATTEMPTS,
            backoff: Backoff::doubling(1, 4),
            max_in_flight: MAX_IN_FLIGHT,
            max_age_seconds: 30 * 86_400,
            rate_limit: self.limit,
            replay_on_recovery: false,
            disable_after_seconds: 0,
            breaker: BreakerSettings {
                failures: THRESHOLD,
                cooldown_seconds: u32::try_from(BREAKER_COOLDOWN.as_secs()).unwrap(),
                max_cooldown_seconds: u32::try_from(LONGEST_COOLDOWN.as_secs()).unwrap(),
            },
            ..EndpointSettings::default()
        };
        Arc::new(EndpointConfig {
            key: ENDPOINT,
            id: EndpointId(Uuid::from_u128(7)),
            version: self.version,
            state: self.state,
            settings,
            ordered: false,
            runtime: self.runtime.clone(),
            locked: false,
            target: Target::none(),
        })
    }

    /// What came of a request. A stale owner's changes nothing.
    pub(crate) fn record(&mut self, record: &Record, ours: bool, now: OffsetDateTime) {
        let Some(row) = self.live.get(&record.delivery).filter(|_| ours).cloned() else {
            return;
        };
        let started = record.attempt.as_ref().map(|it| it.started_at);
        self.attempts
            .extend(started.map(|started| (started, record.outcome)));
        self.live.remove(&row.id);
        let began = row.first_at.or(started);
        match record.decision {
            Decision::RetryAt(at) => {
                let row = Live {
                    made: row.made + 1,
                    charged: record.attempts_charged,
                    due: Some(at),
                    first_at: began,
                    ..row
                };
                self.live.insert(row.id, row);
            }
            Decision::DeadLetter(_)
                if matches!(record.outcome, Outcome::Transient | Outcome::Misconfigured) =>
            {
                let began = began.unwrap();
                self.dead.push(Dead { began, at: now });
            }
            _ => {}
        }
    }

    pub(crate) fn found(&self) -> Vec<Found> {
        let retries = self.live.values().filter_map(|row| row.due);
        let found = Found {
            slot: SLOT,
            endpoint: ENDPOINT,
            tenant: TENANT,
            ready: self.live.values().any(|row| row.due.is_none()),
            next_due: retries.min(),
            lines: false,
            awake: self.runtime.opened_at.is_some() && self.state == EndpointState::Enabled,
        };
        let some = found.ready || found.next_due.is_some() || found.awake;
        some.then_some(found).into_iter().collect()
    }

    pub(crate) fn load(&self, wants: &[Want], now: OffsetDateTime) -> (Vec<Row>, Vec<Row>) {
        let (mut ready, mut retry) = (Vec::new(), Vec::new());
        for (number, want) in wants.iter().enumerate() {
            let row = |row: &Live| answer(number, row, now);
            let limit = |limit: i64| usize::try_from(limit).unwrap();
            let untried = self.live.values().filter(|row| row.due.is_none());
            let untried = untried.filter(|row| row.id > want.cursor).map(row);
            ready.extend(untried.take(limit(want.ready_limit)));
            let mut tried: Vec<&Live> =
                self.live.values().filter(|row| row.due.is_some()).collect();
            tried.sort_by_key(|row| (row.due, row.id));
            retry.extend(tried.into_iter().map(row).take(limit(want.retry_limit)));
        }
        (ready, retry)
    }

    /// The latest first.
    pub(crate) fn history(&self) -> Vec<(Outcome, OffsetDateTime)> {
        let mut attempts = self.attempts.clone();
        attempts.sort_by_key(|(started, _)| std::cmp::Reverse(*started));
        let turned = attempts.into_iter().map(|(started, how)| (how, started));
        turned.take(50).collect()
    }

    /// When the first dead letter of an outage died that no owner has stored.
    pub(crate) fn outage(&self, taken_at: OffsetDateTime) -> Option<OffsetDateTime> {
        let stored = self.runtime.opened_at.is_some() || self.state != EndpointState::Enabled;
        let last = self
            .dead
            .iter()
            .max_by_key(|it| it.at)
            .filter(|_| !stored)?;
        let successes = self.attempts.iter();
        let successes = successes.filter(|(at, how)| *how == Outcome::Delivered && *at < taken_at);
        let up = successes.map(|(at, _)| *at).max();
        if up.is_some_and(|up| up >= last.began) {
            return None;
        }
        let since = self
            .dead
            .iter()
            .filter(|it| up.is_none_or(|up| it.at >= up));
        since.map(|it| it.at).min()
    }
}

fn answer(want: usize, row: &Live, now: OffsetDateTime) -> Row {
    let due = row.due.is_none_or(|due| due <= now);
    Row {
        want,
        id: row.id,
        event_id: row.id,
        tenant: TENANT,
        attempts_made: row.made,
        attempts_charged: row.charged,
        kind: Kind::Live,
        due_at: row.due,
        first_at: row.first_at,
        event: due.then(|| ("policy.event".to_owned(), b"{}".to_vec(), None)),
        trace: None,
    }
}
