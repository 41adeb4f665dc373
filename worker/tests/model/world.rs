//! The simulated world: time, the calls to the database, and what goes wrong.
//!
//! Everything happens in steps at instants of simulated time, in an order that follows from the seed.
//! Faults come at random for a while; then they stop, and everything must come to its end (D8).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use shared::domain::delivery::DeadLetterClass;
use shared::domain::endpoint::EndpointState;
use shared::ids::{EndpointKey, Slot, TenantKey};
use shared::policy::classify::SendResult;
use shared::runtime::clock::BootTime;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::chance::Chance;
use crate::check::{Invariant, Mutation, Violation};
use crate::order::Furthest;
use crate::policy::{Policy, RATE_LIMITS};
use crate::receiver::{Flight, FlightKey, Mood, Sends};
use crate::store::{Answer, Endpoint, Execution, Final, Live, SLOTS, Statement, Store, short};
use crate::worker::{Process, Task};

/// Microseconds since the beginning.
pub(crate) type Micros = u64;

pub(crate) const MILLI: Micros = 1_000;
pub(crate) const SECOND: Micros = 1_000_000;
/// The lease, as by default.
pub(crate) const TTL: Duration = Duration::from_secs(10);
pub(crate) const MARGIN: Duration = Duration::from_secs(2);
const PROCESSES: usize = 3;
/// Of the trace; ASCII, as all of it is.
const LONGEST_LINE: usize = 240;
const ENDPOINTS: i64 = 9;
/// Closing a breaker brings dead letters back to life, which may open it again: once each.
const ROUNDS: u8 = 8;
/// A process in one of its lives: what is meant for another is dropped.
pub(crate) type Life = (usize, u64);
pub(crate) type CallId = u64;

#[derive(Debug)]
pub(crate) enum Event {
    Turn(Life),
    Tick(Life),
    Arrive(CallId),
    Commit(CallId),
    Answer(CallId, Option<Answer>),
    GiveUp(CallId),
    Timer(Life, Task, u64),
    Respond(Life, FlightKey, SendResult),
    Hint(Life, Vec<(Slot, EndpointKey)>),
    Listens(Life),
    WakeLease(Life),
    WakeCommands(Life),
    Ingest,
    Accept(Vec<Live>),
    Api,
    Mood,
    Fault,
    Crash(Life),
    Start(usize),
    DatabaseBack,
    Joined(usize),
    FaultsStop,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) life: Life,
    pub(crate) task: Task,
    pub(crate) statement: Option<Statement>,
    pub(crate) execution: Option<Execution>,
    pub(crate) waits: bool,
    pub(crate) answered: bool,
}

/// What is slow or away, and until when.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) stopped: bool,
    pub(crate) database_away: bool,
    pub(crate) cut_off: [bool; PROCESSES],
    pub(crate) slow_records_until: Micros,
    pub(crate) slow_reads_until: Micros,
}

/// What a run did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) steps: u64,
    pub(crate) deliveries: u64,
    pub(crate) sends: u64,
    /// Of these, rows that stood in a line.
    pub(crate) in_line: u64,
    pub(crate) repeated: u64,
    pub(crate) crashes: u64,
    pub(crate) pauses: u64,
    pub(crate) outages: u64,
    pub(crate) lost_answers: u64,
    pub(crate) lives: u64,
    pub(crate) take_overs: u64,
    pub(crate) seconds: u64,
    /// Deliveries that killed three workers and are dead letters now.
    pub(crate) deadly: u64,
    pub(crate) opened: u64,
    pub(crate) probes: u64,
    pub(crate) revived: u64,
    pub(crate) notices: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.deliveries += other.deliveries;
        self.sends += other.sends;
        self.in_line += other.in_line;
        self.repeated += other.repeated;
        self.crashes += other.crashes;
        self.pauses += other.pauses;
        self.outages += other.outages;
        self.lost_answers += other.lost_answers;
        self.lives += other.lives;
        self.take_overs += other.take_overs;
        self.seconds += other.seconds;
        self.deadly += other.deadly;
        self.opened += other.opened;
        self.probes += other.probes;
        self.revived += other.revived;
        self.notices += other.notices;
    }
}

pub(crate) struct World {
    pub(crate) now: Micros,
    pub(crate) chance: Chance,
    pub(crate) store: Store,
    pub(crate) processes: Vec<Process>,
    pub(crate) calls: BTreeMap<CallId, Call>,
    pub(crate) flights: BTreeMap<FlightKey, Flight>,
    pub(crate) sends: Sends,
    pub(crate) furthest: Furthest,
    pub(crate) moods: BTreeMap<EndpointKey, Mood>,
    pub(crate) poison: BTreeSet<Uuid>,
    /// Events that their receiver fails on, whatever its mood.
    pub(crate) cursed: BTreeSet<Uuid>,
    pub(crate) policy: Policy,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    pub(crate) mutation: Mutation,
    pub(crate) violations: Vec<Violation>,
    /// The last lines of what happened, and how many are kept.
    pub(crate) trace: Option<(VecDeque<String>, usize)>,
    queue: BinaryHeap<Reverse<(Micros, u64)>>,
    events: BTreeMap<u64, Event>,
    numbers: u64,
    pub(crate) database_ahead: i64,
    expected: u64,
    settle_by: Micros,
    /// When it is looked again whether all has come to its end.
    looks_at: Micros,
    /// When the last process that was frozen would have gone on.
    pub(crate) thawed_at: Micros,
    rounds: u8,
    /// Events that close what is open, and when each is late.
    pub(crate) canaries: Vec<(Uuid, EndpointKey, Micros)>,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Mutation, traced: Option<usize>) -> Self {
        let mut world = Self {
            now: 0,
            chance: Chance::new(seed),
            store: Store::new(mutation, TTL),
            processes: Vec::new(),
            calls: BTreeMap::new(),
            flights: BTreeMap::new(),
            sends: Sends::default(),
            furthest: Furthest::new(),
            moods: BTreeMap::new(),
            poison: BTreeSet::new(),
            cursed: BTreeSet::new(),
            policy: Policy::default(),
            faults: Faults::default(),
            counts: Counts::default(),
            mutation,
            violations: Vec::new(),
            trace: traced.map(|lines| (VecDeque::new(), lines)),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            numbers: 0,
            database_ahead: 0,
            expected: 0,
            settle_by: 0,
            looks_at: 0,
            thawed_at: 0,
            rounds: 0,
            canaries: Vec::new(),
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for key in 1..=ENDPOINTS {
            let endpoint = Endpoint {
                key: EndpointKey(key),
                tenant: TenantKey(i32::try_from(key % 3).unwrap() + 1),
                slot: Slot(i16::try_from(key).unwrap() % SLOTS),
                state: EndpointState::Enabled,
                version: 1,
                rate_limit: RATE_LIMITS[usize::try_from(key).unwrap() % RATE_LIMITS.len()],
                off_until: None,
            };
            self.store.endpoints.insert(endpoint.key, endpoint);
            self.moods.insert(EndpointKey(key), Mood::Well);
        }
        for index in 0..PROCESSES {
            let boot = Duration::from_micros(self.chance.between(1, 100_000) * SECOND);
            self.processes.push(Process::new(boot, self.mutation));
            let at = self.chance.below(3 * SECOND);
            self.at(at, Event::Start(index));
        }
        self.at(SECOND, Event::Ingest);
        self.at(2 * SECOND, Event::Api);
        self.at(2 * SECOND, Event::Mood);
        self.at(3 * SECOND, Event::Fault);
        let end = self.chance.between(40, 90) * SECOND;
        self.at(end, Event::FaultsStop);
    }

    // ## Time

    pub(crate) fn at(&mut self, at: Micros, event: Event) {
        self.numbers += 1;
        self.queue.push(Reverse((at.max(self.now), self.numbers)));
        self.events.insert(self.numbers, event);
    }

    pub(crate) fn after(&mut self, delay: Micros, event: Event) {
        self.at(self.now + delay, event);
    }

    /// The clock of the database.
    pub(crate) fn database_time(&self) -> OffsetDateTime {
        let base =
            1_800_000_000_000_000_i128 + i128::from(self.now) + i128::from(self.database_ahead);
        OffsetDateTime::from_unix_timestamp_nanos(base * 1_000).unwrap()
    }

    /// The boot clock of a process's machine.
    pub(crate) fn boot_time(&self, process: usize) -> BootTime {
        BootTime(self.processes[process].boot + Duration::from_micros(self.now))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some((trace, lines)) = &mut self.trace {
            if trace.len() == *lines {
                trace.pop_front();
            }
            let mut line = line();
            line.truncate(LONGEST_LINE);
            trace.push_back(format!("{:>10.4} s  {line}", self.now as f64 / 1e6));
        }
    }

    pub(crate) fn violated(&mut self, invariant: Invariant, text: String) {
        self.violations.push(Violation { invariant, text });
    }

    /// Runs until everything has come to its end, or something is wrong.
    pub(crate) fn run(&mut self) -> Option<Violation> {
        while self.violations.is_empty() && self.store.violations.is_empty() {
            let Some(Reverse((at, number))) = self.queue.pop() else {
                break;
            };
            self.now = at;
            self.counts.steps += 1;
            let Some(event) = self.events.remove(&number) else {
                continue;
            };
            self.step(event);
            if self.faults.stopped && (self.is_over() || self.is_late()) {
                self.check_end();
                break;
            }
        }
        self.counts.seconds = self.now / SECOND;
        self.counts.deliveries = self.expected;
        self.counts.revived = self.store.revived;
        let deadly = |id: &&Uuid| {
            self.store.finals.get(*id) == Some(&Final::Dead(DeadLetterClass::Internal))
        };
        self.counts.deadly = u64::try_from(self.poison.iter().filter(deadly).count()).unwrap();
        self.violations.append(&mut self.store.violations);
        self.violations.first().cloned()
    }

    fn is_over(&mut self) -> bool {
        let drains = |process: &Process| process.alive && process.draining;
        self.look_for_late_canaries();
        let quiet = self.store.live.is_empty()
            && self.flights.is_empty()
            && !self.faults.database_away
            && !self.processes.iter().any(drains);
        if !quiet || self.now < self.looks_at {
            return false;
        }
        self.looks_at = self.now + 50 * MILLI;
        if !self.store.left_behind().is_empty() {
            return false;
        }
        let awake = self.store.awake();
        if self.rounds == 0 {
            let all: Vec<EndpointKey> = self.store.endpoints.keys().copied().collect();
            self.send_canaries(&all);
        } else if awake.is_empty() {
            return true;
        } else if self.rounds < ROUNDS {
            self.send_canaries(&awake);
        }
        self.rounds = self.rounds.saturating_add(1);
        false
    }

    /// Where no event fails whatever the receiver's mood, a breaker closes within its cooldown and a margin.
    fn look_for_late_canaries(&mut self) {
        let (now, store, cursed) = (self.now, &self.store, &self.cursed);
        let fails = |key: EndpointKey| {
            let letters = store.dead_letters.values().map(|letter| &letter.row);
            let mut all = letters.chain(store.live.values());
            all.any(|row| row.endpoint == key && cursed.contains(&row.event_id))
        };
        let late = |(id, key, by): &&(Uuid, EndpointKey, Micros)| {
            now > *by && store.live.contains_key(id) && !fails(*key)
        };
        if let Some((id, key, _)) = self.canaries.iter().find(late) {
            let text = format!("{key:?} is well, and does not get {}", short(*id));
            self.violated(Invariant::Wedged, text);
        }
    }

    fn is_late(&self) -> bool {
        self.now >= self.settle_by
    }

    fn check_end(&mut self) {
        for row in self.store.live.values().take(3) {
            let text = format!(
                "{} is still live long after the faults: {row:?}",
                short(row.id)
            );
            self.violations.push(Violation {
                invariant: Invariant::Lost,
                text,
            });
        }
        for (index, process) in self.processes.iter().enumerate() {
            if process.alive && process.draining {
                let text = format!("w{index} does not come to the end of its drain");
                let invariant = Invariant::Lost;
                self.violations.push(Violation { invariant, text });
            }
        }
        for letter in self.store.left_behind().into_iter().take(1) {
            let text = format!(
                "{} died in an outage and stays dead: {letter:?}",
                short(letter.row.id)
            );
            let invariant = Invariant::Replay;
            self.violations.push(Violation { invariant, text });
        }
        for key in self.store.awake() {
            let text = format!(
                "{key:?} does not come to rest: {:?}",
                self.store.runtime.get(&key)
            );
            let invariant = Invariant::Wedged;
            self.violations.push(Violation { invariant, text });
        }
        let found = u64::try_from(self.store.live.len() + self.store.finals.len()).unwrap();
        let expected = self.expected + self.store.revived;
        if found != expected {
            let text = format!("{found} deliveries of {expected} are anywhere");
            self.violations.push(Violation {
                invariant: Invariant::Lost,
                text,
            });
        }
    }

    fn step(&mut self, event: Event) {
        if let Some(wakes_at) = self.frozen(&event) {
            // What is meant for a frozen process waits for it, and then comes in any order.
            let delay = self.chance.below(3 * MILLI);
            self.at(wakes_at + delay, event);
            return;
        }
        match event {
            Event::Turn(life) if self.lives(life) => self.turn(life.0),
            Event::Tick(life) if self.lives(life) => self.tick(life),
            Event::Arrive(call) => self.arrive(call),
            Event::Commit(call) => self.commit(call),
            Event::Answer(call, answer) => self.answered(call, answer),
            Event::GiveUp(call) => self.answered(call, None),
            Event::Timer(life, task, number) if self.lives(life) => {
                self.timer(life.0, task, number)
            }
            Event::Respond(life, flight, result) if self.lives(life) => {
                self.respond(life.0, flight, result);
            }
            Event::Hint(life, pairs) if self.lives(life) => self.hint(life.0, pairs),
            Event::Listens(life) if self.lives(life) => self.listens(life.0),
            Event::WakeLease(life) if self.lives(life) => self.wake_lease(life.0),
            Event::WakeCommands(life) if self.lives(life) => self.wake_commands(life.0),
            Event::Crash(life) if self.lives(life) => self.crash(life.0, "killed"),
            Event::Ingest => self.ingest(),
            Event::Accept(rows) => self.accept(rows),
            Event::Api => self.api(),
            Event::Mood => self.change_mood(),
            Event::Fault => self.fault(),
            Event::Start(process) => self.start(process),
            Event::DatabaseBack => self.database_back(),
            Event::Joined(process) => self.faults.cut_off[process] = false,
            Event::FaultsStop => self.stop_faults(),
            _ => {}
        }
    }

    /// Whether a process lives this life.
    pub(crate) fn lives(&self, life: Life) -> bool {
        let process = &self.processes[life.0];
        process.alive && process.life == life.1
    }

    /// When the process that an event is meant for goes on, if it is stopped now.
    fn frozen(&self, event: &Event) -> Option<Micros> {
        let life = match event {
            Event::Turn(life)
            | Event::Tick(life)
            | Event::Timer(life, ..)
            | Event::Respond(life, ..)
            | Event::Hint(life, _)
            | Event::Listens(life)
            | Event::WakeLease(life)
            | Event::WakeCommands(life) => *life,
            Event::Answer(call, _) | Event::GiveUp(call) => self.calls.get(call)?.life,
            _ => return None,
        };
        let process = &self.processes[life.0];
        (self.lives(life) && process.frozen_until > self.now).then_some(process.frozen_until)
    }

    pub(crate) fn accepted(&mut self, count: usize) {
        self.expected += u64::try_from(count).unwrap();
    }

    pub(crate) fn settle_until(&mut self, at: Micros) {
        self.settle_by = at;
    }
}
