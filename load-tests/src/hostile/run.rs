//! Plays the catalogue against the real sender, and says what came of it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use shared::domain::endpoint::EndpointSettings;
use shared::policy::address::AddressRules;
use shared::policy::classify::{BodyEnd, Response, SendError, SendResult, Verdict};
use shared::runtime::clock::wall_time;
use shared::runtime::spawn_driver;
use tokio::time::Instant;
use worker::sender::{OutboundRequest, Sender, SenderSettings};

use super::catalogue::{Behaviour, Wire, catalogue};
use super::names;
use super::receiver::{Counts, Places};
use crate::commands::say;

/// The deadline of a request that ends at it.
const SHORT: Duration = Duration::from_millis(800);
/// The deadline of all others, which never get there.
const AMPLE: Duration = Duration::from_secs(15);
/// How much later than its deadline a request may end on a busy machine.
const LATE: Duration = Duration::from_secs(2);
/// Behaviours at once, while each is looked at alone.
const AT_ONCE: usize = 8;
/// How much the sender's memory may grow, in bytes.
const MAX_GROWTH: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub struct HostileArguments {
    /// How many requests each behaviour gets at once in the second round, where memory is watched
    #[arg(long, default_value_t = 50)]
    pub parallel: usize,
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
    /// Requests of the second round that ended too late.
    pub late: usize,
}

impl Report {
    /// Whether all of it came as it should.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(Row::is_good) && self.growth <= MAX_GROWTH && self.late == 0
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
        let good = self.rows.iter().filter(|row| row.is_good()).count();
        text.push_str(&format!(
            "{good} of {} behaviours as expected; the sender's memory grew by {} KiB (at most {} \
             KiB); {} requests ended late\n",
            self.rows.len(),
            self.growth >> 10,
            MAX_GROWTH >> 10,
            self.late
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
    let mut receivers = Receivers::start(program)?;
    let sender = Arc::new(sender(&receivers.places)?);
    let jobs: Vec<Arc<Behaviour>> = catalogue().into_iter().map(Arc::new).collect();
    eprintln!("{} behaviours, one at a time", jobs.len());
    let outcomes: Vec<(usize, String, Duration)> = stream::iter(jobs.iter().enumerate())
        .map(|(at, behaviour)| {
            let port = receivers.port(behaviour);
            let (sender, behaviour) = (Arc::clone(&sender), Arc::clone(behaviour));
            async move {
                let started = Instant::now();
                (
                    at,
                    alone(&sender, &behaviour, port).await,
                    started.elapsed(),
                )
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let counts = receivers.counts()?;
    let mut rows = rows(&jobs, outcomes, &counts);
    rows.extend(names::rows(receivers.port_of("good")).await?);
    eprintln!("the same, {} at a time", arguments.parallel);
    let (growth, late) = in_parallel(&sender, &jobs, &receivers, arguments.parallel).await?;
    Ok(Report { rows, growth, late })
}

fn rows(
    jobs: &[Arc<Behaviour>],
    mut outcomes: Vec<(usize, String, Duration)>,
    counts: &Counts,
) -> Vec<Row> {
    outcomes.sort_by_key(|(at, ..)| *at);
    let named = jobs.iter().zip(outcomes);
    named
        .map(|(behaviour, (_, got, took))| {
            let count = counts.get(behaviour.name).copied().unwrap_or(0);
            let plural = if count == 1 { "" } else { "s" };
            Row {
                name: behaviour.name,
                expected: behaviour.expected.to_owned(),
                got: format!("{got}; {count} connection{plural}"),
                took,
            }
        })
        .collect()
}

/// A behaviour's requests, one after the other, and the outcome of the last one.
async fn alone(sender: &Sender, behaviour: &Behaviour, port: u16) -> String {
    let mut last = String::new();
    for _ in 0..behaviour.requests {
        let (result, _) = sender.send(request(behaviour, port)).await;
        last = told(&result);
    }
    last
}

/// Each behaviour many times at once: by how much memory grew, and how many requests ended late.
async fn in_parallel(
    sender: &Arc<Sender>,
    jobs: &[Arc<Behaviour>],
    receivers: &Receivers,
    parallel: usize,
) -> anyhow::Result<(u64, usize)> {
    let before = resident()?;
    let most = Arc::new(AtomicU64::new(before));
    let watching = spawn_driver(watch(Arc::clone(&most)));
    let mut late = 0;
    for behaviour in jobs {
        let port = receivers.port(behaviour);
        let many = stream::iter(0..parallel).map(|_| async {
            let request = request(behaviour, port);
            let allowed = request.timeout + LATE;
            let started = Instant::now();
            let (_outcome, _timings) = sender.send(request).await;
            started.elapsed() > allowed
        });
        let ended: Vec<bool> = many.buffer_unordered(parallel).collect().await;
        late += ended.into_iter().filter(|late| *late).count();
    }
    watching.abort();
    most.fetch_max(resident()?, Ordering::Relaxed);
    Ok((most.load(Ordering::Relaxed).saturating_sub(before), late))
}

/// Ends with the round.
async fn watch(most: Arc<AtomicU64>) {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    loop {
        tick.tick().await;
        if let Ok(now) = resident() {
            most.fetch_max(now, Ordering::Relaxed);
        }
    }
}

/// This process' resident memory, in bytes.
fn resident() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

fn request(behaviour: &Behaviour, port: u16) -> OutboundRequest {
    let tls = match behaviour.wire {
        Wire::Tls(_) | Wire::Http2 => true,
        Wire::Nobody | Wire::Plain => behaviour.name.starts_with("tls-"),
    };
    let scheme = if tls { "https" } else { "http" };
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
        body: Bytes::from(vec![b' '; bytes]),
        timeout,
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

/// The process with the receivers; ends with this one.
struct Receivers {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    places: Places,
}

impl Receivers {
    fn start(program: PathBuf) -> anyhow::Result<Self> {
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

    fn port(&self, behaviour: &Behaviour) -> u16 {
        self.port_of(behaviour.name)
    }

    fn port_of(&self, name: &str) -> u16 {
        self.places.ports.get(name).copied().unwrap_or(0)
    }

    fn counts(&mut self) -> anyhow::Result<Counts> {
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
