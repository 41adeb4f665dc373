//! The table of architecture §6 as a machine: when one endpoint may be sent to. Written from the document, not
//! from `shared::policy`, and without any of its code.
//!
//! | outcome | closed | half-open |
//! |---|---|---|
//! | 2xx | count = 0 | close, ramp |
//! | transient, misconfigured | +1 | open, cooldown ×2 |
//! | throttled | unchanged, parked | close, parked |
//! | permanent | unchanged | close |
//!
//! Opens at the threshold and two seconds after the first of its failures started, or at a ladder that was
//! exhausted with no success since it began.

mod counts;
mod tokens;

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::endpoint::RateLimit;
use time::OffsetDateTime;
use uuid::Uuid;

use self::counts::{Run, Waits};
use self::tokens::{MOMENT, ROUNDING, Tokens};

type At = OffsetDateTime;

pub(crate) const THRESHOLD: u16 = 3;
pub(crate) const BREAKER_COOLDOWN: Duration = Duration::from_secs(3);
pub(crate) const LONGEST_COOLDOWN: Duration = Duration::from_secs(12);
pub(crate) const MAX_ATTEMPTS: u16 = 4;
pub(crate) const MAX_IN_FLIGHT: u16 = 3;
/// After a 429 that names no time; and the longest pause between requests of an endpoint that was throttled.
const PAUSE: Duration = Duration::from_secs(1);
/// An endpoint with nothing to do for so long is forgotten: what counted may have to be read again.
const FORGOTTEN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Breaker {
    Closed,
    Open(Waits, Probe),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Probe {
    None,
    Out,
    /// The endpoint was enabled since: waited for, and no news.
    Stale,
}

/// How a new owner came to the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    InOrder,
    /// Handed over by one that could not tell all.
    InDoubt,
    FromTheDead,
}

/// What one request says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) started: At,
    pub(crate) probe: bool,
    /// Seconds, from a 429 or 503.
    pub(crate) retry_after: Option<u8>,
    /// It was the last of a ladder that began then, and no refusal.
    pub(crate) exhausted: Option<At>,
}

#[derive(Debug)]
pub(crate) struct Reference {
    enabled: bool,
    enabled_at: Option<At>,
    pub(crate) leaving: bool,
    breaker: Breaker,
    /// What the next owner finds, if it is open.
    stored: Option<Waits>,
    opened_last: Option<At>,
    run: Run,
    /// The same, if it was forgotten meanwhile and is read anew.
    run_read: Option<Run>,
    attempts: Vec<(At, Outcome)>,
    last_success: Option<At>,
    /// The failures before are read only when another one is seen: the breaker may open with that or with
    /// the one after it.
    unsure: bool,
    /// The same of what was before a ladder that is exhausted.
    unread: bool,
    /// A ladder was exhausted, and the attempts before are being read: it opens when they are.
    pub(crate) opening: bool,
    on_wire: Vec<Uuid>,
    tokens: Option<Tokens>,
    /// Before the limit was changed while nobody knew the endpoint: full in the meantime, it left no trace.
    former: Option<Tokens>,
    /// The last take-over from a dead owner, if nothing was sent since.
    emptied: Option<At>,
    /// Whatever was sent since.
    dead_at: Option<At>,
    /// The endpoint was changed since it was handed over last: what was stored then may be found in the place
    /// of a bucket that is full now, and is believed to be empty.
    changed: bool,
    parked_until: Option<At>,
    /// The same, if an owner found it stored that did not know that the endpoint was enabled since.
    parked_at_most: Option<At>,
    /// Successes since it closed.
    ramp: Option<usize>,
    busy_at: At,
    /// Its owner has sent to it, and not forgotten it since.
    known: bool,
}

fn after(at: At, length: Duration) -> At {
    at + length
}

impl Reference {
    pub(crate) fn new(now: At) -> Self {
        Self {
            enabled: true,
            enabled_at: None,
            leaving: false,
            breaker: Breaker::Closed,
            stored: None,
            opened_last: None,
            run: Run::default(),
            run_read: None,
            attempts: Vec::new(),
            last_success: None,
            unsure: false,
            unread: false,
            opening: false,
            on_wire: Vec::new(),
            tokens: None,
            former: None,
            emptied: None,
            dead_at: None,
            changed: false,
            parked_until: None,
            parked_at_most: None,
            ramp: None,
            busy_at: now,
            known: false,
        }
    }

    // ## May a request start?

    /// A request starts. What forbids it, if anything does.
    pub(crate) fn start(&mut self, id: Uuid, probe: bool, now: At) -> Result<(), String> {
        self.idle(now);
        if !self.enabled {
            return Err("the endpoint is disabled".to_owned());
        }
        if self.leaving {
            return Err("its slot is leaving".to_owned());
        }
        match self.breaker {
            Breaker::Closed if probe => return Err("a probe of a closed breaker".to_owned()),
            Breaker::Closed => {}
            Breaker::Open(..) if !probe => return Err("B1: the breaker is open".to_owned()),
            Breaker::Open(_, Probe::Out | Probe::Stale) => {
                return Err("B1: a probe is out".to_owned());
            }
            Breaker::Open(waits, _) if now < waits.least.until => {
                return Err(format!("B1: the probe is due at {}", waits.least.until));
            }
            Breaker::Open(waits, _) => self.breaker = Breaker::Open(waits, Probe::Out),
        }
        if let Some(until) = self.parked_until.filter(|until| *until > now) {
            return Err(format!("it is to be left alone until {until}"));
        }
        let cap = usize::from(MAX_IN_FLIGHT);
        let ramp = self.ramp.filter(|_| !probe);
        let cap = ramp.map_or(cap, |successes| cap.min(1 + successes));
        if self.on_wire.len() >= cap {
            return Err(format!(
                "O1: {} are on the wire, of {cap}",
                self.on_wire.len()
            ));
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.fill(now);
            if self.former.take().is_some_and(|it| it.at(now).is_full()) {
                tokens.most = f64::from(tokens.limit.burst);
            }
            if tokens.most < 1.0 - ROUNDING {
                return Err(format!("R1: {:.3} tokens are there", tokens.most));
            }
            tokens.most -= 1.0;
            // It was there.
            tokens.least = Some((tokens.least.unwrap_or(0.0) - 1.0).max(0.0));
        }
        self.known = true;
        self.emptied = None;
        self.on_wire.push(id);
        Ok(())
    }

    /// Whether one must have started by now, given that a delivery of those that are due is not on the wire.
    /// Only of an endpoint with nothing on the wire: how many more it gets is up to its adaptive limit.
    pub(crate) fn must(&self, now: At) -> bool {
        let passes = match self.breaker {
            Breaker::Closed => true,
            Breaker::Open(waits, probe) => probe == Probe::None && now >= waits.most.until,
        };
        let rested = self.parked_at_most.is_none_or(|until| until <= now)
            && now >= after(self.busy_at, PAUSE);
        let tokens = self.tokens.is_none_or(|it| {
            let least = it.at(now - MOMENT).least;
            now >= it.at + MOMENT && least.is_some_and(|least| least >= 1.0)
        });
        self.enabled && !self.leaving && self.on_wire.is_empty() && passes && rested && tokens
    }

    /// Instants at which something may become due.
    pub(crate) fn dues(&self, now: At) -> Vec<At> {
        let probe = match self.breaker {
            Breaker::Closed => None,
            Breaker::Open(waits, _) => Some(waits.most.until),
        };
        let token = self.tokens.and_then(|it| {
            let missing = (1.0 - it.at(now).least?).max(0.0);
            let length = Duration::from_secs_f64(missing / it.limit.per_second);
            Some((now + length).max(it.at) + 2 * MOMENT)
                .filter(|_| missing > 0.0 || now < it.at + MOMENT)
        });
        let rested = Some(after(self.busy_at, PAUSE));
        [probe, token, rested, self.parked_at_most]
            .into_iter()
            .flatten()
            .collect()
    }

    pub(crate) fn is_on_wire(&self, id: Uuid) -> bool {
        self.on_wire.contains(&id)
    }

    // ## What happens

    /// A request was recorded, `seen` by its owner: not when its slot is leaving. `opened`: what the owner
    /// made of it, asked where the table leaves it open.
    pub(crate) fn ended(&mut self, id: Uuid, ended: &Ended, opened: bool, now: At) {
        self.on_wire.retain(|other| *other != id);
        self.attempts.push((ended.started, ended.outcome));
        self.busy_at = now;
        if self.leaving {
            return;
        }
        let failed = matches!(ended.outcome, Outcome::Transient | Outcome::Misconfigured);
        match self.breaker {
            Breaker::Closed if failed => self.failed(ended, opened, now),
            Breaker::Closed => self.closed_and_well(ended),
            Breaker::Open(waits, probe) if ended.probe && probe != Probe::None => {
                self.probed(waits, probe, failed, now);
            }
            Breaker::Open(..) => {}
        }
        if ended.outcome == Outcome::Delivered {
            self.unread = false;
            self.last_success = self.last_success.max(Some(ended.started));
            self.ramp = self.ramp.map(|successes| successes + 1);
        }
        let throttled = (ended.outcome == Outcome::Throttled).then_some(PAUSE);
        let wait = ended
            .retry_after
            .map(|seconds| Duration::from_secs(u64::from(seconds)));
        let until = wait.or(throttled).map(|wait| after(now, wait));
        self.parked_until = self.parked_until.max(until);
        self.parked_at_most = self.parked_at_most.max(until);
    }

    fn forgive(&mut self) {
        (self.run, self.run_read, self.unsure) = (Run::default(), None, false);
    }

    fn closed_and_well(&mut self, ended: &Ended) {
        if ended.outcome == Outcome::Delivered {
            self.forgive();
        }
    }

    fn failed(&mut self, ended: &Ended, opened: bool, now: At) {
        // Of an outage that is over.
        if self.opened_last.is_none_or(|at| ended.started >= at) {
            self.run.add(ended.started);
            if let Some(run) = &mut self.run_read {
                run.add(ended.started);
            }
        }
        let run = self.run.is_enough(now);
        let read = self.run_read.map_or(run, |run| run.is_enough(now));
        let ladder = ended
            .exhausted
            .is_some_and(|began| self.last_success.is_none_or(|success| success < began));
        // What was before is read when a failure is seen, and meanwhile another request may go.
        let unread = std::mem::take(&mut self.unread);
        let counts = !std::mem::take(&mut self.unsure);
        let must = (ladder && !unread) || (run && read && counts);
        self.opening = ladder && unread && !opened;
        if must || (opened && (ladder || run || read)) {
            self.opens(now);
        }
    }

    /// Its owner has read the attempts before, and opened it.
    pub(crate) fn opened(&mut self, now: At) {
        if std::mem::take(&mut self.opening) && self.breaker == Breaker::Closed {
            self.opens(now);
        }
    }

    fn opens(&mut self, now: At) {
        self.opened_last = Some(now);
        let waits = Waits::opened(now);
        self.breaker = Breaker::Open(waits, Probe::None);
        self.stored = Some(waits);
    }

    fn probed(&mut self, waits: Waits, probe: Probe, failed: bool, now: At) {
        if probe == Probe::Stale {
            self.breaker = Breaker::Open(waits, Probe::None);
        } else if failed {
            let waits = waits.failed(now);
            self.breaker = Breaker::Open(waits, Probe::None);
            self.stored = Some(waits);
            self.unread = false;
        } else {
            self.breaker = Breaker::Closed;
            self.stored = None;
            self.forgive();
            self.ramp = Some(0);
        }
    }

    pub(crate) fn disable(&mut self, now: At) {
        self.enabled = false;
        self.change(now);
    }

    /// It starts with a probe.
    pub(crate) fn enable(&mut self, now: At) {
        self.enabled = true;
        self.change(now);
        self.enabled_at = Some(now);
        self.parked_until = None;
        if self.known && !self.leaving {
            self.parked_at_most = None;
        }
        let (before, probe) = match self.breaker {
            Breaker::Closed => (None, Probe::None),
            Breaker::Open(waits, Probe::None) => (Some(waits), Probe::None),
            Breaker::Open(waits, _) => (Some(waits), Probe::Stale),
        };
        if before.is_none() {
            self.opened_last = Some(now);
        }
        let waits = Waits::enabled(before, now);
        self.breaker = Breaker::Open(waits, probe);
        self.stored = Some(waits);
    }

    /// A bucket that was counted under another version of the endpoint may be taken to be empty.
    fn change(&mut self, now: At) {
        self.idle(now);
        self.changed = true;
        if let Some(tokens) = self.tokens.as_mut().filter(|_| !self.known || self.leaving) {
            tokens.fill(now);
            tokens.least = None;
        }
    }

    /// Spent tokens stay spent, and a change gives none.
    pub(crate) fn limit(&mut self, limit: Option<RateLimit>, now: At) {
        self.idle(now);
        self.changed = true;
        // Whoever reads it later finds it emptied then, under the new limit.
        if let (Some(limit), Some(at)) = (limit, self.emptied) {
            let (most, least) = (0.0, None);
            let mut tokens = Tokens {
                limit,
                most,
                least,
                at,
            }
            .at(now);
            let before = self.tokens.map_or(0.0, |it| it.at(now).most);
            tokens.most = tokens.most.max(before.min(f64::from(limit.burst)));
            self.tokens = Some(tokens);
            return;
        }
        let before = self.tokens.map(|it| it.at(now));
        let unknown = !self.known || self.leaving;
        self.former = before
            .filter(|_| unknown)
            .map(|it| self.former.unwrap_or(it));
        self.tokens = limit.map(|limit| {
            let within = |level: f64| level.min(f64::from(limit.burst));
            let least = before.map_or(Some(0.0), |it| it.least);
            Tokens {
                limit,
                most: within(before.map_or(f64::MAX, |it| it.most)),
                least: least.filter(|_| !unknown).map(within),
                at: now,
            }
        });
    }

    /// Another owner, in order or not; it reads these attempts when it needs them.
    pub(crate) fn taken(&mut self, how: Taken, now: At) {
        self.leaving = false;
        self.opening = false;
        self.on_wire.clear();
        self.ramp = None;
        if how == Taken::FromTheDead {
            (self.parked_until, self.parked_at_most) = (None, None);
        }
        if how != Taken::InOrder {
            self.emptied = Some(now);
            self.dead_at = Some(now);
            if let Some(tokens) = &mut self.tokens {
                tokens.empty(now);
                self.former = None;
            }
        }
        self.known = false;
        let changed = std::mem::take(&mut self.changed);
        if let Some(tokens) = self.tokens.as_mut().filter(|_| changed) {
            tokens.fill(now);
            tokens.least = None;
        }
        // A bucket that was full left no trace, and may be taken to have been emptied then.
        if let (Some(tokens), Some(at)) = (&mut self.tokens, self.dead_at) {
            tokens.fill(now);
            let (limit, most, least) = (tokens.limit, 0.0, Some(0.0));
            let since = Tokens {
                limit,
                most,
                least,
                at,
            }
            .at(now);
            tokens.least = tokens.least.zip(since.least).map(|(a, b)| a.min(b));
        }
        let open = |waits| Breaker::Open(waits, Probe::None);
        self.breaker = self.stored.map_or(Breaker::Closed, open);
        self.opened_last = None;
        let (run, last_success) = self.read();
        (self.run, self.run_read, self.last_success) = (run, None, last_success);
        (self.unsure, self.unread) = (true, true);
    }

    /// An outage that no owner has stored was found.
    pub(crate) fn outage_found(&mut self, now: At) {
        if self.breaker == Breaker::Closed {
            self.opens(now);
        }
    }

    /// The run of failures at the end of the attempts, and the success before it.
    fn read(&self) -> (Run, Option<At>) {
        let since = |at: At| self.enabled_at.is_none_or(|enabled| at >= enabled);
        let mut attempts = self.attempts.clone();
        attempts.retain(|(at, _)| since(*at));
        attempts.sort_by_key(|(at, _)| *at);
        let is_success = |it: &&(At, Outcome)| it.1 == Outcome::Delivered;
        let last = attempts.iter().rev().find(is_success).map(|it| it.0);
        let mut run = Run::default();
        for (at, outcome) in attempts {
            let failed = matches!(outcome, Outcome::Transient | Outcome::Misconfigured);
            if failed && last.is_none_or(|success| at > success) {
                run.add(at);
            }
        }
        (run, last)
    }

    /// With nothing to do for a while it may be forgotten.
    fn idle(&mut self, now: At) {
        if now >= after(self.busy_at, FORGOTTEN) && self.on_wire.is_empty() {
            self.run_read = Some(self.read().0);
            (self.unsure, self.unread) = (true, true);
            self.ramp = None;
            self.known = false;
        }
    }
}
