//! Answers whose length is a lie.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use super::{Behaviour, FINE, OK, PROTOCOL, answers, answers_once};

pub(super) fn catalogue() -> Vec<Behaviour> {
    let parts = [lengths(), chunks(), encodings(), ends()];
    parts.into_iter().flatten().collect()
}

fn lengths() -> Vec<Behaviour> {
    let length = |value: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {value}\r\n\r\nok");
    let two = |other: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: {other}\r\n\r\nok")
    };
    vec![
        answers_once(
            "body-cut",
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
            "200, 3 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "failure-with-a-body-cut",
            "HTTP/1.1 503 No\r\nContent-Length: 10\r\n\r\nabc",
            "503, 3 B, cut; transient; 1 connection",
        ),
        answers("two-equal-lengths", two("2"), FINE),
        answers("two-different-lengths", two("5"), PROTOCOL),
        answers("length-twice-in-a-list", length("2, 2"), FINE),
        answers("two-lengths-in-a-list", length("2, 5"), PROTOCOL),
        answers("length-empty", length(""), PROTOCOL),
        answers("length-among-blanks", length(" \t2 "), FINE),
        answers("length-with-a-plus", length("+2"), PROTOCOL),
        answers("length-negative", length("-1"), PROTOCOL),
        answers("length-in-hexadecimal", length("0x2"), PROTOCOL),
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
    ]
}

fn chunks() -> Vec<Behaviour> {
    let chunked =
        |rest: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{rest}");
    const BROKEN: &str = "200, 0 B, cut; delivered; 1 connection";
    vec![
        answers_once(
            "chunk-size-not-hexadecimal",
            chunked("xyz\r\nabc\r\n"),
            BROKEN,
        ),
        answers_once("chunk-size-empty", chunked("\r\nok\r\n0\r\n\r\n"), BROKEN),
        answers_once(
            "chunk-size-negative",
            chunked("-2\r\nok\r\n0\r\n\r\n"),
            BROKEN,
        ),
        answers_once(
            "chunk-size-with-0x",
            chunked("0x2\r\nok\r\n0\r\n\r\n"),
            BROKEN,
        ),
        answers_once(
            "chunk-size-beyond-64-bits",
            chunked("fffffffffffffffff\r\nabc"),
            BROKEN,
        ),
        answers_once(
            "chunk-size-of-64-bits",
            chunked("ffffffffffffffff\r\nabc"),
            "200, 3 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "chunk-longer-than-said",
            chunked("2\r\nokk\r\n0\r\n\r\n"),
            "200, 2 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "chunks-with-bare-line-feeds",
            chunked("2\nok\n0\n\n"),
            BROKEN,
        ),
        answers_once(
            "chunks-without-an-end",
            chunked("3\r\nabc\r\n"),
            "200, 3 B, cut; delivered; 1 connection",
        ),
        answers(
            "chunks-with-trailers",
            chunked("2\r\nok\r\n0\r\nWebhook-Id: evil\r\n\r\n"),
            FINE,
        )
        .times(2),
        answers_once(
            "trailers-of-a-mebibyte",
            chunked(&format!(
                "2\r\nok\r\n0\r\nA: {}\r\n\r\n",
                "b".repeat(1 << 20)
            )),
            "200, 2 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "a-hundred-thousand-trailers",
            chunked(&format!(
                "2\r\nok\r\n0\r\n{}\r\n",
                "A: b\r\n".repeat(100_000)
            )),
            "200, 2 B, cut; delivered; 1 connection",
        ),
        answers_once(
            "chunk-extension-flood",
            chunked(&format!("2;{}\r\nok\r\n0\r\n\r\n", "x".repeat(1 << 20))),
            BROKEN,
        ),
    ]
}

fn encodings() -> Vec<Behaviour> {
    let encoded = |encoding: &str| {
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {encoding}\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    };
    // Not chunks: a body until the end of the connection, as it stands.
    const AS_IT_STANDS: &str = "200, 12 B, whole; delivered; 1 connection";
    vec![
        answers(
            "length-and-chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            FINE,
        ),
        answers("chunked-in-capitals", encoded("CHUNKED"), FINE),
        answers("chunked-behind-gzip", encoded("gzip, chunked"), FINE),
        answers_once(
            "chunked-before-another",
            encoded("chunked, identity"),
            AS_IT_STANDS,
        ),
        answers_once("chunked-misspelt", encoded("xchunked"), AS_IT_STANDS),
        answers(
            "chunked-in-a-second-header",
            encoded("identity\r\nTransfer-Encoding: chunked"),
            FINE,
        ),
        answers_once("unknown-transfer-encoding", encoded("gzip"), AS_IT_STANDS),
        answers(
            "chunks-in-http-1.0",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            PROTOCOL,
        ),
    ]
}

/// Answers that end elsewhere than they should.
fn ends() -> Vec<Behaviour> {
    let stray = "HTTP/1.1 500 Stray\r\nContent-Length: 5\r\n\r\nstray";
    vec![
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
            "second-answer-behind-chunks",
            format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{stray}"
            ),
            "200, 2 B, whole; delivered; 3 connections",
        )
        .times(3),
        answers(
            "no-content-with-a-body",
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
            "204, 0 B, whole; delivered; 2 connections",
        )
        .times(2),
        answers(
            "no-content-with-an-answer-as-its-body",
            format!(
                "HTTP/1.1 204 No Content\r\nContent-Length: {}\r\n\r\n{stray}",
                stray.len()
            ),
            "204, 0 B, whole; delivered; 3 connections",
        )
        .times(3),
        answers(
            "not-modified-with-a-body",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello",
            "304, 0 B, whole; permanent; 2 connections",
        )
        .times(2),
        answers(
            "reset-content-with-a-body",
            "HTTP/1.1 205 Reset Content\r\nContent-Length: 5\r\n\r\nhello",
            "205, 5 B, whole; delivered; 1 connection",
        )
        .times(2),
        answers_once(
            "body-until-the-end",
            "HTTP/1.1 200 OK\r\n\r\nall of it",
            "200, 9 B, whole; delivered; 1 connection",
        ),
        answers(
            "continue-then-the-answer",
            format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"),
            FINE,
        )
        .times(2),
        answers(
            "early-hints-then-the-answer",
            format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{OK}"),
            FINE,
        )
        .times(2),
        answers(
            "an-unknown-1xx-then-the-answer",
            format!("HTTP/1.1 199 Wait\r\nContent-Length: 5\r\n\r\n{OK}"),
            FINE,
        )
        .times(2),
    ]
}
