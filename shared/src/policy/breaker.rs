//! Whether an endpoint is well enough to be sent to: the breaker. Counts outcomes and says when to
//! stop, when to ask again with one request, and when to go on. Not here: reading and storing its
//! state, disabling ([`outage`](super::outage)), slowing down ([`limit`](super::limit)).
//!
//! It opens at the threshold of consecutive failures *and* [`MIN_SPAN`] after the start of the first
//! of them (ten requests in flight at a 50 ms restart are one event, not ten), or when a delivery
//! exhausts its ladder with no success since it began. Then one probe per cooldown; the cooldown
//! doubles with each that fails. Half-open is never stored: a probe that is lost with its process is
//! simply made again.
//!
//! # Invariants
//! - B1 at most one probe is out at a time: while one is, [`Breaker::passage`] lets nothing through.
//!   Whatever becomes of it (an outcome of any kind, a dropped permit, a crash), another one follows.

use std::time::Duration;

use time::OffsetDateTime;

use super::instant::later;
use crate::domain::attempt::Outcome;
use crate::domain::endpoint::BreakerSettings;

/// A breaker does not open sooner than this after the first of the failures started.
pub const MIN_SPAN: Duration = Duration::from_secs(2);

/// The lowest threshold that slowness leads to.
const LOWEST_THRESHOLD: u16 = 3;

/// An endpoint with 5 % of its responses slower than this, in milliseconds, is very slow.
pub const VERY_SLOW_MS: u32 = 5_000;

/// So many probes in a row that say nothing about the endpoint end in another cooldown: each costs a
/// delivery, and the fault may be ours.
const SILENT_PROBES: u8 = 3;

/// How many consecutive failures open the breaker of an endpoint with this threshold and this 95th
/// percentile of response times, in milliseconds: each failure of a slow one ties up a permit for long,
/// so half of them must do. Never higher than its own.
#[must_use]
pub fn lowered_threshold(threshold: u16, p95_ms: Option<u32>) -> u16 {
    if p95_ms.is_some_and(|p95| p95 > VERY_SLOW_MS) {
        (threshold / 2).max(LOWEST_THRESHOLD).min(threshold)
    } else {
        threshold
    }
}

/// What an outcome says about the endpoint, whatever it says about the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It is well.
    Success,
    /// It is not.
    Failure,
    /// It answers, and that is all: throttled, or a permanent refusal.
    Alive,
    /// Nothing: the request did not get there.
    Silent,
    /// It does not want to be asked again: disabled elsewhere.
    Gone,
}

impl Signal {
    /// What this outcome says.
    #[must_use]
    pub const fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Delivered => Self::Success,
            Outcome::Transient | Outcome::Misconfigured => Self::Failure,
            Outcome::Throttled | Outcome::Permanent => Self::Alive,
            Outcome::Gone => Self::Gone,
            Outcome::Internal | Outcome::Refused | Outcome::Expired => Self::Silent,
        }
    }
}

/// The state, as shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Requests pass.
    Closed,
    /// None passes until the next probe is due.
    Open,
    /// The probe is on the wire.
    HalfOpen,
}

/// A change of state that is worth a write and a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// From closed to open.
    Opened,
    /// The probe failed, or three in a row said nothing: another cooldown.
    Reopened,
    /// From half-open to closed.
    Closed,
}

/// Whether a request may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// Yes.
    Free,
    /// One, as the probe; say [`Breaker::probe_started`].
    Probe,
    /// Not before this instant.
    Wait(OffsetDateTime),
    /// Not before the outcome of the probe.
    ProbeOut,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// What its outcome says.
    pub signal: Signal,
    /// When it started.
    pub started_at: OffsetDateTime,
    /// Whether it was the probe.
    pub probe: bool,
}

/// Consecutive failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Run {
    failures: u16,
    /// When the first of them started.
    since: Option<OffsetDateTime>,
}

impl Run {
    fn add(&mut self, started_at: OffsetDateTime) {
        self.failures = self.failures.saturating_add(1);
        self.began(started_at);
    }

    fn began(&mut self, at: OffsetDateTime) {
        self.since = Some(self.since.map_or(at, |since| since.min(at)));
    }

    fn opens(&self, now: OffsetDateTime, threshold: u16) -> bool {
        self.failures >= threshold.max(1)
            && self
                .since
                .is_some_and(|since| now >= later(since, MIN_SPAN))
    }
}

/// Open, and half-open while the probe is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opening {
    opened_at: OffsetDateTime,
    /// The opening, or the last probe that failed.
    turned_at: OffsetDateTime,
    cooldown: Duration,
    probe_at: OffsetDateTime,
    probe: Probe,
    /// Probes in a row that said nothing.
    silent: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    None,
    Out,
    /// Out, and no longer what was asked for: the endpoint was enabled anew since it started.
    Stale,
}

/// The breaker of one endpoint, in the memory of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    run: Run,
    open: Option<Opening>,
    /// Something good came since this breaker was made: what was counted before is out of date.
    refuted: bool,
    /// The last opening. Requests that started before it belong to an outage that is over.
    last_opened: Option<OffsetDateTime>,
    first_cooldown: Duration,
    longest_cooldown: Duration,
}

impl Breaker {
    /// A breaker that knows of no failure.
    #[must_use]
    pub fn closed() -> Self {
        let settings = BreakerSettings::default();
        Self {
            run: Run::default(),
            open: None,
            refuted: false,
            last_opened: None,
            first_cooldown: settings.cooldown(),
            longest_cooldown: settings.max_cooldown(),
        }
    }

    /// The cooldowns of this endpoint, from the next opening on; those of [`BreakerSettings::default`]
    /// until then.
    pub fn set_cooldowns(&mut self, settings: &BreakerSettings) {
        self.first_cooldown = settings.cooldown();
        self.longest_cooldown = settings.max_cooldown().max(self.first_cooldown);
    }

    /// An open breaker, as it was stored. `failing_since`: the first failure since the last success.
    #[must_use]
    pub fn restored(
        opened_at: OffsetDateTime,
        cooldown: Duration,
        probe_at: OffsetDateTime,
        failing_since: Option<OffsetDateTime>,
    ) -> Self {
        let opening = Opening {
            opened_at,
            turned_at: opened_at,
            cooldown,
            probe_at,
            probe: Probe::None,
            silent: 0,
        };
        Self {
            run: Run {
                failures: 0,
                since: failing_since,
            },
            open: Some(opening),
            last_opened: Some(opened_at),
            ..Self::closed()
        }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.open {
            None => State::Closed,
            Some(opening) if opening.probe == Probe::None => State::Open,
            Some(_) => State::HalfOpen,
        }
    }

    /// When the outage began, if it is not closed; failed probes do not change it.
    #[must_use]
    pub fn opened_at(&self) -> Option<OffsetDateTime> {
        self.open.map(|opening| opening.opened_at)
    }

    /// The wait before the next probe, if it is not closed.
    #[must_use]
    pub fn cooldown(&self) -> Option<Duration> {
        self.open.map(|opening| opening.cooldown)
    }

    /// When it opened, or its last probe failed, if it is not closed.
    #[must_use]
    pub fn turned_at(&self) -> Option<OffsetDateTime> {
        self.open.map(|opening| opening.turned_at)
    }

    /// When the next probe is due, if it is not closed.
    #[must_use]
    pub fn probe_at(&self) -> Option<OffsetDateTime> {
        self.open.map(|opening| opening.probe_at)
    }

    /// Failures since the last success, as far as this process knows.
    #[must_use]
    pub fn consecutive_failures(&self) -> u16 {
        self.run.failures
    }

    /// Whether a request may start now.
    #[must_use]
    pub fn passage(&self, now: OffsetDateTime) -> Passage {
        match self.open {
            None => Passage::Free,
            Some(opening) if opening.probe != Probe::None => Passage::ProbeOut,
            Some(opening) if now < opening.probe_at => Passage::Wait(opening.probe_at),
            Some(_) => Passage::Probe,
        }
    }

    /// The probe that [`passage`](Self::passage) allowed has its permit.
    pub fn probe_started(&mut self) {
        if let Some(opening) = &mut self.open
            && opening.probe == Probe::None
        {
            opening.probe = Probe::Out;
        }
    }

    /// The probe was never sent (a drain, a dropped permit): it is due again at once.
    pub fn probe_lost(&mut self) {
        if let Some(opening) = &mut self.open {
            opening.probe = Probe::None;
        }
    }

    /// A request has ended. `threshold`: see [`lowered_threshold`].
    pub fn ended(
        &mut self,
        ended: &Ended,
        now: OffsetDateTime,
        threshold: u16,
    ) -> Option<Transition> {
        match self.open {
            None => self.ended_while_closed(ended, now, threshold),
            // Whatever is not the probe started before the opening, and is no news.
            Some(opening) if !ended.probe || opening.probe == Probe::None => None,
            Some(opening) => self.probe_ended(opening, ended, now),
        }
    }

    fn ended_while_closed(
        &mut self,
        ended: &Ended,
        now: OffsetDateTime,
        threshold: u16,
    ) -> Option<Transition> {
        let old = self.last_opened.is_some_and(|at| ended.started_at < at);
        match ended.signal {
            Signal::Success => {
                self.refute();
                None
            }
            Signal::Failure if !old => {
                self.run.add(ended.started_at);
                self.run
                    .opens(now, threshold)
                    .then(|| self.open_with(now, later(now, self.first_cooldown)))
            }
            Signal::Failure | Signal::Alive | Signal::Silent | Signal::Gone => None,
        }
    }

    fn probe_ended(
        &mut self,
        opening: Opening,
        ended: &Ended,
        now: OffsetDateTime,
    ) -> Option<Transition> {
        let mut next = Opening {
            probe: Probe::None,
            ..opening
        };
        let transition = match ended.signal {
            Signal::Failure | Signal::Success | Signal::Alive if opening.probe == Probe::Stale => {
                None
            }
            Signal::Success | Signal::Alive => {
                self.refute();
                self.open = None;
                return Some(Transition::Closed);
            }
            Signal::Failure => {
                self.run.add(ended.started_at);
                next.silent = 0;
                next.cooldown = opening
                    .cooldown
                    .saturating_mul(2)
                    .min(self.longest_cooldown);
                next.probe_at = later(now, next.cooldown);
                next.turned_at = now;
                Some(Transition::Reopened)
            }
            Signal::Silent | Signal::Gone => {
                next.silent = opening.silent.saturating_add(1);
                (next.silent >= SILENT_PROBES).then(|| {
                    next.silent = 0;
                    next.probe_at = later(now, next.cooldown);
                    Transition::Reopened
                })
            }
        };
        self.open = Some(next);
        transition
    }

    /// A delivery exhausted its ladder, and the caller knows that no success came since the ladder
    /// began: the endpoint is evidently down.
    pub fn ladder_exhausted(&mut self, now: OffsetDateTime) -> Option<Transition> {
        self.open
            .is_none()
            .then(|| self.open_with(now, later(now, self.first_cooldown)))
    }

    /// The run of failures at the end of the attempts, as read after a take-over, and when the first
    /// of them started. Out of date if a success came since.
    pub fn counted(&mut self, run: u16, first_started_at: OffsetDateTime) {
        if self.refuted || run <= self.run.failures {
            return;
        }
        self.run.failures = run;
        self.run.began(first_started_at);
    }

    /// The endpoint was enabled anew: nothing but a probe, and that now. One that is on the wire
    /// already counts for nothing, but is waited for.
    pub fn probe_now(&mut self, now: OffsetDateTime) {
        match &mut self.open {
            None => {
                self.open_with(now, now);
            }
            Some(opening) => {
                opening.probe_at = now;
                if opening.probe == Probe::Out {
                    opening.probe = Probe::Stale;
                }
            }
        }
    }

    /// Somebody asks for an attempt now: the probe is due, if none is on the wire.
    pub fn probe_asked_for(&mut self, now: OffsetDateTime) {
        if let Some(opening) = &mut self.open
            && opening.probe != Probe::Out
        {
            opening.probe_at = opening.probe_at.min(now);
        }
    }

    fn open_with(&mut self, now: OffsetDateTime, probe_at: OffsetDateTime) -> Transition {
        self.last_opened = Some(now);
        self.open = Some(Opening {
            opened_at: now,
            turned_at: now,
            cooldown: self.first_cooldown,
            probe_at,
            probe: Probe::None,
            silent: 0,
        });
        Transition::Opened
    }

    fn refute(&mut self) {
        self.run = Run::default();
        self.refuted = true;
    }
}

#[cfg(test)]
mod tests;
