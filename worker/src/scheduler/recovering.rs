//! After an outage, and while one lasts with nothing pending: dead letters that are made live again, and
//! rows that grow too old while nobody may send them.
//!
//! Dead letters of an outage are replayed by themselves when it is over, a few at a time, after the
//! ramp. A delivery that was made so is never replayed so again, which the store sees to. A probe that is
//! due with nothing pending takes the oldest of them.
//!
//! # Invariants
//! - D8 whatever waits behind an open breaker is looked at once a minute, and ends in time.
//! - At most one question per endpoint is out.

use std::time::Duration;

use shared::domain::notice::NoticeKind;
use shared::ids::{EndpointKey, Epoch, Slot, TenantKey};
use shared::policy::outage::{longest_ladder, recovery_window};
use shared::store::endpoint_runtime::Recovery;
use time::OffsetDateTime;
use uuid::Uuid;

use super::endpoint::Endpoint;
use super::{Chore, Effect, Expire, Now, Revive, Scheduler};
use crate::admission::Gate;
use crate::endpoint_config::EndpointConfig;

/// Dead letters that are made live at a time.
const REVIVED_AT_ONCE: usize = 10;
/// Before asking again what could not be answered.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Scheduler {
    /// The breaker closed, or a receiver that refused everything takes events again (`refused`).
    pub(super) fn outage_over(&mut self, key: EndpointKey, refused: bool, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        endpoint.begin_fresh(now.database);
        endpoint.nothing_to_probe = false;
        endpoint.all_revived = false;
        let (Some(gate), Some(config)) = (&mut endpoint.gate, &endpoint.config) else {
            return;
        };
        if !config.settings.replay_on_recovery {
            return;
        }
        let Some(began) = gate.outage_began() else {
            return;
        };
        let left = left_by_outage(gate, config, began, now);
        gate.recover(Some(Recovery {
            refused: refused || left.refused,
            ..left
        }));
    }

    /// Goes on with the replay of an outage's dead letters, or finds something to probe with.
    pub(super) fn revive(&mut self, key: EndpointKey, now: Now) {
        let Some(owner) = self.owner_of(key) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let gate = endpoint.gate.as_ref();
        let paused = gate.is_some_and(|gate| gate.is_paused(now.database));
        if endpoint.reviving.is_some() || endpoint.load_out || paused || !endpoint.enabled() {
            return;
        }
        let Some((window, count)) = wanted(endpoint, now) else {
            return;
        };
        endpoint.reviving = Some(window);
        self.effects.push(Effect::Chore(Chore::Revive(Revive {
            owner,
            endpoint: key,
            window,
            count,
        })));
    }

    /// Dead letters were made live, or it is not known whether.
    pub(super) fn revived(&mut self, key: EndpointKey, deliveries: Option<Vec<Uuid>>, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let asked = endpoint.reviving.take();
        match deliveries {
            None => {
                self.due.insert((now.database + ASK_AGAIN, key));
            }
            Some(none) if none.is_empty() => {
                let gate = endpoint.gate.as_ref();
                let opened = gate.and_then(|gate| gate.breaker().turned_at());
                let recovery = gate.and_then(|gate| gate.recovery().copied());
                // What was asked may be out of date: the breaker opened since, or its probe failed, or another
                // outage ended.
                endpoint.nothing_to_probe = opened
                    .zip(asked)
                    .is_some_and(|(opened, asked)| asked.until >= opened);
                endpoint.all_revived = opened.is_none() && asked == recovery;
                let ended = endpoint.all_revived && endpoint.revived.is_empty();
                let gate = endpoint.gate.as_mut().filter(|_| ended);
                if let Some(gate) = gate.filter(|gate| gate.recovery().is_some()) {
                    gate.recover(None);
                    let recovered = std::mem::take(&mut endpoint.has_revived);
                    self.store(key, now);
                    let notice = (NoticeKind::DeliveryRecovered, None);
                    self.tell(key, recovered.then_some(notice));
                }
            }
            Some(deliveries) => {
                endpoint.has_revived = true;
                endpoint.revived.extend(deliveries);
                endpoint.hinted();
            }
        }
        self.consider(key, now);
    }

    /// Rows that wait where nothing moves: those that are too old are ended, in the database.
    pub(super) fn expire(&mut self, key: EndpointKey, now: Now) {
        let Some(owner) = self.owner_of(key) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let Some(config) = &endpoint.config else {
            return;
        };
        // In a line, rows wait behind a head that may be blocked although the endpoint is well.
        let may_stand = endpoint.is_stuck(now) || endpoint.lines.in_use();
        if endpoint.expiring || !may_stand {
            return;
        }
        let age = time::Duration::try_from(config.settings.max_age()).unwrap_or_default();
        let Some(older_than) = now.database.checked_sub(age) else {
            return;
        };
        endpoint.expiring = true;
        self.effects.push(Effect::Chore(Chore::Expire(Expire {
            owner,
            endpoint: key,
            older_than,
            except: endpoint.known.iter().copied().collect(),
        })));
    }

    pub(super) fn expired(&mut self, key: EndpointKey, more: bool, now: Now) {
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            endpoint.expiring = false;
        }
        if more {
            self.expire(key, now);
        }
        self.consider(key, now);
    }

    /// Dead letters of an outage whose owner died before it could store that the breaker opened.
    pub(super) fn outages(
        &mut self,
        slots: &[(Slot, Epoch)],
        found: Option<Vec<(Slot, EndpointKey, TenantKey, OffsetDateTime)>>,
        now: Now,
    ) {
        self.slots.looked_into(slots, found.is_some(), now.boot);
        for (slot, key, tenant, since) in found.unwrap_or_default() {
            if self.slots.working(slot).is_none() {
                continue;
            }
            let new = || Endpoint::new(key, slot, tenant, now.boot);
            let endpoint = self.endpoints.entry(key).or_insert_with(new);
            endpoint.outage = Some(since);
            self.open_for_outage(key, now);
            self.consider(key, now);
        }
    }

    /// Opens the breaker of an endpoint that was found so, once its gate is known.
    pub(super) fn open_for_outage(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let (Some(since), Some(gate)) = (endpoint.outage, &mut endpoint.gate) else {
            return;
        };
        endpoint.outage = None;
        let turn = gate.outage_found(since, now.database);
        self.turned(key, turn.as_slice(), None, now);
    }
}

/// The dead letters of an outage that began then, and with them those of an earlier one that were still
/// being replayed when it came: they may be all there is. What died before the endpoint was enabled is for a
/// human to replay: enabling sends nothing by itself.
fn left_by_outage(
    gate: &Gate,
    config: &EndpointConfig,
    began: OffsetDateTime,
    now: Now,
) -> Recovery {
    let ladder = longest_ladder(&config.settings);
    let window = recovery_window(began, None, now.database, ladder);
    let enabled = config.runtime.enabled_at.unwrap_or(window.from);
    let from = window.from.max(enabled).min(window.until);
    let before = gate.recovery();
    Recovery {
        from: before.map_or(from, |before| before.from.min(from)),
        until: window.until,
        refused: before.is_some_and(|before| before.refused),
    }
}

/// Which dead letters to make live now, and how many.
fn wanted(endpoint: &Endpoint, now: Now) -> Option<(Recovery, usize)> {
    let (gate, config) = (endpoint.gate.as_ref()?, endpoint.config.as_ref()?);
    if gate.is_open() {
        let idle = !endpoint.has_due(now) && !endpoint.nothing_to_probe;
        if !idle || !endpoint.probe_due(now) || !config.settings.replay_on_recovery {
            return None;
        }
        let began = gate.outage_began().unwrap_or(now.database);
        let left = left_by_outage(gate, config, began, now);
        // What was refused for good makes a poor probe.
        let window = Recovery {
            refused: false,
            ..left
        };
        return Some((window, 1));
    }
    let few = endpoint.revived.len() < REVIVED_AT_ONCE / 2;
    let few = few && (endpoint.revived.is_empty() || !endpoint.all_revived);
    // With nothing else to send, the replays are the ramp.
    let ramped = gate.is_ramped(config) || !endpoint.has_due(now);
    let recovery = gate
        .recovery()
        .filter(|_| few && ramped && gate.is_well())?;
    Some((*recovery, REVIVED_AT_ONCE))
}
