//! Arithmetic of instants that ends at the ends of the calendar instead of panicking.

use std::time::Duration;

use time::OffsetDateTime;

/// The instant this much later, or the last there is.
pub(super) fn later(at: OffsetDateTime, length: Duration) -> OffsetDateTime {
    at.saturating_add(signed(length))
}

/// The instant this much earlier, or the first there is.
pub(super) fn earlier(at: OffsetDateTime, length: Duration) -> OffsetDateTime {
    at.saturating_sub(signed(length))
}

/// How long ago it was; zero if it is still to come.
pub(super) fn since(at: OffsetDateTime, now: OffsetDateTime) -> Duration {
    Duration::try_from(now - at).unwrap_or(Duration::ZERO)
}

fn signed(length: Duration) -> time::Duration {
    time::Duration::try_from(length).unwrap_or(time::Duration::MAX)
}
