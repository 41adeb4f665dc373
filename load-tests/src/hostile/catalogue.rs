//! What receivers do wrong, and exactly what follows.
//!
//! The expectation is what `run` prints: the status, the bytes kept of the body and how it ended, or
//! the kind of error and its text; then the class, and whether the attempt is forgiven; then how many
//! connections all its requests took.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use bytes::Bytes;

use super::certificates::Shown;
use super::over_http2;
use super::script::Step;

/// One way to misbehave.
pub(super) struct Behaviour {
    pub(super) name: &'static str,
    pub(super) wire: Wire,
    pub(super) script: Vec<Step>,
    /// Requests, one after the other; the last one's outcome is what counts.
    pub(super) requests: usize,
    /// Bytes of each request's body.
    pub(super) body: usize,
    /// It ends at the deadline, which is a short one then.
    pub(super) hangs: bool,
    pub(super) expected: &'static str,
}

/// What is spoken below the script.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire {
    /// Nobody listens.
    Nobody,
    Plain,
    Tls(Shown),
    Http2,
}

impl Behaviour {
    pub(super) fn new(
        name: &'static str,
        wire: Wire,
        script: Vec<Step>,
        expected: &'static str,
    ) -> Self {
        Self {
            name,
            wire,
            script,
            requests: 1,
            body: 4_096,
            hangs: false,
            expected,
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
}

/// The whole table.
pub(super) fn catalogue() -> Vec<Behaviour> {
    let parts = [
        connections(),
        slowness(),
        framing(),
        statuses(),
        heads(),
        bodies(),
        strangers(),
        keep_alive(),
        tls(),
        over_http2::catalogue(),
    ];
    parts.into_iter().flatten().collect()
}

fn say(bytes: impl Into<Vec<u8>>) -> Step {
    Step::Say(Bytes::from(bytes.into()))
}

/// Answers each request with these bytes.
fn answers(name: &'static str, bytes: impl Into<Vec<u8>>, expected: &'static str) -> Behaviour {
    let script = vec![Step::ReadRequest, say(bytes), Step::Again];
    Behaviour::new(name, Wire::Plain, script, expected)
}

/// Answers one request with these bytes and closes.
fn answers_once(
    name: &'static str,
    bytes: impl Into<Vec<u8>>,
    expected: &'static str,
) -> Behaviour {
    plain(name, vec![Step::ReadRequest, say(bytes)], expected)
}

fn plain(name: &'static str, script: Vec<Step>, expected: &'static str) -> Behaviour {
    Behaviour::new(name, Wire::Plain, script, expected)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn connections() -> Vec<Behaviour> {
    use Step::*;
    const RESET: &str =
        "reset: the connection was closed before the response; transient; 1 connection";
    const MAYBE: &str = "maybe_sent: a reused connection was closed before the response; the \
         request may have been received; transient, forgiven; 1 connection";
    vec![
        answers("good", OK, "200, 2 B, whole; delivered; 1 connection").times(3),
        Behaviour::new(
            "nobody-listens",
            Wire::Nobody,
            vec![],
            "connect: could not connect: connection refused; transient; 0 connections",
        ),
        plain("closes-before-the-request", vec![], RESET),
        plain("resets-in-the-request", vec![ReadHead, Reset], RESET),
        plain("resets-after-the-request", vec![ReadRequest, Reset], RESET),
        plain("closes-after-the-request", vec![ReadRequest], RESET),
        plain(
            "closes-in-the-status-line",
            vec![ReadRequest, say("HTTP/1.1 2")],
            RESET,
        ),
        plain(
            "closes-in-the-headers",
            vec![ReadRequest, say("HTTP/1.1 200 OK\r\nA: b\r\n")],
            RESET,
        ),
        plain(
            "resets-the-second-request",
            vec![ReadRequest, say(OK), ReadRequest, Reset],
            MAYBE,
        )
        .times(2),
        plain(
            "closes-on-the-second-request",
            vec![ReadRequest, say(OK), ReadRequest],
            MAYBE,
        )
        .times(2),
        plain(
            "closes-its-side-and-answers",
            vec![ReadRequest, say(OK), CloseWriting, Hold],
            "200, 2 B, whole; delivered; 1 connection",
        ),
        answers_once(
            "closes-after-each-answer",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "200, 0 B, whole; delivered; 3 connections",
        )
        .times(3),
        plain(
            "answers-before-the-body",
            vec![ReadHead, say(OK), Hold],
            "200, 2 B, whole; delivered; 1 connection",
        ),
    ]
}

fn slowness() -> Vec<Behaviour> {
    use Step::*;
    const SILENT: &str = "timeout: timed out waiting for the response; transient; 1 connection";
    const SLOW: &str = "200, some B, too slow; delivered; 1 connection";
    let rest = |bytes: &'static str| Drip(Bytes::from_static(bytes.as_bytes()));
    vec![
        plain("accepts-and-is-silent", vec![Hold], SILENT).hanging(),
        plain("reads-nothing", vec![Ignore], SILENT).hanging(),
        plain("reads-a-byte-at-a-time", vec![Sip], SILENT).hanging(),
        plain(
            "drips-the-status-line",
            vec![ReadRequest, rest("H")],
            SILENT,
        )
        .hanging(),
        plain(
            "drips-a-reason",
            vec![ReadRequest, say("HTTP/1.1 200 "), rest("K")],
            SILENT,
        )
        .hanging(),
        plain(
            "drips-headers",
            vec![ReadRequest, say("HTTP/1.1 200 OK\r\nA: "), rest("b")],
            SILENT,
        )
        .hanging(),
        plain(
            "drips-a-body",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"),
                rest("b"),
            ],
            SLOW,
        )
        .hanging(),
        plain(
            "drips-chunks",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                rest("1\r\nb\r\n"),
            ],
            SLOW,
        )
        .hanging(),
        plain(
            "says-continue-for-ever",
            vec![
                ReadRequest,
                Flood(Bytes::from_static(b"HTTP/1.1 100 Continue\r\n\r\n")),
            ],
            SILENT,
        )
        .hanging(),
        plain(
            "gives-early-hints-for-ever",
            vec![
                ReadRequest,
                Flood(Bytes::from_static(
                    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
                )),
            ],
            SILENT,
        )
        .hanging(),
        plain(
            "stops-after-the-head",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"),
                Hold,
            ],
            "200, 0 B, too slow; delivered; 1 connection",
        )
        .hanging(),
    ]
}

fn framing() -> Vec<Behaviour> {
    const PROTOCOL: &str = "protocol: the response is not valid HTTP; transient; 1 connection";
    const CUT: &str = "200, 3 B, cut; delivered; 1 connection";
    let chunked =
        |rest: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{rest}");
    let length = |value: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {value}\r\n\r\nok");
    let stray = "HTTP/1.1 500 Stray\r\nContent-Length: 5\r\n\r\nstray";
    vec![
        answers_once(
            "body-cut",
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
            CUT,
        ),
        answers_once(
            "failure-with-a-body-cut",
            "HTTP/1.1 503 No\r\nContent-Length: 10\r\n\r\nabc",
            "503, 3 B, cut; transient; 1 connection",
        ),
        answers(
            "body-longer-than-said",
            format!("{OK}and more"),
            "200, 2 B, whole; delivered; 2 connections",
        )
        .times(2),
        answers(
            "second-answer-behind-the-first",
            format!("{OK}{stray}"),
            "200, 2 B, whole; delivered; 3 connections",
        )
        .times(3),
        answers(
            "two-equal-lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
            "200, 2 B, whole; delivered; 1 connection",
        ),
        answers(
            "two-different-lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nok",
            PROTOCOL,
        ),
        answers(
            "length-and-chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "200, 2 B, whole; delivered; 1 connection",
        ),
        answers("length-negative", length("-1"), PROTOCOL),
        answers("length-not-a-number", length("two"), PROTOCOL),
        answers(
            "length-beyond-64-bits",
            length("18446744073709551616"),
            PROTOCOL,
        ),
        answers_once(
            "length-huge",
            length("9223372036854775807"),
            "200, 2 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "chunk-size-not-hexadecimal",
            chunked("xyz\r\nabc\r\n"),
            "200, 0 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "chunk-size-beyond-64-bits",
            chunked("fffffffffffffffff\r\nabc"),
            "200, 0 B, cut; delivered; 1 connection",
        ),
        answers_once("chunks-without-an-end", chunked("3\r\nabc\r\n"), CUT),
        answers(
            "chunks-with-trailers",
            chunked("2\r\nok\r\n0\r\nWebhook-Id: evil\r\n\r\n"),
            "200, 2 B, whole; delivered; 1 connection",
        )
        .times(2),
        answers_once(
            "chunk-extension-flood",
            chunked(&format!("2;{}\r\nok\r\n0\r\n\r\n", "x".repeat(1 << 20))),
            "200, 0 B, cut; delivered; 1 connection",
        ),
        answers(
            "no-content-with-a-body",
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
            "204, 0 B, whole; delivered; 2 connections",
        )
        .times(2),
        answers(
            "not-modified-with-a-body",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello",
            "304, 0 B, whole; permanent; 2 connections",
        )
        .times(2),
        answers_once(
            "body-until-the-end",
            "HTTP/1.1 200 OK\r\n\r\nall of it",
            "200, 9 B, whole; delivered; 1 connection",
        ),
        answers_once(
            "unknown-transfer-encoding",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
            CUT_BY_CLOSE,
        ),
        answers(
            "continue-then-the-answer",
            format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"),
            "200, 2 B, whole; delivered; 1 connection",
        )
        .times(2),
        answers(
            "early-hints-then-the-answer",
            format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{OK}"),
            "200, 2 B, whole; delivered; 1 connection",
        )
        .times(2),
    ]
}

const CUT_BY_CLOSE: &str = "200, 3 B, whole; delivered; 1 connection";

fn statuses() -> Vec<Behaviour> {
    const PROTOCOL: &str = "protocol: the response is not valid HTTP; transient; 1 connection";
    let status = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    let moved = |code: u16| {
        format!(
            "HTTP/1.1 {code} Moved\r\nLocation: http://127.0.0.1:1/secret?token=x\r\nContent-Length: 0\r\n\r\n"
        )
    };
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
        answers("status-in-letters", status("OK"), PROTOCOL),
        answers(
            "status-without-a-reason",
            status("200"),
            "200, 0 B, whole; delivered; 1 connection",
        ),
        answers(
            "switches-protocols",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "101, 0 B, whole; permanent; 2 connections",
        )
        .times(2),
        answers(
            "redirects-301",
            moved(301),
            "301, 0 B, whole, leads to http://127.0.0.1:1; permanent; 1 connection",
        ),
        answers(
            "redirects-302",
            moved(302),
            "302, 0 B, whole, leads to http://127.0.0.1:1; permanent; 1 connection",
        ),
        answers(
            "redirects-303",
            moved(303),
            "303, 0 B, whole, leads to http://127.0.0.1:1; permanent; 1 connection",
        ),
        answers(
            "redirects-307",
            moved(307),
            "307, 0 B, whole, leads to http://127.0.0.1:1; permanent; 1 connection",
        ),
        answers(
            "redirects-308",
            moved(308),
            "308, 0 B, whole, leads to http://127.0.0.1:1; permanent; 1 connection",
        ),
        answers(
            "is-gone",
            status("410 Gone"),
            "410, 0 B, whole; gone; 1 connection",
        ),
        answers(
            "asks-for-a-day-of-rest",
            "HTTP/1.1 429 No\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
            "429, 0 B, whole; throttled, asks for 86400 s; 1 connection",
        ),
        answers(
            "asks-for-rest-in-nonsense",
            "HTTP/1.1 503 No\r\nRetry-After: \x01soon\r\nContent-Length: 0\r\n\r\n",
            "503, 0 B, whole; transient; 1 connection",
        ),
    ]
}

fn heads() -> Vec<Behaviour> {
    const PROTOCOL: &str = "protocol: the response is not valid HTTP; transient; 1 connection";
    const FINE: &str = "200, 2 B, whole; delivered; 1 connection";
    let with = |line: &[u8]| {
        [
            b"HTTP/1.1 200 OK\r\n",
            line,
            b"\r\nContent-Length: 2\r\n\r\nok",
        ]
        .concat()
    };
    vec![
        answers(
            "header-of-a-mebibyte",
            with(&[b"A: ", vec![b'b'; 1 << 20].as_slice()].concat()),
            PROTOCOL,
        ),
        answers(
            "a-hundred-thousand-headers",
            with("A: b\r\n".repeat(100_000).trim_end().as_bytes()),
            PROTOCOL,
        ),
        answers(
            "three-hundred-headers",
            with("A: b\r\n".repeat(300).trim_end().as_bytes()),
            PROTOCOL,
        ),
        answers(
            "two-hundred-headers",
            with("A: b\r\n".repeat(200).trim_end().as_bytes()),
            FINE,
        ),
        answers("header-without-a-colon", with(b"no colon here"), FINE),
        answers("header-with-nul", with(b"A: b\0c"), PROTOCOL),
        answers("header-folded", with(b"A: b\r\n c"), FINE),
        answers("header-with-a-blank-before-its-colon", with(b"A : b"), FINE),
        answers("header-in-latin-1", with(b"A: \xe9t\xe9"), FINE),
        answers(
            "reason-not-utf-8",
            b"HTTP/1.1 200 \xff\xfe\r\nContent-Length: 2\r\n\r\nok".to_vec(),
            FINE,
        ),
        answers(
            "bare-line-feeds",
            "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
            FINE,
        ),
        answers(
            "bare-carriage-returns",
            "HTTP/1.1 200 OK\rContent-Length: 2\r\rok",
            PROTOCOL,
        ),
    ]
}

fn bodies() -> Vec<Behaviour> {
    use Step::*;
    let whole = |status: &str, label: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\n{label}Content-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let chunk = |byte: u8| {
        let size = 1 << 16;
        Bytes::from(
            [
                format!("{size:x}\r\n").as_bytes(),
                &vec![byte; size],
                b"\r\n",
            ]
            .concat(),
        )
    };
    let endless = |status: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
    };
    vec![
        answers(
            "body-of-nuls",
            whole("200 OK", "", &[0; 100]),
            "200, 100 B, whole; delivered; 1 connection",
        )
        .times(2),
        answers(
            "body-not-utf-8",
            whole("500 No", "", &[0xff; 100]),
            "500, 100 B, whole; transient; 1 connection",
        )
        .times(2),
        answers(
            "body-with-a-byte-order-mark",
            whole("200 OK", "", b"\xef\xbb\xbf{}"),
            "200, 5 B, whole; delivered; 1 connection",
        ),
        answers(
            "success-of-a-mebibyte",
            whole("200 OK", "", &vec![0xff; 1 << 20]),
            "200, 256 B, longer; delivered; 2 connections",
        )
        .times(2),
        answers(
            "failure-of-a-mebibyte",
            whole("500 No", "", &vec![0xff; 1 << 20]),
            "500, 16384 B, longer; transient; 2 connections",
        )
        .times(2),
        answers(
            "failure-of-forty-kibibytes",
            whole("500 No", "", &vec![b'x'; 40 << 10]),
            "500, 16384 B, longer; transient; 1 connection",
        )
        .times(2),
        answers(
            "body-that-says-gzip-and-is-not",
            whole("200 OK", "Content-Encoding: gzip\r\n", b"no gzip"),
            "200, 7 B, whole; delivered; 1 connection",
        ),
        answers(
            "body-in-brotli",
            whole(
                "200 OK",
                "Content-Encoding: br\r\n",
                b"\x0b\x02\x80hello\x03",
            ),
            "200, 9 B, whole; delivered; 1 connection",
        ),
        plain(
            "gzip-bomb",
            vec![ReadRequest, say(endless("200 OK")), Flood(chunk(0x1f))],
            "200, 256 B, longer; delivered; 1 connection",
        ),
        plain(
            "ten-gibibytes-of-failure",
            vec![ReadRequest, say(endless("500 No")), Flood(chunk(0xff))],
            "500, 16384 B, longer; transient; 1 connection",
        ),
        plain(
            "body-without-an-end-or-length",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\n\r\n"),
                Flood(Bytes::from(vec![b'x'; 1 << 16])),
            ],
            "200, 256 B, longer; delivered; 1 connection",
        ),
        plain(
            "tiny-chunks-for-ever",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                Flood(Bytes::from_static(b"1\r\nx\r\n")),
            ],
            "200, 256 B, longer; delivered; 1 connection",
        ),
    ]
}

fn strangers() -> Vec<Behaviour> {
    use Step::*;
    const PROTOCOL: &str = "protocol: the response is not valid HTTP; transient; 1 connection";
    let greets = |name, greeting: &'static [u8]| plain(name, vec![say(greeting), Hold], PROTOCOL);
    vec![
        greets("speaks-ssh", b"SSH-2.0-OpenSSH_9.2\r\n"),
        greets("speaks-smtp", b"220 mail.example ESMTP\r\n"),
        greets("speaks-http2-in-clear", b"\0\0\0\x04\0\0\0\0\0"),
        greets("speaks-tls-alerts", b"\x15\x03\x01\0\x02\x02\x46"),
        answers_once("speaks-http-0.9", "<html>hello</html>", PROTOCOL),
        answers_once(
            "speaks-http-1.0",
            "HTTP/1.0 200 OK\r\n\r\nok",
            "200, 2 B, whole; delivered; 2 connections",
        )
        .times(2),
        answers(
            "speaks-http-1.0-and-keeps-alive",
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
            "200, 2 B, whole; delivered; 1 connection",
        )
        .times(2),
        answers(
            "speaks-http-1.2",
            "HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok",
            PROTOCOL,
        ),
        answers("speaks-nothing-known", vec![0_u8; 64], PROTOCOL),
    ]
}

fn keep_alive() -> Vec<Behaviour> {
    let says = |value: &str| {
        format!("HTTP/1.1 200 OK\r\nKeep-Alive: {value}\r\nContent-Length: 2\r\n\r\nok")
    };
    const EACH: &str = "200, 2 B, whole; delivered; 3 connections";
    const ONE: &str = "200, 2 B, whole; delivered; 1 connection";
    vec![
        answers("keeps-alive-for-no-time", says("timeout=0"), EACH).times(3),
        answers("keeps-alive-for-a-second", says("timeout=1, max=5"), EACH).times(3),
        answers("keeps-alive-for-ever", says("timeout=99999999999"), ONE).times(3),
        answers("keeps-alive-for-nonsense", says("timeout=-5; x"), ONE).times(3),
    ]
}

fn tls() -> Vec<Behaviour> {
    use Step::*;
    let shows = |name, shown, expected| {
        let script = vec![ReadRequest, say(OK), Again];
        Behaviour::new(name, Wire::Tls(shown), script, expected)
    };
    // Plain below, where TLS is expected: see `run`, which sends to https:// by the name.
    let below = |name, script, expected| Behaviour::new(name, Wire::Plain, script, expected);
    vec![
        shows(
            "tls-good",
            Shown::Good,
            "200, 2 B, whole; delivered; 1 connection",
        )
        .times(2),
        shows(
            "tls-expired",
            Shown::Expired,
            "certificate_expired: TLS: the certificate has expired; transient; 1 connection",
        ),
        shows(
            "tls-not-yet-valid",
            Shown::NotYetValid,
            "certificate_not_valid_yet: TLS: the certificate is not valid yet: is its machine's clock right?; transient; 1 connection",
        ),
        shows("tls-other-name", Shown::OtherName, WRONG_NAME),
        shows(
            "tls-name-in-subject-only",
            Shown::NameInSubjectOnly,
            WRONG_NAME,
        ),
        shows(
            "tls-self-signed",
            Shown::SelfSigned,
            "certificate_self_signed: TLS: the certificate is self-signed; transient; 1 connection",
        ),
        shows(
            "tls-without-intermediate",
            Shown::WithoutIntermediate,
            "certificate_missing_intermediate: TLS: the certificate's issuer is not trusted and no intermediate certificate was sent: install the full chain at the receiver; transient; 1 connection",
        ),
        shows(
            "tls-of-a-stranger",
            Shown::OfAStranger,
            "certificate_unknown_issuer: TLS: the certificate was issued by nobody who is trusted here; transient; 1 connection",
        ),
        shows(
            "tls-long-chain",
            Shown::LongChain,
            "200, 2 B, whole; delivered; 1 connection",
        ),
        below(
            "tls-silent",
            vec![Hold],
            "timeout: timed out in the TLS handshake; transient; 1 connection",
        )
        .hanging(),
        below(
            "tls-garbage",
            vec![ReadAny, say("garbage garbage garbage"), Hold],
            "tls: TLS: received corrupt message of type InvalidContentType; transient; 1 connection",
        ),
        below(
            "tls-plain-http",
            vec![ReadAny, say("HTTP/1.1 400 Bad Request\r\n\r\n"), Hold],
            "tls: TLS: received corrupt message of type InvalidContentType; transient; 1 connection",
        ),
        below(
            "tls-no-common-version",
            vec![ReadAny, say(b"\x15\x03\x01\0\x02\x02\x46".as_slice()), Hold],
            "tls: TLS: received fatal alert: ProtocolVersion; transient; 1 connection",
        ),
        below(
            "tls-no-common-cipher",
            vec![ReadAny, say(b"\x15\x03\x03\0\x02\x02\x28".as_slice()), Hold],
            "tls: TLS: received fatal alert: HandshakeFailure; transient; 1 connection",
        ),
        below(
            "tls-closes-in-the-handshake",
            vec![ReadAny],
            "tls: TLS: the handshake broke off: unexpected end of file; transient; 1 connection",
        ),
        below(
            "tls-resets-in-the-handshake",
            vec![ReadAny, Reset],
            "tls: TLS: the handshake broke off: connection reset; transient; 1 connection",
        ),
        Behaviour::new(
            "tls-closes-after-the-handshake",
            Wire::Tls(Shown::Good),
            vec![],
            "reset: the connection was closed before the response; transient; 1 connection",
        ),
        Behaviour::new(
            "tls-drips-a-body",
            Wire::Tls(Shown::Good),
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"),
                Drip(Bytes::from_static(b"b")),
            ],
            "200, some B, too slow; delivered; 1 connection",
        )
        .hanging(),
        Behaviour::new(
            "tls-body-cut",
            Wire::Tls(Shown::Good),
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
            ],
            "200, 3 B, cut; delivered; 1 connection",
        ),
    ]
}

const WRONG_NAME: &str = "certificate_wrong_name: TLS: the certificate is not for the endpoint's \
     host (names are taken from its subject alternative names alone); transient; 1 connection";
