//! A measurement under load: one generator, in a process of its own, and a window.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;

use super::cpu::Cpu;
use super::outcome::Played;
use super::process::Process;
use super::scenario::{Load, Scenario};
use super::setup::World;
use super::system::System;
use crate::commands::Line;
use crate::generator::Report;
use crate::ids::Id;
use crate::payload;

/// A generator at work.
struct Generating {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
    accepted_file: PathBuf,
}

/// Loads the system as the scenario says. Not for scripts, which load it themselves.
pub(super) async fn play(
    system: &mut System,
    scenario: &Scenario,
    world: &World,
) -> anyhow::Result<Played> {
    let mut generating = generate(system, scenario, world)?;
    let Line::Window { from_ns, until_ns } = generating.line().await? else {
        bail!("the generator did not begin with its window");
    };
    system.tell("measure", &(from_ns..until_ns)).await?;
    let (sent, cpu) = follow(system, &mut generating, from_ns, until_ns).await?;
    let accepted_ids = ids(&std::fs::read(&generating.accepted_file)?);
    generating.process.child.wait().await?;
    Ok(Played {
        sent,
        accepted_ids,
        window: from_ns..until_ns,
        cpu,
        ..Played::default()
    })
}

fn generate(system: &System, scenario: &Scenario, world: &World) -> anyhow::Result<Generating> {
    // The file holds keys: the directory is ours alone.
    let targets_file = system.dir().join("targets.json");
    std::fs::write(&targets_file, serde_json::to_vec(&world.in_turn())?)?;
    let accepted_file = system.dir().join("accepted");
    let mut command = system.companion("generate");
    command
        .args(["--addr", &system.api_addr.to_string()])
        .args(["--warmup", &scenario.warmup.to_string()])
        .args(["--seconds", &scenario.seconds.to_string()])
        .args(["--payload-bytes", &scenario.payload_bytes.to_string()])
        .arg("--targets")
        .arg(&targets_file)
        .arg("--accepted")
        .arg(&accepted_file);
    match scenario.load {
        Load::Closed {
            connections,
            backlog,
        } => command
            .args(["--connections", &connections.to_string()])
            .args(["--backlog", &backlog.to_string()])
            .args(["--fan-out", &scenario.fan_out.to_string()])
            .args(["--receiver", &system.receiver_addr.to_string()]),
        Load::Open {
            per_second,
            connections,
        } => command
            .args(["--connections", &connections.to_string()])
            .args(["--rate", &per_second.to_string()]),
        Load::Scripted(_) => bail!("a script loads the system itself"),
    };
    let mut process = system.start_companion("generator", command)?;
    let stdout = process
        .child
        .stdout
        .take()
        .context("the generator has no output")?;
    Ok(Generating {
        process,
        lines: BufReader::new(stdout).lines(),
        accepted_file,
    })
}

/// Shows the progress until the generator reports; the CPU used in the window.
async fn follow(
    system: &mut System,
    generating: &mut Generating,
    from_ns: u64,
    until_ns: u64,
) -> anyhow::Result<(Report, Cpu)> {
    let generator = generating.process.id().context("the generator has ended")?;
    let (mut before, mut after) = (None, None);
    let mut last = 0;
    loop {
        let due = if before.is_none() { from_ns } else { until_ns };
        let until_due = Duration::from_nanos(due.saturating_sub(payload::now_ns()));
        tokio::select! {
            line = generating.line() => match line? {
                Line::Report(report) => {
                    // The report can come just before the window's end is due; the generator's
                    // figures stay readable until it is waited for.
                    let after = match after {
                        Some(after) => after,
                        None => system.cpu(Some(generator)).await?,
                    };
                    let before = before.context("the window was missed")?;
                    return Ok((*report, Cpu::since(&after, &before)));
                }
                Line::Progress { accepted } => {
                    system.check()?;
                    last = show(system, accepted, last).await?;
                }
                Line::Window { .. } => {}
            },
            () = tokio::time::sleep(until_due), if after.is_none() => {
                let now = system.cpu(Some(generator)).await?;
                if before.is_none() { before = Some(now) } else { after = Some(now) }
            }
        }
    }
}

async fn show(system: &System, accepted: u64, last: u64) -> anyhow::Result<u64> {
    let received = system.taken().await?;
    eprintln!(
        "  accepted {accepted:>9}  received {received:>9}  (+{:>6})  backlog {:>7}",
        received.saturating_sub(last),
        accepted.saturating_sub(received)
    );
    Ok(received)
}
impl Generating {
    async fn line(&mut self) -> anyhow::Result<Line> {
        match self.lines.next_line().await? {
            Some(line) => Ok(serde_json::from_str(&line).context(line)?),
            None => {
                self.process.child.wait().await?;
                self.process.check()?;
                bail!("the generator ended without a report")
            }
        }
    }
}

pub(super) fn ids(bytes: &[u8]) -> Vec<Id> {
    let (ids, _) = bytes.as_chunks::<16>();
    ids.iter().map(|id| Id::from_be_bytes(*id)).collect()
}
