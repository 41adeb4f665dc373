//! `postrider verify`: was this captured request signed with this secret?

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::runtime::clock::wall_time;
use shared::runtime::program::Failure;

use crate::output::Output;
use crate::receiver;
use crate::signature::{self, Verdict};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  postrider verify --secret whsec_… --headers headers.txt body.json
  postrider verify --secret whsec_… -H 'webhook-id: evt_…' -H 'webhook-timestamp: 1764450000' \\
                   -H 'webhook-signature: v1,…' --at 1764450000 < body.json
  postrider verify --secret whpk_… --headers headers.txt body.json             the scheme v1a

Stripe's form (Postrider-Signature) is recognized by its header.

The body must be the exact bytes that came in: an editor that adds a line end breaks the signature.
Exit code 0 when it is valid, 1 when it is not.")]
pub(crate) struct Args {
    /// The endpoint's secret, `whsec_…`, or a public key, `whpk_…`; several during a rotation
    #[arg(long = "secret", value_name = "SECRET", required = true)]
    secrets: Vec<String>,
    /// A header of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// A file with the request's headers, one a line
    #[arg(long, value_name = "PATH")]
    headers: Option<PathBuf>,
    /// The body; `-` is stdin
    #[arg(default_value = "-", value_name = "PATH")]
    body: PathBuf,
    /// When the request came in, in Unix seconds [default: now]
    #[arg(long, value_name = "SECONDS")]
    at: Option<i64>,
    /// How far the timestamp may be from that
    #[arg(long, default_value = "5m", value_name = "LENGTH", value_parser = humantime::parse_duration)]
    tolerance: Duration,
}

pub(crate) fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let keys = receiver::keys(&args.secrets)?;
    let mut lines = args.header.clone();
    if let Some(path) = &args.headers {
        let text = read(path)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        // A capture may begin with the request line, which is no header.
        let headers = text
            .lines()
            .filter(|line| line.contains(':') && !line.contains(" HTTP/"));
        lines.extend(headers.map(str::to_owned));
    }
    let headers = lines
        .iter()
        .map(|line| parse_header(line))
        .collect::<Result<Vec<_>, _>>()?;
    let body = read(&args.body)?;
    let now = args.at.unwrap_or_else(|| wall_time().unix_timestamp());
    let verdict = signature::check(&keys, &headers, &body, now, args.tolerance);
    output.result(
        &serde_json::json!({"valid": verdict.is_valid(), "detail": verdict.text()}),
        |_| format!("signature {}", verdict.text()),
    );
    match verdict {
        Verdict::Valid => Ok(()),
        Verdict::Invalid(_) | Verdict::Unchecked => {
            Err(Failure::Failed("the signature is not valid".to_owned()))
        }
    }
}

fn parse_header(line: &str) -> Result<(String, String), Failure> {
    match line.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::Configuration(format!(
            "`{line}` is no header: expected NAME: VALUE"
        ))),
    }
}

/// Reads a file, or stdin for `-`.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    match read {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Failure::Configuration(format!(
            "{} cannot be read: {error}",
            path.display()
        ))),
    }
}
