//! An OpenTelemetry collector: takes OTLP over HTTP and keeps the spans, or takes connections and says nothing.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use serde_json::{Value, json};
use shared::runtime::spawn_driver;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a span says, for comparison.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) service: String,
    pub(super) name: String,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) kind: i32,
    pub(super) failed: bool,
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) attributes: Value,
}

#[derive(Debug, Default)]
struct Books {
    spans: Vec<Seen>,
    bytes: Vec<u8>,
    connections: usize,
}

/// See the module.
pub(super) struct Collector {
    pub(super) addr: SocketAddr,
    books: Arc<Mutex<Books>>,
    _stop: DropGuard,
}

impl Collector {
    pub(super) async fn start() -> Self {
        Self::answering(true).await
    }

    /// Takes connections and never answers.
    pub(super) async fn silent() -> Self {
        Self::answering(false).await
    }

    async fn answering(answers: bool) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let books = Arc::new(Mutex::new(Books::default()));
        let stop = CancellationToken::new();
        let (into, until) = (Arc::clone(&books), stop.clone());
        drop(spawn_driver(async move {
            while let Some(Ok((stream, _))) = until.run_until_cancelled(listener.accept()).await {
                into.lock().unwrap().connections += 1;
                let (into, until) = (Arc::clone(&into), until.clone());
                drop(spawn_driver(async move {
                    if answers {
                        until.run_until_cancelled(take(stream, &into)).await;
                    } else {
                        until.cancelled().await;
                        drop(stream);
                    }
                }));
            }
        }));
        Self {
            addr,
            books,
            _stop: stop.drop_guard(),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The spans so far.
    pub(super) fn spans(&self) -> Vec<Seen> {
        self.books.lock().unwrap().spans.clone()
    }

    /// The spans of one trace so far.
    pub(super) fn of(&self, trace: &str) -> Vec<Seen> {
        let mut spans = self.spans();
        spans.retain(|span| span.trace == trace);
        spans
    }

    /// How many connections were made.
    pub(super) fn connections(&self) -> usize {
        self.books.lock().unwrap().connections
    }

    /// Whether any body held this text.
    pub(super) fn holds(&self, text: &str) -> bool {
        let books = self.books.lock().unwrap();
        let mut places = books.bytes.windows(text.len());
        places.any(|place| place == text.as_bytes())
    }
}

async fn take(stream: TcpStream, books: &Mutex<Books>) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap() == 0 {
            return;
        }
    }
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(
        head.contains("content-type: application/x-protobuf\r\n"),
        "{head}"
    );
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    let spans = read(&body);
    {
        let mut books = books.lock().unwrap();
        books.spans.extend(spans);
        books.bytes.extend(body);
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    stream.get_mut().write_all(answer).await.unwrap();
}

fn read(body: &[u8]) -> Vec<Seen> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let mut seen = Vec::new();
    for of_service in request.resource_spans {
        let resource = of_service.resource.unwrap();
        let service = resource
            .attributes
            .iter()
            .find(|it| it.key == "service.name");
        let service = match service.unwrap().value.clone().unwrap().value {
            Some(Any::StringValue(name)) => name,
            other => panic!("{other:?}"),
        };
        let spans = of_service.scope_spans.into_iter().flat_map(|it| it.spans);
        seen.extend(spans.map(|span| of(&service, span)));
    }
    seen
}

fn of(service: &str, span: Span) -> Seen {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let value = |value: Option<AnyValue>| match value.and_then(|it| it.value) {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::IntValue(number)) => json!(number),
        other => panic!("{other:?}"),
    };
    let attributes = span.attributes.into_iter();
    let attributes: serde_json::Map<String, Value> = attributes
        .map(|attribute| (attribute.key, value(attribute.value)))
        .collect();
    Seen {
        service: service.to_owned(),
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind,
        failed: span
            .status
            .is_some_and(|it| it.code == i32::from(StatusCode::Error)),
        started: span.start_time_unix_nano,
        ended: span.end_time_unix_nano,
        attributes: attributes.into(),
    }
}
