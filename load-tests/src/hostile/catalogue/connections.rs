//! Connections that end, wait or are kept at the wrong moment.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use bytes::Bytes;

use super::super::script::Step;
use super::{
    Behaviour, FINE, LONGEST_BODY, MAYBE, OK, RESET, SILENT, Wire, answers, answers_once, plain,
    say,
};

pub(super) fn catalogue() -> Vec<Behaviour> {
    let parts = [endings(), slowness(), keep_alive()];
    parts.into_iter().flatten().collect()
}

fn endings() -> Vec<Behaviour> {
    use Step::*;
    vec![
        answers("good", OK, FINE).times(3),
        Behaviour::new(
            "nobody-listens",
            Wire::Nobody,
            vec![],
            "connect: could not connect: connection refused; transient; 0 connections",
        ),
        plain("closes-before-the-request", vec![], RESET),
        plain("closes-its-side-at-once", vec![CloseWriting, Hold], RESET),
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
            FINE,
        ),
        answers_once(
            "closes-after-each-answer",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "200, 0 B, whole; delivered; 3 connections",
        )
        .times(3),
        plain(
            "closes-its-side-instead-of-an-answer",
            vec![ReadRequest, CloseWriting, Hold],
            RESET,
        ),
        plain(
            "closes-after-a-continue",
            vec![ReadRequest, say("HTTP/1.1 100 Continue\r\n\r\n")],
            RESET,
        ),
        // A marker in each: no answer is taken for that of another request.
        plain(
            "answers-by-turns",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"),
                ReadRequest,
                say("HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nbbb"),
                Again,
            ],
            "200, 1 B, whole; delivered, then 500, 3 B, whole; transient, then 200, 1 B, whole; \
             delivered, then 500, 3 B, whole; transient; 1 connection",
        )
        .times(4),
        plain(
            "refuses-a-long-body-early",
            vec![
                ReadHead,
                say("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
                Hold,
            ],
            "413, 0 B, whole; permanent; 1 connection",
        )
        .with_body(LONGEST_BODY),
        plain(
            "answers-and-never-reads-the-body",
            vec![ReadHead, say(OK), Ignore],
            "200, 2 B, whole; delivered; 2 connections",
        )
        .with_body(LONGEST_BODY)
        .times(2),
        plain(
            "answers-before-the-body",
            vec![ReadHead, say(OK), Hold],
            FINE,
        ),
    ]
}

fn slowness() -> Vec<Behaviour> {
    use Step::*;
    const SLOW: &str = "200, some B, too slow; delivered; 1 connection";
    let rest = |bytes: &'static str| Drip(Bytes::from_static(bytes.as_bytes()));
    vec![
        plain("accepts-and-is-silent", vec![Hold], SILENT).hanging(),
        plain("reads-nothing", vec![Ignore], SILENT).hanging(),
        plain("reads-a-byte-at-a-time", vec![Sip], SILENT).hanging(),
        plain("reads-nothing-of-a-long-body", vec![Ignore], SILENT)
            .with_body(LONGEST_BODY)
            .hanging(),
        plain("sips-a-long-body", vec![Sip], SILENT)
            .with_body(LONGEST_BODY)
            .hanging(),
        plain(
            "drips-a-failure",
            vec![
                ReadRequest,
                say("HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n"),
                rest("b"),
            ],
            "500, some B, too slow; transient; 1 connection",
        )
        .hanging(),
        plain(
            "drips-a-chunk-extension",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;"),
                rest("x"),
            ],
            "200, 0 B, too slow; delivered; 1 connection",
        )
        .hanging(),
        plain(
            "drips-trailers",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"),
                rest("A: b\r\n"),
            ],
            SLOW,
        )
        .hanging(),
        // Enough of it is kept: a second more is waited, not all the time that there is.
        plain(
            "stops-behind-what-is-kept",
            vec![
                ReadRequest,
                say([
                    b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n".as_slice(),
                    &[b'x'; 300],
                ]
                .concat()),
                Hold,
            ],
            "200, 256 B, longer; delivered; 1 connection",
        ),
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

fn keep_alive() -> Vec<Behaviour> {
    let says = |value: &str| {
        format!("HTTP/1.1 200 OK\r\nKeep-Alive: {value}\r\nContent-Length: 2\r\n\r\nok")
    };
    const EACH: &str = "200, 2 B, whole; delivered; 3 connections";
    vec![
        answers("keeps-alive-for-no-time", says("timeout=0"), EACH).times(3),
        answers("keeps-alive-for-a-second", says("timeout=1, max=5"), EACH).times(3),
        answers("keeps-alive-for-ever", says("timeout=99999999999"), FINE).times(3),
        answers(
            "keeps-alive-for-ages",
            says("timeout=18446744073709551615"),
            FINE,
        )
        .times(3),
        answers(
            "closes-in-capitals",
            "HTTP/1.1 200 OK\r\nConnection: CLOSE\r\nContent-Length: 2\r\n\r\nok",
            EACH,
        )
        .times(3),
        answers(
            "keeps-alive-and-closes",
            "HTTP/1.1 200 OK\r\nConnection: keep-alive, close\r\nContent-Length: 2\r\n\r\nok",
            EACH,
        )
        .times(3),
        answers("keeps-alive-for-nonsense", says("timeout=-5; x"), FINE).times(3),
    ]
}
