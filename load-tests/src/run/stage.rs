//! What a script works with: the running system, its endpoints, and what was found so far.
//!
//! Generators run in this process: scripts need few events, or the time they take does not count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;

use super::cpu::Cpu;
use super::outcome::{Played, Verdict};
use super::scenario::Scenario;
use super::setup::World;
use super::system::{POLL, System};
use crate::generator::{Generator, Pace, Plan, Tally, Target};
use crate::payload::now_ns;
use crate::receiver::watch::{Seen, Watch};
use crate::receiver::{Answers, Change, Numbers};

/// For plans that end with their number of events.
pub(super) const LONG: Duration = Duration::from_secs(3_600);

pub(super) struct Stage<'r> {
    pub(super) system: &'r mut System,
    pub(super) scenario: &'r Scenario,
    pub(super) world: &'r World,
    tally: Tally,
    began: Option<(u64, Cpu)>,
    played: Played,
}

impl<'r> Stage<'r> {
    pub(super) fn new(system: &'r mut System, scenario: &'r Scenario, world: &'r World) -> Self {
        Self {
            system,
            scenario,
            world,
            tally: Tally::new(0..0),
            began: None,
            played: Played::default(),
        }
    }

    pub(super) fn finish(self) -> Played {
        Played {
            sent: self.tally.report(),
            accepted_ids: self.tally.accepted_ids().to_vec(),
            ..self.played
        }
    }

    /// The scenario's seconds.
    pub(super) fn length(&self) -> Duration {
        Duration::try_from_secs_f64(self.scenario.seconds).unwrap_or_default()
    }

    pub(super) fn warmup(&self) -> Duration {
        Duration::try_from_secs_f64(self.scenario.warmup).unwrap_or_default()
    }

    /// A plan with the scenario's payloads: `pace` for so long, to these targets.
    pub(super) fn plan(&self, targets: Vec<Target>, pace: Pace, measured: Duration) -> Plan {
        Plan {
            addr: self.system.api_addr,
            targets,
            connections: 64,
            pace,
            payload_bytes: self.scenario.payload_bytes,
            most: None,
            batch: 1,
            keys: 0,
            warmup: Duration::ZERO,
            measured,
        }
    }

    /// Posts so many events as fast as they are accepted. Errors: one was not, and the script's
    /// figures rely on their number.
    pub(super) async fn post(&mut self, targets: Vec<Target>, events: usize) -> anyhow::Result<()> {
        let closed = Pace::Closed { backlog: None };
        let generator = Generator::new(Plan {
            connections: 256.min(events),
            most: Some(events),
            ..self.plan(targets, closed, LONG)
        });
        generator.run().await;
        self.took(&generator);
        let tally = generator.tally();
        match (tally.not_accepted(), tally.report().first_trouble) {
            (0, _) => Ok(()),
            (some, trouble) => bail!(
                "{some} events were not accepted: {}",
                trouble.unwrap_or_default()
            ),
        }
    }

    /// The same in batches, in so many requests of so many events each.
    pub(super) async fn post_batches(
        &mut self,
        mut targets: Vec<Target>,
        (requests, batch): (usize, usize),
    ) -> anyhow::Result<()> {
        for target in &mut targets {
            target.path.push_str("/batch");
        }
        let closed = Pace::Closed { backlog: None };
        let generator = Generator::new(Plan {
            connections: 16.min(requests),
            batch,
            most: Some(requests),
            ..self.plan(targets, closed, LONG)
        });
        generator.run().await;
        self.took(&generator);
        let report = generator.tally().report();
        // Each connection may have begun its last one when the others had posted enough.
        let accepted = usize::try_from(report.accepted)?;
        if accepted < requests * batch {
            let trouble = report.first_trouble.unwrap_or_default();
            bail!(
                "{accepted} of {} events were accepted: {trouble}",
                requests * batch
            );
        }
        Ok(())
    }

    /// Counts what a generator sent that has ended.
    pub(super) fn took(&mut self, generator: &Arc<Generator>) {
        self.tally.merge(&generator.tally());
    }

    /// Deliveries that were promised so far.
    pub(super) fn promised(&self) -> u64 {
        self.tally.report().deliveries
    }

    /// Changes how endpoints answer from now on.
    pub(super) async fn answer(
        &self,
        endpoints: impl Into<Numbers>,
        answers: Answers,
    ) -> anyhow::Result<()> {
        self.change(endpoints.into(), answers, false).await
    }

    /// The same, and the instant of each request is kept from now on.
    pub(super) async fn journal(
        &self,
        endpoints: impl Into<Numbers>,
        answers: Answers,
    ) -> anyhow::Result<()> {
        self.change(endpoints.into(), answers, true).await
    }

    async fn change(
        &self,
        endpoints: Numbers,
        answers: Answers,
        journal: bool,
    ) -> anyhow::Result<()> {
        let change = Change {
            endpoints,
            answers,
            journal,
        };
        self.system.tell("answers", &[change]).await
    }

    pub(super) async fn watch(&self, watches: &[Watch]) -> anyhow::Result<()> {
        self.system.tell("watch", &watches).await
    }

    pub(super) async fn seen(&self) -> anyhow::Result<Vec<Seen>> {
        self.system.inquire("seen", &()).await
    }

    /// Begins the measured window.
    pub(super) async fn begin(&mut self, until_ns: u64) -> anyhow::Result<()> {
        let from_ns = now_ns();
        self.system.tell("measure", &(from_ns..until_ns)).await?;
        self.began = Some((from_ns, self.system.cpu(None).await?));
        self.played.window = from_ns..until_ns;
        Ok(())
    }

    /// The window ends now and not when it was said to.
    pub(super) fn measured_until(&mut self, until_ns: u64) {
        self.played.window.end = until_ns;
    }

    /// Ends the measured window, which should be over.
    pub(super) async fn end(&mut self) -> anyhow::Result<()> {
        let after = self.system.cpu(None).await?;
        if let Some((_, before)) = &self.began {
            self.played.cpu = after.since(before);
        }
        Ok(())
    }

    /// Microseconds of CPU per delivery of the window, by process.
    pub(super) fn cpu_per(&self, deliveries: u64) -> BTreeMap<String, f64> {
        let each = |seconds: f64| (seconds * 1e7 / deliveries.max(1) as f64).round() / 10.0;
        let processes = self.played.cpu.processes.iter();
        processes
            .map(|(name, it)| (name.clone(), each(*it)))
            .collect()
    }

    /// Waits until so many deliveries of all are received, or `longest` is over; whether they are.
    pub(super) async fn received(
        &mut self,
        deliveries: u64,
        longest: Duration,
    ) -> anyhow::Result<bool> {
        let deadline = boot_time().after(longest);
        loop {
            self.system.check()?;
            if self.system.taken().await? >= deliveries {
                return Ok(true);
            }
            if boot_time() > deadline {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Makes the probe of every open breaker due. The owner keeps its breakers in memory, so the
    /// workers are restarted as a deploy does and read the new instant when they take over. This is
    /// all that is shortened of an outage.
    pub(super) async fn make_probes_due(&mut self) -> anyhow::Result<()> {
        self.system.stop_workers().await?;
        self.system.postgres.make_probes_due().await?;
        for _ in 0..self.scenario.workers {
            self.system.start_worker()?;
        }
        self.system.workers_ready().await
    }

    /// Part of what was accepted stays with the system.
    pub(super) fn leave_unfinished(&mut self) {
        self.played.unfinished = true;
    }

    pub(super) fn allow_duplicates(&mut self, most: u64) {
        self.played.duplicates_allowed = most;
    }

    pub(super) fn detail(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.played.details.insert(name.into(), value.into());
    }

    pub(super) fn latency(&mut self, name: &str, seen: &Seen) {
        self.detail(name, json!(seen.latency_ms));
    }

    /// A figure about speed: at most so much.
    pub(super) fn at_most(&mut self, what: &str, measured: Option<f64>, most: f64) {
        let good = measured.is_some_and(|measured| measured <= most);
        let binding = !self.scenario.short;
        self.verdict(what, format!("<= {most}"), measured, (good, binding));
    }

    /// A figure about speed: less than so much.
    pub(super) fn below(&mut self, what: &str, measured: f64, bound: f64) {
        let binding = !self.scenario.short;
        let good = measured < bound;
        self.verdict(what, format!("< {bound}"), Some(measured), (good, binding));
    }

    /// A figure about speed: at least so much.
    pub(super) fn at_least(&mut self, what: &str, measured: Option<f64>, least: f64) {
        let good = measured.is_some_and(|measured| measured >= least);
        let binding = !self.scenario.short;
        self.verdict(what, format!(">= {least}"), measured, (good, binding));
    }

    /// What has to hold however slow the machine is: at most so much.
    pub(super) fn never_above(&mut self, what: &str, measured: Option<f64>, most: f64) {
        let good = measured.is_some_and(|measured| measured <= most);
        self.verdict(what, format!("<= {most}"), measured, (good, true));
    }

    fn verdict(
        &mut self,
        what: &str,
        figure: String,
        measured: Option<f64>,
        (good, binding): (bool, bool),
    ) {
        self.played.verdicts.push(Verdict {
            what: what.to_owned(),
            figure,
            measured: measured.map(|it| (it * 1e4).round() / 1e4),
            good,
            binding,
        });
    }
}

/// Sleeps until an instant of the boot clock, in nanoseconds.
pub(super) async fn until(at_ns: u64) {
    tokio::time::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns()))).await;
}

/// `length` in nanoseconds.
pub(super) fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// `part / whole`; `None` where there is no whole.
pub(super) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Per second, over a window in nanoseconds.
pub(super) fn per_second(count: u64, window: &Range<u64>) -> f64 {
    let seconds = window.end.saturating_sub(window.start) as f64 / 1e9;
    count as f64 / seconds.max(0.001)
}
