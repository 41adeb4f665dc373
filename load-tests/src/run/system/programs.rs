//! How the programs of a scenario are started.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::Options;
use crate::receiver::Verify;
use crate::run::process::Process;

pub(super) async fn start_receiver(
    options: &Options,
    logs: &Path,
) -> anyhow::Result<(Process, SocketAddr)> {
    let verify = match options.verify {
        Verify::All => "all",
        Verify::Sample => "sample",
        Verify::None => "none",
    };
    let mut command = Command::new(&options.own);
    command.args(["receiver", "--verify", verify]);
    if options.hosts > 1 {
        command.args(["--addr", "0.0.0.0:0"]);
    }
    let mut receiver = Process::start("receiver", command, logs, true)?;
    let stdout = receiver
        .child
        .stdout
        .take()
        .context("the receiver has no output")?;
    let line = BufReader::new(stdout)
        .lines()
        .next_line()
        .await?
        .unwrap_or_default();
    let addr = line
        .strip_prefix("http://")
        .and_then(|addr| addr.parse().ok())
        .map(|addr: SocketAddr| (Ipv4Addr::LOCALHOST, addr.port()).into());
    match addr {
        Some(addr) => Ok((receiver, addr)),
        None => {
            receiver.child.wait().await?;
            receiver.check()?;
            bail!("the receiver said {line:?}")
        }
    }
}

/// `postrider-<name>` with nothing of our own environment that it would read.
pub(super) fn program(
    options: &Options,
    name: &str,
    common: &[(&str, String)],
) -> anyhow::Result<Command> {
    let path = options.programs.join(format!("postrider-{name}"));
    if !path.is_file() {
        bail!(
            "{} is missing: cargo build --release --workspace --bins",
            path.display()
        );
    }
    let mut command = Command::new(path);
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if text.starts_with("POSTRIDER_") || text == "RUST_LOG" {
            command.env_remove(&variable);
        }
    }
    command.envs(common.iter().map(|(name, value)| (*name, value)));
    for setting in &options.settings {
        let (program, setting) = setting.split_once(':').with_context(|| setting.clone())?;
        let (variable, value) = setting
            .split_once('=')
            .with_context(|| setting.to_owned())?;
        if program == name {
            command.env(variable, value);
        }
    }
    Ok(command)
}

/// 32 random bytes in base64.
pub(super) fn random_key() -> String {
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    STANDARD.encode(halves.map(uuid::Uuid::into_bytes).concat())
}

/// A connection per endpoint, at the worker and at the receiver, is more than the usual 1,024 files.
/// Our processes inherit the limit; `docs/performance.md` tells an operator the same.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        eprintln!(
            "the limit of open files stays at {:?}: {error}",
            limit.current
        );
    }
}
