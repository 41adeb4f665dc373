//! An attempt: one HTTP request, numbered from 1, and what came of it.

use super::coded;

coded! {
    /// What an attempt says: a class, so that a reaction can be chosen (architecture §6).
    /// A failed attempt is data, never an `Err`.
    Outcome, "outcome" {
        /// 2xx within the deadline.
        Delivered = 1 "delivered",
        /// May well work later: network, timeout, 408, 409, 421, 423, 425, 5xx except 501 and 505.
        Transient = 2 "transient",
        /// 401, 403, 404: deploys and firewalls cause them for minutes.
        Misconfigured = 3 "misconfigured",
        /// 429.
        Throttled = 4 "throttled",
        /// Refused for good; also everything not classified otherwise.
        Permanent = 5 "permanent",
        /// 410: nobody lives here any more.
        Gone = 6 "gone",
        /// Our fault: secret, payload, panic.
        Internal = 7 "internal",
        /// Nothing was sent: the address policy forbids the address, or a template cannot be filled.
        Refused = 8 "refused",
        /// Too old to be sent.
        Expired = 9 "expired",
    }
}

/// Microseconds that the parts of an attempt took. `None`: it did not happen, as no connection is made
/// where one is used again, or did not end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// From due to started.
    pub queue_us: Option<i32>,
    /// Looking up the name.
    pub dns_us: Option<i32>,
    /// Opening the TCP connection.
    pub connect_us: Option<i32>,
    /// The TLS handshake.
    pub tls_us: Option<i32>,
    /// From started to the head of the answer.
    pub first_byte_us: Option<i32>,
}

/// How much of a 2xx answer's body is kept, in bytes.
pub const KEPT_OF_SUCCESS: usize = 256;

/// How much of any other answer's body is kept, in bytes: error pages explain themselves.
pub const KEPT_OF_FAILURE: usize = 16 * 1_024;

/// How much of the body of an answer with this status is kept, in bytes.
#[must_use]
pub const fn kept_of_response(status: u16) -> usize {
    match status {
        200..=299 => KEPT_OF_SUCCESS,
        _ => KEPT_OF_FAILURE,
    }
}
