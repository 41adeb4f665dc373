//! Answers without an end, and small ones that grow without an end in whoever unpacks them.

use bytes::Bytes;

use super::super::frames::{
    NO_ERROR, UNKNOWN, continuation, data, frame, header, headers, headers_begun, indexed_header,
    ping, rst_stream, settings, status, window_update,
};
use super::super::script::Step;
use super::over_http2::after_a_request;
use super::{Behaviour, PROTOCOL, SILENT, plain, say};

pub(super) fn catalogue() -> Vec<Behaviour> {
    let parts = [bodies(), heads(), frames(), lists()];
    parts.into_iter().flatten().collect()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A stream of gzip that is all zeros, some 160 times as many as its own bytes: its beginning, and
/// what goes on for ever. One block of deflate with fixed codes (RFC 1951, 3.2.6): the literal 0, then
/// "258 times what was one byte before" over and over, which is 13 bits long.
fn gzip_bomb() -> (Vec<u8>, Vec<u8>) {
    const REPEATED: [bool; 13] = {
        let (o, l) = (false, true);
        // Code 285 of lengths, code 0 of distances.
        [l, l, o, o, o, l, o, l, o, o, o, o, o]
    };
    // Not the last block; fixed codes; the literal 0.
    let begun = [false, true, false]
        .into_iter()
        .chain([false, false, true, true, false, false, false, false]);
    let bits: Vec<bool> = begun
        .chain(REPEATED.into_iter().cycle().take(8 * 13 * 5_000 - 11))
        .collect();
    let packed: Vec<u8> = bits
        .chunks(8)
        .map(|eight| {
            eight
                .iter()
                .rev()
                .fold(0, |byte, bit| byte << 1 | u8::from(*bit))
        })
        .collect();
    let (first, rest) = packed.split_at(13);
    let head = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255], first].concat();
    // The bytes have the period of eight codes: any multiple of 13 of them can follow itself.
    (head, rest.to_vec())
}

fn bodies() -> Vec<Behaviour> {
    use Step::*;
    let endless = |status: &str, label: &str| {
        format!("HTTP/1.1 {status}\r\n{label}Transfer-Encoding: chunked\r\n\r\n").into_bytes()
    };
    let (begun, zeros) = gzip_bomb();
    let bomb = [
        endless("200 OK", "Content-Encoding: gzip\r\n"),
        chunk(&begun),
    ]
    .concat();
    const SUCCESS: &str = "200, 256 B, longer; delivered; 1 connection";
    vec![
        plain(
            "gzip-bomb",
            vec![ReadRequest, say(bomb), Flood(chunk(&zeros).into())],
            SUCCESS,
        ),
        plain(
            "ten-gibibytes-of-success",
            vec![
                ReadRequest,
                say(endless("200 OK", "")),
                Flood(chunk(&[0xff; 1 << 16]).into()),
            ],
            SUCCESS,
        ),
        plain(
            "ten-gibibytes-of-failure",
            vec![
                ReadRequest,
                say(endless("500 No", "")),
                Flood(chunk(&[0xff; 1 << 16]).into()),
            ],
            "500, 16384 B, longer; transient; 1 connection",
        ),
        plain(
            "body-without-an-end-or-length",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\n\r\n"),
                Flood(Bytes::from_static(&[b'x'; 1 << 16])),
            ],
            SUCCESS,
        ),
        plain(
            "tiny-chunks-for-ever",
            vec![
                ReadRequest,
                say(endless("200 OK", "")),
                Flood(Bytes::from_static(b"1\r\nx\r\n")),
            ],
            SUCCESS,
        ),
    ]
}

fn heads() -> Vec<Behaviour> {
    use Step::*;
    let flood = |text: &'static str| Flood(Bytes::from(text.repeat(256)));
    vec![
        plain(
            "says-continue-for-ever",
            vec![ReadRequest, flood("HTTP/1.1 100 Continue\r\n\r\n")],
            SILENT,
        )
        .hanging(),
        plain(
            "gives-early-hints-for-ever",
            vec![
                ReadRequest,
                flood("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
            ],
            SILENT,
        )
        .hanging(),
        plain(
            "headers-for-ever",
            vec![ReadRequest, say("HTTP/1.1 200 OK\r\n"), flood("A: b\r\n")],
            PROTOCOL,
        ),
        plain(
            "blank-lines-for-ever",
            vec![ReadRequest, flood("\r\n")],
            PROTOCOL,
        ),
    ]
}

fn frames() -> Vec<Behaviour> {
    use Step::*;
    let flood = |frame: Vec<u8>| vec![Flood(Bytes::from(frame.repeat(256)))];
    vec![
        after_a_request("h2-ping-flood", flood(ping()), SILENT).hanging(),
        after_a_request("h2-settings-flood", flood(settings(&[])), SILENT).hanging(),
        after_a_request("h2-window-flood", flood(window_update(0, 1)), SILENT).hanging(),
        after_a_request(
            "h2-unknown-frame-flood",
            flood(frame(UNKNOWN, 0, 0, &[0; 64])),
            SILENT,
        )
        .hanging(),
        after_a_request(
            "h2-early-hints-flood",
            flood(headers(1, &status("103"), false)),
            SILENT,
        )
        .hanging(),
        after_a_request("h2-reset-flood", flood(rst_stream(3, NO_ERROR)), PROTOCOL),
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
            "h2-success-of-sixty-kibibytes",
            vec![
                SayOn(|it| headers(it, &status("200"), false)),
                SayOn(|it| data(it, &[b'x'; 15_000], false).repeat(4)),
                SayOn(|it| data(it, b"end", true)),
                Hold,
            ],
            "200, 256 B, longer; delivered; 1 connection",
        ),
        after_a_request(
            "h2-more-than-its-window",
            vec![
                SayOn(|it| headers(it, &status("200"), false)),
                SayOn(|it| data(it, &[b'x'; 16_000], false).repeat(100)),
                Hold,
            ],
            "200, 256 B, longer; delivered; 1 connection",
        ),
    ]
}

/// Lists of headers that are large, or become so.
fn lists() -> Vec<Behaviour> {
    use Step::*;
    vec![
        after_a_request(
            "h2-header-list-of-twenty-kibibytes",
            vec![
                SayOn(|it| {
                    let block = [status("200"), header("a", &[b'b'; 100]).repeat(150)].concat();
                    headers(it, &block, true)
                }),
                Hold,
            ],
            "200, 0 B, whole; delivered; 1 connection",
        ),
        after_a_request(
            "h2-header-list-too-large",
            vec![
                SayOn(|it| {
                    let part = header("a", &[b'b'; 100]).repeat(150);
                    [
                        headers_begun(it, &status("200")),
                        continuation(it, &part, false).repeat(5),
                        continuation(it, &part, true),
                    ]
                    .concat()
                }),
                Hold,
            ],
            PROTOCOL,
        ),
        after_a_request(
            "h2-continuation-flood",
            vec![
                SayOn(|it| headers_begun(it, &status("200"))),
                SayOn(|it| continuation(it, &header("a", b"b"), false).repeat(100_000)),
                Hold,
            ],
            PROTOCOL,
        ),
        after_a_request(
            "h2-empty-continuation-flood",
            vec![
                SayOn(|it| headers_begun(it, &status("200"))),
                SayOn(|it| continuation(it, b"", false).repeat(100_000)),
                Hold,
            ],
            PROTOCOL,
        ),
        // Forty mebibytes of headers in fourteen kibibytes.
        after_a_request(
            "h2-header-bomb",
            vec![
                SayOn(|it| {
                    let (large, again) = indexed_header("a", &[b'b'; 4_000]);
                    let block = [status("200"), large, vec![again; 10_000]].concat();
                    headers(it, &block, true)
                }),
                Hold,
            ],
            PROTOCOL,
        ),
    ]
}
