//! CPU time per process, out of `/proc`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context as _;
use serde::Serialize;

/// The kernel's unit in `/proc/<pid>/stat`: `USER_HZ`, 100 on every architecture we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Children of PostgreSQL that ended: mostly autovacuum's workers.
const ENDED: &str = "ended (autovacuum)";

/// Seconds of CPU by name.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Cpu {
    pub(super) processes: BTreeMap<String, f64>,
    /// The processes of PostgreSQL, by what they do.
    pub(super) postgres: BTreeMap<String, f64>,
    /// Everything on the machine, ours and others'.
    pub(super) machine: f64,
}

/// One line of `/proc/<pid>/stat`, in ticks.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    own: u64,
    ended_children: u64,
}

/// Reads all clocks. `processes` are single ones, `postmaster` stands for PostgreSQL with its
/// children; `backends` names those of its children that serve a connection.
pub(super) fn read(
    processes: &[(String, u32)],
    postmaster: u32,
    backends: &BTreeMap<u32, String>,
) -> anyhow::Result<Cpu> {
    let mut cpu = Cpu {
        machine: machine()?,
        ..Cpu::default()
    };
    for (name, id) in processes {
        let stat = stat(*id).with_context(|| format!("process {id} ({name})"))?;
        cpu.processes.insert(name.clone(), seconds(stat.own));
    }
    let main = stat(postmaster).context("PostgreSQL's first process")?;
    let mut total = main.own + main.ended_children;
    cpu.postgres
        .insert(ENDED.to_owned(), seconds(main.ended_children));
    for id in process_ids()? {
        if let Some(child) = stat(id).filter(|stat| stat.parent == postmaster) {
            total += child.own;
            let name = backends.get(&id).cloned().unwrap_or_else(|| title(id));
            *cpu.postgres.entry(name).or_default() += seconds(child.own);
        }
    }
    cpu.processes.insert("postgres".to_owned(), seconds(total));
    Ok(cpu)
}

impl Cpu {
    /// What was used since `before`. A backend that ended since counts under [`ENDED`].
    pub(super) fn since(&self, before: &Self) -> Self {
        let difference = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            now.iter()
                .map(|(name, seconds)| {
                    let then = then.get(name).copied().unwrap_or(0.0);
                    (name.clone(), hundredths((seconds - then).max(0.0)))
                })
                .collect()
        };
        Self {
            processes: difference(&self.processes, &before.processes),
            postgres: difference(&self.postgres, &before.postgres),
            machine: hundredths(self.machine - before.machine),
        }
    }

    /// What others on the machine used: a measurement beside them is worth less.
    pub(super) fn others(&self) -> f64 {
        hundredths((self.machine - self.processes.values().sum::<f64>()).max(0.0))
    }
}

/// Without the noise of binary fractions.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

fn process_ids() -> anyhow::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

fn stat(id: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// The name in the second field may hold anything, so fields are counted after its `)`.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, fields) = line.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: number(11)? + number(12)?,
        ended_children: number(13)? + number(14)?,
    })
}

/// What a process of PostgreSQL says it is: `postgres: checkpointer` → `checkpointer`.
fn title(id: u32) -> String {
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let title = line
        .rsplit_once("postgres: ")
        .map_or("other", |(_, title)| title.trim());
    title
        .split(['(', '['])
        .next()
        .unwrap_or(title)
        .trim()
        .to_owned()
}

/// Busy time of all cores: user, nice, system, irq, softirq; not idle, iowait or steal.
fn machine() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    busy(&text)
        .map(seconds)
        .context("/proc/stat has no line `cpu`")
}

fn busy(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|it| it.parse().ok())
        .collect();
    [0, 1, 2, 5, 6]
        .into_iter()
        .map(|at| ticks.get(at).copied())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line = "7 (a (b) c) S 3 7 7 0 -1 4194304 100 0 0 0 250 50 30 20 20 0 1 0 9 0";

        assert_eq!(
            parse_stat(line),
            Some(Stat {
                parent: 3,
                own: 300,
                ended_children: 50
            })
        );
        assert_eq!(parse_stat("7 (a) S 3"), None);
    }

    #[test]
    fn idle_and_waiting_are_not_busy() {
        assert_eq!(
            busy("cpu  10 20 30 4000 500 6 7 0 0 0\ncpu0 1 1 1 1\n"),
            Some(73)
        );
        assert_eq!(busy(""), None);
    }

    #[test]
    fn this_process_has_used_cpu_and_its_parent_is_known() {
        let mut work = 0_u64;
        let before = stat(std::process::id()).unwrap();
        while stat(std::process::id()).unwrap().own < before.own + 2 {
            work = std::hint::black_box(work.wrapping_add(1));
        }

        assert_eq!(before.parent, std::os::unix::process::parent_id());
        assert!(process_ids().unwrap().contains(&std::process::id()));
        assert!(machine().unwrap() > 0.0);
    }
}
