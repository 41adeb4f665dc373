//! The reference machine: written for clearness, with every start of a request kept.

use shared::domain::attempt::Outcome;

/// Milliseconds of the database.
pub(crate) type Millis = u64;

pub(crate) const FAILURES: u32 = 3;
pub(crate) const COOLDOWN: Millis = 3_000;
pub(crate) const MAX_COOLDOWN: Millis = 12_000;
pub(crate) const CAP: usize = 4;
/// The first of the failures that open a breaker started at least so long ago.
const SPAN: Millis = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breaker {
    Closed,
    Open { until: Millis, cooldown: Millis },
    HalfOpen { cooldown: Millis },
}

#[derive(Debug)]
pub(crate) struct Reference {
    limit: Option<(u32, u32)>,
    breaker: Breaker,
    /// Of attempts that were recorded, since the last success: all, and those that this owner saw.
    run: Vec<Millis>,
    own: u32,
    /// The same as the attempts tell it, which know of no breaker.
    recorded: Vec<Millis>,
    /// Whether this owner knows what was tried before it came.
    knows: bool,
    opened_at: Millis,
    parked_until: Millis,
    /// Starts, and what counts as such: a crash may have spent a whole burst just before.
    starts: Vec<Millis>,
}

impl Reference {
    pub(crate) fn new(limit: Option<(u32, u32)>) -> Self {
        Self {
            limit,
            breaker: Breaker::Closed,
            run: Vec::new(),
            own: 0,
            recorded: Vec::new(),
            knows: false,
            opened_at: 0,
            parked_until: 0,
            starts: Vec::new(),
        }
    }

    /// A request starts. Whether it is the probe; and what forbids it, if anything does.
    pub(crate) fn start(&mut self, now: Millis, on_the_wire: usize) -> (bool, Option<String>) {
        let mut problem = None;
        let mut forbid = |what: &str| problem = Some(format!("{what} at {now} ms"));
        let probe = match self.breaker {
            Breaker::Closed => false,
            Breaker::Open { until, cooldown } => {
                if now < until {
                    forbid("a request behind an open breaker");
                }
                self.breaker = Breaker::HalfOpen { cooldown };
                true
            }
            Breaker::HalfOpen { .. } => {
                forbid("a second probe (B1)");
                false
            }
        };
        if now < self.parked_until {
            forbid("a request before the stated time");
        }
        if on_the_wire >= CAP {
            forbid("more requests than the endpoint's limit (O1)");
        }
        self.starts.push(now);
        if let Some(excess) = self.excess() {
            forbid(&format!("{excess} requests too many in a window (R1)"));
        }
        (probe, problem)
    }

    /// How many too many are in the fullest window that ends with the last start.
    fn excess(&self) -> Option<u64> {
        let (per_second, burst) = self.limit?;
        let last = *self.starts.last()?;
        let windows = self.starts.iter().rev().zip(1_u64..);
        let excess = windows.filter_map(|(from, count)| {
            // Milliseconds are rounded: one more of them.
            let allowed = u64::from(burst) + u64::from(per_second) * (last - from + 1) / 1_000;
            count.checked_sub(allowed).filter(|excess| *excess > 0)
        });
        excess.max()
    }

    /// A request is recorded, by its owner.
    pub(crate) fn ended(
        &mut self,
        outcome: Outcome,
        (started, now): (Millis, Millis),
        probe: bool,
        retry_after: Millis,
    ) {
        match outcome {
            Outcome::Delivered => self.recorded.clear(),
            Outcome::Transient | Outcome::Misconfigured => self.recorded.push(started),
            _ => {}
        }
        if let Breaker::HalfOpen { cooldown } = self.breaker
            && probe
        {
            self.probed(outcome, cooldown, started, now);
        } else if self.breaker == Breaker::Closed {
            self.counted(outcome, started, now);
        }
        let throttled = outcome == Outcome::Throttled;
        let wait = if throttled {
            retry_after.max(1_000)
        } else {
            retry_after
        };
        if retry_after > 0 || throttled {
            self.parked_until = self.parked_until.max(now + wait);
        }
    }

    fn probed(&mut self, outcome: Outcome, cooldown: Millis, started: Millis, now: Millis) {
        match outcome {
            Outcome::Transient | Outcome::Misconfigured => {
                self.run.push(started);
                self.open(now, (2 * cooldown).min(MAX_COOLDOWN), self.opened_at);
            }
            _ => {
                // Alive: what failed before says nothing about now.
                self.breaker = Breaker::Closed;
                self.run.clear();
                self.own = 0;
                self.knows = true;
            }
        }
    }

    fn counted(&mut self, outcome: Outcome, started: Millis, now: Millis) {
        match outcome {
            Outcome::Delivered => {
                self.run.clear();
                self.own = 0;
                self.knows = true;
            }
            Outcome::Transient | Outcome::Misconfigured if started >= self.opened_at => {
                self.run.push(started);
                self.own += 1;
                let known = if self.knows {
                    self.run.len()
                } else {
                    usize::try_from(self.own).unwrap()
                };
                self.knows = true;
                let first = self.run.iter().min().unwrap();
                if known >= usize::try_from(FAILURES).unwrap() && now >= first + SPAN {
                    self.open(now, COOLDOWN, now);
                }
            }
            // A run of refusals is looked up as well, and with it what failed.
            Outcome::Permanent => self.knows = true,
            _ => {}
        }
    }

    fn open(&mut self, now: Millis, cooldown: Millis, opened_at: Millis) {
        self.opened_at = opened_at;
        self.breaker = Breaker::Open {
            until: now + cooldown,
            cooldown,
        };
    }

    /// Another owner: what it knows is what was stored and recorded.
    pub(crate) fn taken_over(&mut self, crashed: bool, now: Millis) {
        self.knows = false;
        self.own = 0;
        self.run.clone_from(&self.recorded);
        if let Breaker::HalfOpen { cooldown } = self.breaker {
            // A lost probe is simply made again.
            self.breaker = Breaker::Open {
                until: now,
                cooldown,
            };
        }
        if self.breaker == Breaker::Closed {
            self.opened_at = 0;
        }
        if crashed {
            self.parked_until = 0;
            let burst = self.limit.map_or(0, |(_, burst)| burst);
            self.starts.extend((0..burst).map(|_| now));
        }
    }

    /// Recorded after the endpoint's slot was given up: counts as an attempt, and opens or closes nothing.
    pub(crate) fn recorded_late(&mut self) {
        self.recorded.clear();
    }
}
