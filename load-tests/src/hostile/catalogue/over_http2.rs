//! What receivers do wrong over HTTP/2, frame by frame.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use super::super::frames::{
    CANCEL, ENHANCE_YOUR_CALM, HTTP_1_1_REQUIRED, INITIAL_WINDOW_SIZE, INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, NO_ERROR, REFUSED_STREAM, SETTINGS, data, frame,
    go_away, header, headers, ok, push_promise, rst_stream, settings, settings_taken, status,
    window_update,
};
use super::super::script::Step;
use super::{BY_CHANCE, Behaviour, FINE, MAYBE, PROTOCOL, RESET, SILENT, Wire, say};

const NOT_SENT: &str = "not_sent: the receiver closed every connection before it took the \
     request; transient, forgiven; 3 connections";

/// Greets as a server does, reads one request, and goes on so.
pub(super) fn after_a_request(
    name: &'static str,
    rest: Vec<Step>,
    expected: &'static str,
) -> Behaviour {
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
    let parts = [streams(), answers(), endings()];
    parts.into_iter().flatten().collect()
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
        with_settings("h2-window-of-nothing", &[(INITIAL_WINDOW_SIZE, 0)], SILENT)
            .with_body(200_000)
            .hanging(),
        after_a_request(
            "h2-window-grown-by-nothing",
            vec![say(window_update(0, 0)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-window-grown-beyond-31-bits",
            vec![say(window_update(0, 0x7fff_ffff)), Hold],
            PROTOCOL,
        ),
    ]
}

/// Requests that are answered, somehow.
fn answers() -> Vec<Behaviour> {
    use Step::*;
    let head = |name, block: fn() -> Vec<u8>, expected| {
        let answer = say(headers(1, &block(), true));
        after_a_request(name, vec![answer, Hold], expected)
    };
    vec![
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
            "h2-stops-after-the-head",
            vec![SayOn(|it| headers(it, &status("200"), false)), Hold],
            "200, 0 B, too slow; delivered; 1 connection",
        )
        .hanging(),
        after_a_request(
            "h2-drips-a-body",
            vec![
                SayOn(|it| headers(it, &status("200"), false)),
                Drip(data(1, b"b", false).into()),
            ],
            "200, some B, too slow; delivered; 1 connection",
        )
        .hanging(),
        after_a_request(
            "h2-answer-and-a-reset-without-error",
            vec![
                SayOn(|it| [ok(it), rst_stream(it, NO_ERROR)].concat()),
                Hold,
            ],
            FINE,
        ),
        after_a_request(
            "h2-trailers",
            vec![
                SayOn(|it| {
                    [
                        headers(it, &status("200"), false),
                        data(it, b"ok", false),
                        headers(it, &header("a", b"b"), true),
                    ]
                    .concat()
                }),
                Hold,
            ],
            FINE,
        ),
        after_a_request(
            "h2-early-hints-then-the-answer",
            vec![
                SayOn(|it| [headers(it, &status("103"), false), ok(it)].concat()),
                Hold,
            ],
            FINE,
        ),
        after_a_request(
            "h2-hint-that-ends-the-stream",
            vec![SayOn(|it| headers(it, &status("103"), true)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-hint-that-ends-the-stream-before-the-answer",
            vec![
                SayOn(|it| [headers(it, &status("103"), true), ok(it)].concat()),
                Hold,
            ],
            PROTOCOL,
        ),
        after_a_request(
            "h2-switches-protocols",
            vec![SayOn(|it| headers(it, &status("101"), false)), Hold],
            SILENT,
        )
        .hanging(),
        after_a_request(
            "h2-hint-with-a-body",
            vec![
                SayOn(|it| [headers(it, &status("103"), false), data(it, b"ok", true)].concat()),
                Hold,
            ],
            PROTOCOL,
        ),
        after_a_request(
            "h2-answers-twice",
            vec![
                SayOn(|it| {
                    let first = [headers(it, &status("200"), false), data(it, b"ok", false)];
                    [first.concat(), headers(it, &status("500"), false)].concat()
                }),
                Hold,
            ],
            "200, 2 B, cut; delivered; 1 connection",
        ),
        after_a_request(
            "h2-body-longer-than-said",
            vec![
                SayOn(|it| {
                    let block = [status("200"), header("content-length", b"1")].concat();
                    [headers(it, &block, false), data(it, b"ok", true)].concat()
                }),
                Hold,
            ],
            "200, 0 B, cut; delivered; 1 connection",
        ),
        after_a_request(
            "h2-body-shorter-than-said",
            vec![
                SayOn(|it| {
                    let block = [status("200"), header("content-length", b"9")].concat();
                    [headers(it, &block, false), data(it, b"ok", true)].concat()
                }),
                Hold,
            ],
            "200, 0 B, cut; delivered; 1 connection",
        ),
        after_a_request(
            "h2-frame-longer-than-allowed",
            vec![SayOn(|it| data(it, &[b'x'; 17_000], true)), Hold],
            PROTOCOL,
        ),
        after_a_request(
            "h2-frame-cut",
            vec![SayOn(|it| ok(it).into_iter().take(12).collect())],
            "200, 0 B, cut; delivered; 1 connection",
        ),
        after_a_request(
            "h2-settings-on-a-stream",
            vec![SayOn(|it| frame(SETTINGS, 0, it, &[])), Hold],
            PROTOCOL,
        ),
        head("h2-status-000", || status("000"), PROTOCOL),
        head(
            "h2-status-600",
            || status("600"),
            "600, 0 B, whole; permanent; 1 connection",
        ),
        head(
            "h2-two-statuses",
            || [status("200"), status("500")].concat(),
            PROTOCOL,
        ),
        head(
            "h2-status-behind-a-header",
            || [header("a", b"b"), status("200")].concat(),
            PROTOCOL,
        ),
        head(
            "h2-header-in-capitals",
            || [status("200"), header("A", b"b")].concat(),
            PROTOCOL,
        ),
        head(
            "h2-header-with-nul",
            || [status("200"), header("a", b"b\0c")].concat(),
            PROTOCOL,
        ),
        head(
            "h2-header-of-a-connection",
            || [status("200"), header("connection", b"close")].concat(),
            PROTOCOL,
        ),
        head("h2-block-of-garbage", || vec![0xff; 64], PROTOCOL),
        head(
            "h2-block-that-names-no-entry",
            || vec![0x88, 0xbe],
            PROTOCOL,
        ),
        head(
            "h2-table-larger-than-allowed",
            || vec![0x3f, 0xe1, 0xff, 0xff, 0x03, 0x88],
            PROTOCOL,
        ),
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
            "h2-goaway-of-all-and-then-of-the-request",
            vec![
                say([go_away(0x7fff_ffff, NO_ERROR), go_away(0, NO_ERROR)].concat()),
                Hold,
            ],
            NOT_SENT,
        ),
        after_a_request(
            "h2-goaway-that-grows",
            vec![
                SayOn(|it| [go_away(0, NO_ERROR), go_away(it, NO_ERROR)].concat()),
                Hold,
            ],
            NOT_SENT,
        ),
        after_a_request(
            "h2-goaway-below-and-answers-all-the-same",
            vec![SayOn(|it| [go_away(0, NO_ERROR), ok(it)].concat()), Hold],
            NOT_SENT,
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
        Behaviour::new(
            "h2-closes-at-once",
            Wire::Http2,
            vec![],
            RESET.replace("1 connection", BY_CHANCE),
        ),
    ]
}
