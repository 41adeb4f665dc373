//! What a replay is asked for with, and what is shown of it.

use serde::Serialize;
use shared::domain::delivery::{DeadLetterClass, Status};
use shared::domain::replay::{NotReplayable, ReplayStatus};
use shared::ids::{EndpointId, EventId, ReplayId};
use shared::store::replays::Replay;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::instant::Instant;
use crate::openapi::schema;

/// What of an endpoint is sent again.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "the shape of a body, which is read field by field"
)]
pub(super) struct EndpointReplay {
    /// From then on, by `created_at`.
    #[schema(required = false)]
    since: Option<Instant>,
    /// Until then, excluded; now at the latest.
    #[schema(required = false)]
    until: Option<Instant>,
    /// Deliveries that ended so: `dead_letter`, `skipped`, `cancelled`, `delivered`. Default: the first two.
    #[schema(required = false, value_type = Vec<schema::EndedStatus>)]
    status: Vec<String>,
    /// Also events that this endpoint never had a delivery of, if it wants them now.
    #[schema(required = false)]
    missing: bool,
    /// How many are sent again per second at most: 0.01 to 1,000, default 100.
    #[schema(required = false, minimum = 0.01, maximum = 1000)]
    rate_per_second: f64,
}

/// Which dead letters are sent again.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "the shape of a body, which is read field by field"
)]
pub(super) struct DeadLetterReplay {
    /// Default: of whichever endpoint.
    #[schema(required = false, value_type = Option<schema::EndpointId>)]
    endpoint_id: Option<String>,
    /// Default: of any class.
    #[schema(required = false, value_type = Vec<schema::DeliveryDeadLetterClass>)]
    class: Vec<String>,
    #[schema(required = false)]
    event_type: Option<String>,
    /// These deliveries, 1,000 at most.
    #[schema(required = false, value_type = Vec<schema::DeliveryId>, min_items = 1, max_items = 1000)]
    ids: Vec<String>,
    /// From then on, by the `created_at` of the delivery.
    #[schema(required = false)]
    since: Option<Instant>,
    /// Until then, excluded; now at the latest.
    #[schema(required = false)]
    until: Option<Instant>,
    /// How many are sent again per second at most: 0.01 to 1,000, default 100.
    #[schema(required = false, minimum = 0.01, maximum = 1000)]
    rate_per_second: f64,
}

/// What was asked to be sent again, and how far that has come.
#[derive(Serialize, ToSchema)]
#[schema(as = Replay)]
pub(super) struct ReplayDocument {
    #[schema(value_type = schema::ReplayId)]
    id: ReplayId,
    /// `null`: dead letters of whichever endpoint.
    #[schema(required, value_type = Option<schema::EndpointId>)]
    endpoint_id: Option<EndpointId>,
    /// `running`, `finished`, `cancelled`, or `failed` (through a fault of ours).
    #[schema(value_type = schema::ReplayState)]
    status: ReplayStatus,
    filter: FilterDocument,
    rate_per_second: f64,
    /// Found so far: each is done, failed, skipped, not replayable, or on its way.
    total: i64,
    /// More may be found.
    total_is_lower_bound: bool,
    /// Delivered.
    done: i64,
    /// Became dead letters once more.
    failed: i64,
    /// Made, and then cancelled or skipped before they were delivered.
    skipped: i64,
    /// Not made, and why.
    not_replayable: Vec<NotReplayableDocument>,
    created_at: Instant,
    /// When the last of it ended.
    #[schema(required)]
    finished_at: Option<Instant>,
}

/// What was asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = ReplayFilter)]
struct FilterDocument {
    #[schema(value_type = Vec<schema::EndedStatus>)]
    status: Vec<Status>,
    missing: bool,
    #[schema(value_type = Vec<schema::DeliveryDeadLetterClass>)]
    class: Vec<DeadLetterClass>,
    #[schema(required)]
    event_type: Option<String>,
    #[schema(required)]
    since: Option<Instant>,
    #[schema(required)]
    until: Option<Instant>,
    /// How many deliveries were named.
    id_count: usize,
}

/// Why some could not be sent again.
#[derive(Serialize, ToSchema)]
#[schema(as = NotReplayable)]
struct NotReplayableDocument {
    #[schema(value_type = schema::NotReplayableReason)]
    reason: NotReplayable,
    count: i64,
    /// The first 20 of them.
    #[schema(value_type = Vec<schema::EventId>)]
    event_ids: Vec<EventId>,
}

impl ReplayDocument {
    pub(super) fn new(replay: Replay) -> Self {
        let filter = replay.filter;
        let refused = |(reason, count, events): (_, _, Vec<Uuid>)| NotReplayableDocument {
            reason,
            count,
            event_ids: events.into_iter().map(EventId).collect(),
        };
        Self {
            id: ReplayId(replay.id),
            endpoint_id: replay.endpoint.map(EndpointId),
            status: replay.status,
            filter: FilterDocument {
                status: filter.statuses,
                missing: filter.missing,
                class: filter.classes,
                event_type: filter.event_type,
                since: filter.since.map(Instant),
                until: filter.until.map(Instant),
                id_count: filter.deliveries.len(),
            },
            rate_per_second: replay.per_second,
            total: replay.total,
            total_is_lower_bound: replay.finding,
            done: replay.done,
            failed: replay.failed,
            skipped: replay.skipped,
            not_replayable: replay.not_replayable.into_iter().map(refused).collect(),
            created_at: Instant(replay.created_at),
            finished_at: replay.finished_at.map(Instant),
        }
    }
}
