//! The shell around the scheduler: does what it asks for at once, and sees whether that is allowed.

use std::time::Duration;

use uuid::Uuid;
use worker::lines;
use worker::loader::{Known, answers, wants};
use worker::scheduler::{Chore, Close, Effect, Expire, Input, Leaving, LoadRequest, Now};

use crate::bench::{Bench, Flight, opens_by, scheduler};
use crate::reference::Taken;
use crate::store::{ENDPOINT, SLOT, TENANT};

impl Bench {
    /// Does all that is asked for; then nothing may be left that the table allows.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        for _round in 0..1_000 {
            let now = self.now();
            let effects = self.scheduler.effects(now);
            if effects.is_empty() {
                return self.check_wedge();
            }
            self.execute_all(effects)?;
        }
        Err("the scheduler does not come to rest".to_owned())
    }

    fn check_wedge(&self) -> Result<(), String> {
        if self.reference.opening {
            return Err("a ladder was exhausted and the breaker does not open".to_owned());
        }
        let now = self.now().database;
        let waits = |id: &Uuid| !self.reference.is_on_wire(*id);
        let due = self.store.live.values();
        let due = due.filter(|row| row.due.is_none_or(|due| due <= now));
        let waiting = due.filter(|row| waits(&row.id)).count();
        if waiting > 0 && self.reference.must(now) {
            return Err(format!(
                "nothing is sent at {now} although {waiting} deliveries may be: {:?}",
                self.reference
            ));
        }
        Ok(())
    }

    pub(crate) fn execute_all(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        effects
            .into_iter()
            .try_for_each(|effect| self.execute(effect))
    }

    pub(crate) fn execute(&mut self, effect: Effect) -> Result<(), String> {
        let now = self.now();
        match effect {
            Effect::Send(job) => {
                self.reference.start(job.row.id, job.probe, now.database)?;
                let started = now.boot;
                self.flights.push(Flight { job, started });
                // No two at the same instant: their order would be anybody's guess.
                self.passed += Duration::from_micros(1);
            }
            Effect::Load(requests) => self.load(&requests),
            Effect::Scan(slots) => {
                let found = self.store.found();
                let took = Duration::from_millis(1);
                self.tell(Input::Scanned { slots, found, took });
            }
            Effect::Chore(chore) => self.chore(chore, now)?,
            Effect::Change(change) => {
                self.open = opens_by(&change).unwrap_or(self.open);
                if self.open {
                    self.reference.opened(now.database);
                }
                if let Some(runtime) = change.runtime {
                    self.store.save(runtime);
                }
            }
            Effect::Release(slots) => self.handed_over(&slots),
            other @ Effect::Settle(_) => return Err(format!("not asked for here: {other:?}")),
        }
        Ok(())
    }

    fn chore(&mut self, chore: Chore, now: Now) -> Result<(), String> {
        match chore {
            Chore::Close(Close {
                owner,
                endpoint,
                except,
                ..
            }) => {
                self.store.live.retain(|id, _| except.contains(id));
                let (slot, epoch) = (owner.slot, owner.epoch);
                let more = false;
                self.tell(Input::Closed {
                    slot,
                    epoch,
                    endpoint,
                    more,
                });
            }
            Chore::FindOutages { slots, taken_at } => {
                let outage = self.store.outage(taken_at);
                if outage.is_some() {
                    self.reference.outage_found(now.database);
                }
                let found = outage.map(|since| (SLOT, ENDPOINT, TENANT, since));
                let found = Some(found.into_iter().collect());
                self.tell(Input::Outages { slots, found });
            }
            Chore::Expire(Expire {
                owner, endpoint, ..
            }) => {
                let (slot, epoch) = (owner.slot, owner.epoch);
                let more = false;
                self.tell(Input::Expired {
                    slot,
                    epoch,
                    endpoint,
                    more,
                });
            }
            other @ (Chore::Revive(_) | Chore::Park(_)) => {
                return Err(format!("not asked for here: {other:?}"));
            }
        }
        Ok(())
    }

    fn load(&mut self, requests: &[LoadRequest]) {
        let now = self.now().database;
        let asked = requests.iter().filter(|request| request.config);
        let configs = asked.map(|_| (ENDPOINT, self.store.config())).collect();
        let asked = requests.iter().filter(|request| request.history);
        let history = asked.map(|_| (ENDPOINT, self.store.history())).collect();
        let (in_line, _) = lines::wants(requests, &configs);
        let rows = self.store.load(&wants(requests), now);
        let mut loaded = answers(requests, Known { configs, history }, rows, now);
        let none = shared::store::queue::Lines::default();
        lines::hand_out(&mut loaded, requests, (&in_line, none), now);
        self.tell(Input::Loaded(loaded));
    }

    /// The next worker takes it over.
    fn handed_over(&mut self, slots: &[Leaving]) {
        let clean = slots.iter().all(|slot| !slot.doubtful);
        for handed in slots.iter().flat_map(|slot| &slot.endpoints) {
            self.store.hand_over(handed.bucket, handed.parked_until);
        }
        self.scheduler = scheduler();
        self.life += 1;
        self.take_over(if clean {
            Taken::InOrder
        } else {
            Taken::InDoubt
        });
    }
}
