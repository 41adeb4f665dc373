//! Bodies of any bytes and any length.

use super::{Behaviour, answers};

pub(super) fn catalogue() -> Vec<Behaviour> {
    let whole = |status: &str, label: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\n{label}Content-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
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
            "body-of-lone-surrogates",
            whole(
                "422 No",
                "Content-Type: application/json\r\n",
                br#"{"a":"\ud800","b":"\u0000"}"#,
            ),
            "422, 27 B, whole; permanent; 1 connection",
        ),
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
    ]
}
