//! The command line: `receiver`, `generate`, `hostile`, `run`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use shared::runtime::spawn_driver;

use crate::generator::{Backlog, Generator, Pace, Plan, Report};
use crate::hostile::{self, HostileArguments};
use crate::receiver::{Answers, Receiver, Verify};
use crate::run;

#[derive(Debug, Parser)]
#[command(
    name = "load-tests",
    about = "Measures Postrider: load generator, receiver, scenarios"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Receives webhooks and keeps the books; says where it listens on stdout
    Receiver(ReceiverArguments),
    /// Posts events; a line of JSON per second on stdout, the last one is the report
    Generate(GenerateArguments),
    /// Plays receivers that misbehave against the sender; prints a table of what came of each
    Hostile(HostileArguments),
    /// The receivers of `hostile`; ends with its stdin
    #[command(hide = true)]
    HostileReceiver,
    /// Starts everything, runs a scenario (or `all`), prints a table, writes results/<scenario>.json
    Run(run::RunArguments),
}

#[derive(Debug, Args)]
struct ReceiverArguments {
    /// Where to listen; port 0: any free one
    #[arg(long, default_value = "127.0.0.1:0")]
    addr: SocketAddr,
    /// Which signatures are checked
    #[arg(long, value_enum, default_value = "all")]
    verify: Verify,
    /// The answer to a delivery
    #[arg(long, default_value_t = 200)]
    status: u16,
    /// The share of deliveries that fails, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    fail: f64,
    /// The answer to a delivery that fails
    #[arg(long, default_value_t = 503)]
    fail_status: u16,
    /// How long each answer is held back, in milliseconds
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
    /// Never answer a delivery
    #[arg(long)]
    hang: bool,
    /// Close the connection instead of an answer
    #[arg(long)]
    hang_up: bool,
}

#[derive(Debug, Args)]
struct GenerateArguments {
    /// The API
    #[arg(long)]
    addr: SocketAddr,
    /// A JSON file: [{"path", "key", "event_type"}, …], used in turn
    #[arg(long)]
    targets: PathBuf,
    /// Connections; in the closed loop also the number of events under way
    #[arg(long, default_value_t = 128)]
    connections: usize,
    /// Events per second; without it as many as are accepted
    #[arg(long)]
    rate: Option<f64>,
    /// With --receiver: the most events accepted and not yet received
    #[arg(long, requires = "receiver", conflicts_with = "rate")]
    backlog: Option<u32>,
    /// With --backlog: the deliveries of each event
    #[arg(long, default_value_t = 1)]
    fan_out: u64,
    #[arg(long)]
    receiver: Option<SocketAddr>,
    /// Bytes of each payload
    #[arg(long, default_value_t = 512)]
    payload_bytes: usize,
    /// The most events that are posted
    #[arg(long)]
    most: Option<usize>,
    /// How many ordering keys there are, in turn; 0: none
    #[arg(long, default_value_t = 0)]
    keys: u32,
    /// Seconds before the measured window
    #[arg(long, default_value_t = 5.0)]
    warmup: f64,
    /// Seconds of the measured window
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Where to write the ids of accepted events, 16 bytes each
    #[arg(long)]
    accepted: Option<PathBuf>,
}

/// A line of the generator's output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first: the measured window, boot-clock nanoseconds.
    Window { from_ns: u64, until_ns: u64 },
    /// One each second.
    Progress { accepted: u64 },
    /// The last.
    Report(Box<Report>),
}

/// Does what was asked; whether the checks of a run held.
pub fn execute(arguments: Arguments) -> anyhow::Result<bool> {
    // One thread: no wake-ups across cores, and a cost that is easy to attribute.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match arguments.command {
        Command::Receiver(arguments) => runtime.block_on(receive(&arguments)),
        Command::Generate(arguments) => runtime.block_on(generate(&arguments)),
        Command::Hostile(arguments) => runtime.block_on(hostile::command(&arguments)),
        Command::HostileReceiver => runtime.block_on(hostile::serve()),
        Command::Run(arguments) => runtime.block_on(run::run(&arguments)),
    }
}

async fn receive(arguments: &ReceiverArguments) -> anyhow::Result<bool> {
    let answers = Answers {
        status: arguments.status,
        fail: arguments.fail,
        fail_status: arguments.fail_status,
        delay_ms: arguments.delay_ms,
        hang: arguments.hang,
        hang_up: arguments.hang_up,
        limit: None,
    };
    let receiver = Receiver::start(arguments.addr, answers, arguments.verify)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.addr))?;
    say(&format!("http://{}", receiver.addr))?;
    receiver.serve().await;
    Ok(true)
}

async fn generate(arguments: &GenerateArguments) -> anyhow::Result<bool> {
    let generator = Generator::new(plan(arguments)?);
    let window = generator.window();
    say_line(&Line::Window {
        from_ns: window.start,
        until_ns: window.end,
    })?;
    let progress = spawn_driver(tell_progress(Arc::clone(&generator)));
    generator.run().await;
    progress.abort();
    if let Some(path) = &arguments.accepted {
        write_accepted(&generator, path)?;
    }
    say_line(&Line::Report(Box::new(generator.tally().report())))?;
    Ok(true)
}

fn plan(arguments: &GenerateArguments) -> anyhow::Result<Plan> {
    let file = &arguments.targets;
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let targets = serde_json::from_slice(&text).with_context(|| file.display().to_string())?;
    let backlog = arguments
        .backlog
        .zip(arguments.receiver)
        .map(|(most, receiver)| Backlog {
            most,
            fan_out: arguments.fan_out,
            receiver,
        });
    Ok(Plan {
        addr: arguments.addr,
        targets,
        connections: arguments.connections,
        pace: match arguments.rate {
            Some(per_second) => Pace::Open { per_second },
            None => Pace::Closed { backlog },
        },
        payload_bytes: arguments.payload_bytes,
        most: arguments.most,
        batch: 1,
        keys: arguments.keys,
        warmup: Duration::try_from_secs_f64(arguments.warmup)?,
        measured: Duration::try_from_secs_f64(arguments.seconds)?,
    })
}

/// Ends with the task it runs in, or when nobody reads.
async fn tell_progress(generator: Arc<Generator>) {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let accepted = generator.tally().accepted();
        if say_line(&Line::Progress { accepted }).is_err() {
            return;
        }
    }
}

fn write_accepted(generator: &Generator, path: &Path) -> anyhow::Result<()> {
    let bytes: Vec<u8> = generator
        .tally()
        .accepted_ids()
        .iter()
        .flat_map(|id| id.to_be_bytes())
        .collect();
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn say_line(line: &Line) -> anyhow::Result<()> {
    say(&serde_json::to_string(line)?)
}

/// Writes a line of the result to stdout. Errors: nobody reads.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
