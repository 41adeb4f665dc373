//! A program from its arguments to its exit code: what the mains of `postrider-api`,
//! `postrider-worker` and `postrider` have in common.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration. Logs and errors go to stderr.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use super::settings::{ConfigErrors, Settings, args, flags, table};
use super::{budgets, shutdown, telemetry};

/// Why a program ends without success.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage or configuration: exit code 2. The text says what to change.
    Configuration(String),
    /// Anything else: exit code 1.
    Failed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(text) | Self::Failed(text) => out.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Configuration(errors.to_string())
    }
}

impl Failure {
    /// The process's exit code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) => 2,
            Self::Failed(_) => 1,
        }
    }
}

/// A program that serves until it is told to stop.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The settings that it takes as flags, besides the common ones.
    pub settings: &'static [&'static str],
}

/// Parses the arguments, loads the settings, and runs `serve` until it ends.
pub fn main<F, Fut>(program: &Program, serve: F) -> ExitCode
where
    F: FnOnce(Settings, CancellationToken) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let matches = clap::Command::new(program.name)
        .about(program.about)
        .version(program.version)
        .args(args(&[program.settings, table::COMMON]))
        .get_matches();
    exit_code(load(flags(&matches)).and_then(|settings| run(program.version, settings, serve)))
}

/// Settings from these flags, the process's environment and the file; budgets checked.
///
/// # Errors
/// Every problem of the configuration.
pub fn load(flags: BTreeMap<&'static str, String>) -> Result<Settings, Failure> {
    // A value that is no text is not skipped: what it becomes here is refused for what it is.
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    let settings = Settings::load(flags, environment)?;
    budgets::check(&settings)?;
    Ok(settings)
}

/// Sets up logs and runs `serve` on a runtime of its own; SIGINT and SIGTERM cancel its token.
///
/// # Errors
/// What `serve` fails with, or that the runtime cannot be started.
pub fn run<F, Fut>(version: &'static str, settings: Settings, serve: F) -> Result<(), Failure>
where
    F: FnOnce(Settings, CancellationToken) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    telemetry::init_logs(&settings);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("the runtime cannot be started: {error}")))?;
    telemetry::register_common(version);
    runtime.block_on(async {
        let shutdown = shutdown::on_signals()
            .map_err(|error| Failure::Failed(format!("signals cannot be handled: {error}")))?;
        serve(settings, shutdown).await
    })
}

/// Tells a failure on stderr and gives the exit code.
#[must_use]
pub fn exit_code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            #[expect(
                clippy::print_stderr,
                reason = "the last words of a process are for people, whatever the log format"
            )]
            {
                eprintln!("error: {failure}");
            }
            ExitCode::from(failure.code())
        }
    }
}
