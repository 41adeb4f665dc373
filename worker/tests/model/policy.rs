//! What delivery policy promises, looked at from outside whenever a request is admitted: the rate of an
//! endpoint (R1), its probes (B1), the share of the slow (O1). Nothing here is shared with the code under
//! test.
//!
//! Times are the database's. A worker estimates them; what its estimate gains during a window is added to
//! the window, so that the bound is exact under the clock that the worker has.

use std::collections::{BTreeMap, BTreeSet};

use shared::domain::endpoint::RateLimit;
use shared::ids::{EndpointKey, Incarnation};
use shared::store::endpoint_runtime::Runtime;
use time::OffsetDateTime;
use uuid::Uuid;
use worker::job::{Job, Ownership};
use worker::transitions::Change;

use crate::check::{Invariant, Mutation};
use crate::receiver::Flight;
use crate::store::short;
use crate::worker::MOST_IN_FLIGHT;
use crate::world::{Life, SECOND, World};
use worker::scheduler::Input;

/// What an endpoint's limit may be. The last takes longer to fill than a dead worker is missed.
pub(crate) const RATE_LIMITS: [Option<RateLimit>; 4] = [
    None,
    Some(RateLimit {
        per_second: 2.0,
        burst: 3,
    }),
    None,
    Some(RateLimit {
        per_second: 0.25,
        burst: 4,
    }),
];

/// A request that took a token.
#[derive(Debug, Clone, Copy)]
struct Start {
    at: OffsetDateTime,
    /// How far the worker's estimate is ahead of the database's clock, in seconds.
    ahead: f64,
    owner: Ownership,
    limit: RateLimit,
}

/// A breaker, as its owner said last that it is to be stored.
#[derive(Debug, Clone, Copy)]
struct View {
    owner: Ownership,
    opened_at: Option<OffsetDateTime>,
    probe_at: Option<OffsetDateTime>,
}

type Left = BTreeMap<Incarnation, f64>;

#[derive(Debug, Default)]
pub(crate) struct Policy {
    starts: BTreeMap<EndpointKey, Vec<Start>>,
    /// How far a life's estimate was ahead, at most, when it gave up slots.
    left: Left,
    views: BTreeMap<EndpointKey, View>,
    /// Enablings that let a probe go early, and when it was due otherwise.
    excused: BTreeMap<EndpointKey, (OffsetDateTime, OffsetDateTime)>,
    /// Whose owner was asked to retry a delivery now: the next probe may go before it is due.
    asked: BTreeSet<EndpointKey>,
    /// Probes that were admitted and whose outcome is not recorded.
    probes: BTreeMap<(Uuid, Uuid, i64), Probe>,
}

/// Process, endpoint, and under which ownership.
type Probe = (Life, EndpointKey, Ownership);

impl Policy {
    pub(crate) fn off_the_wire(&mut self, owner: Ownership, delivery: Uuid) {
        let id = (delivery, owner.incarnation.0, owner.epoch.0);
        self.probes.remove(&id);
    }

    pub(crate) fn asked_to_retry(&mut self, key: EndpointKey) {
        self.asked.insert(key);
    }

    /// There was no limit, or there is none from now on: what was sent before says nothing.
    pub(crate) fn limit_begins_or_ends(&mut self, key: EndpointKey) {
        self.starts.remove(&key);
    }
}

impl World {
    /// What an owner thinks of a breaker.
    pub(crate) fn see_change(&mut self, change: &Change) {
        let Some(runtime) = &change.runtime else {
            return;
        };
        let view = View {
            owner: change.owner,
            opened_at: runtime.opened_at,
            probe_at: runtime.next_probe_at,
        };
        let before = self.policy.views.insert(change.endpoint, view);
        let was_open = before.is_some_and(|it| it.opened_at.is_some());
        self.counts.opened += u64::from(view.opened_at.is_some() && !was_open);
        self.tell(|| {
            let (at, recovery) = (runtime.next_probe_at, runtime.recovery);
            format!(
                "{:?} probes next at {at:?}, recovers {recovery:?}",
                change.endpoint
            )
        });
    }

    /// A request is admitted. A suspect starts a little later, once its death is charged; its token is
    /// taken now.
    pub(crate) fn check_policy(&mut self, process: usize, job: &Job) {
        self.check_rate(process, job);
        self.check_probe(process, job);
        self.check_share(process, job);
    }

    /// The process is asked to give up slots: it looks at their buckets now, and not again.
    pub(crate) fn see_leaving(&mut self, process: usize) {
        let Some(me) = self.processes[process].lease.incarnation() else {
            return;
        };
        let seen = self.processes[process].clock.at(self.boot_time(process));
        let ahead = (seen - self.database_time()).as_seconds_f64();
        let left = self.policy.left.entry(me).or_insert(ahead);
        *left = left.max(ahead);
    }

    // ## R1

    fn check_rate(&mut self, process: usize, job: &Job) {
        let key = job.endpoint.key;
        let Some(limit) = job.endpoint.settings.rate_limit else {
            return self.policy.limit_begins_or_ends(key);
        };
        let at = self.database_time();
        let seen = self.processes[process].clock.at(self.boot_time(process));
        let start = Start {
            at,
            ahead: (seen - at).as_seconds_f64(),
            owner: job.owner,
            limit,
        };
        let starts = self.policy.starts.entry(key).or_default();
        starts.push(start);
        if let Some(text) = too_many(starts, &self.policy.left) {
            let text = format!("{key:?} is sent {}: {text}", short(job.row.id));
            self.violated(Invariant::Rate, text);
        }
    }

    // ## B1

    fn check_probe(&mut self, process: usize, job: &Job) {
        let (key, id) = (job.endpoint.key, job.row.id);
        self.check_open(process, job);
        if !job.probe {
            return;
        }
        self.counts.probes += 1;
        let others = self.policy.probes.values();
        let others: Vec<_> = others.filter(|(_, of, _)| *of == key).copied().collect();
        for (life, _, owner) in others {
            // The probe of an owner that is gone may be on the wire still.
            if self.lives(life) && self.store.owns(owner) {
                let text = format!("{key:?} is probed with {} and probed already", short(id));
                self.violated(Invariant::Probe, text);
            }
        }
        let life = (process, self.processes[process].life);
        let out = (id, job.owner.incarnation.0, job.owner.epoch.0);
        self.policy.probes.insert(out, (life, key, job.owner));
        if self.mutation == Mutation::TwoProbes {
            let (owner, endpoint, delivery) = (job.owner, key, id);
            self.input(
                process,
                Input::NotSent {
                    owner,
                    endpoint,
                    delivery,
                },
            );
        }
    }

    /// Nothing but the probe, when it is due, passes an open breaker: the owner's own, or the one that it
    /// found stored.
    fn check_open(&mut self, process: usize, job: &Job) {
        let key = job.endpoint.key;
        let stored = self.store.runtime.get(&key).cloned().unwrap_or_default();
        // Enabled anew, which the owner need not know yet.
        if stored.enabled_at != job.endpoint.runtime.enabled_at {
            return;
        }
        let view = self
            .policy
            .views
            .get(&key)
            .filter(|it| it.owner == job.owner);
        let (opened_at, probe_at) = view.map_or((stored.opened_at, stored.next_probe_at), |view| {
            (view.opened_at, view.probe_at)
        });
        let (Some(_), Some(probe_at)) = (opened_at, probe_at) else {
            return;
        };
        let now = self.processes[process].clock.at(self.boot_time(process));
        let asked = job.probe && self.policy.asked.remove(&key);
        let early =
            job.probe && now < probe_at && !asked && !self.enabled_since(key, &stored, probe_at);
        if !job.probe || early {
            let what = if job.probe {
                "too early as the probe"
            } else {
                "past an open breaker"
            };
            let text = format!("{key:?} is sent {} {what}, {probe_at}", short(job.row.id));
            self.violated(Invariant::Probe, text);
        }
    }

    /// Whether the endpoint was enabled since its owner said when the next probe is due: then it goes at once.
    fn enabled_since(&mut self, key: EndpointKey, stored: &Runtime, at: OffsetDateTime) -> bool {
        let Some(enabled_at) = stored.enabled_at else {
            return false;
        };
        let excused = *self.policy.excused.entry(key).or_insert((enabled_at, at));
        if excused.0 < enabled_at {
            self.policy.excused.insert(key, (enabled_at, at));
        }
        excused.0 < enabled_at || excused == (enabled_at, at)
    }

    // ## O1

    /// Endpoints with a request that is out for a second or more hold half of the permits at most.
    fn check_share(&mut self, process: usize, job: &Job) {
        let life = (process, self.processes[process].life);
        let looked_at = self.processes[process].looked_at;
        // Of a slot on its way out, only that something is on the wire is known.
        let leaves_since = self.processes[process].leaves_since;
        let ours = |it: &&Flight| {
            it.life == life
                && it.owner.incarnation == job.owner.incarnation
                && it.started > leaves_since
                && self.store.owns(it.owner)
        };
        let flights: Vec<_> = self.flights.values().filter(ours).collect();
        let hangs = |it: &&&Flight| looked_at.since(it.started).as_micros() >= u128::from(SECOND);
        let slow: BTreeSet<EndpointKey> =
            flights.iter().filter(hangs).map(|it| it.endpoint).collect();
        if job.suspect || !slow.contains(&job.endpoint.key) {
            return;
        }
        let held = flights
            .iter()
            .filter(|it| slow.contains(&it.endpoint))
            .count();
        if held >= MOST_IN_FLIGHT.div_ceil(2) {
            let text = format!("{:?} is slow, and the slow hold {held}", job.endpoint.key);
            self.violated(Invariant::Permits, text);
        }
    }
}

/// Looks at every window that ends with the last start; what is wrong with one, if anything.
fn too_many(starts: &[Start], left: &Left) -> Option<String> {
    let last = starts.last()?;
    let (mut rate, mut burst, mut count) = (0.0_f64, 0_u32, 0_u32);
    let mut gained = Gained::new(last);
    for start in starts.iter().rev() {
        count += 1;
        rate = rate.max(start.limit.per_second);
        burst = burst.max(start.limit.burst);
        let length = (last.at - start.at).as_seconds_f64() + gained.back_to(start, left);
        if f64::from(count) > rate * length + f64::from(burst) + 1e-6 {
            return Some(format!(
                "{count} in {length:.3} s at {rate}/s, burst {burst}"
            ));
        }
    }
    None
}

/// What the estimates of the owners gain on the database's clock during a window. Between two owners the
/// database's clock is what they share.
struct Gained {
    /// By owners that are wholly in the window.
    before: f64,
    owner: Ownership,
    last: f64,
    /// Whether the window ends with this owner's time.
    ends: bool,
    first: f64,
}

impl Gained {
    const fn new(last: &Start) -> Self {
        Self {
            before: 0.0,
            owner: last.owner,
            last: last.ahead,
            ends: true,
            first: last.ahead,
        }
    }

    fn back_to(&mut self, start: &Start, left: &Left) -> f64 {
        if start.owner == self.owner {
            self.first = start.ahead;
        } else {
            self.before += self.last.max(0.0) + (-self.first).max(0.0);
            self.owner = start.owner;
            // What it gained by the time when it looked at its buckets last.
            let left = left.get(&start.owner.incarnation).copied();
            let last = left.map_or(start.ahead, |ahead| ahead.max(start.ahead));
            (self.last, self.first, self.ends) = (last, start.ahead, false);
        }
        if self.ends {
            (self.last - self.first).max(0.0)
        } else {
            self.before + self.last.max(0.0) + (-self.first).max(0.0)
        }
    }
}
