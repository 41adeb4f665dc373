//! Children: `postrider` with an environment of our own, and what it prints while it runs.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// For everything that a loaded machine may do slowly.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// `postrider` with these arguments and none of our own environment's settings.
pub(crate) fn postrider(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("POSTRIDER_") || name == "DATABASE_URL" || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// What a finished child said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Fails unless it ended with this code.
    #[track_caller]
    pub(crate) fn ended_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// The result without the line end.
    pub(crate) fn line(&self) -> &str {
        self.stdout.trim_end()
    }

    /// The result as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Lines of a pipe as they come.
#[derive(Debug, Default)]
struct Lines {
    lines: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Lines {
    fn read(pipe: impl Read + Send + 'static) -> Arc<Self> {
        let lines = Arc::new(Self::default());
        let into = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                into.lines.lock().unwrap().0.push(line.unwrap());
                into.changed.notify_all();
            }
            into.lines.lock().unwrap().1 = true;
            into.changed.notify_all();
        });
        lines
    }

    fn all(&self) -> Vec<String> {
        self.lines.lock().unwrap().0.clone()
    }
}

/// A child in a process group of its own, as a terminal would run it; killed when dropped.
pub(crate) struct Running {
    child: Child,
    stdout: Arc<Lines>,
    stderr: Arc<Lines>,
}

impl Running {
    pub(crate) fn start(mut command: Command, dir: &Path) -> Self {
        let mut child = command
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let stdout = Lines::read(child.stdout.take().unwrap());
        let stderr = Lines::read(child.stderr.take().unwrap());
        Self {
            child,
            stdout,
            stderr,
        }
    }

    /// Waits for a line on stdout.
    #[track_caller]
    pub(crate) fn prints(&self, is_it: impl Fn(&str) -> bool) -> String {
        self.waits(&self.stdout, is_it)
    }

    /// Waits for a line on stderr.
    #[track_caller]
    pub(crate) fn notes(&self, is_it: impl Fn(&str) -> bool) -> String {
        self.waits(&self.stderr, is_it)
    }

    #[track_caller]
    fn waits(&self, lines: &Lines, is_it: impl Fn(&str) -> bool) -> String {
        let guard = lines.lines.lock().unwrap();
        let (guard, _elapsed) = lines
            .changed
            .wait_timeout_while(guard, PATIENCE, |(lines, ended)| {
                !*ended && !lines.iter().any(|line| is_it(line))
            })
            .unwrap();
        let found = guard.0.iter().find(|line| is_it(line)).cloned();
        drop(guard);
        found.unwrap_or_else(|| panic!("the line never came; {}", self.said()))
    }

    /// Everything said so far.
    pub(crate) fn said(&self) -> String {
        format!(
            "stdout:\n{}\nstderr:\n{}",
            self.stdout.all().join("\n"),
            self.stderr.all().join("\n")
        )
    }

    /// Everything on stdout so far.
    pub(crate) fn printed(&self) -> Vec<String> {
        self.stdout.all()
    }

    /// What Ctrl-C does in a terminal: SIGINT to the whole group.
    pub(crate) fn ctrl_c(&self) {
        kill_process_group(self.group(), Signal::INT).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> ExitStatus {
        let polls = PATIENCE.as_millis() / 10;
        for _ in 0..polls {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end; {}", self.said());
    }

    fn group(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            kill_process_group(self.group(), Signal::KILL).unwrap();
            self.child.wait().unwrap();
        }
    }
}
