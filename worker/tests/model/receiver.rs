//! The receivers, and what must hold whenever a request starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shared::ids::{EndpointKey, Epoch, Incarnation};
use shared::policy::backoff::UnitInterval;
use shared::policy::classify::{BodyEnd, Phase, Response, SendError, SendResult};
use shared::policy::decide::Decision;
use shared::runtime::clock::BootTime;
use uuid::Uuid;
use worker::deliver::conclude;
use worker::job::{Job, Ownership};
use worker::sender::Timings;

use crate::check::Invariant;
use crate::store::short;
use crate::worker::MOST_IN_FLIGHT;
use crate::world::{Event, Life, MILLI, SECOND, World};

/// Whatever the receiver asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3_600);

/// How a receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    Flaky,
    Down,
    Hangs,
    Refuses,
    /// Everything, for good.
    RefusesAll,
    /// As a deploy or a firewall does.
    Missing,
    /// Most of it for being too much, and says for how long.
    Throttles,
    Gone,
}

/// A request: delivery, life, epoch, number of the attempt.
pub(crate) type FlightKey = (Uuid, Incarnation, Epoch, u16);

/// A request sent and not yet recorded.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) life: Life,
    pub(crate) owner: Ownership,
    pub(crate) endpoint: EndpointKey,
    pub(crate) suspect: bool,
    /// Taken when it is answered.
    pub(crate) job: Option<Box<Job>>,
    pub(crate) started: BootTime,
}

/// Every request that was ever started.
#[derive(Debug, Default)]
pub(crate) struct Sends(BTreeMap<Uuid, Vec<Sent>>);

#[derive(Debug, Clone, Copy)]
struct Sent {
    key: FlightKey,
    life: Life,
    owner: Ownership,
    acknowledged: bool,
}

impl World {
    /// A request starts.
    pub(crate) fn send(&mut self, process: usize, job: Box<Job>) {
        let life = (process, self.processes[process].life);
        let id = job.row.id;
        let number = job.row.attempts_made + 1;
        let key = (id, job.owner.incarnation, job.owner.epoch, number);
        self.tell(|| {
            format!(
                "w{process} sends {} attempt {number} as {:?}",
                short(id),
                job.owner
            )
        });
        self.counts.sends += 1;
        self.check_lease(process, &job);
        self.check_permits(life, &job);
        self.check_repetition(life, key, &job);
        self.check_order(&job);
        let (endpoint, event) = (job.endpoint.key, job.row.event_id);
        let flight = Flight {
            life,
            owner: job.owner,
            endpoint,
            suspect: job.suspect,
            started: self.boot_time(process),
            job: Some(job),
        };
        self.flights.insert(key, flight);
        if self.is_poison(life, id) {
            return;
        }
        let (result, delay) = self.answer_of(endpoint, event);
        self.after(delay, Event::Respond(life, key, result));
    }

    fn is_poison(&mut self, life: Life, id: Uuid) -> bool {
        if !self.poison.contains(&id) {
            return false;
        }
        // Charged just now: three deaths that were written down, and this would be one more.
        if self
            .store
            .suspects
            .get(&id)
            .is_some_and(|deaths| *deaths > 3)
        {
            self.violated(
                Invariant::Suspects,
                format!("{} is sent once more", short(id)),
            );
        }
        self.after(5 * SECOND, Event::Crash(life));
        true
    }

    fn answer_of(&mut self, endpoint: EndpointKey, event: Uuid) -> (SendResult, u64) {
        let quick = self.chance.between(MILLI, 250 * MILLI);
        let mut retry_after = None;
        let status = match self.moods[&endpoint] {
            _ if self.cursed.contains(&event) => 503,
            Mood::Well => 200,
            Mood::Flaky if self.chance.happens(500) => 200,
            Mood::Flaky | Mood::Down => 503,
            Mood::Refuses if self.chance.happens(300) => 400,
            Mood::Refuses => 200,
            Mood::RefusesAll => 422,
            Mood::Missing => 404,
            Mood::Throttles if self.chance.happens(300) => 200,
            Mood::Throttles => {
                let seconds = self.chance.between(1, 3);
                retry_after = self.chance.happens(500).then(|| seconds.to_string());
                429
            }
            Mood::Gone => 410,
            Mood::Hangs => {
                return (Err(SendError::Timeout(Phase::Response)), 2 * SECOND);
            }
        };
        let response = Response {
            status,
            retry_after,
            redirect: None,
            excerpt: Bytes::new(),
            body: BodyEnd::Whole,
        };
        (Ok(response), quick)
    }

    /// The answer: the record is made by the code under test.
    pub(crate) fn respond(&mut self, process: usize, key: FlightKey, result: SendResult) {
        let ended = self.boot_time(process);
        let jitter = UnitInterval::new(self.chance.fraction()).unwrap();
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        let Some(job) = flight.job.take() else { return };
        let started = flight.started;
        let clock = Arc::clone(&self.processes[process].clock);
        let limit = job.endpoint.settings.max_attempts;
        let record = conclude(
            &clock,
            *job,
            (started, ended),
            (result, Timings::default()),
            jitter,
        );
        let now = clock.at(ended);
        if let Decision::RetryAt(at) = record.decision
            && !(now..=now + LONGEST_WAIT).contains(&at)
        {
            let text = format!("{} is tried again at {at}, now is {now}", short(key.0));
            self.violated(Invariant::Due, text);
        }
        if record.attempts_charged > limit {
            let text = format!(
                "{} charged {} of {limit}",
                short(key.0),
                record.attempts_charged
            );
            self.violated(Invariant::Attempts, text);
        }
        self.tell(|| format!("w{process} {}: {:?}", short(key.0), record.decision));
        self.hand_to_recorder(process, record);
    }

    /// The engine was told that a record was acknowledged.
    pub(crate) fn acknowledged(&mut self, key: FlightKey) {
        let now = self.database_time();
        if let Some(letter) = self.store.dead_letters.get_mut(&key.0) {
            letter.known_at.get_or_insert(now);
        }
        if let Some(flight) = self.flights.remove(&key) {
            self.policy.off_the_wire(flight.owner, key.0);
        }
        for sent in self.sends.0.get_mut(&key.0).into_iter().flatten() {
            sent.acknowledged |= sent.key == key;
        }
    }

    // ## What must hold

    fn check_lease(&mut self, process: usize, job: &Job) {
        let now = self.boot_time(process);
        let (incarnation, until) = self.processes[process].lease_known;
        if Some(job.owner.incarnation) != incarnation || now >= until {
            let text = format!(
                "w{process} starts {} at {now:?}, its lease allows {until:?} ({incarnation:?})",
                short(job.row.id)
            );
            self.violated(Invariant::Lease, text);
        }
    }

    fn check_permits(&mut self, life: Life, job: &Job) {
        let own = self.flights.values().filter(|flight| flight.life == life);
        let same_life = own
            .clone()
            .filter(|flight| flight.owner.incarnation == job.owner.incarnation);
        let at_endpoint = same_life
            .clone()
            .filter(|flight| flight.endpoint == job.endpoint.key);
        let (all, here) = (own.count(), at_endpoint.count());
        let suspects = same_life.filter(|flight| flight.suspect).count();
        let limit = usize::from(job.endpoint.settings.max_in_flight);
        if all >= MOST_IN_FLIGHT {
            self.violated(
                Invariant::Permits,
                format!("worker {life:?} has {all} in flight"),
            );
        }
        if here >= limit {
            let key = job.endpoint.key;
            let text = format!("{key:?} has {here} of {limit} in flight at {life:?}");
            self.violated(Invariant::Permits, text);
        }
        if job.suspect && suspects > 0 {
            let text = format!("{} is a suspect and not alone", short(job.row.id));
            self.violated(Invariant::Suspects, text);
        }
    }

    /// A delivery's attempt is repeated only if the worker that made it died or lost its slot before
    /// the outcome was recorded.
    fn check_repetition(&mut self, life: Life, key: FlightKey, job: &Job) {
        let before = self.sends.0.entry(key.0).or_default().clone();
        for sent in before.iter().filter(|sent| sent.key.3 >= key.3) {
            let who = format!("{} attempt {} by {life:?}", short(key.0), key.3);
            if self.store.applied.contains(&(key.0, sent.key.3)) {
                let text = format!("{who}, recorded already: {sent:?}");
                self.violated(Invariant::Repeated, text);
            } else if !sent.acknowledged && self.lives(sent.life) && self.store.owns(sent.owner) {
                let text = format!("{who}, under way already: {sent:?}");
                self.violated(Invariant::Repeated, text);
            } else {
                self.counts.repeated += 1;
            }
        }
        let sent = Sent {
            key,
            life,
            owner: job.owner,
            acknowledged: false,
        };
        self.sends.0.entry(key.0).or_default().push(sent);
    }
}
