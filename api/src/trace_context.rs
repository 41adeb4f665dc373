//! `traceparent` of a request: where its publisher's trace stands.

use actix_web::HttpRequest;
use shared::domain::trace::{TRACEPARENT, TraceContext};

/// The publisher's context. A header that is not legal, or is there twice, is as good as none: it is never an error.
pub(crate) fn of(request: &HttpRequest) -> Option<TraceContext> {
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
