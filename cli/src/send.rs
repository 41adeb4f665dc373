//! `postrider send`: publishes one event through the API.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;

use crate::client::ApiClient;
use crate::output::{Output, table};
use crate::verify::read;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The payload is any JSON value and reaches the receiver byte for byte.

Examples:
  postrider send --type order.created --key prk_… '{\"id\":1}'
  postrider send --type order.created --file order.json          with POSTRIDER_KEY in the environment
  jq -c .order dump.json | postrider send --type order.created")]
pub(crate) struct Args {
    /// The event's type: 1–128 of letters, digits, `.`, `_`, `-`
    #[arg(long = "type", value_name = "TYPE")]
    event_type: String,
    /// The payload, as JSON [default: stdin]
    #[arg(conflicts_with = "file")]
    payload: Option<String>,
    /// A file with the payload; `-` is stdin
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Only endpoints of these channels get it
    #[arg(long = "channel", value_name = "CHANNEL")]
    channels: Vec<String>,
    /// With an organization's key: whose event, `tnt_…` or `ext:<your name for it>`
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

/// An event as the API takes it.
#[derive(Serialize)]
pub(crate) struct NewEvent<'a> {
    #[serde(rename = "type")]
    pub(crate) event_type: &'a str,
    pub(crate) payload: &'a RawValue,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) channels: &'a [String],
}

pub(crate) async fn run(args: &Args, settings: &Settings, output: Output) -> Result<(), Failure> {
    let url = settings.required("POSTRIDER_URL")?;
    let key = settings.required("POSTRIDER_KEY")?;
    let payload = payload(args)?;
    let client = ApiClient::new(url, key, args.tenant.clone())?;
    let event = NewEvent {
        event_type: &args.event_type,
        payload: &payload,
        channels: &args.channels,
    };
    let accepted = publish(&client, &event).await?;
    output.result(&accepted, text);
    Ok(())
}

/// Posts an event; the reply of the 202.
pub(crate) async fn publish(client: &ApiClient, event: &NewEvent<'_>) -> Result<Value, Failure> {
    let body = serde_json::to_vec(event)
        .map_err(|error| Failure::Failed(format!("the event cannot be written: {error}")))?;
    client.post("/v1/events", body).await?.success()
}

fn payload(args: &Args) -> Result<Box<RawValue>, Failure> {
    let text = match (&args.payload, &args.file) {
        (Some(text), _) => text.clone(),
        (None, None) if std::io::stdin().is_terminal() => {
            return Err(Failure::Configuration(
                "there is no payload: give it as an argument, with --file, or on stdin".to_owned(),
            ));
        }
        (None, file) => {
            let path = file.as_deref().unwrap_or(Path::new("-"));
            String::from_utf8(read(path)?).map_err(|_not_text| {
                Failure::Configuration("the payload is not UTF-8".to_owned())
            })?
        }
    };
    RawValue::from_string(text.trim().to_owned()).map_err(|error| {
        Failure::Configuration(format!(
            "the payload is not JSON ({error}); in a shell, quote it: '{{\"id\":1}}'"
        ))
    })
}

/// The 202 for people.
pub(crate) fn text(accepted: &Value) -> String {
    let text = |value: &Value, name: &str| {
        let field = value.get(name).and_then(Value::as_str);
        field.unwrap_or_default().to_owned()
    };
    let count = accepted.get("delivery_count").and_then(Value::as_u64);
    let count = count.unwrap_or_default();
    let head = format!(
        "accepted {} {}: {count} {}",
        text(accepted, "type"),
        text(accepted, "id"),
        if count == 1 { "delivery" } else { "deliveries" }
    );
    let deliveries = accepted.get("deliveries").and_then(Value::as_array);
    let rows: Vec<Vec<String>> = deliveries
        .into_iter()
        .flatten()
        .map(|one| {
            vec![
                format!("  {}", text(one, "id")),
                format!("to {}", text(one, "endpoint_id")),
                text(one, "status"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return format!("{head} (no endpoint of this tenant matches)");
    }
    format!("{head}\n{}", table(&rows))
}
