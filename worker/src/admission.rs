//! Admission: may this endpoint send one more now? Decides *whether*, never *when to retry*.
//!
//! A [`Gate`] holds what its owner knows of one endpoint: breaker, token bucket, the one adaptive limit,
//! and until when the receiver asked to be left alone. Everything that can hold a request back is
//! asked in [`Gate::admit`] and nowhere else; a deferral spends no attempt (D4). The rules are pure and
//! live in `shared::policy`; this module puts them in order.
//!
//! # Invariants
//! - B1 an open breaker lets one probe through at a time. The half-open state is never stored: a lost
//!   probe is simply made again.
//! - R1 a request takes its token when it is admitted, by the owner alone, and does not give it back.
//! - O1 requests in flight stay within the adaptive limit, which stays within the endpoint's own.

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::endpoint::EndpointState;
use shared::ids::Epoch;
use shared::policy::breaker::{self, Breaker, Passage, Signal, State, Transition};
use shared::policy::bucket::{Bucket, Quota};
use shared::policy::limit::{AdaptiveLimit, PARK};
use shared::policy::outage::Failing;
use shared::store::endpoint_runtime::{Recovery, Runtime};
use time::OffsetDateTime;

use crate::endpoint_config::EndpointConfig;
use crate::job::Observed;

/// The answer to one request for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Send one; it counts against the endpoint's limit until it is recorded.
    Send,
    /// Send one, which finds out whether the endpoint is back.
    Probe,
    /// Not now.
    Defer(Deferral),
}

/// A wait, and what ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deferral {
    /// Why.
    pub reason: DeferReason,
    /// Ask again at this instant; `None`: when something ends or changes.
    pub until: Option<OffsetDateTime>,
}

/// Why a delivery has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferReason {
    /// As many requests as the endpoint may have are sent and not yet recorded.
    InFlight,
    /// The endpoint is disabled or deleted: its deliveries are closed instead.
    NotEnabled,
    /// The endpoint's secrets or settings cannot be read.
    Locked,
    /// An operator holds it back for a while.
    Paused,
    /// Its breaker is open, or its probe is on the wire.
    Breaker,
    /// Its token bucket is empty.
    RateLimited,
    /// The receiver asked to be left alone, or refused for being asked too often.
    Throttled,
}

impl DeferReason {
    /// Every value.
    pub const ALL: &'static [Self] = &[
        Self::InFlight,
        Self::NotEnabled,
        Self::Locked,
        Self::Paused,
        Self::Breaker,
        Self::RateLimited,
        Self::Throttled,
    ];

    /// The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::NotEnabled => "not_enabled",
            Self::Locked => "locked",
            Self::Paused => "paused",
            Self::Breaker => "breaker",
            Self::RateLimited => "rate_limited",
            Self::Throttled => "throttled",
        }
    }
}

/// How a slot came to its owner: what a bucket's stored position is worth (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOver {
    /// The number of the take-over.
    pub epoch: Epoch,
    /// The last owner handed over in order.
    pub clean: bool,
    /// The last take-over of this slot from a dead owner, whoever it was that took it; database time.
    /// What was sent before is not known: every bucket was empty then.
    pub emptied_at: Option<OffsetDateTime>,
}

/// Where a bucket stands, and the version of the endpoint that it was counted under.
pub type Position = (OffsetDateTime, i32);

/// What is known of the attempts before this owner's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum History {
    Unknown,
    Known,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    breaker: Breaker,
    bucket: Option<(Quota, Bucket)>,
    limit: AdaptiveLimit,
    parked_until: Option<OffsetDateTime>,
    /// Nothing of its tenant is sent before this: an operator says so.
    paused_until: Option<OffsetDateTime>,
    failing: Failing,
    history: History,
    last_success: Option<OffsetDateTime>,
    /// A request was delivered since the breaker closed: what answers may still refuse everything.
    well: bool,
    exhausted: Option<OffsetDateTime>,
    recovery: Option<Recovery>,
    /// When the last outage began.
    outage: Option<OffsetDateTime>,
    /// When the one began that goes on, as far as it was known before the last request ended.
    began: Option<OffsetDateTime>,
    /// When the last outage was seen to be over, and whether it was one of refusals.
    over: Option<(OffsetDateTime, bool)>,
    /// What is stored says that it fails or refuses: to be corrected by the success that ends that.
    stored_failing: bool,
    /// Of the endpoint, as it was read last.
    version: i32,
    p95_ms: Option<u32>,
}

/// What follows from an observation, beside what the gate remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The breaker opened.
    Opened,
    /// A probe failed, or said nothing three times.
    Reopened,
    /// The breaker closed: the outage is over.
    Closed,
    /// An outage was over before it was known of.
    Over,
    /// The receiver refuses everything for good.
    Refusing,
    /// The receiver takes events again that it refused for good.
    Accepting,
    /// It works, and is stored as failing.
    Well,
}

impl Gate {
    /// The gate of an endpoint whose slot was taken so, from what is stored of it. `kept`: where its
    /// bucket stood when this owner forgot it.
    #[must_use]
    pub fn new(
        config: &EndpointConfig,
        taken: TakeOver,
        kept: Option<Position>,
        now: OffsetDateTime,
    ) -> Self {
        let runtime = &config.runtime;
        let mut breaker = match (runtime.opened_at, runtime.next_probe_at) {
            (Some(opened), Some(probe)) => {
                Breaker::restored(opened, runtime.cooldown, probe, runtime.failing_since)
            }
            (None, _) | (_, None) => Breaker::closed(),
        };
        breaker.set_cooldowns(&config.settings.breaker);
        let cap = config.settings.max_in_flight;
        // In the middle of a recovery the ramp begins anew.
        let limit = if breaker.state() == State::Closed && runtime.recovery.is_none() {
            AdaptiveLimit::at(cap)
        } else {
            AdaptiveLimit::recovering()
        };
        let well = breaker.state() == State::Closed;
        Self {
            breaker,
            bucket: quota(config).map(|quota| {
                (
                    quota,
                    bucket(&quota, config.version, [runtime.bucket, kept], (taken, now)),
                )
            }),
            limit,
            parked_until: runtime.parked_until,
            paused_until: None,
            failing: Failing::restored(runtime.failing_since, runtime.refusing_since),
            history: History::Unknown,
            last_success: None,
            well,
            exhausted: None,
            recovery: runtime
                .recovery
                .filter(|_| config.settings.replay_on_recovery),
            outage: None,
            began: None,
            over: None,
            stored_failing: runtime.failing_since.is_some() || runtime.refusing_since.is_some(),
            version: config.version,
            p95_ms: runtime.p95_ms,
        }
    }

    /// The endpoint's configuration was read anew.
    pub fn reconfigured(
        &mut self,
        old: &EndpointConfig,
        new: &EndpointConfig,
        now: OffsetDateTime,
    ) {
        self.version = new.version;
        if !new.settings.replay_on_recovery {
            self.recovery = None;
        }
        self.p95_ms = new.runtime.p95_ms;
        self.breaker.set_cooldowns(&new.settings.breaker);
        self.bucket = match (self.bucket.take(), quota(new)) {
            (_, None) => None,
            // Nobody counted what was sent before: as if all of it had been just now.
            (None, Some(quota)) => Some((quota, Bucket::emptied_at(now, &quota))),
            (Some((before, mut bucket)), Some(quota)) => {
                if before != quota {
                    bucket.requota(now, &before, &quota);
                }
                Some((quota, bucket))
            }
        };
        let enabled = old.state != EndpointState::Enabled && new.state == EndpointState::Enabled;
        if enabled || new.runtime.enabled_at > old.runtime.enabled_at {
            self.breaker.probe_now(now);
            self.failing = Failing::default();
            self.parked_until = None;
            // Enabling sends nothing by itself: what died before is for a human to replay.
            self.recovery = None;
            self.outage = None;
            self.began = None;
        }
    }

    /// Somebody asks for an attempt now, behind an open breaker too.
    pub fn probe_asked_for(&mut self, now: OffsetDateTime) {
        self.breaker.probe_asked_for(now);
    }

    /// Until when an operator holds back all that its tenant gets.
    pub const fn pause(&mut self, until: Option<OffsetDateTime>) {
        self.paused_until = until;
    }

    /// Whether an operator holds it back.
    #[must_use]
    pub fn is_paused(&self, now: OffsetDateTime) -> bool {
        self.paused_until.is_some_and(|until| until > now)
    }

    /// Asks for admission of one more request while `in_flight` are sent and not recorded.
    #[must_use]
    pub fn admit(
        &self,
        config: &EndpointConfig,
        in_flight: usize,
        now: OffsetDateTime,
    ) -> Admission {
        let defer = |reason, until| Admission::Defer(Deferral { reason, until });
        if config.state != EndpointState::Enabled {
            return defer(DeferReason::NotEnabled, None);
        }
        if config.locked {
            return defer(DeferReason::Locked, None);
        }
        if self.is_paused(now) {
            return defer(DeferReason::Paused, self.paused_until);
        }
        let probe = match self.breaker.passage(now) {
            Passage::Free => false,
            Passage::Probe => true,
            Passage::Wait(until) => return defer(DeferReason::Breaker, Some(until)),
            Passage::ProbeOut => return defer(DeferReason::Breaker, None),
        };
        if let Some(until) = self.parked_until.filter(|until| *until > now) {
            return defer(DeferReason::Throttled, Some(until));
        }
        let cap = config.settings.max_in_flight;
        // What was sent before the breaker opened may be on the wire still.
        let fits = if probe {
            in_flight < usize::from(cap.max(1))
        } else {
            self.limit.allows(in_flight, cap)
        };
        if !fits {
            return defer(DeferReason::InFlight, None);
        }
        if let Some((quota, bucket)) = &self.bucket {
            let earliest = bucket.earliest(quota);
            if earliest > now {
                return defer(DeferReason::RateLimited, Some(earliest));
            }
        }
        if probe {
            Admission::Probe
        } else {
            Admission::Send
        }
    }

    /// A request that was admitted starts.
    pub fn started(&mut self, probe: bool, now: OffsetDateTime) {
        if let Some((quota, bucket)) = &mut self.bucket {
            // Admitted at this very instant, so the token is there.
            let _taken = bucket.take(now, quota);
        }
        if probe {
            self.breaker.probe_started();
        }
    }

    /// A probe that was admitted was not made.
    pub fn probe_lost(&mut self) {
        self.breaker.probe_lost();
    }

    /// What a request says about the endpoint.
    pub fn ended(
        &mut self,
        config: &EndpointConfig,
        observed: &Observed,
        now: OffsetDateTime,
    ) -> Vec<Turn> {
        let signal = Signal::of(observed.outcome);
        let ended = breaker::Ended {
            signal,
            started_at: observed.started_at,
            probe: observed.probe,
        };
        let mut turns = Vec::new();
        let refused = self.failing.refusing_since();
        // Before this ends it.
        self.began = self.breaker.opened_at().and(self.outage_began());
        self.outage = self.began.or(refused).or(self.outage);
        let transition = self.breaker.ended(&ended, now, self.threshold(config));
        turns.extend(transition.map(Turn::from));
        self.failing.ended(observed.outcome, observed.started_at);
        match (refused, self.failing.refusing_since()) {
            (None, Some(_)) => turns.push(Turn::Refusing),
            (Some(_), None) => turns.push(Turn::Accepting),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.adapt(config, observed, now);
        if self.stored_failing && self.failing.since().is_none() && turns.is_empty() {
            turns.push(Turn::Well);
        }
        match signal {
            Signal::Success => {
                self.history = History::Known;
                // One that took long may end after one that started later.
                self.last_success = self.last_success.max(Some(observed.started_at));
                // A ladder was exhausted, and it was not known yet whether that was an outage: if it was, it is
                // over. If not, a dead letter is tried once more than it had to be.
                if let Some(began) = self.exhausted.take() {
                    self.outage = Some(began);
                    turns.push(Turn::Over);
                }
            }
            Signal::Failure | Signal::Alive | Signal::Silent | Signal::Gone => {
                self.exhausted = self.exhausted.or(observed.exhausted);
                turns.extend(self.exhaust(now));
            }
        }
        if turns.contains(&Turn::Accepting) {
            self.over = Some((now, true));
        }
        if turns.contains(&Turn::Closed) {
            self.over = Some((now, false));
            self.limit = AdaptiveLimit::recovering();
            self.well = false;
        }
        self.well |= signal == Signal::Success;
        turns
    }

    /// A ladder that was exhausted opens the breaker if no attempt succeeded since it began.
    fn exhaust(&mut self, now: OffsetDateTime) -> Option<Turn> {
        if self.history == History::Unknown {
            return None;
        }
        let began = self.exhausted.take()?;
        if self.last_success.is_some_and(|success| success >= began) {
            return None;
        }
        self.breaker.ladder_exhausted(now).map(Turn::from)
    }

    fn adapt(&mut self, config: &EndpointConfig, observed: &Observed, now: OffsetDateTime) {
        let cap = config.settings.max_in_flight;
        match observed.outcome {
            Outcome::Delivered => self.limit.succeeded(cap),
            Outcome::Throttled => self.limit.throttled(observed.started_at, now),
            Outcome::Transient if observed.timed_out => {
                self.limit.timed_out(observed.started_at, now);
            }
            Outcome::Transient
            | Outcome::Misconfigured
            | Outcome::Permanent
            | Outcome::Gone
            | Outcome::Internal
            | Outcome::Refused
            | Outcome::Expired => {}
        }
        let throttled = (observed.outcome == Outcome::Throttled).then_some(PARK);
        let wait = observed.retry_after.or(throttled);
        let pause = Some(self.limit.pause(observed.took)).filter(|pause| !pause.is_zero());
        for wait in [wait, pause].into_iter().flatten() {
            let until = now.checked_add(time::Duration::try_from(wait).unwrap_or_default());
            self.parked_until = self.parked_until.max(until);
        }
    }

    /// The attempts before this owner's own, the latest first. Those before the endpoint was enabled last
    /// count no more.
    pub fn remember(
        &mut self,
        config: &EndpointConfig,
        attempts: &[(Outcome, OffsetDateTime)],
        now: OffsetDateTime,
    ) -> Vec<Turn> {
        if self.history == History::Known {
            return Vec::new();
        }
        self.history = History::Known;
        let enabled = config.runtime.enabled_at;
        let attempts: Vec<_> = attempts
            .iter()
            .take_while(|(_, started)| enabled.is_none_or(|at| *started >= at))
            .collect();
        let counts = |outcome| Signal::of(outcome) == Signal::Failure;
        let success = |outcome| Signal::of(outcome) == Signal::Success;
        let run: Vec<_> = attempts
            .iter()
            .take_while(|(outcome, _)| !success(*outcome))
            .filter(|(outcome, _)| counts(*outcome))
            .collect();
        if let Some((_, first)) = run.last() {
            let count = u16::try_from(run.len()).unwrap_or(u16::MAX);
            self.breaker.counted(count, *first);
            self.failing.began(*first);
        }
        let last = attempts.iter().find(|(outcome, _)| success(*outcome));
        self.last_success = self.last_success.max(last.map(|(_, started)| *started));
        let mut turns: Vec<Turn> = self.exhaust(now).into_iter().collect();
        let refusals: Vec<_> = attempts
            .iter()
            .take_while(|(outcome, _)| !success(*outcome))
            .filter(|(outcome, _)| *outcome == Outcome::Permanent)
            .collect();
        let refused = self.failing.refusing_since();
        if let Some((_, first)) = refusals.last() {
            let count = u16::try_from(refusals.len()).unwrap_or(u16::MAX);
            self.failing.counted(count, *first);
        }
        if refused.is_none() && self.failing.refusing_since().is_some() {
            turns.push(Turn::Refusing);
        }
        turns
    }

    /// A failure was seen, and what came before this owner is not known: since when it matters.
    #[must_use]
    pub fn wants_history(&self) -> bool {
        self.history == History::Unknown
            && (self.breaker.consecutive_failures() > 0
                || self.failing.refusals() > 0
                || self.exhausted.is_some())
    }

    /// Dead letters of an outage were found whose owner died before it could open the breaker; the first
    /// died then.
    pub fn outage_found(&mut self, since: OffsetDateTime, now: OffsetDateTime) -> Option<Turn> {
        // What this owner had delivered before it heard of the outage.
        if self.last_success.is_some_and(|success| success >= since) {
            self.outage = Some(since);
            return (!self.is_open()).then_some(Turn::Over);
        }
        self.failing.began(since);
        self.breaker.ladder_exhausted(now).map(Turn::from)
    }

    /// How many consecutive failures open the breaker: fewer while the endpoint is slow.
    #[must_use]
    pub fn threshold(&self, config: &EndpointConfig) -> u16 {
        breaker::lowered_threshold(config.settings.breaker.failures, self.p95_ms)
    }

    /// What is stored of it on a transition.
    #[must_use]
    pub fn store(&mut self) -> Runtime {
        self.stored_failing = self.failing.since().is_some();
        Runtime {
            opened_at: self.breaker.opened_at(),
            cooldown: self.breaker.cooldown().unwrap_or_default(),
            next_probe_at: self.breaker.probe_at(),
            failing_since: self.failing.since(),
            refusing_since: self.failing.refusing_since(),
            recovery: self.recovery,
            ..Runtime::default()
        }
    }

    /// What is stored of it when it is handed over: the bucket's position unless it is full, and until
    /// when it is parked.
    #[must_use]
    pub fn hand_over(&self, now: OffsetDateTime) -> (Option<Position>, Option<OffsetDateTime>) {
        let bucket = self.bucket.as_ref().map(|(_, bucket)| bucket);
        let position = bucket
            .filter(|bucket| !bucket.is_full(now))
            .map(|bucket| (bucket.position(), self.version));
        (position, self.parked_until.filter(|until| *until > now))
    }

    /// Whether it can be forgotten: made anew from what is stored and the position of its bucket, it would be
    /// the same.
    #[must_use]
    pub fn is_forgettable(&self, now: OffsetDateTime) -> bool {
        self.breaker.state() == State::Closed
            && self.recovery.is_none()
            && self.exhausted.is_none()
            && self.hand_over(now).1.is_none()
    }

    /// Whether its bucket fills slowly: one request at a time is worth having in memory.
    #[must_use]
    pub fn is_slow_paced(&self) -> bool {
        let paced = |(quota, _): &(Quota, Bucket)| quota.period() >= Duration::from_secs(1);
        self.bucket.as_ref().is_some_and(paced)
    }

    /// A ladder was exhausted, and what was tried before it is not known yet.
    #[must_use]
    pub const fn is_undecided(&self) -> bool {
        self.exhausted.is_some()
    }

    /// Not closed: its deliveries stay in the database until the probe.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.breaker.state() != State::Closed
    }

    /// The breaker.
    #[must_use]
    pub const fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Since when it fails, or refuses, without a success.
    #[must_use]
    pub const fn failing(&self) -> &Failing {
        &self.failing
    }

    /// Whether a delivery that has just died belongs to the outage that is over: it was on the wire when that
    /// ended. `Some`: of which kind it was.
    #[must_use]
    pub fn is_late_for(&self, observed: &Observed) -> Option<bool> {
        let (at, refused) = self.over?;
        let died =
            observed.exhausted.is_some() || refused && observed.outcome == Outcome::Permanent;
        (died && !self.is_open() && observed.started_at <= at).then_some(refused)
    }

    /// Whether sending is back to what it was after an outage.
    #[must_use]
    pub fn is_ramped(&self, config: &EndpointConfig) -> bool {
        !self.is_open() && self.limit.is_ramped(config.settings.max_in_flight)
    }

    /// Whether the endpoint takes events, as far as is known since its breaker closed.
    #[must_use]
    pub const fn is_well(&self) -> bool {
        self.well
    }

    /// Whether one more replay may go: replays hold at most half of what the endpoint may have on the
    /// wire, and at least one.
    #[must_use]
    pub fn allows_replay(&self, config: &EndpointConfig, replays_in_flight: usize) -> bool {
        let cap = config.settings.max_in_flight;
        replays_in_flight == 0 || self.limit.allows(2 * replays_in_flight + 1, cap)
    }

    /// When the bucket has a token for a replay: it leaves half of the bucket to what is new, which so finds one
    /// there while a replay takes the rest of the rate.
    #[must_use]
    pub fn replay_token_at(&self) -> Option<OffsetDateTime> {
        let (quota, bucket) = self.bucket.as_ref()?;
        Some(bucket.earliest_above_half(quota))
    }

    /// When the outage began that goes on, or has just ended: the first failure since the last success, or
    /// the opening, whichever came first.
    #[must_use]
    pub fn outage_began(&self) -> Option<OffsetDateTime> {
        let Some(opened) = self.breaker.opened_at() else {
            return self.outage;
        };
        // What was on the wire at the opening may have been delivered since.
        let earlier = [self.failing.since(), self.began].into_iter().flatten();
        Some(earlier.fold(opened, std::cmp::min))
    }

    /// The outage whose dead letters are being replayed.
    #[must_use]
    pub const fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Begins or ends the replay of an outage's dead letters.
    pub fn recover(&mut self, recovery: Option<Recovery>) {
        self.recovery = recovery;
    }
}

fn quota(config: &EndpointConfig) -> Option<Quota> {
    config.settings.rate_limit.as_ref().and_then(Quota::new)
}

/// Where a bucket stands when its owner first looks at it: at the latest of what was stored, and of what one
/// was that was empty at the last take-over from a dead owner. A position that was counted under another
/// version of the endpoint says nothing but that the bucket was not full: it is taken to be empty.
fn bucket(
    quota: &Quota,
    version: i32,
    stored: [Option<Position>; 2],
    (taken, now): (TakeOver, OffsetDateTime),
) -> Bucket {
    let emptied = |at| Bucket::emptied_at(at, quota).position();
    let known = stored.into_iter().flatten().map(|(position, counted)| {
        if counted == version || position <= now {
            position
        } else {
            emptied(now)
        }
    });
    let known = known.chain(taken.emptied_at.map(emptied));
    let position = known.max().unwrap_or(OffsetDateTime::UNIX_EPOCH);
    Bucket::handed_over(position.min(emptied(now)))
}

impl From<Transition> for Turn {
    fn from(transition: Transition) -> Self {
        match transition {
            Transition::Opened => Self::Opened,
            Transition::Reopened => Self::Reopened,
            Transition::Closed => Self::Closed,
        }
    }
}
