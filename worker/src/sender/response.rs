//! Reads an answer up to a cap; never inflated, any bytes.

use std::time::Duration;

use bytes::BytesMut;
use http::HeaderMap;
use http::header::{LOCATION, RETRY_AFTER};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use shared::domain::attempt::kept_of_response;
use shared::policy::classify::{BodyEnd, Response};
use tokio::time::{Instant, timeout_at};
use url::Url;

/// How much of a body is read at most. What is left after it costs the connection.
const MAX_READ: usize = 64 * 1_024;

/// How long the rest of a body is waited for once enough of it is kept: a new connection costs less.
const MAX_DRAIN: Duration = Duration::from_secs(1);

/// The longest `Retry-After` that is looked at, in bytes.
const MAX_RETRY_AFTER: usize = 256;

/// Reads the answer whose head has come, and says whether all of it was read, so that its connection
/// can be used again. Whatever happens to its body, the status counts. `url`: where the request went.
pub(super) async fn read(
    head: http::Response<Incoming>,
    url: &Url,
    deadline: Instant,
) -> (Response, bool) {
    let (parts, body) = head.into_parts();
    let keep = kept_of_response(parts.status.as_u16());
    let mut reading = Reading::default();
    let (body, ended) = reading.read(body, keep, deadline).await;
    let response = Response {
        status: parts.status.as_u16(),
        retry_after: retry_after(&parts.headers),
        redirect: parts
            .status
            .is_redirection()
            .then(|| redirect(&parts.headers, url))
            .flatten(),
        excerpt: reading.excerpt.freeze(),
        body,
    };
    (response, ended)
}

/// The longest origin that is shown, in bytes: more than a name that DNS can hold makes of it.
const MAX_ORIGIN: usize = 300;

/// All values, for [`shared::policy::retry_after`] to make sense of.
fn retry_after(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(RETRY_AFTER);
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .filter(|text| text.len() <= MAX_RETRY_AFTER)
        .take(2)
        .map(ToOwned::to_owned)
        .reduce(|all, one| all + "," + &one)
}

/// Where a redirect leads, without what may be a credential: scheme, host and port.
fn redirect(headers: &HeaderMap, url: &Url) -> Option<Box<str>> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let target = url.join(location).ok()?;
    let origin = target.origin().ascii_serialization();
    (target.has_host() && origin.len() <= MAX_ORIGIN).then(|| origin.into())
}

/// What was read of a body so far.
#[derive(Default)]
struct Reading {
    excerpt: BytesMut,
    read: usize,
}

impl Reading {
    /// Reads until the end, the cap or the deadline; and whether that was the end.
    async fn read(
        &mut self,
        mut body: Incoming,
        keep: usize,
        mut deadline: Instant,
    ) -> (BodyEnd, bool) {
        loop {
            let longer = self.read > keep;
            let chunk = match timeout_at(deadline, body.frame()).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(None) if longer => return (BodyEnd::Longer, true),
                Ok(None) => return (BodyEnd::Whole, true),
                Ok(Some(Err(_))) | Err(_) if longer => return (BodyEnd::Longer, false),
                Ok(Some(Err(_broken))) => return (BodyEnd::Broken, false),
                Err(_elapsed) => return (BodyEnd::TooSlow, false),
            };
            self.keep(&chunk, keep);
            if self.read > MAX_READ {
                return (BodyEnd::Longer, false);
            }
            if self.read > keep && !longer {
                deadline = deadline.min(Instant::now() + MAX_DRAIN);
            }
        }
    }

    fn keep(&mut self, chunk: &[u8], keep: usize) {
        let wanted = keep.saturating_sub(self.excerpt.len()).min(chunk.len());
        self.excerpt
            .extend_from_slice(chunk.get(..wanted).unwrap_or(chunk));
        self.read = self.read.saturating_add(chunk.len());
    }
}
