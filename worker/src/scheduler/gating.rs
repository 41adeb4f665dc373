//! What outcomes mean for their endpoint: breaker, limits, disabling, and who is told.
//!
//! The gate (`crate::admission`) judges; here is what follows for rows in memory, for what is stored and
//! for those who want to know.
//!
//! # Invariants
//! - B1 behind an open breaker nothing is loaded but what the probe needs.
//! - What is stored of an endpoint is stored on transitions only, never per attempt.

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::notice::NoticeKind;
use shared::ids::EndpointKey;
use shared::policy::breaker::Signal;
use shared::policy::outage::{Disable, disable_due};
use shared::store::endpoint_runtime::Runtime;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Effect, Now, Recorded, Scheduler};
use crate::admission::{Gate, Turn};
use crate::job::{Observed, Ownership};
use crate::metrics;
use crate::transitions::{Change, DisableFailing, Facts};

/// The same is said about one endpoint at most this often; the database keeps the longer windows.
const TELL_AGAIN: Duration = Duration::from_secs(60);

impl Scheduler {
    /// A request of the endpoint is recorded.
    pub(super) fn observe(&mut self, record: &Recorded, now: Now) {
        let key = record.endpoint;
        let Some(observed) = &record.observed else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let (Some(gate), Some(config)) = (&mut endpoint.gate, &endpoint.config) else {
            return;
        };
        let turns = gate.ended(config, observed, now.database);
        let late = gate.is_late_for(observed).filter(|_| record.dead);
        self.turned(key, &turns, Some(observed), now);
        if let Some(refused) = late {
            self.outage_over(key, refused, now);
            self.store(key, now);
        }
        self.tell_of_failure(record, observed, now);
        self.disable_failing(key, observed, now);
    }

    /// What follows from turns of the gate. Each is stored, and told to the tenant.
    pub(super) fn turned(
        &mut self,
        key: EndpointKey,
        turns: &[Turn],
        observed: Option<&Observed>,
        now: Now,
    ) {
        for turn in turns {
            match turn {
                Turn::Opened | Turn::Reopened => {
                    self.unload(key, now);
                    // There may be dead letters by now.
                    if let Some(endpoint) = self.endpoints.get_mut(&key) {
                        endpoint.nothing_to_probe = false;
                    }
                    self.wake_for_probe(key);
                }
                Turn::Closed | Turn::Over => self.outage_over(key, false, now),
                Turn::Accepting => self.outage_over(key, true, now),
                Turn::Refusing | Turn::Well => {}
            }
            let (to, notice) = said(*turn);
            if let Some(to) = to {
                metrics::BREAKER_TRANSITIONS.with_label_values(&[to]).inc();
                self.log_breaker(key, to, observed);
            }
            // A notice that fails makes no notice.
            let notice = notice.filter(|_| !observed.is_some_and(|it| it.notice));
            self.store(key, now);
            self.tell(key, notice.map(|kind| (kind, observed.copied())));
        }
    }

    /// One line per transition, as an operator looks for it.
    fn log_breaker(&self, key: EndpointKey, to: &'static str, observed: Option<&Observed>) {
        let Some(endpoint) = self.endpoints.get(&key) else {
            return;
        };
        let (Some(gate), Some(config)) = (&endpoint.gate, &endpoint.config) else {
            return;
        };
        let outcome = observed.map(|it| it.outcome.name());
        let cooldown = gate.breaker().cooldown().map(|it| it.as_secs());
        tracing::info!(endpoint.id = %config.id, breaker.to = to, breaker.cooldown_seconds = cooldown, outcome.kind = outcome, "a breaker turned");
    }

    pub(super) fn wake_for_probe(&mut self, key: EndpointKey) {
        let gate = self
            .endpoints
            .get(&key)
            .and_then(|found| found.gate.as_ref());
        let at = gate.and_then(|gate| gate.breaker().probe_at());
        self.due.extend(at.map(|at| (at, key)));
    }

    /// Failures that the tenant is told of although nothing turned.
    fn tell_of_failure(&mut self, record: &Recorded, observed: &Observed, now: Now) {
        let key = record.endpoint;
        if observed.notice {
            return;
        }
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let again = |last: Option<OffsetDateTime>| {
            last.is_none_or(|last| now.database - last >= TELL_AGAIN)
        };
        let misconfigured = observed.outcome == Outcome::Misconfigured;
        if misconfigured && again(endpoint.told.misconfigured) {
            endpoint.told.misconfigured = Some(now.database);
            let notice = (NoticeKind::EndpointMisconfigured, Some(*observed));
            self.tell(key, Some(notice));
        }
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        if record.dead && again(endpoint.told.dead_letter) {
            endpoint.told.dead_letter = Some(now.database);
            let notice = (NoticeKind::DeliveryDeadLetter, Some(*observed));
            self.tell(key, Some(notice));
        }
    }

    /// An endpoint that has failed for long without any success is disabled, its tenant told before.
    fn disable_failing(&mut self, key: EndpointKey, observed: &Observed, now: Now) {
        let failed = Signal::of(observed.outcome) == Signal::Failure
            || observed.outcome == Outcome::Permanent;
        if !failed || observed.notice {
            return;
        }
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let (Some(gate), Some(config)) = (&endpoint.gate, &endpoint.config) else {
            return;
        };
        let told = endpoint.told.disabling;
        if told.is_some_and(|told| now.database - told < TELL_AGAIN) {
            return;
        }
        let limit = config.settings.disable_after();
        let Some(failing_since) = gate.failing().since() else {
            return;
        };
        let (notice, disable) = match disable_due(Some(failing_since), now.database, limit) {
            Disable::Not => return,
            Disable::Soon => (
                Some((NoticeKind::EndpointDisablingSoon, Some(*observed))),
                None,
            ),
            Disable::Due => {
                let disable = DisableFailing {
                    version: config.version,
                    failing_since,
                };
                (None, Some(disable))
            }
        };
        endpoint.told.disabling = Some(now.database);
        self.store(key, now);
        self.tell(key, notice);
        self.change(key, None, None, disable);
    }

    /// Hands on what is stored of an endpoint: it turned.
    pub(super) fn store(&mut self, key: EndpointKey, now: Now) {
        let gate = self
            .endpoints
            .get_mut(&key)
            .and_then(|found| found.gate.as_mut());
        if let Some(runtime) = gate.map(Gate::store) {
            let sequence = i64::try_from(now.boot.0.as_micros()).unwrap_or(i64::MAX);
            let runtime = Runtime {
                sequence,
                ..runtime
            };
            self.change(key, Some(runtime), None, None);
        }
    }

    /// Tells the endpoint's tenant.
    pub(super) fn tell(
        &mut self,
        key: EndpointKey,
        notice: Option<(NoticeKind, Option<Observed>)>,
    ) {
        let gate = self
            .endpoints
            .get(&key)
            .and_then(|found| found.gate.as_ref());
        if let (Some(gate), Some((kind, observed))) = (gate, notice) {
            let facts = Facts {
                outcome: observed.map(|observed| observed.outcome),
                failing_since: gate.failing().since(),
                next_probe_at: gate.breaker().probe_at(),
            };
            self.change(key, None, Some((kind, facts)), None);
        }
    }

    fn change(
        &mut self,
        key: EndpointKey,
        runtime: Option<Runtime>,
        notice: Option<(NoticeKind, Facts)>,
        disable: Option<DisableFailing>,
    ) {
        let Some(owner) = self.owner_of(key) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get(&key) else {
            return;
        };
        self.effects.push(Effect::Change(Box::new(Change {
            owner,
            endpoint: key,
            tenant: endpoint.tenant,
            runtime,
            notices: notice.into_iter().collect(),
            disable,
        })));
    }

    /// Under which ownership something is asked about an endpoint now.
    pub(super) fn owner_of(&self, key: EndpointKey) -> Option<Ownership> {
        let slot = self.endpoints.get(&key)?.slot;
        Some(Ownership {
            incarnation: self.incarnation?,
            slot,
            epoch: self.slots.working(slot)?,
        })
    }

    /// A request was not made after all.
    pub(super) fn not_sent(
        &mut self,
        owner: Ownership,
        key: EndpointKey,
        delivery: Uuid,
        now: Now,
    ) {
        let (flight, ours) = self.permit_returned(owner, delivery);
        if !ours {
            return;
        }
        if let Some(flight) = &flight {
            self.permit_freed(flight, None);
        }
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            if let Some(gate) = endpoint
                .gate
                .as_mut()
                .filter(|_| flight.is_some_and(|flight| flight.probe))
            {
                gate.probe_lost();
            }
            endpoint.not_sent(delivery, now);
        }
        self.consider(key, now);
    }
}

/// A breaker's new state, and what the tenant is told.
const fn said(turn: Turn) -> (Option<&'static str>, Option<NoticeKind>) {
    match turn {
        Turn::Opened => (Some("open"), Some(NoticeKind::EndpointOpened)),
        Turn::Reopened => (Some("open"), None),
        Turn::Closed => (Some("closed"), Some(NoticeKind::EndpointClosed)),
        Turn::Refusing => (None, Some(NoticeKind::EndpointMisconfigured)),
        Turn::Accepting | Turn::Over | Turn::Well => (None, None),
    }
}
