//! A replay: events that are sent again because somebody asks for it, as new deliveries.

use time::OffsetDateTime;
use uuid::Uuid;

use super::coded;
use super::delivery::{DeadLetterClass, Status};

coded! {
    /// How a replay stands.
    ReplayStatus, "replay status" {
        /// Deliveries are being made, or have not ended.
        Running = 1 "running",
        /// All that could be sent again was, and has ended.
        Finished = 2 "finished",
        /// Somebody stopped it: no more are made.
        Cancelled = 3 "cancelled",
        /// It could not be carried on, through a fault of ours.
        Failed = 4 "failed",
    }
}

coded! {
    /// Why something cannot be sent again.
    NotReplayable, "reason" {
        /// Its event is past its retention, or its payload was expunged: there is nothing left to send.
        PayloadExpired = 1 "payload_expired",
        /// The event's own `deliver_before` has passed.
        DeliverBeforePassed = 2 "deliver_before_passed",
        /// The endpoint is disabled.
        EndpointDisabled = 3 "endpoint_disabled",
        /// The endpoint was deleted.
        EndpointDeleted = 4 "endpoint_deleted",
    }
}

/// What is to be sent again. Instants are of `created_at`: of deliveries, and where there was none, of events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplayFilter {
    /// Deliveries that ended so.
    pub statuses: Vec<Status>,
    /// And events that the endpoint never had a delivery of.
    pub missing: bool,
    /// Of dead letters only these classes; empty: any.
    pub classes: Vec<DeadLetterClass>,
    /// Only events of this type.
    pub event_type: Option<String>,
    /// Only these deliveries; empty: any.
    pub deliveries: Vec<Uuid>,
    /// From then on, included.
    pub since: Option<OffsetDateTime>,
    /// Until then, excluded.
    pub until: Option<OffsetDateTime>,
}

impl ReplayFilter {
    /// In one order, each once: what asks for the same is equal.
    #[must_use]
    pub fn normalized(mut self) -> Self {
        self.statuses.sort_unstable();
        self.statuses.dedup();
        self.classes.sort_unstable();
        self.classes.dedup();
        self.deliveries.sort_unstable();
        self.deliveries.dedup();
        self
    }

    /// Whether deliveries that ended without having been delivered are asked for.
    #[must_use]
    pub fn wants_undelivered(&self) -> bool {
        self.statuses
            .iter()
            .any(|status| *status != Status::Delivered)
    }

    /// Whether all events of the time have to be looked at.
    #[must_use]
    pub fn wants_events(&self) -> bool {
        self.missing || self.statuses.contains(&Status::Delivered)
    }
}
