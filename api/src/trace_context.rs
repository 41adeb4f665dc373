//! The trace that a request to publish belongs to: its publisher's, by `traceparent`, or one of our own.

use actix_web::HttpRequest;
use shared::domain::trace::{TRACEPARENT, TraceContext};
use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::traces::{Begun, PublicId, Side, Span, Value};
use uuid::Uuid;

use crate::problem::ApiError;
use crate::routes::State;

/// A request to publish, from when it came in to the commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Publishing {
    begun: Begun,
    started: BootTime,
}

impl Publishing {
    /// Of a request whose key is known: nobody else begins a trace.
    pub(crate) fn begin(state: &State, request: &HttpRequest, started: BootTime) -> Self {
        let begun = state.traces.begin(of(request));
        Self { begun, started }
    }

    /// What the events are a part of.
    pub(crate) const fn context(&self) -> Option<TraceContext> {
        self.begun.context
    }

    /// Its event is durable.
    pub(crate) fn accepted(&self, state: &State, event: Uuid) {
        self.end(state, None, || {
            ("event.id", Value::Id(PublicId::Event(event)))
        });
    }

    /// So many of its events are durable.
    pub(crate) fn accepted_batch(&self, state: &State, events: usize) {
        let count = i64::try_from(events).unwrap_or(i64::MAX);
        self.end(state, None, || ("event.count", Value::Number(count)));
    }

    /// Nothing of it was stored, as far as is known.
    pub(crate) fn refused(&self, state: &State, error: &ApiError) {
        let status = error.problem().status;
        self.end(state, Some(status), || {
            ("http.response.status_code", Value::Number(status.into()))
        });
    }

    fn end(
        &self,
        state: &State,
        refused: Option<u16>,
        attribute: impl FnOnce() -> (&'static str, Value),
    ) {
        let Some((context, parent)) = self.begun.recorded() else {
            return;
        };
        state.traces.record(Span {
            name: "publish",
            side: Side::Server,
            context,
            parent,
            started: state.clock.at(self.started),
            ended: state.clock.at(boot_time()),
            // Of a server's span, only what is its own fault is an error.
            failed: refused.is_some_and(|status| status >= 500),
            attributes: vec![attribute()],
        });
    }
}

/// The publisher's context. A header that is not legal, or is there twice, is as good as none: it is never an error.
fn of(request: &HttpRequest) -> Option<TraceContext> {
    let mut headers = request.headers().get_all(TRACEPARENT);
    let (first, second) = (headers.next()?, headers.next());
    TraceContext::parse(first.as_bytes()).filter(|_| second.is_none())
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    const LEGAL: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn one_legal_header_is_taken_and_two_are_as_good_as_none() {
        let read = |headers: &[&str]| {
            let request = headers.iter().fold(TestRequest::default(), |it, value| {
                it.append_header(("Traceparent", *value))
            });
            of(&request.to_http_request()).map(|context| context.to_string())
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[LEGAL]).as_deref(), Some(LEGAL));
        assert_eq!(read(&[LEGAL, LEGAL]), None);
        assert_eq!(read(&[&LEGAL.to_uppercase()]), None);
    }
}
