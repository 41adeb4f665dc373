//! Operational events: what a tenant is told about its endpoints and deliveries (contract §6).

use super::coded;

coded! {
    /// What is told. The name is the event's type without `postrider.`.
    NoticeKind, "notice kind" {
        /// The breaker opened.
        EndpointOpened = 1 "endpoint.opened",
        /// The outage is over.
        EndpointClosed = 2 "endpoint.closed",
        /// It answers slowly.
        EndpointSlow = 3 "endpoint.slow",
        /// Half of the time is over after which it is disabled.
        EndpointDisablingSoon = 4 "endpoint.disabling_soon",
        /// It was disabled by itself: failing for long, or 410.
        EndpointDisabled = 5 "endpoint.disabled",
        /// It answers 401, 403 or 404, or refuses everything for good.
        EndpointMisconfigured = 6 "endpoint.misconfigured",
        /// A delivery is no longer tried.
        DeliveryDeadLetter = 7 "delivery.dead_letter",
        /// The dead letters of an outage were replayed.
        DeliveryRecovered = 8 "delivery.recovered",
        /// A replay that a person asked for has ended.
        ReplayFinished = 9 "replay.finished",
    }
}
