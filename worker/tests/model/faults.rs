//! What comes from outside: events, the API's changes, and what goes wrong.

use shared::domain::delivery::{CloseReason, Kind};
use shared::domain::endpoint::{EndpointState, RateLimit};
use shared::domain::order::OrderKey;
use shared::ids::{EndpointKey, Slot, lower_bound};
use shared::store::commands::Verb;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::order::is_ordered;
use crate::policy::RATE_LIMITS;
use crate::receiver::Mood;
use crate::store::{Endpoint, Final, Live, is_enabled, short};
use crate::world::{Event, MILLI, SECOND, World};

impl World {
    // ## Events

    /// An API process stamps ids, and commits later: ids come in one order, commits in another.
    pub(crate) fn ingest(&mut self) {
        if self.faults.stopped {
            return;
        }
        let wait = self.chance.between(50, 1_200) * MILLI;
        self.after(wait, Event::Ingest);
        if self.faults.database_away {
            return;
        }
        let burst = if self.chance.happens(80) {
            8
        } else {
            self.chance.between(1, 2)
        };
        let same = self.chance.happens(500);
        let first = self.any_endpoint();
        let mut rows = Vec::new();
        for _ in 0..burst {
            let endpoint = if same {
                first.clone()
            } else {
                self.any_endpoint()
            };
            if endpoint.state != EndpointState::Deleted {
                rows.push(self.row(&endpoint));
            }
        }
        let delay = match self.chance.below(100) {
            0..=3 => self.chance.between(200, 4_000) * MILLI,
            4..=20 => self.chance.between(20, 200) * MILLI,
            _ => self.chance.between(1, 10) * MILLI,
        };
        self.after(delay, Event::Accept(rows));
    }

    pub(crate) fn any_endpoint(&mut self) -> Endpoint {
        let all: Vec<&Endpoint> = self.store.endpoints.values().collect();
        (*self.chance.pick(&all).unwrap()).clone()
    }

    pub(crate) fn new_id(&mut self, now: OffsetDateTime) -> Uuid {
        let number = u128::from(self.number());
        let random = u128::from(self.chance.below(1 << 12)) << 64;
        let stamp = lower_bound(now).as_u128();
        Uuid::from_u128(stamp | 0x7_u128 << 76 | random | 0x2_u128 << 62 | number)
    }

    fn row(&mut self, endpoint: &Endpoint) -> Live {
        let in_line = is_ordered(endpoint.key) && self.chance.happens(800);
        let key = i64::try_from(self.chance.below(4)).unwrap() - 2;
        let id = self.new_id(self.database_time());
        Live {
            id,
            event_id: id,
            tenant: endpoint.tenant,
            slot: endpoint.slot,
            endpoint: endpoint.key,
            made: 0,
            charged: 0,
            due: None,
            order: in_line.then_some((OrderKey(key), 0)),
            kind: Kind::Live,
            first_at: None,
            bytes: usize::try_from(self.chance.between(1, 400)).unwrap(),
            version: 0,
            since: self.database_time(),
        }
    }

    /// The commit. Whether the endpoint takes deliveries was seen when the statement began: a row may
    /// still come in for one that was disabled a moment ago, never the other way round.
    pub(crate) fn accept(&mut self, rows: Vec<Live>) {
        if self.faults.database_away {
            return;
        }
        self.accepted(rows.len());
        let mut pairs = Vec::new();
        for mut row in rows {
            row.since = self.database_time();
            let enabled = self
                .store
                .endpoints
                .get(&row.endpoint)
                .is_some_and(is_enabled);
            if !enabled && self.chance.happens(700) {
                let skipped = Some(Final::Closed(CloseReason::EndpointDisabled));
                assert_eq!(self.store.end(row.id, skipped), None);
                continue;
            }
            if self.chance.happens(4) && self.poison.len() < 2 {
                self.poison.insert(row.id);
            }
            if self.chance.happens(20) {
                self.cursed.insert(row.event_id);
            }
            pairs.push((row.slot, row.endpoint));
            self.tell(|| format!("{} is accepted for {:?}", short(row.id), row.endpoint));
            self.store.insert_live(row);
        }
        if self.chance.happens(800) {
            self.hint_everyone(&pairs);
        }
    }

    fn hint_everyone(&mut self, pairs: &[(Slot, EndpointKey)]) {
        for process in 0..self.processes.len() {
            let life = (process, self.processes[process].life);
            if self.processes[process].listens && self.chance.happens(900) {
                let delay = self.chance.between(300, 5 * MILLI);
                self.after(delay, Event::Hint(life, pairs.to_vec()));
            }
        }
    }

    // ## The API

    pub(crate) fn api(&mut self) {
        if self.faults.stopped {
            return;
        }
        let wait = self.chance.between(300, 4_000) * MILLI;
        self.after(wait, Event::Api);
        if self.faults.database_away {
            return;
        }
        let endpoint = self.any_endpoint();
        match self.chance.below(100) {
            0..=29 => self.cancel_one(),
            30..=59 => self.retry_one(),
            60..=64 => self.change(&endpoint, endpoint.state),
            65..=69 => self.change_limit(&endpoint),
            70..=84 if is_enabled(&endpoint) => self.change(&endpoint, EndpointState::Disabled),
            85..=86 => self.change(&endpoint, EndpointState::Deleted),
            _ if endpoint.state == EndpointState::Disabled => {
                self.change(&endpoint, EndpointState::Enabled);
            }
            _ => {}
        }
    }

    fn any_live(&mut self) -> Option<Live> {
        let all: Vec<&Live> = self.store.live.values().collect();
        self.chance.pick(&all).map(|row| (*row).clone())
    }

    fn cancel_one(&mut self) {
        let Some(row) = self.any_live() else { return };
        let now = self.database_time();
        let done = self.store.cancel(row.id, now);
        self.tell(|| format!("API cancels {}: {done}", short(row.id)));
    }

    fn retry_one(&mut self) {
        let Some(row) = self.any_live() else { return };
        self.tell(|| format!("API asks to retry {} now", short(row.id)));
        self.store
            .command(row.slot, row.tenant, row.endpoint, Verb::RetryNow(row.id));
        self.notify_commands();
    }

    fn change(&mut self, endpoint: &Endpoint, to: EndpointState) {
        let now = self.database_time();
        if endpoint.state == EndpointState::Deleted {
            return;
        }
        self.tell(|| format!("API makes {:?} {to:?}", endpoint.key));
        self.store.change_endpoint(endpoint.key, to, now);
        self.notify_commands();
    }

    fn change_limit(&mut self, endpoint: &Endpoint) {
        let limit = *self.chance.pick(&RATE_LIMITS).unwrap();
        self.set_limit(endpoint, limit);
    }

    fn set_limit(&mut self, endpoint: &Endpoint, limit: Option<RateLimit>) {
        if limit.is_some() != endpoint.rate_limit.is_some() {
            self.policy.limit_begins_or_ends(endpoint.key);
        }
        self.store
            .endpoints
            .get_mut(&endpoint.key)
            .unwrap()
            .rate_limit = limit;
        self.change(endpoint, endpoint.state);
    }

    pub(crate) fn notify_commands(&mut self) {
        for process in 0..self.processes.len() {
            let life = (process, self.processes[process].life);
            if self.processes[process].listens && self.chance.happens(700) {
                let delay = self.chance.between(300, 5 * MILLI);
                self.after(delay, Event::WakeCommands(life));
            }
        }
    }

    /// `NOTIFY postrider_slots`.
    pub(crate) fn announce(&mut self) {
        for process in 0..self.processes.len() {
            let life = (process, self.processes[process].life);
            if self.processes[process].listens && self.chance.happens(700) {
                let delay = self.chance.between(300, 5 * MILLI);
                self.after(delay, Event::WakeLease(life));
            }
        }
    }

    /// Listening connections come back one after the other.
    pub(crate) fn everyone_listens(&mut self) {
        for process in 0..self.processes.len() {
            let life = (process, self.processes[process].life);
            self.processes[process].listens = false;
            let delay = self.chance.between(50, 1_500) * MILLI;
            self.after(delay, Event::Listens(life));
        }
    }

    /// Receivers are well, and nothing waits any more: an event closes what is open.
    pub(crate) fn send_canaries(&mut self, to: &[EndpointKey]) {
        // What was meant for a frozen process comes when it should have woken.
        let late_at = self.now.max(self.thawed_at) + 30 * SECOND;
        let endpoints = to.iter().filter_map(|key| self.store.endpoints.get(key));
        let endpoints: Vec<Endpoint> = endpoints.cloned().collect();
        let mut pairs = Vec::new();
        for endpoint in endpoints.iter().filter(|it| is_enabled(it)) {
            let row = self.row(endpoint);
            self.accepted(1);
            pairs.push((row.slot, row.endpoint));
            self.canaries.push((row.id, row.endpoint, late_at));
            self.store.insert_live(row);
        }
        self.tell(|| "canaries".to_owned());
        self.hint_everyone(&pairs);
        self.settle_until(self.now + 600 * SECOND);
    }

    // ## Faults

    pub(crate) fn change_mood(&mut self) {
        if self.faults.stopped {
            return;
        }
        let wait = self.chance.between(1, 6) * SECOND;
        self.after(wait, Event::Mood);
        let moods = [
            Mood::Well,
            Mood::Well,
            Mood::Flaky,
            Mood::Down,
            Mood::Hangs,
            Mood::Refuses,
            Mood::RefusesAll,
            Mood::Missing,
            Mood::Throttles,
        ];
        let mut mood = *self.chance.pick(&moods).unwrap();
        if self.chance.happens(20) {
            mood = Mood::Gone;
        }
        let key = self.any_endpoint().key;
        self.tell(|| format!("the receiver of {key:?} is {mood:?}"));
        self.moods.insert(key, mood);
    }

    pub(crate) fn fault(&mut self) {
        if self.faults.stopped {
            return;
        }
        let wait = self.chance.between(500, 9_000) * MILLI;
        self.after(wait, Event::Fault);
        let process = usize::try_from(self.chance.below(3)).unwrap();
        let length = if self.chance.happens(400) {
            self.chance.between(9_000, 45_000) * MILLI
        } else {
            self.chance.between(300, 9_000) * MILLI
        };
        match self.chance.below(100) {
            0..=19 => self.crash(process, "crashes"),
            20..=44 => self.freeze(process, length),
            45..=54 => self.drain(process),
            55..=66 if !self.faults.database_away => {
                self.tell(|| format!("the database goes away for {} ms", length / MILLI));
                self.database_leaves();
                self.after(length.min(20 * SECOND), Event::DatabaseBack);
            }
            67..=79 if !self.faults.cut_off[process] => {
                self.tell(|| format!("w{process} is cut off for {} ms", length / MILLI));
                self.faults.cut_off[process] = true;
                self.after(length, Event::Joined(process));
            }
            80..=91 => self.faults.slow_records_until = self.now + length,
            92..=99 => self.faults.slow_reads_until = self.now + length,
            _ => {}
        }
    }

    fn freeze(&mut self, process: usize, length: u64) {
        self.tell(|| format!("w{process} is stopped for {} ms", length / MILLI));
        self.counts.pauses += 1;
        self.processes[process].frozen_until = self.now + length;
    }

    pub(crate) fn crash(&mut self, process: usize, how: &str) {
        if !self.processes[process].alive {
            return;
        }
        self.tell(|| format!("w{process} {how}"));
        self.counts.crashes += 1;
        self.end_life(process);
    }

    /// The process is gone, and comes back after a while.
    pub(crate) fn end_life(&mut self, process: usize) {
        let life = self.processes[process].life;
        self.processes[process].alive = false;
        self.flights
            .retain(|_, flight| flight.life != (process, life));
        let pause = if self.faults.stopped {
            2 * SECOND
        } else {
            20 * SECOND
        };
        let back = self.chance.between(300 * MILLI, pause);
        self.after(back, Event::Start(process));
    }

    /// Faults stop: receivers are well, processes run, the database is there.
    pub(crate) fn stop_faults(&mut self) {
        self.tell(|| "faults stop".to_owned());
        self.faults.stopped = true;
        self.faults.cut_off = [false; 3];
        self.faults.slow_records_until = 0;
        self.faults.slow_reads_until = 0;
        for mood in self.moods.values_mut() {
            *mood = Mood::Well;
        }
        for process in &mut self.processes {
            self.thawed_at = self.thawed_at.max(process.frozen_until);
            process.frozen_until = process.frozen_until.min(self.now + SECOND);
        }
        // A backlog behind a slow limit would take long.
        let [.., slow] = RATE_LIMITS;
        let limited: Vec<Endpoint> = self.store.endpoints.values().cloned().collect();
        for endpoint in limited.iter().filter(|it| it.rate_limit == slow) {
            self.set_limit(endpoint, RATE_LIMITS[1]);
        }
        // What kills a worker takes three of them with it, each of which must be missed first.
        let bound = if self.poison.is_empty() { 600 } else { 900 };
        let until = self.now + bound * SECOND;
        self.settle_until(until);
    }
}
