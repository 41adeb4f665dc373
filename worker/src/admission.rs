//! Admission: may this endpoint send one more now? Decides *whether*, never *when to retry*.
//!
//! A deferral spends no attempt (D4). The breaker, the token bucket and the adaptive limit of the
//! delivery-policy issue are further reasons to defer, asked here and nowhere else.

use shared::domain::endpoint::EndpointState;

use crate::endpoint_config::EndpointConfig;

/// The answer to one request for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Send one; it counts against the endpoint's limit until it is recorded.
    Send,
    /// Not now. What ends the wait brings the endpoint back into its turn.
    Defer(DeferReason),
}

/// Why a delivery has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferReason {
    /// As many requests as the endpoint may have are sent and not yet recorded.
    InFlight,
    /// The endpoint is disabled or deleted: its deliveries are closed instead.
    NotEnabled,
    /// The endpoint's secrets or settings cannot be read.
    Locked,
}

impl DeferReason {
    /// The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::NotEnabled => "not_enabled",
            Self::Locked => "locked",
        }
    }
}

/// Asks for admission of one more request while `in_flight` are sent and not recorded.
#[must_use]
pub fn admit(endpoint: &EndpointConfig, in_flight: usize) -> Admission {
    if endpoint.state != EndpointState::Enabled {
        return Admission::Defer(DeferReason::NotEnabled);
    }
    if endpoint.locked {
        return Admission::Defer(DeferReason::Locked);
    }
    if in_flight >= usize::from(endpoint.settings.max_in_flight) {
        return Admission::Defer(DeferReason::InFlight);
    }
    Admission::Send
}
