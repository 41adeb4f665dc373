//! What receivers do wrong over HTTP/2, frame by frame.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use bytes::Bytes;

use super::catalogue::{Behaviour, Wire};
use super::frames::{
    CANCEL, ENHANCE_YOUR_CALM, HTTP_1_1_REQUIRED, INITIAL_WINDOW_SIZE, INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, NO_ERROR, REFUSED_STREAM, continuation, data, go_away,
    header, headers, headers_begun, ok, ping, push_promise, rst_stream, settings, settings_taken,
    status, window_update,
};
use super::script::Step;

const FINE: &str = "200, 2 B, whole; delivered; 1 connection";
const RESET: &str = "reset: the connection was closed before the response; transient; 1 connection";
const PROTOCOL: &str = "protocol: the response is not valid HTTP; transient; 1 connection";
const SILENT: &str = "timeout: timed out waiting for the response; transient; 1 connection";
const NOT_SENT: &str = "not_sent: the receiver closed every connection before it took the \
     request; transient, forgiven; 3 connections";
const MAYBE: &str = "maybe_sent: a reused connection was closed before the response; the request \
     may have been received; transient, forgiven; 1 connection";

fn say(bytes: Vec<u8>) -> Step {
    Step::Say(Bytes::from(bytes))
}

/// Greets as a server does, reads one request, and goes on so.
fn after_a_request(name: &'static str, rest: Vec<Step>, expected: &'static str) -> Behaviour {
    let greeting = [settings(&[]), settings_taken()].concat();
    let mut script = vec![say(greeting), Step::ReadStream];
    script.extend(rest);
    Behaviour::new(name, Wire::Http2, script, expected)
}

/// Greets with these settings and answers every request.
fn with_settings(name: &'static str, values: &[(u16, u32)], expected: &'static str) -> Behaviour {
    let greeting = [settings(values), settings_taken()].concat();
    let script = vec![
        say(greeting),
        Step::ReadStream,
        Step::SayOn(ok),
        // Until the end of the connection: the greeting is not said again.
        Step::ReadStream,
        Step::SayOn(ok),
        Step::ReadStream,
        Step::SayOn(ok),
        Step::Hold,
    ];
    Behaviour::new(name, Wire::Http2, script, expected)
}

/// The table's part.
pub(super) fn catalogue() -> Vec<Behaviour> {
    let mut all = streams();
    all.extend(endings());
    all.extend(floods());
    all
}

fn streams() -> Vec<Behaviour> {
    use Step::*;
    vec![
        with_settings("h2-good", &[], FINE).times(3),
        with_settings(
            "h2-one-stream-at-a-time",
            &[(MAX_CONCURRENT_STREAMS, 1)],
            FINE,
        )
        .times(3),
        with_settings("h2-no-streams-at-all", &[(MAX_CONCURRENT_STREAMS, 0)], FINE),
        after_a_request("h2-window-never-opened", vec![Hold], SILENT)
            .with_body(200_000)
            .hanging(),
        with_settings("h2-frame-size-too-small", &[(MAX_FRAME_SIZE, 1)], PROTOCOL),
        with_settings(
            "h2-window-too-large",
            &[(INITIAL_WINDOW_SIZE, u32::MAX)],
            PROTOCOL,
        ),
        after_a_request("h2-silent", vec![Hold], SILENT).hanging(),
        after_a_request(
            "h2-stream-cancelled",
            vec![SayOn(|it| rst_stream(it, CANCEL)), Hold],
            RESET,
        ),
        after_a_request(
            "h2-stream-broken",
            vec![SayOn(|it| rst_stream(it, INTERNAL_ERROR)), Hold],
            RESET,
        ),
        after_a_request(
            "h2-stream-refused",
            vec![SayOn(|it| rst_stream(it, REFUSED_STREAM)), Hold],
            NOT_SENT,
        ),
        after_a_request(
            "h2-wants-http-1.1",
            vec![SayOn(|it| rst_stream(it, HTTP_1_1_REQUIRED)), Hold],
            RESET,
        ),
        after_a_request(
            "h2-body-cut-by-a-reset",
            vec![
                SayOn(|it| {
                    [
                        headers(it, &status("200"), false),
                        data(it, b"abc", false),
                        rst_stream(it, CANCEL),
                    ]
                    .concat()
                }),
                Hold,
            ],
            "200, 3 B, cut; delivered; 1 connection",
        ),
        after_a_request(
            "h2-data-after-the-end",
            vec![SayOn(|it| [ok(it), data(it, b"more", true)].concat()), Hold],
            FINE,
        ),
        after_a_request(
            "h2-data-before-headers",
            vec![SayOn(|it| data(it, b"ok", true)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-status-not-a-number",
            vec![SayOn(|it| headers(it, &status("abc"), true)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-no-status",
            vec![SayOn(|it| headers(it, &header("a", b"b"), true)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-answer-on-another-stream",
            vec![SayOn(|it| ok(it + 2)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-pushes",
            vec![SayOn(|it| push_promise(it, 2)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-drips-a-body",
            vec![SayOn(|it| headers(it, &status("200"), false)), Hold],
            "200, 0 B, too slow; delivered; 1 connection",
        )
        .hanging(),
    ]
}

fn endings() -> Vec<Behaviour> {
    use Step::*;
    vec![
        after_a_request(
            "h2-goaway-below-the-request",
            vec![say(go_away(0, NO_ERROR)), Hold],
            NOT_SENT,
        ),
        after_a_request(
            "h2-goaway-below-and-closes",
            vec![say(go_away(0, NO_ERROR))],
            NOT_SENT,
        ),
        after_a_request(
            "h2-goaway-above-and-answers",
            vec![SayOn(|it| [go_away(it, NO_ERROR), ok(it)].concat()), Hold],
            FINE,
        ),
        after_a_request(
            "h2-goaway-above-and-closes",
            vec![SayOn(|it| go_away(it, NO_ERROR))],
            RESET,
        ),
        after_a_request(
            "h2-goaway-enhance-your-calm",
            vec![say(go_away(0, ENHANCE_YOUR_CALM)), Hold],
            NOT_SENT,
        ),
        after_a_request(
            "h2-answers-and-goes-away",
            vec![SayOn(|it| [ok(it), go_away(it, NO_ERROR)].concat()), Hold],
            "200, 2 B, whole; delivered; 2 connections",
        )
        .times(2),
        after_a_request(
            "h2-closes-on-the-second-request",
            vec![SayOn(ok), ReadStream],
            MAYBE,
        )
        .times(2),
        after_a_request(
            "h2-resets-on-the-second-request",
            vec![SayOn(ok), ReadStream, Reset],
            MAYBE,
        )
        .times(2),
        after_a_request("h2-closes-after-the-request", vec![], RESET),
        Behaviour::new(
            "h2-speaks-http-1.1-after-all",
            Wire::Http2,
            vec![say(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), Hold],
            PROTOCOL,
        ),
        Behaviour::new(
            "h2-garbage",
            Wire::Http2,
            vec![say(vec![0xff; 64]), Hold],
            PROTOCOL,
        ),
        Behaviour::new("h2-closes-at-once", Wire::Http2, vec![], RESET),
    ]
}

fn floods() -> Vec<Behaviour> {
    use Step::*;
    let flood = |frame: Vec<u8>| Flood(Bytes::from(frame));
    let many = |frame: Vec<u8>| frame.repeat(256);
    vec![
        after_a_request("h2-ping-flood", vec![flood(many(ping()))], SILENT).hanging(),
        after_a_request(
            "h2-settings-flood",
            vec![flood(many(settings(&[])))],
            SILENT,
        )
        .hanging(),
        after_a_request(
            "h2-window-flood",
            vec![flood(many(window_update(0, 1)))],
            SILENT,
        )
        .hanging(),
        after_a_request(
            "h2-empty-data-flood",
            vec![
                SayOn(|it| headers(it, &status("200"), false)),
                SayOn(|it| data(it, b"", false).repeat(100_000)),
                Hold,
            ],
            "200, 0 B, cut; delivered; 1 connection",
        ),
        after_a_request(
            "h2-continuation-flood",
            vec![
                SayOn(|it| headers_begun(it, &status("200"))),
                SayOn(|it| continuation(it, &header("a", b"b")).repeat(100_000)),
                Hold,
            ],
            PROTOCOL,
        ),
        after_a_request(
            "h2-header-list-too-large",
            vec![
                SayOn(|it| {
                    headers(
                        it,
                        &[status("200"), header("a", &[b'b'; 100]).repeat(150)].concat(),
                        true,
                    )
                }),
                Hold,
            ],
            "200, 0 B, whole; delivered; 1 connection",
        ),
        after_a_request(
            "h2-success-of-a-mebibyte",
            vec![
                SayOn(|it| headers(it, &status("200"), false)),
                SayOn(|it| data(it, &[b'x'; 16_000], false).repeat(4)),
                Hold,
            ],
            "200, 256 B, longer; delivered; 1 connection",
        ),
    ]
}
