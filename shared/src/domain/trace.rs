//! Where something stands in a trace: W3C Trace Context, version 00.
//!
//! Not here: what is traced (`runtime::traces`), and `tracestate`, which is neither kept nor sent: it may be
//! 512 bytes of whatever the publisher's systems put there, for each event, and a trace is whole without it.
//!
//! # Invariants
//! - Strict: what is not exactly a `traceparent` of version 00 is none. It is never an error of the request.
//! - S2: ids and two bits are all that is kept; no text of a publisher's is.
//!
//! Source: <https://www.w3.org/TR/trace-context/>, sections 3.2 and 3.3.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// The header that carries it.
pub const TRACEPARENT: &str = "traceparent";

/// How many bytes a stored context has.
const STORED: usize = 16 + 8 + 1;

/// What is sampled, and what has a random trace id: the two flags that are defined. Others are to be zeroed.
const SAMPLED: u8 = 0b01;
const KNOWN_FLAGS: u8 = 0b11;

/// A trace: 16 bytes, not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(NonZeroU128);

/// A span of a trace: 8 bytes, not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(NonZeroU64);

impl TraceId {
    /// From random bytes; the one value that is no id becomes another.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(NonZeroU128::new(u128::from_be_bytes(bytes)).unwrap_or(NonZeroU128::MIN))
    }

    /// As it is sent to collectors.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl SpanId {
    /// From random bytes; the one value that is no id becomes another.
    #[must_use]
    pub fn from_random(bytes: [u8; 8]) -> Self {
        Self(NonZeroU64::new(u64::from_be_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
    }

    /// As it is sent to collectors.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// A span of a trace, and whether the trace is recorded: what travels with an event and with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span that what follows is a child of.
    pub span: SpanId,
    flags: u8,
}

impl TraceContext {
    /// Where a trace of our own begins.
    #[must_use]
    pub const fn root(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        // Its id is random, which the second flag says.
        let flags = if sampled {
            KNOWN_FLAGS
        } else {
            !SAMPLED & KNOWN_FLAGS
        };
        Self { trace, span, flags }
    }

    /// Another span of the same trace.
    #[must_use]
    pub const fn child(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// Whether who began the trace wants it recorded.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads a `traceparent`; `None` if it is not one.
    #[must_use]
    pub fn parse(header: &[u8]) -> Option<Self> {
        let mut parts = header.split(|byte| *byte == b'-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || version != b"00" {
            return None;
        }
        let flags = u8::try_from(hex(flags, 2)?).ok()?;
        Some(Self {
            trace: TraceId(NonZeroU128::new(hex(trace, 32)?)?),
            span: SpanId(NonZeroU64::new(u64::try_from(hex(span, 16)?).ok()?)?),
            flags: flags & KNOWN_FLAGS,
        })
    }

    /// As it is stored with an event.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(STORED);
        bytes.extend(self.trace.to_bytes());
        bytes.extend(self.span.to_bytes());
        bytes.push(self.flags);
        bytes
    }

    /// What [`TraceContext::to_bytes`] made; `None` if it did not.
    #[must_use]
    pub fn from_bytes(stored: &[u8]) -> Option<Self> {
        let (trace, rest) = stored.split_first_chunk()?;
        let (span, rest) = rest.split_first_chunk()?;
        let [flags] = rest else { return None };
        Some(Self {
            trace: TraceId(NonZeroU128::new(u128::from_be_bytes(*trace))?),
            span: SpanId(NonZeroU64::new(u64::from_be_bytes(*span))?),
            flags: flags & KNOWN_FLAGS,
        })
    }
}

/// As a `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// A number of exactly so many lower-case hexadecimal digits.
fn hex(digits: &[u8], count: usize) -> Option<u128> {
    let legal = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != count || !digits.iter().all(legal) {
        return None;
    }
    u128::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of the specification.
    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let context = TraceContext::parse(EXAMPLE.as_bytes()).unwrap();

        assert_eq!(
            context.trace.to_string(),
            "0af7651916cd43dd8448eb211c80319c"
        );
        assert_eq!(context.span.to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), EXAMPLE);
        assert_eq!(context.to_bytes().len(), STORED);
        let child = context.child(SpanId::from_random([0x11; 8]));
        assert_eq!(
            child.to_string(),
            "00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01"
        );
    }

    #[test]
    fn flags_that_are_not_defined_are_zeroed() {
        for (flags, kept) in [
            ("00", "00"),
            ("02", "02"),
            ("03", "03"),
            ("ff", "03"),
            ("fc", "00"),
        ] {
            let (start, _) = EXAMPLE.split_at(53);
            let context = TraceContext::parse(format!("{start}{flags}").as_bytes()).unwrap();
            assert_eq!(context.to_string(), format!("{start}{kept}"));
            assert_eq!(context.is_sampled(), kept.ends_with(['1', '3']), "{flags}");
        }
    }

    #[test]
    fn what_is_not_exactly_a_traceparent_of_version_00_is_none() {
        let with = |from: &str, to: &str| EXAMPLE.replacen(from, to, 1);
        for wrong in [
            String::new(),
            "-".to_owned(),
            "---".to_owned(),
            with("00-", "01-"),
            with("00-", "ff-"),
            with("00-", "0-"),
            with("00-", ""),
            with("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            with("b7ad6b7169203331", &"0".repeat(16)),
            with("0af", "0AF"),
            with("0af", "af"),
            with("0af", "00af"),
            with("0af", "+af"),
            with("0af", "xaf"),
            with("b7a", "b7A"),
            with("-01", "-1"),
            with("-01", "-0g"),
            with("-01", "-001"),
            with("-01", ""),
            format!("{EXAMPLE}-"),
            format!("{EXAMPLE}-00"),
            format!(" {EXAMPLE}"),
            format!("{EXAMPLE} "),
            format!("{EXAMPLE},{EXAMPLE}"),
        ] {
            assert_eq!(TraceContext::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_stored_otherwise_is_none() {
        let stored = TraceContext::parse(EXAMPLE.as_bytes()).unwrap().to_bytes();
        let mut no_span = stored.clone();
        no_span[16..24].fill(0);
        for wrong in [
            &stored[..24],
            &[stored.clone(), vec![0]].concat(),
            &[],
            &[0; 25],
            &no_span,
        ] {
            assert_eq!(TraceContext::from_bytes(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_trace_of_our_own_says_whether_it_is_recorded_and_that_its_id_is_random() {
        let root = |sampled| {
            let ids = (TraceId::from_random([0; 16]), SpanId::from_random([0; 8]));
            TraceContext::root(ids.0, ids.1, sampled).to_string()
        };
        assert_eq!(root(true), format!("00-{:032x}-{:016x}-03", 1, 1));
        assert_eq!(root(false), format!("00-{:032x}-{:016x}-02", 1, 1));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic_and_what_is_read_is_what_is_written(
            header in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..80),
                "[0-9a-fA-F+ g-]{0,3}-[0-9a-fA-F]{30,33}-[0-9a-f]{15,17}-[0-9a-f]{1,3}-?".prop_map(String::into_bytes),
                "00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]".prop_map(String::into_bytes),
            ]
        ) {
            if let Some(context) = TraceContext::parse(&header) {
                let shown = context.to_string();
                prop_assert_eq!(&shown.as_bytes()[..53], &header[..53]);
                prop_assert_eq!(header.len(), 55);
                prop_assert_eq!(TraceContext::parse(shown.as_bytes()), Some(context));
                prop_assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
            }
        }

        #[test]
        fn every_legal_header_is_read(trace in 1_u128.., span in 1_u64.., flags in 0_u8..4) {
            let header = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            let context = TraceContext::parse(header.as_bytes());
            prop_assert_eq!(context.map(|context| context.to_string()), Some(header));
        }
    }
}
