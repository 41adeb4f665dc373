//! A delivery: one event to one endpoint, and where it can stand.
//!
//! The status is the table that the row is in (architecture §3): `ready` = pending, `retry` =
//! failed, `dead_letters`, `closed` = cancelled or skipped; delivered = an applied attempt with a
//! final status. `in_flight` is what a living worker's heartbeat lists.

use super::coded;

coded! {
    /// Where a delivery stands.
    Status, "delivery status" {
        /// May go now, or waits for its turn.
        Pending = 1 "pending",
        /// Its request is on the wire (for more than 500 ms).
        InFlight = 2 "in_flight",
        /// A 2xx within the deadline. Final.
        Delivered = 3 "delivered",
        /// Waiting for its next attempt. Not final.
        Failed = 4 "failed",
        /// No longer tried; kept, explained, replayable. Final.
        DeadLetter = 5 "dead_letter",
        /// The endpoint was deleted or the tenant cancelled it. Final, never alerts.
        Cancelled = 6 "cancelled",
        /// The endpoint was disabled or its backlog full. Final, replayable, never alerts.
        Skipped = 7 "skipped",
    }
}

impl Status {
    /// Whether nothing will ever change it (D6).
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Delivered | Self::DeadLetter | Self::Cancelled | Self::Skipped => true,
            Self::Pending | Self::InFlight | Self::Failed => false,
        }
    }
}

/// What a delivery that is neither on the wire nor final waits for, as far as is known without its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// An operator holds it back.
    Paused,
    /// Its endpoint's breaker is open.
    Breaker,
    /// One before it with the same ordering key, or that one's dead letter.
    Order,
    /// Its next attempt's time.
    Retry,
}

impl WaitingFor {
    /// Every value.
    pub const ALL: &'static [Self] = &[Self::Paused, Self::Breaker, Self::Order, Self::Retry];

    /// The name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Breaker => "breaker",
            Self::Order => "order",
            Self::Retry => "retry",
        }
    }
}

coded! {
    /// Why a delivery exists.
    Kind, "delivery kind" {
        /// Made when the event was accepted.
        Live = 0 "live",
        /// Asked for by a person.
        Replay = 1 "replay",
        /// Made by itself after an outage ended.
        AutoReplay = 2 "auto_replay",
        /// A test send.
        Test = 3 "test",
        /// An operational event.
        Notice = 4 "notice",
    }
}

coded! {
    /// Why a delivery was closed without being delivered or dead.
    CloseReason, "close reason" {
        /// The endpoint was disabled when the event came, or later.
        EndpointDisabled = 1 "endpoint_disabled",
        /// The endpoint's or tenant's backlog was full.
        BacklogFull = 2 "backlog_full",
        /// The endpoint was deleted.
        EndpointDeleted = 3 "endpoint_deleted",
        /// The tenant cancelled it.
        Cancelled = 4 "cancelled",
        /// The receiver answered 410.
        Gone = 5 "gone",
        /// It was a test, and its one attempt failed.
        TestFailed = 6 "test_failed",
        /// The event's payload was expunged before it was delivered.
        Expunged = 7 "expunged",
    }
}

impl CloseReason {
    /// The final status that goes with the reason.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::EndpointDisabled | Self::BacklogFull | Self::Gone => Status::Skipped,
            Self::EndpointDeleted | Self::Cancelled | Self::TestFailed | Self::Expunged => {
                Status::Cancelled
            }
        }
    }
}

coded! {
    /// What kind of failure ended a delivery: decides who should look.
    DeadLetterClass, "dead letter class" {
        /// The ladder was exhausted on transient failures.
        Transient = 1 "transient",
        /// The ladder was exhausted on 401, 403 or 404.
        Misconfigured = 2 "misconfigured",
        /// Refused for good by the receiver.
        Permanent = 3 "permanent",
        /// Throttled until its life ended.
        Throttled = 4 "throttled",
        /// Our fault: secret, payload, panic. Pages an operator.
        Internal = 5 "internal",
        /// The address policy forbids the endpoint's address.
        Refused = 6 "refused",
        /// Older than the endpoint or the event allows.
        Expired = 7 "expired",
    }
}
