//! Headers that are none, and servers that are none of HTTP.

use super::super::script::Step;
use super::{Behaviour, FINE, PROTOCOL, answers, answers_once, plain, say};

pub(super) fn catalogue() -> Vec<Behaviour> {
    let parts = [heads(), strangers()];
    parts.into_iter().flatten().collect()
}

fn heads() -> Vec<Behaviour> {
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
        answers(
            "header-of-sixty-kibibytes",
            with(&[b"A: ", vec![b'b'; 60 << 10].as_slice()].concat()),
            FINE,
        ),
        answers(
            "header-name-of-a-mebibyte",
            with(&[vec![b'a'; 1 << 20].as_slice(), b": b"].concat()),
            PROTOCOL,
        ),
        answers("header-name-empty", with(b": b"), FINE),
        answers("header-name-with-signs", with(b"A@(b): c"), FINE),
        answers("header-name-not-ascii", with(b"\xc3\xa9: b"), FINE),
        answers(
            "header-folded-for-ever",
            with(&[b"A: b", b"\r\n c".repeat(100_000).as_slice()].concat()),
            PROTOCOL,
        ),
        answers(
            "blank-lines-before-the-answer",
            [b"\r\n\r\n", with(b"A: b").as_slice()].concat(),
            FINE,
        ),
        answers("header-without-a-colon", with(b"no colon here"), FINE),
        answers("header-with-nul", with(b"A: b\0c"), PROTOCOL),
        answers("header-folded", with(b"A: b\r\n c"), FINE),
        answers("header-with-a-blank-before-its-colon", with(b"A : b"), FINE),
        answers("header-in-latin-1", with(b"A: \xe9t\xe9"), FINE),
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

fn strangers() -> Vec<Behaviour> {
    use Step::*;
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
            FINE,
        )
        .times(2),
        answers(
            "speaks-http-2-in-text",
            "HTTP/2 200 OK\r\nContent-Length: 2\r\n\r\nok",
            PROTOCOL,
        ),
        answers(
            "speaks-http-2.0-in-text",
            "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            PROTOCOL,
        ),
        answers(
            "speaks-http-in-small-letters",
            "http/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            PROTOCOL,
        ),
        answers("speaks-icy", "ICY 200 OK\r\n\r\n", PROTOCOL),
        answers("speaks-redis", "-ERR unknown command 'POST'\r\n", PROTOCOL),
        answers(
            "speaks-as-a-client",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            PROTOCOL,
        ),
        answers(
            "speaks-http-1.2",
            "HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok",
            PROTOCOL,
        ),
        answers("speaks-nothing-known", vec![0_u8; 64], PROTOCOL),
    ]
}
