//! The command line: which commands there are, and who carries them out.
//!
//! Arguments of a command's own are derived; settings come from the one table of
//! `shared::runtime::settings`, so that `--help`, the environment and the TOML file agree.

use std::process::ExitCode;

use clap::{ArgMatches, Command as Clap, CommandFactory as _, FromArgMatches as _, Parser};
use shared::runtime::program::{self, Failure};
use shared::runtime::settings::{Settings, Source, args, flags, table};
use tokio_util::sync::CancellationToken;

use crate::output::{Format, Output};
use crate::{
    config, dev, doctor, journal, key, listen, master_key, migrate, organization, pause, send,
    serve, stats, tenant, verify,
};

const EXAMPLES: &str = "\
Examples:
  postrider dev                            everything on this machine, and a first webhook delivered
  postrider send --type order.created --key prk_… '{\"id\":1}'
                                           publish an event
  postrider listen --port 9000 --secret whsec_…
                                           a receiver that verifies and prints what it gets
  postrider config check                   is this configuration usable, and do its times add up?
  postrider doctor                         what is wrong with this installation, and what to do

In production: `postrider migrate`, then `postrider api` and one or more `postrider worker`,
all with DATABASE_URL and POSTRIDER_MASTER_KEY.

Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration.
Results go to stdout, logs to stderr.";

/// Webhook delivery on PostgreSQL: signed, retried, observable
#[derive(Debug, Parser)]
#[command(name = "postrider", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    /// How results are printed
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        help_heading = "Common settings"
    )]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run everything on this machine and deliver a first webhook
    Dev(dev::Args),
    /// Run the REST API
    Api,
    /// Run a worker: it sends deliveries and records what came of them
    Worker,
    /// Bring the database to the schema of this program
    Migrate(migrate::Args),
    /// Check the configuration, or show where each value comes from
    #[command(subcommand)]
    Config(config::Command),
    /// Organizations: SaaS companies that have tenants
    #[command(subcommand)]
    Organization(organization::Command),
    /// Tenants: receiver sides, each with its own keys, endpoints and events
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// API keys, straight in the database: for the first key of an installation
    #[command(subcommand)]
    Key(key::Command),
    /// The key that everything secret in the database is sealed with
    #[command(subcommand)]
    MasterKey(master_key::Command),
    /// Hold deliveries back for a while: by tenant, by type of event, or both
    #[command(subcommand)]
    Pause(pause::Command),
    /// How fast endpoints answer
    #[command(subcommand)]
    Stats(stats::Command),
    /// Events that an API accepted on local disk while the database was away
    #[command(subcommand)]
    Journal(journal::Command),
    /// What is wrong with this installation, how bad it is, and what to do
    Doctor(doctor::Args),
    /// Publish an event
    Send(send::Args),
    /// Receive deliveries: verify their signatures and print them
    Listen(listen::Args),
    /// Verify the signature of a delivery that was captured
    Verify(verify::Args),
}

impl Command {
    /// Whether its log is its only voice.
    const fn is_server(&self) -> bool {
        matches!(self, Self::Api | Self::Worker)
    }

    /// Whether this command runs until it is told to stop.
    const fn serves(&self) -> bool {
        match self {
            Self::Dev(_) | Self::Api | Self::Worker | Self::Listen(_) => true,
            Self::Migrate(_)
            | Self::Config(_)
            | Self::Organization(_)
            | Self::Tenant(_)
            | Self::Key(_)
            | Self::MasterKey(_)
            | Self::Pause(_)
            | Self::Stats(_)
            | Self::Doctor(_)
            | Self::Journal(_)
            | Self::Send(_)
            | Self::Verify(_) => false,
        }
    }
}

/// Settings that `dev` takes as flags; the others by environment or file.
const DEV: &[&str] = &[
    "DATABASE_URL",
    "POSTRIDER_DATA_DIR",
    "POSTRIDER_API_ADDR",
    "POSTRIDER_ALLOW_CIDRS",
    "POSTRIDER_MAX_IN_FLIGHT",
    "POSTRIDER_DRAIN_TIMEOUT",
];
const DATABASE: &[&str] = &["DATABASE_URL"];
const SEALED: &[&str] = &[
    "DATABASE_URL",
    "POSTRIDER_MASTER_KEY",
    "POSTRIDER_MASTER_KEY_PREVIOUS",
];
const CLIENT: &[&str] = &["POSTRIDER_URL", "POSTRIDER_KEY"];

/// The whole command line, settings included.
pub(crate) fn command() -> Clap {
    let global = |names: &'static [&'static str]| {
        args(&[names])
            .into_iter()
            .map(|argument| argument.global(true))
    };
    let mut command = Cli::command().args(global(table::COMMON));
    for (name, names) in [
        ("dev", DEV),
        ("api", table::API),
        ("worker", table::WORKER),
        ("migrate", DATABASE),
        ("doctor", DATABASE),
        ("send", CLIENT),
    ] {
        command = command.mut_subcommand(name, |sub| sub.args(args(&[names])));
    }
    for (name, names) in [
        ("organization", DATABASE),
        ("tenant", DATABASE),
        ("key", DATABASE),
        ("pause", DATABASE),
        ("journal", DATABASE),
        ("stats", DATABASE),
        ("master-key", SEALED),
    ] {
        command = command.mut_subcommand(name, |sub| sub.args(global(names)));
    }
    command
}

/// Parses the arguments and carries the command out.
pub(crate) fn main() -> ExitCode {
    let matches = command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    program::exit_code(carry_out(cli, &matches))
}

fn carry_out(cli: Cli, matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = program::load(flags(deepest(matches)))?;
    let output = Output::new(cli.output);
    let command = cli.command;
    if !command.is_server() && settings.source("RUST_LOG") == Source::Default {
        // A command tells what matters by itself; its log is for what it did not expect.
        settings = settings.with("RUST_LOG", "warn")?;
    }
    program::run(
        env!("CARGO_PKG_VERSION"),
        settings,
        |settings, shutdown| async move {
            if command.serves() {
                return dispatch(command, &settings, output, shutdown).await;
            }
            tokio::select! {
                result = dispatch(command, &settings, output, shutdown.clone()) => result,
                () = shutdown.cancelled() => Err(Failure::Failed("interrupted".to_owned())),
            }
        },
    )
}

async fn dispatch(
    command: Command,
    settings: &Settings,
    output: Output,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    match command {
        Command::Dev(args) => Box::pin(dev::run(&args, settings, output, shutdown)).await,
        Command::Api => serve::api(settings, shutdown).await,
        Command::Worker => serve::worker(settings, shutdown).await,
        Command::Migrate(args) => migrate::run(&args, settings, output).await,
        Command::Config(command) => config::run(&command, settings, output),
        Command::Organization(command) => organization::run(command, settings, output).await,
        Command::Tenant(command) => tenant::run(command, settings, output).await,
        Command::Key(command) => key::run(command, settings, output).await,
        Command::MasterKey(command) => master_key::run(command, settings, output).await,
        Command::Pause(command) => pause::run(command, settings, output).await,
        Command::Stats(command) => stats::run(command, settings, output).await,
        Command::Doctor(args) => doctor::run(&args, settings, output).await,
        Command::Journal(command) => journal::run(command, settings, output).await,
        Command::Send(args) => send::run(&args, settings, output).await,
        Command::Listen(args) => listen::run(&args, output, shutdown).await,
        Command::Verify(args) => verify::run(&args, output),
    }
}

/// The matches of the innermost command: global arguments are there too.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    let mut innermost = matches;
    while let Some((_, inner)) = innermost.subcommand() {
        innermost = inner;
    }
    innermost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_setting_given_to_an_inner_command_is_found() {
        let matches = command()
            .try_get_matches_from([
                "postrider",
                "tenant",
                "list",
                "--database-url",
                "postgres://h/d",
                "--log",
                "debug",
            ])
            .unwrap();

        let found = flags(deepest(&matches));

        assert_eq!(
            found.get("DATABASE_URL").map(String::as_str),
            Some("postgres://h/d")
        );
        assert_eq!(found.get("RUST_LOG").map(String::as_str), Some("debug"));
    }
}
