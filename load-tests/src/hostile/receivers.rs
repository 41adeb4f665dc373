//! The process that plays the receivers, seen from the sender's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context as _;

use super::receiver::{Counts, Places};

/// The process with the receivers; ends with this one.
pub(super) struct Receivers {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub(super) places: Places,
}

impl Receivers {
    pub(super) fn start(program: PathBuf) -> anyhow::Result<Self> {
        let mut process = Command::new(&program)
            .arg("hostile-receiver")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = process.stdin.take();
        let mut stdout = BufReader::new(process.stdout.take().context("its stdout")?);
        let places = serde_json::from_str(&line(&mut stdout)?)?;
        Ok(Self {
            process,
            stdin,
            stdout,
            places,
        })
    }

    pub(super) fn port_of(&self, name: &str) -> u16 {
        self.places.ports.get(name).copied().unwrap_or(0)
    }

    pub(super) fn counts(&mut self) -> anyhow::Result<Counts> {
        let stdin = self.stdin.as_mut().context("its stdin")?;
        writeln!(stdin, "counts")?;
        Ok(serde_json::from_str(&line(&mut self.stdout)?)?)
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It ends with its stdin; waiting for it leaves no zombie.
        let _ended = self.process.wait();
    }
}

fn line(from: &mut BufReader<ChildStdout>) -> anyhow::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(line)
}
