//! The workers of a scenario: started, stopped, killed, paused.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use shared::runtime::clock::boot_time;

use super::{POLL, System, program};
use crate::client::{ask, request};
use crate::run::process::{Process, free_addr};

/// How long workers may take to share the slots out.
const BALANCE: Duration = Duration::from_secs(90);

/// A worker that was started. A killed one stays in the list, so that the others keep their numbers.
#[derive(Debug)]
pub(super) struct Worker {
    process: Process,
    metrics: SocketAddr,
    killed: bool,
}

impl Worker {
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if self.killed {
            return Ok(());
        }
        self.process.check()
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let id = self.process.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw).context("the worker has ended")?;
        Ok(kill_process(id, signal)?)
    }
}

impl System {
    /// Starts one more worker; it is ready some time later.
    pub(in crate::run) fn start_worker(&mut self) -> anyhow::Result<()> {
        let mut command = program(&self.options, "worker", &self.common)?;
        let metrics = free_addr()?;
        command.env("POSTRIDER_METRICS_ADDR", metrics.to_string());
        self.workers_started += 1;
        let log = format!("worker-{}", self.workers_started);
        self.workers.push(Worker {
            process: Process::start_logged("worker", &log, command, &self.logs)?,
            metrics,
            killed: false,
        });
        Ok(())
    }

    /// Where the API's metrics are, and those of the workers that run.
    pub(in crate::run) fn metrics_addrs(&self) -> Vec<SocketAddr> {
        let running = self.workers.iter().filter(|worker| !worker.killed);
        let workers = running.map(|worker| worker.metrics);
        std::iter::once(self.api_metrics).chain(workers).collect()
    }

    /// Waits until all workers are ready.
    pub(in crate::run) async fn workers_ready(&mut self) -> anyhow::Result<()> {
        let running = self.workers.iter().filter(|worker| !worker.killed);
        let addrs: Vec<SocketAddr> = running.map(|worker| worker.metrics).collect();
        for addr in addrs {
            self.ready(addr).await.context("a worker")?;
        }
        Ok(())
    }

    /// Stops all workers as a deploy does: what is on the wire ends first.
    pub(in crate::run) async fn stop_workers(&mut self) -> anyhow::Result<()> {
        for worker in self.workers.drain(..).filter(|worker| !worker.killed) {
            worker.process.stop().await?;
        }
        Ok(())
    }

    /// The number of the running worker that owns the most endpoints: one that is worth disturbing.
    pub(in crate::run) async fn busiest_worker(&self) -> anyhow::Result<usize> {
        let owners = self.postgres.owners().await?;
        let number = |id: u32| {
            let runs = |it: &Worker| !it.killed && it.process.id() == Some(id);
            self.workers.iter().position(runs)
        };
        let busiest = owners.into_iter().find_map(|(id, _)| number(id));
        busiest.context("no worker owns an endpoint")
    }

    /// A worker's process id.
    pub(in crate::run) fn worker_id(&self, number: usize) -> anyhow::Result<u32> {
        let worker = self.workers.get(number).context("no such worker")?;
        worker.process.id().context("the worker has ended")
    }

    /// Waits until each running worker owns at least half of its fair share of the endpoints.
    pub(in crate::run) async fn workers_balanced(&mut self) -> anyhow::Result<()> {
        let deadline = boot_time().after(BALANCE);
        loop {
            self.check()?;
            let owners = self.postgres.owners().await?;
            let running = self.worker_ids().count();
            let all: i64 = owners.iter().map(|(_, endpoints)| endpoints).sum();
            let fair = all / i64::try_from(running.max(1))?;
            let enough = owners.iter().filter(|(_, it)| *it * 2 >= fair);
            if owners.len() == running && enough.count() == running {
                return Ok(());
            }
            anyhow::ensure!(boot_time() < deadline, "after {BALANCE:?}: {owners:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills a worker (SIGKILL).
    pub(in crate::run) async fn kill_worker(&mut self, number: usize) -> anyhow::Result<()> {
        let worker = self.workers.get_mut(number).context("no such worker")?;
        worker.killed = true;
        Ok(worker.process.child.kill().await?)
    }

    /// Pauses a worker for so long (SIGSTOP, SIGCONT).
    pub(in crate::run) async fn pause_worker(
        &self,
        number: usize,
        length: Duration,
    ) -> anyhow::Result<()> {
        let worker = self.workers.get(number).context("no such worker")?;
        worker.signal(Signal::STOP)?;
        tokio::time::sleep(length).await;
        worker.signal(Signal::CONT)
    }

    /// The running workers' names and process ids.
    pub(super) fn worker_names(&self) -> impl Iterator<Item = (String, u32)> + '_ {
        let numbered = self.workers.iter().enumerate();
        numbered.filter_map(|(at, worker)| {
            let id = worker.process.id().filter(|_| !worker.killed)?;
            let name = match at {
                0 => "worker".to_owned(),
                later => format!("worker-{}", later + 1),
            };
            Some((name, id))
        })
    }

    fn worker_ids(&self) -> impl Iterator<Item = u32> + '_ {
        let running = self.workers.iter().filter(|worker| !worker.killed);
        running.filter_map(|worker| worker.process.id())
    }

    /// The sum of a metric's series with this label over the running workers; `None`: no worker has
    /// such a metric.
    pub(in crate::run) async fn metric(
        &self,
        name: &str,
        label: &str,
    ) -> anyhow::Result<Option<f64>> {
        let mut sum = None;
        for worker in self.workers.iter().filter(|worker| !worker.killed) {
            let text = ask(worker.metrics, &request("GET", "/metrics", None, b"")).await?;
            let text = String::from_utf8_lossy(&text);
            for value in series(&text, name, label) {
                *sum.get_or_insert(0.0) += value;
            }
        }
        Ok(sum)
    }

    /// The most memory that a worker has used, in MB: in all its life, or since
    /// [`forget_worker_peaks`](Self::forget_worker_peaks).
    pub(in crate::run) fn worker_peak_mb(&self) -> Option<f64> {
        let peaks = self.worker_ids().filter_map(peak_kb);
        peaks.max().map(|kilobytes| (kilobytes / 1_024) as f64)
    }

    /// From now on the most memory is that of what follows.
    pub(in crate::run) fn forget_worker_peaks(&self) -> anyhow::Result<()> {
        self.worker_ids().try_for_each(forget_peak)
    }
}

/// The values of the series of a metric with a label like `to="open"`; 0 for those with another.
fn series<'t>(text: &'t str, name: &'t str, label: &'t str) -> impl Iterator<Item = f64> + 't {
    text.lines().filter_map(move |line| {
        let (labels, value) = line
            .strip_prefix(name)?
            .strip_prefix('{')?
            .split_once('}')?;
        let has_label = labels.split(',').any(|it| it == label);
        let value: f64 = value.trim().parse().ok()?;
        Some(if has_label { value } else { 0.0 })
    })
}

fn peak_kb(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn forget_peak(id: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{id}/clear_refs");
    // 5: the peak of the resident memory, and nothing else (proc(5)).
    std::fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_a_metric_are_found_by_name_and_label() {
        let text = "# HELP a_total x\na_total{to=\"open\"} 2\na_total{from=\"closed\",to=\"open\"} 3\n\
                    a_total{to=\"closed\"} 5\na_total_more{to=\"open\"} 7\n";

        let found: Vec<f64> = series(text, "a_total", "to=\"open\"").collect();

        assert_eq!(found, [2.0, 3.0, 0.0]);
        assert_eq!(series(text, "b_total", "to=\"open\"").count(), 0);
    }

    #[test]
    fn the_most_memory_is_forgotten_when_asked() {
        const BYTES: usize = 64 << 20;
        let id = std::process::id();
        drop(std::hint::black_box(vec![1_u8; BYTES]));
        let before = peak_kb(id).unwrap();

        forget_peak(id).unwrap();

        let after = peak_kb(id).unwrap();
        assert!(after > 1_000, "{after}");
        assert!(
            after + (32 << 10) < before,
            "{before} kB before, {after} after"
        );
    }
}
