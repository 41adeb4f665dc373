//! Reads an answer up to a cap, and tells from an error of the client what went wrong.
//!
//! Errors are told apart by type along their sources, never by their text.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::RETRY_AFTER;
use shared::policy::address::DenyReason;
use shared::policy::classify::{BodyEnd, Phase, Response, SendError};
use tokio::time::{Instant, timeout_at};

use super::lookups::LookupFailed;
use super::trace::Trace;

/// How much of a 2xx answer's body is kept, in bytes.
pub(super) const KEPT_OF_SUCCESS: usize = 256;

/// How much of any other answer's body is kept: error pages explain themselves.
pub(super) const KEPT_OF_FAILURE: usize = 16 * 1_024;

/// How much of a body is read at most. What is left after it costs the connection.
const MAX_READ: usize = 64 * 1_024;

/// How long the rest of a body is waited for once enough of it is kept: a new connection costs less.
const MAX_DRAIN: Duration = Duration::from_secs(1);

/// The longest text kept of an error, in characters.
const MAX_DETAIL: usize = 200;

/// Reads the answer whose head has come. Whatever happens to its body, the status counts.
pub(super) async fn read(head: reqwest::Response, deadline: Instant) -> Response {
    let status = head.status();
    let keep = if status.is_success() {
        KEPT_OF_SUCCESS
    } else {
        KEPT_OF_FAILURE
    };
    let retry_after = retry_after(&head);
    let (excerpt, body) = read_body(head, keep, deadline).await;
    Response {
        status: status.as_u16(),
        retry_after,
        excerpt,
        body,
    }
}

/// All values, for [`shared::policy::retry_after`] to make sense of.
fn retry_after(head: &reqwest::Response) -> Option<String> {
    let values = head.headers().get_all(RETRY_AFTER);
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(ToOwned::to_owned)
        .reduce(|all, one| all + "," + &one)
}

async fn read_body(
    mut head: reqwest::Response,
    keep: usize,
    mut deadline: Instant,
) -> (Bytes, BodyEnd) {
    let mut excerpt = BytesMut::new();
    let mut read = 0;
    let end = loop {
        let chunk = match timeout_at(deadline, head.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) if read > keep => break BodyEnd::Longer,
            Ok(Ok(None)) => break BodyEnd::Whole,
            Ok(Err(_)) | Err(_) if read > keep => break BodyEnd::Longer,
            Ok(Err(_broken)) => break BodyEnd::Broken,
            Err(_elapsed) => break BodyEnd::TooSlow,
        };
        let wanted = keep.saturating_sub(excerpt.len()).min(chunk.len());
        excerpt.extend_from_slice(chunk.get(..wanted).unwrap_or(&chunk));
        let enough_before = read > keep;
        read = read.saturating_add(chunk.len());
        if read > MAX_READ {
            break BodyEnd::Longer;
        }
        if read > keep && !enough_before {
            deadline = deadline.min(Instant::now() + MAX_DRAIN);
        }
    };
    (excerpt.freeze(), end)
}

/// What an error of the client means.
pub(super) fn explain(error: &reqwest::Error, trace: &Trace) -> SendError {
    let known = causes(error).find_map(known_cause);
    if let Some(known) = known {
        return known;
    }
    if error.is_builder() {
        return SendError::Internal("the client refused the request");
    }
    if error.is_connect() {
        return not_connected(error, trace.connect_phase());
    }
    if error.is_timeout() {
        return SendError::Timeout(trace.phase());
    }
    if trace.has_own_connection() {
        SendError::Reset
    } else {
        SendError::MaybeSent
    }
}

fn not_connected(error: &reqwest::Error, phase: Phase) -> SendError {
    if error.is_timeout() {
        return SendError::Timeout(phase);
    }
    let kind = causes(error)
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map_or(io::ErrorKind::Other, io::Error::kind);
    match phase {
        Phase::Tls => SendError::Tls(format!("the handshake broke off: {kind}").into()),
        Phase::Dns | Phase::Connect | Phase::Response => SendError::Connect(kind),
    }
}

/// What a cause means by itself, wherever it happened.
fn known_cause(cause: &(dyn Error + 'static)) -> Option<SendError> {
    if let Some(denied) = cause.downcast_ref::<DenyReason>() {
        return Some(SendError::AddressDenied(*denied));
    }
    if let Some(failed) = cause.downcast_ref::<LookupFailed>() {
        return Some(SendError::Dns(brief(failed)));
    }
    if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
        return Some(SendError::Tls(brief(tls)));
    }
    match cause.downcast_ref::<hyper::Error>() {
        Some(http) if http.is_parse() => Some(SendError::Protocol),
        Some(http) if http.is_user() => Some(SendError::Internal("the client refused the request")),
        Some(_) | None => None,
    }
}

type Cause<'a> = &'a (dyn Error + 'static);

/// An error and all below it.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = Cause<'_>> {
    std::iter::successors(Some(error as Cause<'_>), |cause| below(*cause))
}

/// An [`io::Error`] hides what it wraps from `source`.
fn below(cause: Cause<'_>) -> Option<Cause<'_>> {
    let wrapped = cause
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => Some(wrapped),
        None => cause.source(),
    }
}

fn brief(error: &dyn Error) -> Box<str> {
    error.to_string().chars().take(MAX_DETAIL).collect()
}
