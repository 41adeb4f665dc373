//! Traces: what was done with an event, as spans of OpenTelemetry, sent to a collector that the operator names.
//! Off by default. Guide: docs/tracing.md.
//!
//! A span is made from facts that the code has anyway, when what it is about has ended: nothing on a hot path
//! enters or leaves one, and what is not sampled costs a comparison.
//!
//! # Invariants
//! - Recording never waits: what waits is bounded by [`MOST_WAITING`], and what finds no room is dropped and
//!   counted. A collector that is away, slow or silent costs spans and nothing else.
//! - S2: a span has no room for a text of a tenant: see [`Value`].
//! - Parent-based: who began a trace decides whether it is recorded; a trace of our own is by the operator's ratio.

mod exporter;
mod otlp;

use std::sync::{Arc, LazyLock};

use prometheus::{IntCounterVec, Opts};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use url::Url;
use uuid::Uuid;

pub use exporter::Exporter;

use super::jitter;
use super::settings::{ConfigErrors, Settings};
use super::supervisor::Supervisor;
use crate::domain::trace::{SpanId, TraceContext, TraceId};

/// The most spans that wait to be sent: some 4 MiB.
pub const MOST_WAITING: usize = 8_192;

/// The settings of this module.
const ENDPOINT: &str = "POSTRIDER_OTLP_ENDPOINT";
const RATIO: &str = "POSTRIDER_OTLP_SAMPLE_RATIO";

/// What became of spans; registered by the telemetry of each process.
pub static SPANS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "postrider_trace_spans_total",
        "Spans by what became of them",
    );
    #[expect(
        clippy::expect_used,
        reason = "the name and label are constants and valid"
    )]
    let spans = IntCounterVec::new(opts, &["result"]).expect("a valid metric");
    for result in [EXPORTED, FAILED, DROPPED] {
        spans.with_label_values(&[result]).inc_by(0);
    }
    spans
});

/// The collector took it.
const EXPORTED: &str = "exported";
/// The collector did not take it, or was not there.
const FAILED: &str = "failed";
/// There was no room for it, or no time at the end of the process.
const DROPPED: &str = "dropped";

fn count(result: &str, spans: usize) {
    let spans = u64::try_from(spans).unwrap_or(u64::MAX);
    SPANS.with_label_values(&[result]).inc_by(spans);
}

/// Where to send spans, and how many traces begin here.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    collector: Url,
    ratio: f64,
}

impl TraceSettings {
    /// What the settings ask for; `None`: nothing is traced.
    ///
    /// # Errors
    /// The address is not one that spans can be sent to.
    pub fn from_settings(settings: &Settings) -> Result<Option<Self>, ConfigErrors> {
        let Some(text) = settings.get(ENDPOINT) else {
            return Ok(None);
        };
        let collector = collector(text).map_err(|why| ConfigErrors::one(ENDPOINT, why))?;
        let ratio = settings.ratio(RATIO);
        Ok(Some(Self { collector, ratio }))
    }
}

/// Where a collector takes spans, by its base address.
fn collector(text: &str) -> Result<Url, String> {
    let expected =
        || "expected the address of an OTLP collector like http://127.0.0.1:4318".to_owned();
    let mut url = Url::parse(text).map_err(|_not_a_url| expected())?;
    let more = !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some();
    if url.scheme() != "http" || url.host_str().is_none() || more {
        return Err(format!(
            "{}: plain http:// and nothing behind the path",
            expected()
        ));
    }
    let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

/// Where spans are recorded. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<Arc<Recording>>);

#[derive(Debug)]
struct Recording {
    queue: mpsc::Sender<Span>,
    ratio: f64,
}

/// The trace that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// What follows from the request is a child of this.
    pub context: Option<TraceContext>,
    /// Of which span the request's own is a child, if one is to be recorded.
    span_of: Option<Option<SpanId>>,
}

impl Begun {
    /// The request's own span and its parent, if it is to be recorded.
    #[must_use]
    pub fn recorded(&self) -> Option<(TraceContext, Option<SpanId>)> {
        self.context.zip(self.span_of)
    }
}

impl Traces {
    /// Nothing is recorded.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Records spans under the name of this service, and has a task send them until the supervisor stops.
    #[must_use]
    pub fn start(
        settings: Option<&TraceSettings>,
        service: &'static str,
        tasks: &mut Supervisor,
    ) -> Self {
        let Some(settings) = settings else {
            return Self::off();
        };
        let (queue, waiting) = mpsc::channel(MOST_WAITING);
        let exporter = Exporter::new(settings.collector.clone(), service, waiting);
        let exporter = Arc::new(tokio::sync::Mutex::new(exporter));
        tasks.start("trace exporter", move |stop| {
            let exporter = Arc::clone(&exporter);
            async move { exporter.lock().await.run(stop).await }
        });
        let ratio = settings.ratio;
        Self(Some(Arc::new(Recording { queue, ratio })))
    }

    /// Begins a request's part of a trace: of its publisher's, or of one of our own.
    #[must_use]
    pub fn begin(&self, publisher: Option<TraceContext>) -> Begun {
        let Some(recording) = &self.0 else {
            return Begun {
                context: publisher,
                span_of: None,
            };
        };
        let span = SpanId::from_random(jitter::bytes());
        match publisher {
            Some(parent) if parent.is_sampled() => Begun {
                context: Some(parent.child(span)),
                span_of: Some(Some(parent.span)),
            },
            Some(parent) => Begun {
                context: Some(parent),
                span_of: None,
            },
            None => {
                let sampled = jitter::fraction() < recording.ratio;
                let trace = TraceId::from_random(jitter::bytes());
                Begun {
                    context: Some(TraceContext::root(trace, span, sampled)),
                    span_of: sampled.then_some(None),
                }
            }
        }
    }

    /// Whether a span in this context is to be recorded.
    #[must_use]
    pub fn records(&self, context: &TraceContext) -> bool {
        self.0.is_some() && context.is_sampled()
    }

    /// Records a span. Never waits.
    pub fn record(&self, span: Span) {
        if let Some(recording) = &self.0
            && recording.queue.try_send(span).is_err()
        {
            count(DROPPED, 1);
        }
    }
}

/// Something that was done, from its beginning to its end.
#[derive(Debug)]
pub struct Span {
    /// What was done.
    pub name: &'static str,
    /// On which side of a request.
    pub side: Side,
    /// The trace and the span itself.
    pub context: TraceContext,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
    /// Database time.
    pub started: OffsetDateTime,
    /// Database time.
    pub ended: OffsetDateTime,
    /// Whether it came to nothing.
    pub failed: bool,
    /// What else is known of it.
    pub attributes: Vec<(&'static str, Value)>,
}

/// On which side of a request somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who answers it.
    Server,
    /// Who makes it.
    Client,
}

/// What an attribute says (S2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A word of this program's.
    Word(&'static str),
    /// A public id that this program made.
    Id(PublicId),
    /// A number.
    Number(i64),
}

/// An id as the API shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublicId {
    /// Of an event.
    Event(Uuid),
    /// Of a delivery.
    Delivery(Uuid),
    /// Of an endpoint.
    Endpoint(Uuid),
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0";

    fn publisher(flags: u8) -> TraceContext {
        TraceContext::parse(format!("{PUBLISHER}{flags}").as_bytes()).unwrap()
    }

    fn recording(ratio: f64, room: usize) -> (Traces, mpsc::Receiver<Span>) {
        let (queue, waiting) = mpsc::channel(room);
        (Traces(Some(Arc::new(Recording { queue, ratio }))), waiting)
    }

    fn span(context: TraceContext) -> Span {
        Span {
            name: "attempt",
            side: Side::Client,
            context,
            parent: None,
            started: OffsetDateTime::UNIX_EPOCH,
            ended: OffsetDateTime::UNIX_EPOCH,
            failed: false,
            attributes: Vec::new(),
        }
    }

    #[test]
    fn off_the_publishers_context_goes_on_as_it_is_and_nothing_begins() {
        let off = Traces::off();
        for context in [None, Some(publisher(0)), Some(publisher(1))] {
            let begun = off.begin(context);
            assert_eq!((begun.context, begun.recorded()), (context, None));
        }
        assert!(!off.records(&publisher(1)));
    }

    #[test]
    fn a_publisher_that_samples_gets_a_child_and_one_that_does_not_gets_none_whatever_the_ratio() {
        for ratio in [0.0, 1.0] {
            let (traces, _waiting) = recording(ratio, 1);
            let begun = traces.begin(Some(publisher(1)));
            let (own, parent) = begun.recorded().unwrap();
            assert_eq!(own.trace, publisher(1).trace);
            assert_ne!(own.span, publisher(1).span);
            assert_eq!(parent, Some(publisher(1).span));
            assert!(own.is_sampled() && traces.records(&own));

            let begun = traces.begin(Some(publisher(0)));
            assert_eq!(begun.context, Some(publisher(0)));
            assert_eq!(begun.recorded(), None);
            assert!(!traces.records(&publisher(0)));
        }
    }

    #[test]
    fn a_trace_of_our_own_is_recorded_by_the_ratio_and_has_an_id_in_any_case() {
        for (ratio, expected) in [(0.0, 0..=0), (0.5, 350..=650), (1.0, 1_000..=1_000)] {
            let (traces, _waiting) = recording(ratio, 1);
            let begun: Vec<Begun> = (0..1_000).map(|_| traces.begin(None)).collect();
            let recorded = begun.iter().filter(|it| it.recorded().is_some()).count();
            assert!(expected.contains(&recorded), "{ratio}: {recorded}");
            for begun in begun {
                let context = begun.context.unwrap();
                assert_eq!(context.is_sampled(), begun.recorded().is_some());
                assert_eq!(begun.recorded().and_then(|(_, parent)| parent), None);
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_at_once() {
        let (traces, mut waiting) = recording(1.0, 2);
        let before = SPANS.with_label_values(&[DROPPED]).get();

        for _ in 0..5 {
            traces.record(span(publisher(1)));
        }

        assert!(SPANS.with_label_values(&[DROPPED]).get() >= before + 3);
        assert!(waiting.try_recv().is_ok() && waiting.try_recv().is_ok());
        assert!(waiting.try_recv().is_err());
    }

    #[test]
    fn a_collector_is_a_plain_address_and_spans_go_to_the_path_of_the_protocol() {
        for (given, sent_to) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://otel:4318/", "http://otel:4318/v1/traces"),
            ("http://otel/base/", "http://otel/base/v1/traces"),
        ] {
            assert_eq!(collector(given).unwrap().as_str(), sent_to);
        }
        for wrong in [
            "127.0.0.1:4318",
            "https://otel:4318",
            "grpc://otel:4317",
            "http://user:secret@otel:4318",
            "http://otel:4318/?key=secret",
            "http://otel:4318/#x",
            "http://",
        ] {
            let why = collector(wrong).unwrap_err();
            assert!(why.contains("http://127.0.0.1:4318"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
