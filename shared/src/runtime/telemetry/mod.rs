//! Telemetry: logs to stderr, and a small server for metrics and health.
//!
//! Not here: which metrics there are. Each module registers its own with [`register`], in the
//! process's default registry, which has the process collector too.

mod server;

use std::io::IsTerminal as _;

use prometheus::core::Collector;
use prometheus::{IntGauge, Opts};
use tracing_subscriber::EnvFilter;

pub use server::{MetricsServer, SERVED};

use super::settings::Settings;

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// What `POSTRIDER_LOG_FORMAT` asks for; `auto` is text on a terminal and JSON otherwise.
    #[must_use]
    pub fn from_settings(settings: &Settings) -> Self {
        match settings.get("POSTRIDER_LOG_FORMAT") {
            Some("text") => Self::Text,
            Some("json") => Self::Json,
            _ if std::io::stderr().is_terminal() => Self::Text,
            _ => Self::Json,
        }
    }
}

/// Sends logs to stderr, as `RUST_LOG` and `POSTRIDER_LOG_FORMAT` say. Only the first call of a
/// process counts.
pub fn init_logs(settings: &Settings) {
    let filter = settings.get("RUST_LOG").unwrap_or("info");
    init_logs_with(LogFormat::from_settings(settings), filter);
}

/// Sends logs to stderr. Only the first call of a process counts.
pub fn init_logs_with(format: LogFormat, filter: &str) {
    let filter = EnvFilter::new(filter);
    let to_stderr = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => to_stderr
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init(),
        LogFormat::Json => to_stderr.json().flatten_event(true).try_init(),
    };
    if set.is_err() {
        tracing::debug!("logs were set up before");
    }
}

/// Adds a metric to the process's registry. API and worker share one process in `postrider dev`, so
/// what both register is registered once.
pub fn register(metric: impl Collector + 'static) {
    match prometheus::default_registry().register(Box::new(metric)) {
        Ok(()) | Err(prometheus::Error::AlreadyReg) => {}
        Err(error) => tracing::error!(%error, "a metric cannot be registered"),
    }
}

/// Registers what every process has: `postrider_build_info` and `postrider_task_restarts_total`.
pub fn register_common(version: &'static str) {
    let opts = Opts::new(
        "postrider_build_info",
        "Always 1; the label says which version runs",
    )
    .const_label("version", version);
    if let Ok(info) = IntGauge::with_opts(opts) {
        info.set(1);
        register(info);
    }
    register(super::supervisor::TASK_RESTARTS.clone());
}
