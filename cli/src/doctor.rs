//! `postrider doctor`: asks the database, and the processes' metrics, what is wrong with an installation.
//!
//! The facts come from `store::doctor`, what they mean is `policy::doctor`; here is the order in which they are asked
//! for, within what time, and how findings are told.
//!
//! # Invariants
//! - Reads only, and may run beside everything, any time: each question has a deadline, the queues are read in pages.
//! - A question that fails is a finding (*unknown*), and the others are asked all the same.

mod pool;

use std::time::Duration;

use serde::Serialize;
use shared::ids::{SLOT_COUNT, Slot};
use shared::policy::doctor::{Astray, Clock, Finding, Horizon, Partitions, State, Table, Waiting};
use shared::runtime::budgets;
use shared::runtime::clock::{boot_time, wall_time};
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::doctor::{self as facts, Queue};
use shared::store::oldest::{self, Oldest};
use shared::store::partitions::State as Attachment;
use shared::store::pool::within;
use shared::store::{Database, Role, Session, StoreError, gauges, health, migrate, partitions};
use time::OffsetDateTime;

use crate::output::{Output, note};
use crate::store::{database, migrate_failure, store_failure};

/// One question.
const BUDGET: Duration = Duration::from_secs(15);
/// Slots in one question for the oldest delivery.
const SLOTS: usize = 32;
/// How often people are told how far it is with the queues.
const TOLD_EVERY: i64 = 200_000;

/// Arguments of `postrider doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs DATABASE_URL, and the settings that API and workers run with (their times are added up). It only reads, and may
run beside them. It looks at: the connection and its clock, the schema, what makes an accepted event durable, free
connections, locks, old snapshots, dead rows, partitions made ahead, workers and their leases, jobs, every delivery in
the queues (each must have an owner or a due time, an endpoint and an event), the deliveries of the newest events (each
must be in one place), the oldest delivery that could go, dead letters that are our own fault, and the API's pool.

Exit codes: 0 nothing critical, 1 something critical (with --strict: anything that is not good), 2 wrong configuration.

Examples:
  postrider doctor
  postrider doctor --strict --output json | jq '.findings[] | select(.state != \"good\")'
  postrider doctor --metrics 10.0.0.7:9464 --metrics 10.0.0.8:9464")]
pub(crate) struct Args {
    /// Also end with 1 for warnings, and for what could not be found out
    #[arg(long)]
    strict: bool,
    /// How long to look at the queues at most
    #[arg(long, value_name = "LENGTH", default_value = "60s", value_parser = humantime::parse_duration)]
    deadline: Duration,
    /// Where an API's metrics are (POSTRIDER_METRICS_ADDR there); may be given several times [default: 127.0.0.1:9464,
    /// if something listens there]
    #[arg(long, value_name = "ADDR")]
    metrics: Vec<String>,
}

/// What is told.
#[derive(Debug, Serialize)]
struct Report {
    /// The worst state of all findings.
    worst: State,
    findings: Vec<Finding>,
}

pub(crate) async fn run(args: &Args, settings: &Settings, output: Output) -> Result<(), Failure> {
    let database = database(settings)?;
    let mut findings = vec![sums(settings)];
    let begun = boot_time();
    match within(BUDGET, database.connect(Role::Worker)).await {
        Ok(session) => {
            let found = format!(
                "a session after {} ms",
                boot_time().since(begun).as_millis()
            );
            findings.push(Finding::good("connection", found));
            findings.extend(examine(&database, &session, args, settings, output).await);
        }
        Err(error) => findings.push(unreachable(error)),
    }
    findings.extend(pool::findings(&args.metrics).await);
    let worst = findings.iter().map(|one| one.state).max();
    let report = Report {
        worst: worst.unwrap_or(State::Unknown),
        findings,
    };
    output.result(&report, text);
    verdict(&report, args.strict)
}

/// The sums were checked when the settings were read: here they nest.
fn sums(settings: &Settings) -> Finding {
    let sums = budgets::budgets(settings).len();
    let longest = humantime::format_duration(budgets::longest_ladder());
    Finding::good(
        "budgets",
        format!(
            "{sums} sums of times nest; at most {longest} from a first attempt to a dead letter"
        ),
    )
}

fn unreachable(error: StoreError) -> Finding {
    let read_only = matches!(&error, StoreError::Unavailable(text) if text.contains("read-only"));
    let text = match store_failure(error) {
        Failure::Configuration(text) | Failure::Failed(text) => text,
    };
    let advice = if read_only {
        "no server of DATABASE_URL takes writes: promote a replica, or name the primary"
    } else {
        "nothing is accepted or delivered without it; API and workers go on by themselves when it is back"
    };
    Finding::bad(
        "connection",
        State::Critical,
        text.replace('\n', " "),
        advice,
    )
}

/// Everything that the database is asked.
async fn examine(
    database: &Database,
    session: &Session,
    args: &Args,
    settings: &Settings,
    output: Output,
) -> Vec<Finding> {
    let mut findings = vec![writable(session).await, schema(database).await];
    if findings
        .iter()
        .any(|one| one.check == "schema" && one.state != State::Good)
    {
        // The other questions are about the tables of this version.
        return findings;
    }
    findings.extend(many("server", facts::server(session), |it| it.findings()).await);
    findings.push(one("horizon", horizon(session), |it| it.finding()).await);
    findings.push(
        one("dead_rows", facts::tables(session), |it| {
            Table::finding(&it)
        })
        .await,
    );
    findings.push(one("partitions", days(session), |it| it.finding()).await);
    findings.extend(many("slots", facts::workers(session), |it| it.findings()).await);
    findings.push(
        one("jobs", facts::jobs(session, &worker::JOBS), |it| {
            it.finding()
        })
        .await,
    );
    let timeout = budgets::longest_request(settings);
    let events = settings.duration("POSTRIDER_RETENTION_EVENTS");
    let max_age = events.saturating_sub(budgets::MAX_AGE_MARGIN);
    let endpoints = facts::endpoints(session, timeout, max_age);
    findings.push(one("endpoint_budgets", endpoints, |it| it.finding()).await);
    findings.extend(deliveries(session, args, output).await);
    findings
}

async fn deliveries(session: &Session, args: &Args, output: Output) -> Vec<Finding> {
    let now = match within(BUDGET, partitions::database_time(session)).await {
        Ok(now) => now,
        Err(error) => return vec![failed("queues", &error)],
    };
    // Its own deadline is per page, and for all of them.
    let queues = queues(session, now, args.deadline, output).await;
    vec![
        queues.map_or_else(|error| failed("queues", &error), |astray| astray.finding()),
        one("newest_events", facts::newest(session, now), |it| {
            it.finding()
        })
        .await,
        one("oldest_pending", oldest(session, now), |it| it.finding()).await,
        one("dead_letters", facts::dead_letters(session, now), |it| {
            it.finding()
        })
        .await,
    ]
}

/// Asks one question: the finding of its answer.
async fn one<T>(
    check: &'static str,
    question: impl Future<Output = Result<T, StoreError>>,
    finding: impl FnOnce(T) -> Finding,
) -> Finding {
    match within(BUDGET, question).await {
        Ok(answer) => finding(answer),
        Err(error) => failed(check, &error),
    }
}

/// The same, for an answer with several findings.
async fn many<T>(
    check: &'static str,
    question: impl Future<Output = Result<T, StoreError>>,
    findings: impl FnOnce(T) -> Vec<Finding>,
) -> Vec<Finding> {
    match within(BUDGET, question).await {
        Ok(answer) => findings(answer),
        Err(error) => vec![failed(check, &error)],
    }
}

fn failed(check: &'static str, error: &StoreError) -> Finding {
    Finding::unknown(
        check,
        format!("it could not be found out: {error}"),
        "run this again; if only this question fails, does the role of DATABASE_URL own the tables, and is the database \
         busy?",
    )
}

/// The database's clock, and whether it takes writes.
async fn writable(session: &Session) -> Finding {
    let (sent, ours) = (boot_time(), wall_time());
    match within(BUDGET, health::write_round_trip(&**session)).await {
        Ok(theirs) => {
            let round_trip = boot_time().since(sent);
            let middle = ours + round_trip / 2;
            let offset = (theirs - middle).whole_microseconds();
            Clock {
                offset_micros: i64::try_from(offset).unwrap_or(i64::MAX),
                round_trip,
            }
            .finding()
        }
        Err(error) => Finding::bad(
            "clock",
            State::Critical,
            format!("the server takes no writes: {error}"),
            "is it a replica, or read-only (default_transaction_read_only)? Promote it, or name the primary in DATABASE_URL",
        ),
    }
}

async fn schema(database: &Database) -> Finding {
    const CHECK: &str = "schema";
    match migrate::check_version(database).await {
        Ok(()) => Finding::good(CHECK, "as this program expects it"),
        Err(error) => {
            let text = match migrate_failure(error) {
                Failure::Configuration(text) | Failure::Failed(text) => text,
            };
            let advice = "run `postrider migrate`, or use the program that belongs to this schema";
            Finding::bad(CHECK, State::Critical, text.replace('\n', " "), advice)
        }
    }
}

async fn horizon(session: &Session) -> Result<Horizon, StoreError> {
    let open = gauges::horizon(session).await?.open;
    let holders = facts::holders(session).await?;
    Ok(Horizon { open, holders })
}

async fn days(session: &Session) -> Result<Partitions, StoreError> {
    let now = partitions::database_time(session).await?;
    let detaching = partitions::list(session).await?;
    let detaching = detaching
        .iter()
        .filter(|it| it.state == Attachment::Detaching);
    Ok(Partitions {
        ahead: partitions::ahead(session, now).await?,
        detaching: detaching.count(),
    })
}

async fn oldest(session: &Session, now: OffsetDateTime) -> Result<Waiting, StoreError> {
    let slots: Vec<Slot> = (0..SLOT_COUNT).map(Slot).collect();
    let mut found = Oldest::default();
    for some in slots.chunks(SLOTS) {
        found = found.or(oldest::of_slots(&**session, some, now).await?);
    }
    let since = found.admissible.map(|at| now - at);
    Ok(Waiting(since.map(|age| age.try_into().unwrap_or_default())))
}

/// Goes over all that waits, a page after the other, until `deadline` is over.
async fn queues(
    session: &Session,
    now: OffsetDateTime,
    deadline: Duration,
    output: Output,
) -> Result<Astray, StoreError> {
    let begun = boot_time();
    let (mut all, mut told) = (Astray::default(), 0);
    for queue in Queue::ALL {
        let mut after = None;
        loop {
            if boot_time().since(begun) > deadline {
                all.cut = true;
                return Ok(all);
            }
            let (astray, next) = within(BUDGET, facts::page(session, queue, after, now)).await?;
            all = all.and(astray);
            if output.is_text() && all.waiting - told >= TOLD_EVERY {
                told = all.waiting;
                note(&format!("looked at {told} waiting deliveries so far"));
            }
            if next.is_none() {
                break;
            }
            after = next;
        }
    }
    Ok(all)
}

/// For people: a line per finding, with what to do below those that are not good.
fn text(report: &Report) -> String {
    let findings = &report.findings;
    let width = findings
        .iter()
        .map(|one| one.check.len())
        .max()
        .unwrap_or(0);
    let mut lines = Vec::new();
    for one in findings {
        let state = one.state.word();
        lines.push(format!("{state:<8}  {:<width$}  {}", one.check, one.found));
        if let Some(advice) = &one.advice {
            lines.push(format!("{:<8}  {:<width$}  → {advice}", "", ""));
        }
    }
    let count = |state| findings.iter().filter(|one| one.state == state).count();
    lines.push(format!(
        "{} critical, {} warnings, {} unknown, {} good",
        count(State::Critical),
        count(State::Warning),
        count(State::Unknown),
        count(State::Good)
    ));
    lines.join("\n")
}

fn verdict(report: &Report, strict: bool) -> Result<(), Failure> {
    let bad = |one: &&Finding| one.state == State::Critical || (strict && one.state != State::Good);
    let checks: Vec<&str> = report
        .findings
        .iter()
        .filter(bad)
        .map(|one| one.check)
        .collect();
    if checks.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("not well: {}", checks.join(", "))))
}
