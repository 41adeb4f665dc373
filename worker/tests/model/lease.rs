//! The lease loop, step by step as in `worker::lease`; what it decides is decided by
//! `worker::tenure`, the code under test.

use std::collections::{BTreeSet, HashMap, VecDeque};

use shared::ids::{Epoch, Incarnation, Slot};
use shared::runtime::clock::BootTime;
use shared::store::slots::{Census, Handed, Taken};
use uuid::Uuid;
use worker::admission::TakeOver;
use worker::scheduler::{self, Input, Leaving};
use worker::tenure::{Balance, Tenure};

use crate::check::Mutation;
use crate::store::{Answer, SLOTS, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, MARGIN, MILLI, Micros, SECOND, TTL, World};

const BUDGET: Micros = 3 * SECOND;

/// Where the loop stands: what it waits for.
#[derive(Debug, Default)]
enum At {
    /// A pause before connecting again.
    #[default]
    Pause,
    Connecting,
    Joining(BootTime),
    Renewing(BootTime),
    Draining,
    Leaving,
    DeclaringDead,
    Counting,
    Reclaiming(Census),
    Acquiring,
    /// Slots were taken; then, perhaps, to what the census says.
    Suspects(Vec<Taken>, Option<Census>),
    /// Until the next renewal, by timer of this number.
    Waiting(u64),
    /// For what changed in the slots to be stored, at most so long.
    Settling(Vec<Leaving>, u64),
    Releasing(Vec<(Slot, Epoch)>),
    Left,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseLoop {
    at: At,
    asked: CallId,
    incarnation: Option<Incarnation>,
    joined: bool,
    tenure: Option<Tenure>,
    releases: VecDeque<Vec<Leaving>>,
    /// What the commands are read for.
    pub(crate) owned: BTreeSet<Slot>,
}

impl LeaseLoop {
    pub(crate) const fn has_left(&self) -> bool {
        matches!(self.at, At::Left)
    }

    /// The life that has begun, if it has.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation.filter(|_| self.joined)
    }
}

impl World {
    pub(crate) fn connect_lease(&mut self, index: usize) {
        if self.processes[index].lease.incarnation.is_none() {
            let id = u128::from(self.chance.draw()) << 64 | u128::from(self.chance.draw());
            self.processes[index].lease.incarnation = Some(Incarnation(Uuid::from_u128(id)));
        }
        self.lease_asks(index, At::Connecting, Statement::Connect);
    }

    fn lease_asks(&mut self, index: usize, at: At, statement: Statement) {
        let call = self.call(index, Task::Lease, statement, BUDGET);
        self.processes[index].lease.asked = call;
        self.processes[index].lease.at = at;
    }

    fn lease_pauses(&mut self, index: usize, length: Micros) {
        let number = self.number();
        self.processes[index].lease.at = At::Pause;
        self.processes[index].lease.asked = number;
        let life = (index, self.processes[index].life);
        self.after(length, Event::Timer(life, Task::Lease, number));
    }

    pub(crate) fn lease_timer(&mut self, index: usize, number: u64) {
        match self.processes[index].lease.at {
            At::Pause if self.processes[index].lease.asked == number => self.connect_lease(index),
            At::Waiting(timer) if timer == number => self.renew(index),
            At::Settling(_, timer) if timer == number => self.hand_over(index),
            _ => {}
        }
    }

    pub(crate) fn wake_lease(&mut self, index: usize) {
        if matches!(self.processes[index].lease.at, At::Waiting(_)) {
            self.renew(index);
        }
    }

    fn me(&self, index: usize) -> Incarnation {
        self.processes[index].lease.incarnation.unwrap()
    }

    fn tenure(&mut self, index: usize) -> &mut Tenure {
        self.processes[index].lease.tenure.as_mut().unwrap()
    }

    fn renew(&mut self, index: usize) {
        let sent_at = self.boot_time(index);
        let in_flight = self.processes[index].in_flight.clone();
        let me = self.me(index);
        self.lease_asks(
            index,
            At::Renewing(sent_at),
            Statement::Renew(me, in_flight),
        );
    }

    pub(crate) fn lease_hears(&mut self, index: usize, call: CallId, answer: Option<Answer>) {
        if self.processes[index].lease.asked != call {
            return;
        }
        let at = std::mem::take(&mut self.processes[index].lease.at);
        match (at, answer) {
            (At::Connecting, Some(_)) => self.connected(index),
            (At::Joining(sent), Some(Answer::Time(Some(now)))) => self.joined(index, sent, now),
            (At::Joining(_), _) => self.lease_pauses(index, SECOND),
            (At::Renewing(_), Some(Answer::Time(None))) => self.lost(index),
            (At::Renewing(sent), Some(Answer::Time(Some(now)))) => self.renewed(index, sent, now),
            (At::Draining, Some(_)) => {
                if self.tenure(index).held().is_empty() {
                    let me = self.me(index);
                    self.lease_asks(index, At::Leaving, Statement::Leave(me));
                } else {
                    self.lease_waits(index);
                }
            }
            (At::Leaving, Some(_)) => {
                self.announce();
                self.forget(index);
                self.processes[index].lease.at = At::Left;
            }
            (At::DeclaringDead, Some(_)) => self.count(index),
            (At::Counting, Some(Answer::Census(census))) => self.counted(index, census),
            (At::Reclaiming(census), Some(Answer::Taken(slots))) => {
                self.ask_suspects(index, slots, Some(census));
            }
            (At::Acquiring, Some(Answer::Taken(slots))) => self.ask_suspects(index, slots, None),
            (At::Suspects(slots, census), Some(Answer::Suspects(suspects))) => {
                self.took(index, slots, suspects);
                match census {
                    Some(census) => self.balance(index, &census),
                    None => self.lease_waits(index),
                }
            }
            (At::Releasing(leaving), answer) => {
                if answer.is_some() {
                    self.announce();
                }
                self.gave(index, leaving);
                self.renew(index);
            }
            // Whatever failed, and whether it took effect or not: a new connection.
            _ => {
                let pause = self.chance.between(25, 1_000) * MILLI;
                self.lease_pauses(index, pause);
            }
        }
    }

    fn connected(&mut self, index: usize) {
        let now = self.boot_time(index);
        if self.processes[index].lease.joined {
            self.tenure(index).connected(now);
            self.renew(index);
        } else {
            let me = self.me(index);
            self.lease_asks(index, At::Joining(now), Statement::Join(me));
        }
    }

    fn joined(&mut self, index: usize, sent: BootTime, now: time::OffsetDateTime) {
        let boot = self.boot_time(index);
        let me = self.me(index);
        let process = &mut self.processes[index];
        process.clock.measured(sent, boot, now);
        process.lease.joined = true;
        process.lease.tenure = Some(Tenure::new(TTL, boot));
        process.lease_known = (Some(me), sent.after(TTL - MARGIN));
        self.input(index, Input::Born(me));
        self.input(index, Input::Renewed { sent_at: sent });
        self.announce();
        self.renew(index);
    }

    fn renewed(&mut self, index: usize, sent_at: BootTime, now: time::OffsetDateTime) {
        let boot = self.boot_time(index);
        let me = self.me(index);
        let process = &mut self.processes[index];
        process.clock.measured(sent_at, boot, now);
        process.lease_known = (Some(me), sent_at.after(TTL - MARGIN));
        self.input(index, Input::Renewed { sent_at });
        self.tenure(index).renewed(sent_at);
        if self.processes[index].draining {
            self.lease_asks(index, At::Draining, Statement::Drain(me));
        } else if self.tenure(index).may_declare_dead(boot) {
            self.lease_asks(index, At::DeclaringDead, Statement::DeclareDead(me));
        } else {
            self.count(index);
        }
    }

    fn count(&mut self, index: usize) {
        let me = self.me(index);
        self.lease_asks(index, At::Counting, Statement::Census(me));
    }

    fn counted(&mut self, index: usize, census: Census) {
        let now = self.boot_time(index);
        self.tenure(index)
            .first_death_in(census.first_death_in, now);
        if self.mutation == Mutation::NoComparison {
            return self.balance(index, &census);
        }
        let differences = self.tenure(index).compare(&census.mine);
        if !differences.lost.is_empty() {
            self.tell(|| format!("w{index} has lost {:?}", differences.lost));
            self.publish(index);
            self.input(index, Input::Released(differences.lost));
        }
        if differences.unknown.is_empty() {
            self.balance(index, &census);
        } else {
            let me = self.me(index);
            let statement = Statement::Reclaim(me, differences.unknown);
            self.lease_asks(index, At::Reclaiming(census), statement);
        }
    }

    fn ask_suspects(&mut self, index: usize, slots: Vec<Taken>, census: Option<Census>) {
        match census {
            Some(census) if slots.is_empty() => self.balance(index, &census),
            None if slots.is_empty() => self.lease_waits(index),
            census => self.lease_asks(index, At::Suspects(slots, census), Statement::Suspects),
        }
    }

    fn took(&mut self, index: usize, taken: Vec<Taken>, suspects: HashMap<Uuid, u16>) {
        let slots: Vec<_> = taken.iter().map(|it| (it.slot, it.epoch)).collect();
        self.tell(|| format!("w{index} has {slots:?}"));
        self.tenure(index).took(&slots);
        self.publish(index);
        let slots = taken.iter().map(taken_over).collect();
        self.input(index, Input::Acquired { slots, suspects });
    }

    fn publish(&mut self, index: usize) {
        let held = self.tenure(index).held().keys().copied().collect();
        self.processes[index].lease.owned = held;
    }

    fn balance(&mut self, index: usize, census: &Census) {
        let all = usize::try_from(SLOTS).unwrap();
        match self.tenure(index).balance(all, census.workers, census.free) {
            Balance::Keep => {}
            Balance::Release(count) => self.input(index, Input::Release { count }),
            Balance::Acquire(count) => {
                let me = self.me(index);
                return self.lease_asks(index, At::Acquiring, Statement::Acquire(me, count));
            }
        }
        self.lease_waits(index);
    }

    fn lease_waits(&mut self, index: usize) {
        let number = self.number();
        self.processes[index].lease.at = At::Waiting(number);
        let life = (index, self.processes[index].life);
        let now = self.boot_time(index);
        let pause = u64::try_from(self.tenure(index).pause(now).as_micros()).unwrap();
        self.after(pause, Event::Timer(life, Task::Lease, number));
        self.release_next(index);
    }

    /// The scheduler gives up slots.
    pub(crate) fn give_up(&mut self, index: usize, slots: Vec<Leaving>) {
        self.processes[index].lease.releases.push_back(slots);
        self.release_next(index);
    }

    fn release_next(&mut self, index: usize) {
        if !matches!(self.processes[index].lease.at, At::Waiting(_)) {
            return;
        }
        let Some(asked) = self.processes[index].lease.releases.pop_front() else {
            return;
        };
        let number = self.number();
        self.processes[index].lease.at = At::Settling(asked, number);
        let life = (index, self.processes[index].life);
        self.after(BUDGET, Event::Timer(life, Task::Lease, number));
        self.wake_hand_over(index);
    }

    /// What changed about endpoints was stored.
    pub(crate) fn wake_hand_over(&mut self, index: usize) {
        let process = &self.processes[index];
        let At::Settling(asked, _) = &process.lease.at else {
            return;
        };
        let slots: Vec<Slot> = asked.iter().map(|it| it.slot).collect();
        if process.transitions.is_settled(&slots) {
            self.hand_over(index);
        }
    }

    fn hand_over(&mut self, index: usize) {
        let At::Settling(asked, _) = std::mem::take(&mut self.processes[index].lease.at) else {
            return;
        };
        let handed = asked.iter().flat_map(handed_over).collect();
        let all: Vec<Slot> = asked.iter().map(|it| it.slot).collect();
        let settled = self.processes[index].transitions.is_settled(&all);
        let doubtful = asked.iter().filter(|it| it.doubtful || !settled);
        let doubtful = doubtful.map(|it| it.slot).collect();
        let slots = asked.iter().map(|it| (it.slot, it.epoch)).collect();
        let leaving = self.tenure(index).still_held(slots);
        let me = self.me(index);
        let statement = Statement::Release(me, leaving.clone(), handed, doubtful);
        self.lease_asks(index, At::Releasing(leaving), statement);
    }

    fn gave(&mut self, index: usize, leaving: Vec<(Slot, Epoch)>) {
        self.tell(|| format!("w{index} gave {leaving:?}"));
        self.tenure(index).gave(&leaving);
        self.publish(index);
        self.input(index, Input::Released(leaving));
    }

    fn forget(&mut self, index: usize) {
        let lease = &mut self.processes[index].lease;
        lease.joined = false;
        lease.incarnation = None;
        lease.owned.clear();
        self.processes[index].lease_known.0 = None;
        self.input(index, Input::LeaseLost);
    }

    /// Declared dead: another life begins, in the same process.
    fn lost(&mut self, index: usize) {
        self.tell(|| format!("w{index} was declared dead"));
        self.forget(index);
        self.connect_lease(index);
    }
}

fn taken_over(taken: &Taken) -> scheduler::Taken {
    scheduler::Taken {
        slot: taken.slot,
        how: TakeOver {
            epoch: taken.epoch,
            clean: taken.clean,
            emptied_at: taken.emptied_at,
        },
    }
}

fn handed_over(leaving: &Leaving) -> impl Iterator<Item = Handed> {
    leaving.endpoints.iter().map(|endpoint| Handed {
        endpoint: endpoint.endpoint,
        slot: leaving.slot,
        epoch: leaving.epoch,
        tenant: endpoint.tenant,
        tat: endpoint.bucket.map(|(position, _)| position),
        version: endpoint.bucket.map_or(0, |(_, version)| version),
        parked_until: endpoint.parked_until,
    })
}
