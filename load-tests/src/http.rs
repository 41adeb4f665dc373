//! HTTP/1.1 heads and bodies out of a buffer: just what a load generator and a receiver need.
//!
//! Keep-alive and `Content-Length` only. Anything else is an error, never a guess.

use std::ops::Range;

/// The most headers of a request or response that are parsed.
const MOST_HEADERS: usize = 48;
/// The longest head or body that is waited for, in bytes.
const LONGEST: usize = 64 * 1024 * 1024;

/// Why a peer's bytes are not the HTTP that is spoken here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "malformed HTTP: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// One request at the beginning of a buffer.
#[derive(Debug, Default)]
pub struct Request<'b> {
    pub method: &'b str,
    pub path: &'b str,
    pub webhook_id: &'b [u8],
    pub webhook_timestamp: &'b [u8],
    pub webhook_signature: &'b [u8],
    pub delivery_id: &'b [u8],
    pub attempt: &'b [u8],
    /// What has come of it so far.
    pub body: &'b [u8],
    /// Bytes of the body, those to come included.
    pub body_length: usize,
    /// Bytes of the buffer that this request takes once it is complete.
    pub length: usize,
}

/// One response at the beginning of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Where in the buffer the body is.
    pub body: Range<usize>,
    /// Whether the server keeps the connection.
    pub keep_alive: bool,
}

/// The first request in `buffer`; `None` while it is incomplete.
pub fn request(buffer: &[u8]) -> Result<Option<Request<'_>>, Malformed> {
    Ok(head(buffer)?.filter(|request| request.length <= buffer.len()))
}

/// The first request in `buffer`, of whose body some may still be to come; `None` while its head is
/// incomplete.
pub fn head(buffer: &[u8]) -> Result<Option<Request<'_>>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let head = match parsed.parse(buffer) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_syntax) => return Err(Malformed("the head of a request")),
    };
    let mut request = Request {
        method: parsed.method.unwrap_or_default(),
        path: parsed.path.unwrap_or_default(),
        ..Request::default()
    };
    for header in parsed.headers.iter() {
        let name = header.name.as_bytes();
        match name.len() {
            10 if name.eq_ignore_ascii_case(b"webhook-id") => request.webhook_id = header.value,
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                request.body_length = number(header.value)?;
            }
            17 if name.eq_ignore_ascii_case(b"webhook-timestamp") => {
                request.webhook_timestamp = header.value;
            }
            17 if name.eq_ignore_ascii_case(b"webhook-signature") => {
                request.webhook_signature = header.value;
            }
            17 if name.eq_ignore_ascii_case(b"postrider-attempt") => {
                request.attempt = header.value;
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                return Err(Malformed("a transfer encoding instead of a length"));
            }
            21 if name.eq_ignore_ascii_case(b"postrider-delivery-id") => {
                request.delivery_id = header.value;
            }
            _ => {}
        }
    }
    request.length = head + request.body_length;
    let come = request.length.min(buffer.len());
    request.body = buffer.get(head..come).unwrap_or_default();
    Ok(Some(request))
}

/// The first response in `buffer`; `None` while it is incomplete.
pub fn response(buffer: &[u8]) -> Result<Option<Response>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    let head = match parsed.parse(buffer) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_syntax) => return Err(Malformed("the head of a response")),
    };
    let status = parsed.code.unwrap_or_default();
    let mut body_length = (status == 204).then_some(0);
    let mut keep_alive = true;
    for header in parsed.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            body_length = Some(number(header.value)?);
        } else if header.name.eq_ignore_ascii_case("connection") {
            keep_alive = !header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let Some(body_length) = body_length else {
        return Err(Malformed("a response without a length"));
    };
    let end = head + body_length;
    Ok((buffer.len() >= end).then_some(Response {
        status,
        body: head..end,
        keep_alive,
    }))
}

fn number(text: &[u8]) -> Result<usize, Malformed> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|length| *length <= LONGEST)
        .ok_or(Malformed("a length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &[u8] =
        b"POST /e/7 HTTP/1.1\r\nHost: x\r\nWebhook-Id: evt_1\r\nwebhook-timestamp: 5\r\n\
        webhook-signature: v1,abc\r\nPostrider-Delivery-Id: dlv_1\r\n\
        Postrider-Attempt: 2\r\nContent-Length: 4\r\n\r\nbody";

    #[test]
    fn a_request_is_read_with_the_headers_that_count_and_leaves_the_next_one() {
        let mut buffer = POST.to_vec();
        buffer.extend_from_slice(b"GET / HT");

        let request = request(&buffer).unwrap().unwrap();

        assert_eq!((request.method, request.path), ("POST", "/e/7"));
        assert_eq!(request.webhook_id, b"evt_1");
        assert_eq!(request.delivery_id, b"dlv_1");
        assert_eq!(request.attempt, b"2");
        assert_eq!(request.webhook_timestamp, b"5");
        assert_eq!(request.webhook_signature, b"v1,abc");
        assert_eq!(request.body, b"body");
        assert_eq!(request.length, POST.len());
    }

    #[test]
    fn every_shorter_part_of_a_request_is_incomplete() {
        for end in 0..POST.len() {
            assert!(request(&POST[..end]).unwrap().is_none(), "{end}");
        }
    }

    #[test]
    fn a_head_says_how_long_its_request_will_be_before_the_body_is_there() {
        let head_length = POST.len() - "body".len();

        let begun = head(&POST[..head_length + 1]).unwrap().unwrap();

        assert_eq!((begun.path, begun.body), ("/e/7", &b"b"[..]));
        assert_eq!((begun.body_length, begun.length), (4, POST.len()));
        assert!(head(&POST[..head_length - 1]).unwrap().is_none());
    }

    #[test]
    fn what_is_not_spoken_here_is_refused() {
        for bad in [
            &b"\x16\x03\x01\x02\x00"[..],
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            assert!(request(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(response(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn a_response_is_read_with_its_body_and_whether_the_connection_stays() {
        let kept = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}HTTP";
        let closed = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";

        let response_kept = response(kept).unwrap().unwrap();
        let response_closed = response(closed).unwrap().unwrap();

        assert_eq!(response_kept.status, 202);
        assert_eq!(&kept[response_kept.body.clone()], b"{}");
        assert!(response_kept.keep_alive);
        assert!(!response_closed.keep_alive);
        assert_eq!(response(&kept[..44]).unwrap(), None);
    }
}
