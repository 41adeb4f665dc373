//! A batch of events and deliveries as columns: how they travel into the inserting statement.

use std::collections::HashMap;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::domain::delivery::CloseReason;
use crate::domain::idempotency::IdempotencyKey;
use crate::domain::order::OrderKey;
use crate::domain::trace::TraceContext;
use crate::ids::{EndpointKey, Slot, TenantKey};

/// Separates the channels of an event inside one text: arrays of arrays cannot be ragged. Control
/// characters are refused in channels at the API.
pub const CHANNEL_SEPARATOR: char = '\u{1f}';

/// An event as it goes into a batch.
#[derive(Debug)]
pub struct EventRow<'a> {
    /// UUIDv7 of database time.
    pub id: Uuid,
    /// Whose event.
    pub tenant: TenantKey,
    /// `event_types.id`.
    pub type_id: i32,
    /// Too late after this.
    pub deliver_before: Option<OffsetDateTime>,
    /// Joined by [`CHANNEL_SEPARATOR`]; `None`: no channel.
    pub channels: Option<String>,
    /// Byte for byte what came in (P1).
    pub payload: &'a [u8],
    /// Where it stands in a trace.
    pub trace: Option<TraceContext>,
    /// The version of the tenant's configuration that the fan-out was made from.
    pub config_version: i64,
    /// Set: it has a place among the events of this key. Like the two below, for a batch with keys.
    pub order_key: Option<OrderKey>,
    /// The tenant's own id of it.
    pub external_id: Option<&'a str>,
    /// Under which keys it happens once.
    pub idempotency: &'a [IdempotencyKey],
}

/// A delivery as it goes into a batch, under its event.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryRow {
    /// UUIDv7 of database time.
    pub id: Uuid,
    /// Where to.
    pub endpoint: EndpointKey,
    /// The endpoint's slot.
    pub slot: Slot,
    /// Set: it is closed at once instead of being made ready.
    pub closed: Option<CloseReason>,
    /// Whether the endpoint takes the events of a key one after the other.
    pub ordered: bool,
}

/// Columns of events and deliveries on their way into the database.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    pub(super) ids: Vec<Uuid>,
    pub(super) tenants: Vec<i32>,
    pub(super) types: Vec<i32>,
    pub(super) deliver_before: Vec<Option<OffsetDateTime>>,
    pub(super) channels: Vec<Option<String>>,
    pub(super) payloads: Vec<&'a [u8]>,
    pub(super) traces: Vec<Option<Vec<u8>>>,
    /// 1-based, inclusive positions of an event's deliveries below; `last < first`: it has none.
    pub(super) firsts: Vec<i32>,
    pub(super) lasts: Vec<i32>,
    pub(super) delivery_events: Vec<Uuid>,
    pub(super) delivery_endpoints: Vec<i64>,
    pub(super) delivery_slots: Vec<i16>,
    pub(super) delivery_ids: Vec<Uuid>,
    pub(super) delivery_reasons: Vec<i16>,
    pub(super) delivery_tenants: Vec<i32>,
    pub(super) delivery_deadlines: Vec<Option<OffsetDateTime>>,
    pub(super) versions: HashMap<i32, i64>,
    /// Of a batch with keys only.
    pub(super) keys: Option<KeyColumns<'a>>,
}

/// The columns that a batch with keys has besides.
#[derive(Debug, Default)]
pub(super) struct KeyColumns<'a> {
    pub(super) order_keys: Vec<Option<i64>>,
    /// Per delivery: its event's key, if its endpoint is ordered.
    pub(super) delivery_keys: Vec<Option<i64>>,
    /// Per delivery: its event's 1-based position.
    pub(super) delivery_positions: Vec<i32>,
    pub(super) external_ids: Vec<Option<&'a str>>,
    /// Per key of idempotency: its event's 1-based position.
    pub(super) claim_positions: Vec<i32>,
    pub(super) claim_tenants: Vec<i32>,
    pub(super) claim_events: Vec<Uuid>,
    pub(super) claim_keys: Vec<&'a str>,
    pub(super) claim_fingerprints: Vec<&'a [u8]>,
}

impl<'a> Batch<'a> {
    /// A batch whose events have keys, for [`super::Ingest::insert_keyed`].
    #[must_use]
    pub fn keyed() -> Self {
        Self {
            keys: Some(KeyColumns::default()),
            ..Self::default()
        }
    }

    /// Adds an event with its deliveries. All events of one tenant in a batch must come from the
    /// same version of its configuration.
    pub fn push(&mut self, event: EventRow<'a>, deliveries: impl Iterator<Item = DeliveryRow>) {
        let first = position(self.delivery_ids.len()) + 1;
        for delivery in deliveries {
            self.delivery_events.push(event.id);
            self.delivery_endpoints.push(delivery.endpoint.0);
            self.delivery_slots.push(delivery.slot.0);
            self.delivery_ids.push(delivery.id);
            self.delivery_reasons
                .push(delivery.closed.map_or(0, CloseReason::code));
            self.delivery_tenants.push(event.tenant.0);
            self.delivery_deadlines.push(event.deliver_before);
            if let Some(keys) = &mut self.keys {
                let key = event.order_key.filter(|_| delivery.ordered);
                keys.delivery_keys.push(key.map(|key| key.0));
                keys.delivery_positions.push(position(self.ids.len()) + 1);
            }
        }
        if let Some(keys) = &mut self.keys {
            keys.push(&event, position(self.ids.len()) + 1);
        }
        self.ids.push(event.id);
        self.tenants.push(event.tenant.0);
        self.types.push(event.type_id);
        self.deliver_before.push(event.deliver_before);
        self.channels.push(event.channels);
        self.payloads.push(event.payload);
        self.traces.push(event.trace.map(TraceContext::to_bytes));
        self.firsts.push(first);
        self.lasts.push(position(self.delivery_ids.len()));
        let version = self
            .versions
            .entry(event.tenant.0)
            .or_insert(event.config_version);
        debug_assert_eq!(
            *version, event.config_version,
            "two versions of a tenant's configuration in one batch"
        );
    }
}

impl<'a> KeyColumns<'a> {
    fn push(&mut self, event: &EventRow<'a>, position: i32) {
        self.order_keys.push(event.order_key.map(|key| key.0));
        self.external_ids.push(event.external_id);
        for key in event.idempotency {
            self.claim_positions.push(position);
            self.claim_tenants.push(event.tenant.0);
            self.claim_events.push(event.id);
            self.claim_keys.push(&key.stored);
            self.claim_fingerprints.push(&key.fingerprint);
        }
    }
}

impl Batch<'_> {
    /// The parameters that both inserting statements have, in their order.
    pub(super) fn columns<'b>(
        &'b self,
        tenants: &'b Vec<i32>,
        versions: &'b Vec<i64>,
    ) -> [&'b (dyn ToSql + Sync); 18] {
        [
            &self.ids,
            &self.tenants,
            &self.types,
            &self.deliver_before,
            &self.channels,
            &self.payloads,
            &self.firsts,
            &self.lasts,
            &self.delivery_events,
            &self.delivery_endpoints,
            &self.delivery_slots,
            &self.delivery_ids,
            &self.delivery_reasons,
            &self.delivery_tenants,
            tenants,
            versions,
            &self.delivery_deadlines,
            &self.traces,
        ]
    }
}

/// A count as SQL's int4. Batches are far smaller.
fn position(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
