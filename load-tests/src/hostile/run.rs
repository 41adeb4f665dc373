//! Plays the catalogue against the real sender, and says what came of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use shared::domain::endpoint::EndpointSettings;
use shared::policy::address::AddressRules;
use shared::policy::classify::{BodyEnd, Response, SendError, SendResult, Verdict};
use shared::runtime::clock::wall_time;
use shared::runtime::{open_files, spawn_driver};
use tokio::time::Instant;
use worker::sender::{OutboundRequest, Sender, SenderSettings};

use super::catalogue::{BY_CHANCE, Behaviour, LONGEST_BODY, Wire, catalogue, elsewhere};
use super::memory::Memory;
use super::names::Names;
use super::receiver::Places;
use super::receivers::Receivers;
use crate::commands::say;

/// The deadline of a request that ends at it.
const SHORT: Duration = Duration::from_millis(800);
/// The deadline of all others, which never get there.
const AMPLE: Duration = Duration::from_secs(15);
/// How much later than its deadline a request may end on a busy machine.
const LATE: Duration = Duration::from_secs(2);
/// Behaviours at once, while each is looked at alone.
const AT_ONCE: usize = 8;
/// What is sent, or the beginning of it: one for all, or fifty of them would be what fills the memory.
static BODY: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![b' '; LONGEST_BODY]));
/// How much the sender's memory may grow, in bytes.
const MAX_GROWTH: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub struct HostileArguments {
    /// How many requests each behaviour gets at once in the second round, where memory is watched
    #[arg(long, default_value_t = 50)]
    pub parallel: usize,
    /// Only the behaviours with this in their names
    #[arg(long)]
    pub only: Option<String>,
    /// The program that plays the receivers [default: this one]
    #[arg(long)]
    pub program: Option<PathBuf>,
}

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    /// The behaviour's name.
    pub name: &'static str,
    /// What should come of it.
    pub expected: String,
    /// What came of it.
    pub got: String,
    /// How long its requests took.
    pub took: Duration,
}

impl Row {
    /// Whether it came as it should.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.expected == self.got
    }
}

/// What came of the whole catalogue.
#[derive(Debug)]
pub struct Report {
    /// One for each behaviour.
    pub rows: Vec<Row>,
    /// By how much the sender's memory grew in the second round, in bytes.
    pub growth: u64,
    /// Requests of the second round that ended too late or otherwise than alone; a line for each kind.
    pub strays: Vec<String>,
}

impl Report {
    /// Whether all of it came as it should.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(Row::is_good) && self.growth <= MAX_GROWTH && self.strays.is_empty()
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let width = self
            .rows
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            let sign = if row.is_good() { "ok " } else { "NO " };
            let line = format!(
                "{sign} {:width$}  {:>5} ms  {}\n",
                row.name,
                row.took.as_millis(),
                row.got
            );
            text.push_str(&line);
            if !row.is_good() {
                text.push_str(&format!("    {:width$}  expected  {}\n", "", row.expected));
            }
        }
        for stray in &self.strays {
            text.push_str(&format!("NO  among many: {stray}\n"));
        }
        let good = self.rows.iter().filter(|row| row.is_good()).count();
        text.push_str(&format!(
            "{good} of {} behaviours as expected, {} otherwise among many; the sender's memory grew \
             by {} KiB (at most {} KiB)\n",
            self.rows.len(),
            self.strays.len(),
            self.growth >> 10,
            MAX_GROWTH >> 10,
        ));
        text
    }
}

/// Runs the command: prints the table; whether all came as it should.
pub(crate) async fn command(arguments: &HostileArguments) -> anyhow::Result<bool> {
    let report = run(arguments).await?;
    say(report.table().trim_end())?;
    Ok(report.is_good())
}

/// Plays the whole catalogue, each behaviour alone and then many times at once.
///
/// # Errors
/// The receivers could not be started.
pub async fn run(arguments: &HostileArguments) -> anyhow::Result<Report> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?,
    };
    let _most = open_files::raise();
    let mut receivers = Receivers::start(program)?;
    let wanted = arguments.only.as_deref().unwrap_or_default();
    let jobs: Vec<Behaviour> = std::iter::once(elsewhere())
        .chain(catalogue(receivers.places.elsewhere))
        .filter(|behaviour| behaviour.name.contains(wanted))
        .collect();
    eprintln!("{} behaviours, each alone", jobs.len());
    let mut rows = each_alone(&sender(&receivers.places)?, &jobs, &mut receivers).await?;
    let names = Names::start(receivers.port_of("good"), wanted).await;
    rows.extend(names.each_alone().await?);
    eprintln!("the same, {} at a time", arguments.parallel);
    // From here on, for what is needed once is there by now.
    let memory = Memory::watched()?;
    // Nothing is left of the first round's connections: each of many opens its own.
    let sender = Arc::new(sender(&receivers.places)?);
    let mut strays = each_by_many(&sender, &jobs, &receivers, arguments.parallel).await?;
    strays.extend(names.each_by_many(arguments.parallel).await?);
    Ok(Report {
        rows,
        growth: memory.growth()?,
        strays,
    })
}

/// The first round, where connections are counted.
async fn each_alone(
    sender: &Sender,
    jobs: &[Behaviour],
    receivers: &mut Receivers,
) -> anyhow::Result<Vec<Row>> {
    let outcomes: Vec<(String, Duration)> = stream::iter(jobs)
        .map(|behaviour| {
            let port = receivers.port_of(behaviour.name);
            async move {
                let started = Instant::now();
                let outcome = alone(sender, behaviour, port).await;
                (outcome, started.elapsed())
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let counts = receivers.counts()?;
    let row = |(behaviour, (got, took)): (&Behaviour, (String, Duration))| {
        let count = counts.get(behaviour.name).copied().unwrap_or(0);
        let connections = match count {
            1..=3 if behaviour.expected.ends_with(BY_CHANCE) => BY_CHANCE.to_owned(),
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        };
        Row {
            name: behaviour.name,
            expected: behaviour.expected.clone(),
            got: format!("{got}; {connections}"),
            took,
        }
    };
    Ok(jobs.iter().zip(outcomes).map(row).collect())
}

/// The outcomes of a behaviour's requests, one after the other; several alike are one.
async fn alone(sender: &Sender, behaviour: &Behaviour, port: u16) -> String {
    let mut outcomes = Vec::new();
    for _ in 0..behaviour.requests {
        let (result, _) = sender.send(request(behaviour, port)).await;
        outcomes.push(told(&result));
    }
    outcomes.dedup();
    outcomes.join(", then ")
}

/// The second round: what came late or otherwise than alone, with how often.
async fn each_by_many(
    sender: &Arc<Sender>,
    jobs: &[Behaviour],
    receivers: &Receivers,
    parallel: usize,
) -> anyhow::Result<Vec<String>> {
    let mut strays = Vec::new();
    for behaviour in jobs {
        let port = receivers.port_of(behaviour.name);
        let many = Many {
            name: behaviour.name,
            expected: behaviour.expected_of_many(),
            parallel,
        };
        strays.extend(many.send(sender, || request(behaviour, port)).await?);
    }
    Ok(strays)
}

/// Many requests at once of one behaviour.
pub(super) struct Many<'a> {
    pub(super) name: &'a str,
    /// What comes of each, if that is certain.
    pub(super) expected: Option<&'a str>,
    pub(super) parallel: usize,
}

impl Many<'_> {
    /// What came late or otherwise, a line for each kind.
    pub(super) async fn send(
        &self,
        sender: &Arc<Sender>,
        request: impl Fn() -> OutboundRequest,
    ) -> anyhow::Result<Vec<String>> {
        // A task for each, as in the worker.
        let sending: Vec<_> = (0..self.parallel)
            .map(|_| {
                let sender = Arc::clone(sender);
                let request = request();
                let allowed = request.timeout + LATE;
                spawn_driver(async move {
                    let started = Instant::now();
                    let (result, _) = sender.send(request).await;
                    (told(&result), started.elapsed() > allowed)
                })
            })
            .collect();
        let mut strays = BTreeMap::new();
        for ended in join_all(sending).await {
            let (got, is_late) = ended?;
            let stray = if is_late {
                format!("{} ended late", self.name)
            } else if self.expected.is_some_and(|expected| expected != got) {
                format!("{} came to: {got}", self.name)
            } else {
                continue;
            };
            *strays.entry(stray).or_insert(0) += 1;
        }
        let line = |(stray, count): (String, usize)| format!("{count} times {stray}");
        Ok(strays.into_iter().map(line).collect())
    }
}

fn request(behaviour: &Behaviour, port: u16) -> OutboundRequest {
    let scheme = match behaviour.wire {
        Wire::PlainForTls | Wire::Tls(_) | Wire::Http2 => "https",
        Wire::Nobody | Wire::Plain => "http",
    };
    let timeout = if behaviour.hangs { SHORT } else { AMPLE };
    let url = format!("{scheme}://127.0.0.1:{port}/hooks");
    post(&url, behaviour.body, timeout)
}

pub(super) fn post(url: &str, bytes: usize, timeout: Duration) -> OutboundRequest {
    let mut headers = http::HeaderMap::new();
    headers.insert("host", http::HeaderValue::from_static("hostile.example"));
    headers.insert("webhook-id", http::HeaderValue::from_static("evt_1"));
    #[expect(clippy::expect_used, reason = "made here, of an address and a port")]
    let url = url.parse().expect("a URL");
    OutboundRequest {
        method: http::Method::POST,
        url,
        headers,
        body: BODY.slice(..bytes.min(BODY.len())),
        timeout,
        fresh: false,
        identity: None,
    }
}

/// An outcome as the table has it.
pub(super) fn told(result: &SendResult) -> String {
    let verdict = Verdict::of(result, &EndpointSettings::default(), wall_time());
    let what = match result {
        Ok(answer) => answered(answer),
        Err(error) => failed(error),
    };
    let rest = match verdict.retry_after {
        Some(wait) => format!(", asks for {} s", wait.as_secs()),
        None => String::new(),
    };
    let forgiven = if verdict.blameless { ", forgiven" } else { "" };
    format!("{what}; {}{rest}{forgiven}", verdict.outcome.name())
}

fn answered(answer: &Response) -> String {
    let kept = match (answer.body, answer.excerpt.len()) {
        // How many came in time is chance.
        (BodyEnd::TooSlow, 1..) => "some".to_owned(),
        (_, count) => count.to_string(),
    };
    let end = match answer.body {
        BodyEnd::Whole => "whole",
        BodyEnd::Longer => "longer",
        BodyEnd::Broken => "cut",
        BodyEnd::TooSlow => "too slow",
    };
    let leads = match &answer.redirect {
        Some(origin) => format!(", leads to {origin}"),
        None => String::new(),
    };
    format!("{}, {kept} B, {end}{leads}", answer.status)
}

fn failed(error: &SendError) -> String {
    format!("{}: {error}", error.kind())
}

fn sender(places: &Places) -> anyhow::Result<Sender> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(places.authority.as_bytes()) {
        roots.add(certificate?)?;
    }
    Ok(Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").map_err(anyhow::Error::msg)?,
        roots,
        ..SenderSettings::default()
    })?)
}
