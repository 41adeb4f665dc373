//! What receivers do wrong, and exactly what follows.
//!
//! The expectation is what `run` prints: the status, the bytes kept of the body and how it ended, or
//! the kind of error and its text; then the class, and whether the attempt is forgiven; the next
//! request's, where it differs, after "then"; at last how many connections all its requests took.

mod bodies;
mod connections;
mod floods;
mod framing;
mod heads;
mod over_http2;
mod over_tls;
mod statuses;

use bytes::Bytes;

use super::certificates::Shown;
use super::script::Step;

/// The longest body of a request, in bytes: more than the sockets on the way take in.
pub(super) const LONGEST_BODY: usize = 8 << 20;

/// One way to misbehave.
pub(super) struct Behaviour {
    pub(super) name: &'static str,
    pub(super) wire: Wire,
    pub(super) script: Vec<Step>,
    /// Requests, one after the other.
    pub(super) requests: usize,
    /// Bytes of each request's body.
    pub(super) body: usize,
    /// It ends at the deadline, which is a short one then.
    pub(super) hangs: bool,
    pub(super) expected: String,
}

/// What is spoken below the script.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire {
    /// Nobody listens.
    Nobody,
    Plain,
    /// Plain, where the sender expects TLS.
    PlainForTls,
    Tls(Shown),
    Http2,
}

impl Behaviour {
    pub(super) fn new(
        name: &'static str,
        wire: Wire,
        script: Vec<Step>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            name,
            wire,
            script,
            requests: 1,
            body: 4_096,
            hangs: false,
            expected: expected.into(),
        }
    }

    pub(super) fn times(self, requests: usize) -> Self {
        Self { requests, ..self }
    }

    pub(super) fn with_body(self, body: usize) -> Self {
        Self { body, ..self }
    }

    pub(super) fn hanging(self) -> Self {
        Self {
            hangs: true,
            ..self
        }
    }

    /// What comes of each request where many are sent at once, if that is certain. It is not where a
    /// request depends on the one before it, or shares its connection with others.
    pub(super) fn expected_of_many(&self) -> Option<&str> {
        let is_alone = match self.wire {
            Wire::Http2 => false,
            Wire::Nobody | Wire::Plain | Wire::PlainForTls | Wire::Tls(_) => self.requests == 1,
        };
        let (outcome, _connections) = self.expected.rsplit_once("; ")?;
        is_alone.then_some(outcome)
    }
}

/// Where the redirects of the catalogue lead. Its one connection is the request that shows it alive.
pub(super) fn elsewhere() -> Behaviour {
    answers(
        "where-redirects-lead",
        OK,
        "200, 2 B, whole; delivered; 1 connection",
    )
}

/// The table but for [`elsewhere`], which listens at this port.
pub(super) fn catalogue(elsewhere: u16) -> Vec<Behaviour> {
    let parts = [
        connections::catalogue(),
        framing::catalogue(),
        statuses::catalogue(elsewhere),
        heads::catalogue(),
        bodies::catalogue(),
        over_tls::catalogue(),
        over_http2::catalogue(),
        floods::catalogue(),
    ];
    parts.into_iter().flatten().collect()
}

fn say(bytes: impl Into<Vec<u8>>) -> Step {
    Step::Say(Bytes::from(bytes.into()))
}

/// Answers each request with these bytes.
fn answers(
    name: &'static str,
    bytes: impl Into<Vec<u8>>,
    expected: impl Into<String>,
) -> Behaviour {
    plain(
        name,
        vec![Step::ReadRequest, say(bytes), Step::Again],
        expected,
    )
}

/// Answers one request with these bytes and closes.
fn answers_once(
    name: &'static str,
    bytes: impl Into<Vec<u8>>,
    expected: impl Into<String>,
) -> Behaviour {
    plain(name, vec![Step::ReadRequest, say(bytes)], expected)
}

fn plain(name: &'static str, script: Vec<Step>, expected: impl Into<String>) -> Behaviour {
    Behaviour::new(name, Wire::Plain, script, expected)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

const FINE: &str = "200, 2 B, whole; delivered; 1 connection";
const PROTOCOL: &str = "protocol: the response is not valid HTTP; transient; 1 connection";
/// As many as a request may go over, where it is chance which of them took it.
pub(super) const BY_CHANCE: &str = "1 to 3 connections";

const RESET: &str = "reset: the connection was closed before the response; the request may have been received; transient; 1 connection";
const SILENT: &str = "timeout: timed out waiting for the response; the request may have been received; transient; 1 connection";
const MAYBE: &str = "200, 2 B, whole; delivered, then maybe_sent: a reused connection was closed \
     before the response; the request may have been received; transient, forgiven; 1 connection";
