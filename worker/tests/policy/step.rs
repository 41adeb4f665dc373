//! What happens to the endpoint.

use std::fmt;

use proptest::prelude::*;

/// One thing that happens. Milliseconds; requests are counted from the oldest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many events come in.
    Post(u8),
    /// Time passes.
    Wait(u32),
    /// A request on the wire ends so.
    Answer(u8, Reply),
    /// The worker is killed; another takes over when its lease has run out.
    Crash,
    /// Another worker takes over in order, once nothing is on the wire.
    HandOver,
    /// Tenths of a request per second, and the burst; 0: no limit.
    Limit(u8, u8),
    Disable,
    Enable,
    /// The worker stands still for longer than its lease; another had its slot meanwhile.
    LongPause,
}

/// How a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// 200
    Works,
    /// 503
    Fails,
    /// 503 and `Retry-After` in seconds.
    FailsFor(u8),
    /// 404
    Missing,
    /// 429
    Busy,
    /// 429 and `Retry-After` in seconds.
    BusyFor(u8),
    /// 400
    Refuses,
    /// Nothing until the deadline.
    Hangs,
}

/// One line each, also in the pretty form in which proptest prints a case.
impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(count) => write!(out, "Post({count})"),
            Self::Wait(millis) => write!(out, "Wait({millis})"),
            Self::Answer(which, reply) => write!(out, "Answer({which}, {})", short(*reply)),
            Self::Crash => write!(out, "Crash"),
            Self::HandOver => write!(out, "HandOver"),
            Self::Limit(tenths, burst) => write!(out, "Limit({tenths}, {burst})"),
            Self::Disable => write!(out, "Disable"),
            Self::Enable => write!(out, "Enable"),
            Self::LongPause => write!(out, "LongPause"),
        }
    }
}

fn short(reply: Reply) -> String {
    match reply {
        Reply::FailsFor(seconds) => format!("FailsFor({seconds})"),
        Reply::BusyFor(seconds) => format!("BusyFor({seconds})"),
        other => format!("{other:?}"),
    }
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..80)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_u8..6).prop_map(Step::Post),
        // Short, around the cooldowns, and long.
        6 => (1_u32..900).prop_map(Step::Wait),
        6 => (900_u32..9_000).prop_map(Step::Wait),
        1 => (9_000_u32..700_000).prop_map(Step::Wait),
        24 => (any::<u8>(), reply()).prop_map(|(which, reply)| Step::Answer(which, reply)),
        1 => Just(Step::Crash),
        2 => Just(Step::HandOver),
        2 => (1_u8..60, 1_u8..6).prop_map(|(tenths, burst)| Step::Limit(tenths, burst)),
        1 => Just(Step::Limit(0, 0)),
        1 => Just(Step::Disable),
        2 => Just(Step::Enable),
        1 => Just(Step::LongPause),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        6 => Just(Reply::Works),
        8 => Just(Reply::Fails),
        2 => Just(Reply::Missing),
        1 => (1_u8..8).prop_map(Reply::FailsFor),
        1 => Just(Reply::Busy),
        1 => (1_u8..8).prop_map(Reply::BusyFor),
        1 => Just(Reply::Refuses),
        2 => Just(Reply::Hangs),
    ]
}
