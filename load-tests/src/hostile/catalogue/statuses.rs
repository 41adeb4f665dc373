//! Statuses that are none, that lead elsewhere, and that ask for patience.

use super::{Behaviour, FINE, PROTOCOL, answers};

pub(super) fn catalogue(elsewhere: u16) -> Vec<Behaviour> {
    let parts = [numbers(), redirects(elsewhere), patience()];
    parts.into_iter().flatten().collect()
}

fn status(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
}

fn numbers() -> Vec<Behaviour> {
    const EMPTY: &str = "200, 0 B, whole; delivered; 1 connection";
    vec![
        answers("status-000", status("000 Zero"), PROTOCOL),
        answers("status-099", status("099 Low"), PROTOCOL),
        answers(
            "status-600",
            status("600 High"),
            "600, 0 B, whole; permanent; 1 connection",
        ),
        answers(
            "status-999",
            status("999 Top"),
            "999, 0 B, whole; permanent; 1 connection",
        ),
        answers("status-of-four-digits", status("2000 Long"), PROTOCOL),
        answers("status-of-two-digits", status("20 Short"), PROTOCOL),
        answers("status-negative", status("-200 Less"), PROTOCOL),
        answers("status-in-letters", status("OK"), PROTOCOL),
        answers("status-in-other-digits", status("２００ OK"), PROTOCOL),
        answers("status-behind-two-blanks", status(" 200 OK"), PROTOCOL),
        answers("status-without-a-reason", status("200"), EMPTY),
        answers(
            "reason-not-utf-8",
            b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 2\r\n\r\nok".to_vec(),
            FINE,
        ),
        answers("reason-with-nul", status("200 O\0K"), PROTOCOL),
        answers(
            "reason-of-a-mebibyte",
            status(&format!("200 {}", "K".repeat(1 << 20))),
            PROTOCOL,
        ),
        answers(
            "switches-protocols",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "101, 0 B, whole; permanent; 2 connections",
        )
        .times(2),
        answers(
            "is-gone",
            status("410 Gone"),
            "410, 0 B, whole; gone; 1 connection",
        ),
        answers(
            "wants-a-password-for-a-proxy",
            "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
            "407, 0 B, whole; permanent; 1 connection",
        ),
        answers(
            "wants-a-password",
            "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
            "401, 0 B, whole; misconfigured; 1 connection",
        ),
    ]
}

/// None is followed; of where they lead, what may be a credential is left out.
fn redirects(elsewhere: u16) -> Vec<Behaviour> {
    let moved = |status: u16, location: &str| {
        format!("HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
    };
    let leads = |name, status: u16| {
        let location = format!("http://127.0.0.1:{elsewhere}/secret?token=x");
        let expected = format!(
            "{status}, 0 B, whole, leads to http://127.0.0.1:{elsewhere}; permanent; 1 connection"
        );
        answers(name, moved(status, &location), expected)
    };
    const NOWHERE: &str = "302, 0 B, whole; permanent; 1 connection";
    vec![
        leads("redirects-300", 300),
        leads("redirects-301", 301),
        leads("redirects-302", 302),
        leads("redirects-303", 303),
        leads("redirects-304", 304),
        leads("redirects-305", 305),
        leads("redirects-307", 307),
        leads("redirects-308", 308),
        answers(
            "success-with-a-location",
            format!(
                "HTTP/1.1 201 Created\r\nLocation: http://127.0.0.1:{elsewhere}/\r\nRefresh: 0; \
                 url=http://127.0.0.1:{elsewhere}/\r\nContent-Length: 0\r\n\r\n"
            ),
            "201, 0 B, whole; delivered; 1 connection",
        ),
        answers("redirects-nowhere", status("302 Found"), NOWHERE),
        answers(
            "redirects-to-a-script",
            moved(302, "javascript:alert(1)"),
            NOWHERE,
        ),
        answers("redirects-to-no-url", moved(302, "http://[::1"), NOWHERE),
        answers(
            "redirects-in-latin-1",
            b"HTTP/1.1 302 Found\r\nLocation: /\xe9\r\nContent-Length: 0\r\n\r\n".to_vec(),
            NOWHERE,
        ),
        answers(
            "redirects-with-a-password",
            moved(302, "https://user:pass@other.example/a?b=c#d"),
            "302, 0 B, whole, leads to https://other.example; permanent; 1 connection",
        ),
        answers(
            "redirects-without-a-scheme",
            moved(302, "//other.example:8080/a"),
            "302, 0 B, whole, leads to http://other.example:8080; permanent; 1 connection",
        ),
        answers(
            "redirects-twice",
            moved(302, "http://one.example/\r\nLocation: http://two.example/"),
            "302, 0 B, whole, leads to http://one.example; permanent; 1 connection",
        ),
    ]
}

fn patience() -> Vec<Behaviour> {
    let busy = |value: &str| {
        format!("HTTP/1.1 503 Busy\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n")
    };
    let asks =
        |seconds: u32| format!("503, 0 B, whole; transient, asks for {seconds} s; 1 connection");
    const IN_VAIN: &str = "503, 0 B, whole; transient; 1 connection";
    vec![
        answers(
            "asks-for-rest-without-end",
            "HTTP/1.1 429 No\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
            "429, 0 B, whole; throttled, asks for 86400 s; 1 connection",
        ),
        answers("asks-for-rest", busy("7"), asks(7)),
        answers("asks-for-rest-twice", busy("5\r\nRetry-After: 9"), asks(9)),
        answers(
            "asks-for-rest-until-the-year-9999",
            busy("Fri, 31 Dec 9999 23:59:59 GMT"),
            asks(86_400),
        ),
        answers(
            "asks-for-rest-until-long-ago",
            busy("Thu, 01 Jan 1970 00:00:00 GMT"),
            IN_VAIN,
        ),
        answers("asks-for-negative-rest", busy("-5"), IN_VAIN),
        answers("asks-for-rest-in-an-exponent", busy("1e9"), IN_VAIN),
        answers(
            "asks-for-rest-in-ten-kibibytes",
            busy(&"9".repeat(10 << 10)),
            IN_VAIN,
        ),
        answers("asks-for-rest-in-nonsense", busy("\x01soon"), IN_VAIN),
    ]
}
