//! One event on its way through a writer: its id, its fan-out, and what is known of its fate.

use shared::domain::delivery::{CloseReason, Status};
use shared::ids::{EndpointKey, Slot, new_v7};
use shared::store::ingest::{Batch, CHANNEL_SEPARATOR, DeliveryRow, EventRow, Stored, Target};
use time::OffsetDateTime;
use uuid::Uuid;

use super::configuration::Configurations;
use super::{
    Accepted, AcceptedDelivery, Lane, MOST_FAN_OUT, MOST_LISTED, Refusal, Reply, Unchecked, Waiting,
};

/// Rounds that an event may be sent back because its tenant's endpoints changed meanwhile.
const MOST_ROUNDS: u8 = 20;

/// A request with what a writer has made of it so far.
#[derive(Debug)]
pub(super) struct Staged {
    waiting: Waiting,
    plan: Option<Plan>,
    /// It was submitted and the answer was lost: it may exist.
    pub(super) in_doubt: bool,
}

/// The fan-out of an event, made from one version of its tenant's configuration.
#[derive(Debug)]
struct Plan {
    type_id: i32,
    config_version: i64,
    deliveries: Vec<Planned>,
}

/// Why an event has no plan.
#[derive(Debug)]
pub(super) enum Unplanned {
    Refused(Refusal),
    /// It was not checked against this version of its type's schema.
    Unchecked(i64),
}

#[derive(Debug, Clone, Copy)]
struct Planned {
    id: Uuid,
    endpoint: EndpointKey,
    public: Uuid,
    slot: Slot,
    closed: Option<CloseReason>,
    ordered: bool,
}

impl Planned {
    fn new(target: &Target, now: OffsetDateTime) -> Self {
        Self {
            id: new_v7(now),
            endpoint: target.key,
            public: target.public,
            slot: target.slot,
            closed: target.closed,
            ordered: target.ordered,
        }
    }
}

impl From<Waiting> for Staged {
    fn from(waiting: Waiting) -> Self {
        Self {
            waiting,
            plan: None,
            in_doubt: false,
        }
    }
}

impl Staged {
    pub(super) const fn event(&self) -> &super::NewEvent {
        &self.waiting.event
    }

    /// Tenant and id, once it has one.
    pub(super) fn identity(&self) -> Option<(i32, Uuid)> {
        self.waiting.id.map(|id| (self.event().tenant.0, id))
    }

    /// The newest version of its tenant's configuration that is known to be out, of another lane's
    /// plan.
    pub(super) const fn planned_with(&self) -> i64 {
        self.waiting.planned_with
    }

    /// Where it belongs by its plan.
    pub(super) fn lane(&self) -> Lane {
        let ordered = |plan: &Plan| plan.deliveries.iter().any(|planned| planned.ordered);
        match self.event().order_key {
            Some(_) if self.plan.as_ref().is_some_and(ordered) => Lane::Ordered,
            Some(_) | None => self.event().lane_without_order(),
        }
    }

    /// For the other lane, which makes its own plan, from no older configuration.
    pub(super) fn handed_over(self) -> Option<Waiting> {
        let version = self.plan.as_ref().map_or(0, |plan| plan.config_version);
        let mut waiting = self.outdated()?.waiting;
        waiting.planned_with = waiting.planned_with.max(version);
        Some(waiting)
    }

    /// Whether nobody waits for the reply any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.waiting.reply.is_closed()
    }

    /// What it adds to a batch: its deliveries, at least one row.
    pub(super) fn weight(&self) -> usize {
        self.plan
            .as_ref()
            .map_or(1, |plan| plan.deliveries.len().max(1))
    }

    /// Stamps ids and makes the fan-out from what is known of the tenant now.
    pub(super) fn plan(
        &mut self,
        configurations: &mut Configurations,
        now: OffsetDateTime,
    ) -> Result<(), Unplanned> {
        let event = &self.waiting.event;
        let type_id = configurations
            .type_id(event.tenant, &event.event_type)
            .ok_or(Unplanned::Refused(Refusal::Types))?;
        let known = configurations
            .tenant(event.tenant)
            .ok_or(Unplanned::Refused(Refusal::Internal))?;
        if let Some(version) = known.schema(&event.event_type)
            && event.checked != Some(version)
            && !event.from_journal
        {
            return Err(Unplanned::Unchecked(version));
        }
        if let Some(plan) = &self.plan
            && plan.config_version == known.version
        {
            return Ok(());
        }
        let targets = known.fan_out(event);
        if targets.len() > MOST_FAN_OUT {
            return Err(Unplanned::Refused(Refusal::FanOut(targets.len())));
        }
        let deliveries = targets
            .into_iter()
            .map(|target| Planned::new(target, now))
            .collect();
        self.plan = Some(Plan {
            type_id,
            config_version: known.version,
            deliveries,
        });
        self.waiting.id.get_or_insert_with(|| new_v7(now));
        Ok(())
    }

    /// Adds it to a batch; not without a plan.
    pub(super) fn add_to<'a>(&'a self, batch: &mut Batch<'a>) {
        let (Some(id), Some(plan)) = (self.waiting.id, &self.plan) else {
            debug_assert!(false, "an event is planned before it is submitted");
            return;
        };
        let event = self.event();
        let row = EventRow {
            id,
            tenant: event.tenant,
            type_id: plan.type_id,
            deliver_before: event.deliver_before,
            channels: joined(&event.channels),
            payload: &event.payload,
            trace: event.trace,
            config_version: plan.config_version,
            order_key: match self.lane() {
                Lane::Plain | Lane::Keyed => None,
                Lane::Ordered => event.order_key,
            },
            external_id: event.external_id.as_deref(),
            idempotency: &event.idempotency,
        };
        let deliveries = plan.deliveries.iter().map(|planned| DeliveryRow {
            id: planned.id,
            endpoint: planned.endpoint,
            slot: planned.slot,
            closed: planned.closed,
            ordered: planned.ordered,
        });
        batch.push(row, deliveries);
    }

    /// Where its live deliveries wait: for the hint.
    pub(super) fn live(&self) -> impl Iterator<Item = (Slot, EndpointKey)> + '_ {
        self.plan
            .iter()
            .flat_map(|plan| &plan.deliveries)
            .filter(|planned| planned.closed.is_none())
            .map(|planned| (planned.slot, planned.endpoint))
    }

    /// Sends it back for a plan from a newer configuration.
    pub(super) fn outdated(mut self) -> Option<Self> {
        self.waiting.rounds += 1;
        if self.waiting.rounds > MOST_ROUNDS {
            self.answer(Err(Refusal::Restless));
            return None;
        }
        Some(self)
    }

    /// Answers an event that has no plan.
    pub(super) fn turn_away(self, why: Unplanned) {
        match why {
            Unplanned::Refused(refusal) => self.refuse(refusal),
            Unplanned::Unchecked(version) => {
                let Waiting { event, reply, .. } = self.waiting;
                let unchecked = Box::new(Unchecked { event, version });
                if reply.send(Err(Refusal::Unchecked(unchecked))).is_err() {
                    tracing::debug!("a request went away before its answer");
                }
            }
        }
    }

    pub(super) fn refuse(self, refusal: Refusal) {
        self.answer(Err(refusal));
    }

    /// Answers with what was inserted just now.
    pub(super) fn accept(self) {
        let (Some(id), Some(plan)) = (self.waiting.id, &self.plan) else {
            return self.answer(Err(Refusal::Internal));
        };
        let deliveries = plan.deliveries.iter().map(|planned| AcceptedDelivery {
            id: planned.id,
            endpoint: planned.public,
            status: planned.closed.map_or(Status::Pending, CloseReason::status),
        });
        let accepted = Accepted {
            id,
            delivery_count: Some(plan.deliveries.len()),
            deliveries: deliveries.take(MOST_LISTED).collect(),
        };
        self.answer(Ok(accepted));
    }

    /// Answers with an event that exists: this one, stored by an earlier submission that may have had
    /// another fan-out, or the one that its key stands for.
    pub(super) fn accept_stored(self, id: Uuid, stored: &Stored) {
        let deliveries = stored.deliveries.iter().map(|delivery| AcceptedDelivery {
            id: delivery.id,
            endpoint: delivery.endpoint,
            status: if delivery.skipped {
                Status::Skipped
            } else {
                Status::Pending
            },
        });
        let accepted = Accepted {
            id,
            delivery_count: Some(stored.delivery_count),
            deliveries: deliveries.collect(),
        };
        self.answer(Ok(accepted));
    }

    fn answer(self, reply: Reply) {
        if self.waiting.reply.send(reply).is_err() {
            tracing::debug!("a request went away before its answer");
        }
    }
}

fn joined(channels: &[String]) -> Option<String> {
    let mut separator = [0; 4];
    let separator = CHANNEL_SEPARATOR.encode_utf8(&mut separator);
    (!channels.is_empty()).then(|| channels.join(separator))
}
