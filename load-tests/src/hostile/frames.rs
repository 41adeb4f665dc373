//! Frames of HTTP/2, written by hand: a library would refuse to write the wrong ones.
//!
//! Source: RFC 9113 section 6, RFC 7541 appendix A.

/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame's head.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// A type that nobody has defined.
pub(super) const UNKNOWN: u8 = 0xbe;

/// On DATA and HEADERS: nothing follows on this stream.
const END_STREAM: u8 = 1;
/// On HEADERS and CONTINUATION: the block of headers ends here.
const END_HEADERS: u8 = 4;
/// On SETTINGS: those of the other side are taken.
const ACK: u8 = 1;

/// `:status: 200` in the static table.
const STATUS_200: u8 = 0x88;

pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const MAX_FRAME_SIZE: u16 = 5;

pub(super) const NO_ERROR: u32 = 0;
pub(super) const INTERNAL_ERROR: u32 = 2;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const CANCEL: u32 = 8;
pub(super) const ENHANCE_YOUR_CALM: u32 = 11;
pub(super) const HTTP_1_1_REQUIRED: u32 = 13;

/// The head of a frame that was read; its payload is of no interest here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    kind: u8,
    flags: u8,
    pub(super) stream: u32,
}

impl Frame {
    /// Takes the first frame out of a buffer, if all of it is there.
    pub(super) fn take(unread: &mut Vec<u8>) -> Option<Self> {
        let head: [u8; HEAD] = unread.get(..HEAD)?.try_into().ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let whole = HEAD + usize::try_from(u32::from_be_bytes([0, a, b, c])).ok()?;
        if unread.len() < whole {
            return None;
        }
        unread.drain(..whole);
        Some(Self {
            kind,
            flags,
            stream: u32::from_be_bytes(stream),
        })
    }

    /// Whether a request is complete with it.
    pub(super) const fn ends_request(self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// A frame of any type, with any flags and on any stream.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a frame here is shorter than 2^24 bytes; the three low bytes are its length"
)]
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(super) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let pair =
        |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let payload: Vec<u8> = values.iter().flat_map(pair).collect();
    frame(SETTINGS, 0, 0, &payload)
}

pub(super) fn settings_taken() -> Vec<u8> {
    frame(SETTINGS, ACK, 0, &[])
}

/// A block of headers on a stream; `last`: no body follows.
pub(super) fn headers(stream: u32, block: &[u8], last: bool) -> Vec<u8> {
    let end = if last { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | end, stream, block)
}

/// The beginning of a block of headers that continues.
pub(super) fn headers_begun(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, 0, stream, block)
}

/// More of a block of headers; `last`: the end of it.
pub(super) fn continuation(stream: u32, block: &[u8], last: bool) -> Vec<u8> {
    frame(
        CONTINUATION,
        if last { END_HEADERS } else { 0 },
        stream,
        block,
    )
}

pub(super) fn data(stream: u32, bytes: &[u8], last: bool) -> Vec<u8> {
    frame(DATA, if last { END_STREAM } else { 0 }, stream, bytes)
}

pub(super) fn rst_stream(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub(super) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[7; 8])
}

pub(super) fn go_away(last_stream: u32, code: u32) -> Vec<u8> {
    let payload = [last_stream.to_be_bytes(), code.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

pub(super) fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(super) fn push_promise(stream: u32, promised: u32) -> Vec<u8> {
    let payload = [&promised.to_be_bytes()[..], &[0x82, 0x87, 0x84]].concat();
    frame(PUSH_PROMISE, END_HEADERS, stream, &payload)
}

/// A header that is not in the static table, unindexed; name and value of fewer than 127 bytes.
#[expect(
    clippy::cast_possible_truncation,
    reason = "as said above, lengths here are under 127"
)]
pub(super) fn header(name: &str, value: &[u8]) -> Vec<u8> {
    let mut field = vec![0, name.len() as u8];
    field.extend(name.as_bytes());
    field.push(value.len() as u8);
    field.extend(value);
    field
}

/// A header of 254 to 16,510 bytes that is put into the dynamic table as its newest entry; and the byte
/// that stands for it from then on (RFC 7541 5.1, 6.1, 6.2.1).
#[expect(
    clippy::cast_possible_truncation,
    reason = "a name is under 127 bytes, and 14 bits hold the rest of the length"
)]
pub(super) fn indexed_header(name: &str, value: &[u8]) -> (Vec<u8>, u8) {
    const NEWEST: u8 = 0x80 | 62;
    let rest = value.len() - 127;
    let mut field = vec![0x40, name.len() as u8];
    field.extend(name.as_bytes());
    field.extend([127, 0x80 | (rest & 127) as u8, (rest >> 7) as u8]);
    field.extend(value);
    (field, NEWEST)
}

/// The status of an answer, as a block of headers.
pub(super) fn status(status: &str) -> Vec<u8> {
    if status == "200" {
        vec![STATUS_200]
    } else {
        header(":status", status.as_bytes())
    }
}

/// A whole answer of status 200 with the body `ok`.
pub(super) fn ok(stream: u32) -> Vec<u8> {
    [
        headers(stream, &status("200"), false),
        data(stream, b"ok", true),
    ]
    .concat()
}
