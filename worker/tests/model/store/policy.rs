//! What `endpoint_runtime`, `recovery` and `expire` of `shared::store` do: states of endpoints, attempts and
//! dead letters.

use std::collections::HashMap;

use shared::domain::attempt::Outcome as AttemptOutcome;
use shared::domain::delivery::{DeadLetterClass, Kind};
use shared::ids::{EndpointKey, Slot, TenantKey};
use shared::store::endpoint_runtime::{Recovery, Runtime};
use shared::store::slots::Handed;
use time::OffsetDateTime;
use uuid::Uuid;
use worker::job::Ownership;

use super::{
    Answer, Attempt, DeadLetter, Execution, Live, Outage, Outcome, Saved, Snapshot, Store,
    is_enabled, short,
};
use crate::check::{Invariant, Mutation};
use crate::loader::{BREAKER, MAX_ATTEMPTS};

/// Attempts that are read of one endpoint.
const HISTORY_ATTEMPTS: usize = 50;
/// Less than a breaker's cooldown.
const LOOKS_BACK: time::Duration = time::Duration::milliseconds(2_500);

impl Store {
    // ## States of endpoints

    /// As the transaction that enables an endpoint does.
    pub(super) fn start_with_probe(&mut self, key: EndpointKey, now: OffsetDateTime) {
        let row = self.runtime.entry(key).or_default();
        *row = Runtime {
            opened_at: Some(now),
            cooldown: std::time::Duration::from_secs(u64::from(BREAKER.cooldown_seconds)),
            next_probe_at: Some(now),
            failing_since: None,
            refusing_since: None,
            enabled_at: Some(now),
            ..row.clone()
        };
    }

    pub(super) fn save(&mut self, states: &[Saved], locked: bool) {
        for state in states {
            if !locked || !self.holds(state.owner) {
                continue;
            }
            // A statement that was late changes nothing.
            let order = (state.owner.epoch, state.runtime.sequence);
            if self
                .saved
                .get(&state.endpoint)
                .is_some_and(|last| *last > order)
            {
                continue;
            }
            self.saved.insert(state.endpoint, order);
            let row = self.runtime.entry(state.endpoint).or_default();
            *row = Runtime {
                bucket: row.bucket,
                parked_until: row.parked_until,
                p95_ms: row.p95_ms,
                enabled_at: row.enabled_at,
                ..state.runtime.clone()
            };
        }
    }

    pub(super) fn hand_over<'a>(&mut self, handed: impl Iterator<Item = &'a Handed>) {
        if self.mutation == Mutation::NoHandOver {
            return;
        }
        for it in handed {
            let row = self.runtime.entry(it.endpoint).or_default();
            row.bucket = it.tat.map(|position| (position, it.version));
            row.parked_until = it.parked_until;
        }
    }

    /// Enabled endpoints whose breaker is open, or whose dead letters are being replayed.
    pub(crate) fn awake(&self) -> Vec<EndpointKey> {
        let all: Vec<Slot> = self.numbered().map(|(slot, _)| slot).collect();
        self.awake_in(&all)
            .into_iter()
            .map(|(_, key, _)| key)
            .collect()
    }

    pub(super) fn awake_in(&self, slots: &[Slot]) -> Vec<(Slot, EndpointKey, TenantKey)> {
        let looked_after =
            |runtime: &Runtime| runtime.opened_at.is_some() || runtime.recovery.is_some();
        let enabled = self.endpoints.values().filter(|it| is_enabled(it));
        enabled
            .filter(|it| slots.contains(&it.slot))
            .filter(|it| self.runtime.get(&it.key).is_some_and(looked_after))
            .map(|it| (it.slot, it.key, it.tenant))
            .collect()
    }

    // ## Attempts

    pub(super) fn keep_attempt(&mut self, outcome: &Outcome, applied: bool) {
        let Some(started_at) = outcome.started_at else {
            return;
        };
        let known = |it: &Attempt| {
            (it.delivery, it.number, it.started_at) == (outcome.delivery, outcome.made, started_at)
        };
        // ON CONFLICT DO NOTHING
        if self.attempts.iter().rev().any(known) {
            return;
        }
        self.attempts.push(Attempt {
            endpoint: outcome.endpoint,
            delivery: outcome.delivery,
            number: outcome.made,
            started_at,
            outcome: outcome.outcome,
            applied,
        });
    }

    fn attempts_at(&self, key: EndpointKey) -> impl Iterator<Item = &Attempt> {
        let attempts = self.attempts.iter();
        attempts.filter(move |it| it.endpoint == key && it.applied)
    }

    pub(super) fn history(
        &self,
        keys: &[EndpointKey],
    ) -> HashMap<EndpointKey, Vec<(AttemptOutcome, OffsetDateTime)>> {
        let of = |key: EndpointKey| {
            let found = self.attempts_at(key);
            let mut found: Vec<_> = found.map(|it| (it.outcome, it.started_at)).collect();
            found.sort_by_key(|(_, started_at)| std::cmp::Reverse(*started_at));
            found.truncate(HISTORY_ATTEMPTS);
            found
        };
        keys.iter().map(|key| (*key, of(*key))).collect()
    }

    /// What one event costs its receiver: a ladder, and another one if it is replayed by itself.
    pub(super) fn charge(&mut self, row: &Live, outcome: &Outcome) {
        let charged = self.charged.entry(row.event_id).or_default();
        *charged += outcome.charged.saturating_sub(row.charged);
        if *charged > 2 * MAX_ATTEMPTS {
            let text = format!("the event of {} is charged {charged} times", short(row.id));
            self.broken(Invariant::Replay, text);
        }
    }

    // ## Dead letters

    pub(super) fn bury_letter(&mut self, row: &Live, class: DeadLetterClass, now: OffsetDateTime) {
        let letter = DeadLetter {
            row: row.clone(),
            class,
            dead_at: now,
            replayed_as: None,
            known_at: None,
            locked: false,
        };
        self.dead_letters.insert(row.id, letter);
    }

    fn may_be_revived(&self, letter: &DeadLetter) -> bool {
        letter.replayed_as.is_none()
            && (letter.row.kind != Kind::AutoReplay || self.mutation == Mutation::ReplaysOfReplays)
    }

    pub(super) fn reviving(
        &self,
        owner: Ownership,
        endpoint: EndpointKey,
        (window, count): (&Recovery, usize),
    ) -> Snapshot {
        let enabled = self.endpoints.get(&endpoint).is_some_and(is_enabled);
        let of_it = |it: &&DeadLetter| {
            it.row.endpoint == endpoint
                && is_of_outage(it.class, window.refused)
                && (window.from..=window.until).contains(&it.dead_at)
        };
        let found = self.dead_letters.values().filter(of_it);
        let mut found: Vec<_> = found.filter(|it| self.may_be_revived(it)).collect();
        found.sort_by_key(|it| (it.dead_at, it.row.id));
        Snapshot::Reviving {
            fenced: self.holds(owner) && enabled,
            picked: found.iter().map(|it| it.row.id).take(count).collect(),
        }
    }

    /// `FOR NO KEY UPDATE SKIP LOCKED`: rows that changed since the snapshot are looked at again.
    pub(super) fn hold_dead_letters(&mut self, execution: &mut Execution) {
        let Snapshot::Reviving { picked, .. } = &mut execution.snapshot else {
            return;
        };
        picked.retain(|id| {
            let free = |it: &&mut DeadLetter| !it.locked && it.replayed_as.is_none();
            let letter = self.dead_letters.get_mut(id).filter(free);
            letter.map(|it| it.locked = true).is_some()
        });
    }

    pub(super) fn let_go_of_dead_letters(&mut self, snapshot: &Snapshot) {
        let Snapshot::Reviving { picked, .. } = snapshot else {
            return;
        };
        for id in picked {
            if let Some(letter) = self.dead_letters.get_mut(id) {
                letter.locked = false;
            }
        }
    }

    pub(super) fn make_live(
        &mut self,
        owner: Ownership,
        endpoint: EndpointKey,
        (fenced, picked): (bool, &[Uuid]),
        ids: &[Uuid],
    ) -> Answer {
        if !self.holds(owner) || !fenced {
            let known = self.holds(owner) && fenced;
            return Answer::Revived(known.then(Vec::new));
        }
        let mut revived = Vec::new();
        for (letter, id) in picked.iter().zip(ids) {
            let Some(letter) = self.dead_letters.get_mut(letter) else {
                continue;
            };
            letter.replayed_as = Some(*id);
            let row = Live {
                id: *id,
                kind: Kind::AutoReplay,
                made: 0,
                charged: 0,
                due: None,
                first_at: None,
                // To the end of its line.
                order: letter.row.order.map(|(key, _)| (key, 0)),
                ..letter.row.clone()
            };
            self.revived += 1;
            self.check_fence("a revival", owner, *id);
            debug_assert_eq!(row.endpoint, endpoint);
            self.insert_live(row);
            revived.push(*id);
        }
        Answer::Revived(Some(revived))
    }

    pub(super) fn outages(&self, slots: &[Slot], taken_at: OffsetDateTime) -> Vec<Outage> {
        let enabled = self.endpoints.values().filter(|it| is_enabled(it));
        let of_slots = enabled.filter(|it| slots.contains(&it.slot));
        of_slots
            .filter_map(|it| {
                Some((
                    it.slot,
                    it.key,
                    it.tenant,
                    self.outage_of(it.key, taken_at)?,
                ))
            })
            .collect()
    }

    fn outage_of(&self, key: EndpointKey, taken_at: OffsetDateTime) -> Option<OffsetDateTime> {
        let stored = self.runtime.get(&key).cloned().unwrap_or_default();
        let letters = self.dead_letters.values();
        let letters = letters.filter(|it| it.row.endpoint == key && is_of_outage(it.class, false));
        let letters =
            letters.filter(|it| it.replayed_as.is_none() && it.row.kind != Kind::AutoReplay);
        let last = letters.clone().max_by_key(|it| it.dead_at)?;
        let recovers = stored.recovery.is_some_and(|it| last.dead_at <= it.until);
        if stored.opened_at.is_some() || recovers {
            return None;
        }
        let began = self.began(last).unwrap_or(last.dead_at);
        let up = self.successes(key).filter(|at| *at < taken_at).max();
        if up.is_some_and(|up| up >= began) {
            return None;
        }
        let since = |it: &&DeadLetter| up.is_none_or(|up| it.dead_at >= up);
        letters.filter(since).map(|it| it.dead_at).min()
    }

    fn successes(&self, key: EndpointKey) -> impl Iterator<Item = OffsetDateTime> {
        let successes = self.attempts_at(key);
        let successes = successes.filter(|it| it.outcome == AttemptOutcome::Delivered);
        successes.map(|it| it.started_at)
    }

    /// When its first attempt started.
    fn began(&self, letter: &DeadLetter) -> Option<OffsetDateTime> {
        let first = |it: &&Attempt| it.delivery == letter.row.id && it.number == 1;
        self.attempts.iter().find(first).map(|it| it.started_at)
    }

    /// Dead letters that an outage made, and that nobody has made live again: none must be left when their
    /// receiver is known to be well, or is still asked. An outage: no success from the first attempt to the
    /// last.
    pub(crate) fn left_behind(&self) -> Vec<&DeadLetter> {
        let letters = self.dead_letters.values();
        let letters = letters.filter(|it| it.replayed_as.is_none() && it.row.kind == Kind::Live);
        letters
            .filter(|it| is_of_outage(it.class, false) && self.died_in_an_outage(it))
            .filter(|it| {
                let key = it.row.endpoint;
                let open = |runtime: &Runtime| runtime.opened_at.is_some();
                self.successes(key).any(|up| up > it.dead_at)
                    || self.runtime.get(&key).is_some_and(open)
            })
            .collect()
    }

    fn died_in_an_outage(&self, letter: &DeadLetter) -> bool {
        let Some(began) = self.began(letter) else {
            return false;
        };
        let Some(endpoint) = self.endpoints.get(&letter.row.endpoint) else {
            return false;
        };
        // What was disabled meanwhile is replayed by hand.
        let counts = is_enabled(endpoint) && endpoint.off_until.is_none_or(|off| off < began);
        // Of a delivery that was cancelled meanwhile as well: the receiver is well.
        let is_success =
            |it: &&Attempt| it.endpoint == endpoint.key && it.outcome == AttemptOutcome::Delivered;
        let mut successes = self.attempts.iter().filter(is_success);
        // A success that comes before its owner knows, and has looked at the attempts before, counts as one
        // before. If that owner dies, the next one looks at what was before it.
        let until = letter.known_at.unwrap_or(letter.dead_at) + LOOKS_BACK;
        counts && !successes.any(|it| (began..=until).contains(&it.started_at))
    }
}

/// Whether dead letters of this class say that the receiver was away, or (`refused`) refused everything.
const fn is_of_outage(class: DeadLetterClass, refused: bool) -> bool {
    match class {
        DeadLetterClass::Transient | DeadLetterClass::Misconfigured => true,
        DeadLetterClass::Permanent => refused,
        _ => false,
    }
}
