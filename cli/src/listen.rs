//! `postrider listen`: a receiver on this machine that verifies and prints what it gets.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::Serialize;
use shared::runtime::program::Failure;
use time::OffsetDateTime;
use time::macros::format_description;
use tokio_util::sync::CancellationToken;

use crate::output::{Output, note};
use crate::receiver::{self, Received, Receiver};

/// Longest body printed, in bytes.
const BODY_SHOWN: usize = 4_096;
/// Event ids remembered to tell repetitions; then it begins anew.
const IDS_REMEMBERED: usize = 100_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  postrider listen --port 9000 --secret whsec_…
  postrider listen --port 9000 --status 500        see how retries look
  postrider listen --port 0 --count 1 --output json   in a script: end after one delivery")]
pub(crate) struct Args {
    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 9000)]
    port: u16,
    /// The address; 0.0.0.0 is every address of this machine
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The endpoint's secret, `whsec_…`, or a public key, `whpk_…`; several during a rotation
    #[arg(long = "secret", value_name = "SECRET")]
    secrets: Vec<String>,
    /// A file that holds the secret, one a line
    #[arg(long, value_name = "PATH")]
    secret_file: Option<PathBuf>,
    /// The status to answer with; what is not signed right gets 401
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// End after this many deliveries
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
}

pub(crate) async fn run(
    args: &Args,
    output: Output,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let mut texts = args.secrets.clone();
    if let Some(path) = &args.secret_file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::Configuration(format!("{} cannot be read: {error}", path.display()))
        })?;
        texts.extend(text.lines().map(str::to_owned));
    }
    let keys = receiver::keys(&texts)?;
    let status = receiver::status(args.status).map_err(Failure::Configuration)?;
    let receiver = Receiver::bind(SocketAddr::new(args.host, args.port))?;
    note(&format!(
        "listening on http://{}/ — Ctrl-C ends it",
        receiver.addr()
    ));
    // Not `shutdown` itself: the channel would close as soon, and look like a failure.
    let serving = CancellationToken::new();
    let mut received = receiver.serve(keys, status, serving.clone())?;
    let mut printer = Printer::new(output);
    let mut left = args.count;
    while left != Some(0) {
        tokio::select! {
            next = received.recv() => match next {
                Some(request) => printer.print(&request),
                None => return Err(Failure::Failed("the receiver ended by itself".to_owned())),
            },
            () = shutdown.cancelled() => break,
        }
        left = left.map(|left| left - 1);
    }
    serving.cancel();
    // The channel closes when the last request was answered.
    while let Some(request) = received.recv().await {
        printer.print(&request);
    }
    Ok(())
}

/// Prints deliveries one after the other.
#[derive(Debug)]
pub(crate) struct Printer {
    output: Output,
    count: u64,
    seen: HashSet<String>,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(with = "time::serde::rfc3339")]
    received_at: OffsetDateTime,
    method: &'a str,
    path: &'a str,
    headers: std::collections::BTreeMap<&'a str, &'a str>,
    body: std::borrow::Cow<'a, str>,
    signature_valid: Option<bool>,
    seen_before: bool,
    answered: u16,
}

impl Printer {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            output,
            count: 0,
            seen: HashSet::new(),
        }
    }

    /// Prints a delivery; one whose `webhook-id` came before is marked.
    pub(crate) fn print(&mut self, request: &Received) {
        self.count += 1;
        if self.seen.len() >= IDS_REMEMBERED {
            self.seen.clear();
        }
        let id = request.header("webhook-id").unwrap_or_default();
        let seen_before = !id.is_empty() && !self.seen.insert(id.to_owned());
        let shown = Shown {
            received_at: request.at,
            method: &request.method,
            path: &request.path,
            headers: request
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect(),
            body: String::from_utf8_lossy(&request.body),
            signature_valid: request.verdict.is_valid(),
            seen_before,
            answered: request.answered,
        };
        self.output
            .result(&shown, |_| text(self.count, request, seen_before));
    }
}

/// A delivery for people.
fn text(number: u64, request: &Received, seen_before: bool) -> String {
    let time = request
        .at
        .format(format_description!(
            "[hour]:[minute]:[second].[subsecond digits:3]"
        ))
        .unwrap_or_default();
    let title = format!(
        "── delivery {number} ── {time} UTC ── {} {} ── answered {} ",
        request.method, request.path, request.answered
    );
    let mut lines = vec![format!("{title:─<92}")];
    for name in [
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "postrider-signature",
        "postrider-event-type",
        "postrider-delivery-id",
        "postrider-attempt",
        "content-type",
        "user-agent",
    ] {
        if let Some(value) = request.header(name) {
            lines.push(format!("{name:<22} {value}"));
        }
    }
    lines.push(format!("{:<22} {}", "→ signature", request.verdict.text()));
    if seen_before {
        lines.push(format!(
            "{:<22} this webhook-id came before: a retry or a replay",
            "→ repeated"
        ));
    }
    lines.push(String::new());
    lines.push(body(&request.body));
    lines.push("─".repeat(92));
    lines.join("\n")
}

/// The bytes as they came, as far as they are text.
fn body(bytes: &[u8]) -> String {
    let shown = bytes.get(..BODY_SHOWN).unwrap_or(bytes);
    let mut text = String::from_utf8_lossy(shown).into_owned();
    // Control characters could rewrite the terminal.
    text = text
        .chars()
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect();
    if bytes.len() > shown.len() {
        text.push_str(&format!("… ({} bytes in all)", bytes.len()));
    }
    text
}
