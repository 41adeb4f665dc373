//! Telemetry: logs to stderr, and a small server for metrics and health.
//!
//! Not here: which metrics there are. Each module registers its own with [`register`], in the
//! process's default registry, which has the process collector too.
//!
//! # Invariants
//! - S2 whatever `RUST_LOG` says, other crates write nothing below *info*: their traces hold frames,
//!   statements and requests with all that is in them, and nobody there knows what is secret here.

mod server;

use std::io::IsTerminal as _;

use prometheus::core::Collector;
use prometheus::{IntGauge, Opts};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

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
    let subscriber = subscriber(format, filter, std::io::stderr);
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        tracing::debug!("logs were set up before");
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: &str,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(writer);
    match format {
        LogFormat::Text => {
            let ansi = std::io::stderr().is_terminal();
            let lines = lines.with_ansi(ansi).with_target(false).finish();
            Box::new(lines.with(filter_fn(may_be_written)))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).finish();
            Box::new(lines.with(filter_fn(may_be_written)))
        }
    }
}

/// Our own crates, whose logs are written with S2 in mind.
const OURS: [&str; 7] = [
    "api",
    "load_tests",
    "postrider",
    "postrider_api",
    "postrider_worker",
    "shared",
    "worker",
];

/// See the module's S2.
fn may_be_written(metadata: &Metadata<'_>) -> bool {
    let (krate, _module) = metadata
        .target()
        .split_once("::")
        .unwrap_or((metadata.target(), ""));
    OURS.contains(&krate) || *metadata.level() <= Level::INFO
}

/// Adds a metric to the process's registry. API and worker share one process in `postrider dev`, so
/// what both register is registered once.
pub fn register(metric: impl Collector + 'static) {
    match prometheus::default_registry().register(Box::new(metric)) {
        Ok(()) | Err(prometheus::Error::AlreadyReg) => {}
        Err(error) => tracing::error!(%error, "a metric cannot be registered"),
    }
}

/// Registers what every process has: `postrider_build_info`, `postrider_task_restarts_total` and
/// `postrider_trace_spans_total`.
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
    register(super::traces::SPANS.clone());
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn s2_what_other_crates_trace_is_written_at_no_setting() {
        for format in [LogFormat::Text, LogFormat::Json] {
            for filter in [
                "trace",
                "h2=trace,worker=debug",
                "info,h2[connection]=trace",
            ] {
                let written = Written::default();
                let into = written.clone();
                let subscriber = subscriber(format, filter, move || into.clone());
                tracing::subscriber::with_default(subscriber, || {
                    tracing::debug!(target: "h2::codec", "a secret frame");
                    tracing::trace!(target: "workers", "a secret of a crate with such a name");
                    tracing::info!(target: "worker::deliver", "an attempt failed");
                    tracing::warn!(target: "h2::server", "a warning of another crate");
                });
                let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
                assert!(!text.contains("secret"), "{filter}: {text}");
                assert!(text.contains("an attempt failed"), "{filter}: {text}");
                assert!(
                    text.contains("a warning of another crate"),
                    "{filter}: {text}"
                );
            }
        }
    }

    #[test]
    fn our_own_crates_are_traced_as_the_setting_says() {
        for (filter, seen) in [
            ("trace", true),
            ("info,worker=trace", true),
            ("info", false),
        ] {
            let written = Written::default();
            let into = written.clone();
            let subscriber = subscriber(LogFormat::Json, filter, move || into.clone());
            tracing::subscriber::with_default(subscriber, || {
                tracing::trace!(target: "worker::deliver", "a step");
            });
            let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            assert_eq!(text.contains("a step"), seen, "{filter}: {text}");
        }
    }
}
