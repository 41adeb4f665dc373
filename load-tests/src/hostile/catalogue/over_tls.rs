//! What receivers do wrong below HTTP, in TLS.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use bytes::Bytes;

use super::super::certificates::Shown;
use super::super::script::Step;
use super::{Behaviour, FINE, OK, RESET, Wire, say};

pub(super) fn catalogue() -> Vec<Behaviour> {
    use Step::*;
    let shows = |name, shown, expected| {
        let script = vec![ReadRequest, say(OK), Again];
        Behaviour::new(name, Wire::Tls(shown), script, expected)
    };
    let below = |name, script, expected| Behaviour::new(name, Wire::PlainForTls, script, expected);
    let inside =
        |name, script, expected| Behaviour::new(name, Wire::Tls(Shown::Good), script, expected);
    vec![
        shows("tls-good", Shown::Good, FINE).times(2),
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
        shows("tls-long-chain", Shown::LongChain, FINE),
        shows("tls-1.2-alone", Shown::OverTls12, FINE).times(2),
        shows("tls-1.3-alone", Shown::OverTls13, FINE).times(2),
        shows(
            "tls-for-clients",
            Shown::ForClients,
            "certificate_unusable: TLS: the certificate cannot be used (encoding, purpose or signature); transient; 1 connection",
        ),
        shows(
            "tls-of-an-authority",
            Shown::Authority,
            "certificate_unusable: TLS: the certificate cannot be used (encoding, purpose or signature); transient; 1 connection",
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
            "tls: TLS: the receiver answered without TLS: is it plain http on that port?; transient; 1 connection",
        ),
        below(
            "tls-plain-http",
            vec![ReadAny, say("HTTP/1.1 400 Bad Request\r\n\r\n"), Hold],
            "tls: TLS: the receiver answered without TLS: is it plain http on that port?; transient; 1 connection",
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
        // A ServerHello of TLS 1.1, with a cipher suite that it has.
        below(
            "tls-1.1",
            vec![
                ReadAny,
                say([
                    b"\x16\x03\x02\0\x2a\x02\0\0\x26\x03\x02".as_slice(),
                    &[7; 32],
                    b"\0\xc0\x13\0",
                ]
                .concat()),
                Hold,
            ],
            "tls: TLS: peer is incompatible: ServerDoesNotSupportTls12Or13; transient; 1 connection",
        ),
        // A record that is said to be long.
        below(
            "tls-drips-the-handshake",
            vec![ReadAny, Drip(Bytes::from_static(b"\x16\x03\x03\x3f\xff"))],
            "timeout: timed out in the TLS handshake; transient; 1 connection",
        )
        .hanging(),
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
        inside("tls-closes-after-the-handshake", vec![], RESET),
        inside("tls-closes-after-the-request", vec![ReadRequest], RESET),
        inside(
            "tls-garbage-behind-the-handshake",
            vec![ReadRequest, SayBelow(GARBAGE), Hold],
            "tls: TLS: received corrupt message of type InvalidContentType; transient; 1 connection",
        ),
        inside(
            "tls-drips-a-body",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"),
                Drip(Bytes::from_static(b"b")),
            ],
            "200, some B, too slow; delivered; 1 connection",
        )
        .hanging(),
        inside(
            "tls-body-cut",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
            ],
            "200, 3 B, cut; delivered; 1 connection",
        ),
        // Somebody on the way can cut a connection, but not say that it ended so.
        inside(
            "tls-body-until-the-end",
            vec![
                ReadRequest,
                say("HTTP/1.1 200 OK\r\n\r\nall of it"),
                CloseWriting,
                Hold,
            ],
            "200, 9 B, whole; delivered; 1 connection",
        ),
        inside(
            "tls-body-until-it-is-cut",
            vec![ReadRequest, say("HTTP/1.1 200 OK\r\n\r\nall of it")],
            "200, 9 B, cut; delivered; 1 connection",
        ),
    ]
}

const GARBAGE: Bytes = Bytes::from_static(b"garbage garbage garbage");

const WRONG_NAME: &str = "certificate_wrong_name: TLS: the certificate is not for the endpoint's \
     host (names are taken from its subject alternative names alone); transient; 1 connection";
