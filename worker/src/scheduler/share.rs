//! Shares of the worker's permits, so that endpoints that are slow, many or hot leave the others room (O1).
//!
//! - Endpoints that answer slowly, or have not answered yet, hold at most half of all permits together:
//!   that many that hang delay nobody else, from the first second. A request that is out for
//!   [`SLOW_AFTER`] makes its endpoint slow at once, before its deadline and long before a breaker.
//! - A large payload takes several permits, so that what is on the wire is bounded in bytes as well, and a
//!   wave of large events of one tenant has the share that small ones would have.
//! - No endpoint holds more than a quarter of the permits that the others leave it: the fewer there are,
//!   the less each may add, so that many that begin to hang at the same moment do not take all of them.

use std::time::Duration;

use shared::ids::EndpointKey;
use shared::runtime::clock::BootTime;
use uuid::Uuid;

use super::lanes::Lane;
use super::{Now, Scheduler, size};
use crate::job::{LiveRow, Ownership};

/// From here on an answer is slow.
pub(super) const SLOW_AFTER: Duration = Duration::from_secs(1);
/// What one permit carries: a payload takes a permit, and one more for each time it holds so many bytes.
pub(super) const PERMIT_BYTES: usize = 128 << 10;
/// The weight of the last answer among those before, as a divisor.
const SMOOTHING: u32 = 8;

/// A request that is sent and not recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    pub(super) started: BootTime,
    pub(super) endpoint: EndpointKey,
    pub(super) probe: bool,
    pub(super) replay: bool,
    /// Permits that it holds.
    permits: usize,
    /// Counted in its endpoint's `overdue`.
    overdue: bool,
}

impl InFlight {
    pub(super) fn new(
        started: BootTime,
        endpoint: EndpointKey,
        probe: bool,
        row: &LiveRow,
    ) -> Self {
        Self {
            started,
            endpoint,
            probe,
            replay: Lane::is_replay(row.kind),
            permits: size(row).div_ceil(PERMIT_BYTES).max(1),
            overdue: false,
        }
    }
}

/// How fast an endpoint answers.
#[derive(Debug, Default)]
pub(super) struct Pace {
    smoothed: Option<Duration>,
    /// Requests that are out for longer than [`SLOW_AFTER`].
    overdue: usize,
}

impl Pace {
    /// Slow, or not known to be quick.
    pub(super) fn is_slow(&self) -> bool {
        self.overdue > 0 || self.smoothed.is_none_or(|time| time >= SLOW_AFTER)
    }

    fn answered(&mut self, took: Duration) {
        self.smoothed = Some(
            self.smoothed
                .map_or(took, |before| (before * (SMOOTHING - 1) + took) / SMOOTHING),
        );
    }
}

impl Scheduler {
    /// Whether the endpoint may have one more of the worker's permits.
    pub(super) fn has_share(&self, held: usize, slow: bool) -> bool {
        let others = self.permits_held.saturating_sub(held);
        let left = self.settings.max_in_flight.saturating_sub(others);
        held * 4 < left && (!slow || self.slow_have_room())
    }

    /// Whether slow endpoints may have one more permit.
    pub(super) fn slow_have_room(&self) -> bool {
        self.slow_permits < self.settings.max_in_flight.div_ceil(2)
    }

    /// A request started: its permit is taken from its endpoint's share.
    pub(super) fn permit_taken(&mut self, id: (Ownership, Uuid), flight: InFlight) {
        self.in_flight.insert(id, flight);
        self.permits_held += flight.permits;
        self.starts.push_back((flight.started, id));
        if let Some(endpoint) = self.endpoints.get_mut(&flight.endpoint) {
            endpoint.in_flight += 1;
            endpoint.permits += flight.permits;
            endpoint.replays_in_flight += usize::from(flight.replay);
            if endpoint.counted_slow {
                self.slow_permits += flight.permits;
            }
        }
    }

    /// A delivery is off the wire, whosever it is by now.
    pub(super) fn permit_dropped(&mut self, id: (Ownership, Uuid)) -> Option<InFlight> {
        let flight = self.in_flight.remove(&id)?;
        self.permits_held = self.permits_held.saturating_sub(flight.permits);
        Some(flight)
    }

    /// A request is recorded: its permit comes back. `took`: how long the answer took, if there was one.
    pub(super) fn permit_freed(&mut self, flight: &InFlight, took: Option<Duration>) {
        let Some(endpoint) = self.endpoints.get_mut(&flight.endpoint) else {
            return;
        };
        endpoint.in_flight = endpoint.in_flight.saturating_sub(1);
        endpoint.permits = endpoint.permits.saturating_sub(flight.permits);
        endpoint.replays_in_flight = endpoint
            .replays_in_flight
            .saturating_sub(usize::from(flight.replay));
        if endpoint.counted_slow {
            self.slow_permits = self.slow_permits.saturating_sub(flight.permits);
        }
        if flight.overdue {
            endpoint.pace.overdue = endpoint.pace.overdue.saturating_sub(1);
        }
        if let Some(took) = took {
            endpoint.pace.answered(took);
        }
        self.count_again(flight.endpoint);
    }

    /// Requests that are out for long make their endpoints slow.
    pub(super) fn find_overdue(&mut self, now: Now) {
        while let Some((started, id)) = self.starts.front().copied() {
            if now.boot.since(started) < SLOW_AFTER {
                return;
            }
            self.starts.pop_front();
            let is_it = |flight: &InFlight| flight.started == started;
            // One of an earlier life or epoch: its record would not be counted either.
            if !self.in_flight.get(&id).is_some_and(is_it) || !self.is_ours(id.0) {
                continue;
            }
            let Some(flight) = self.in_flight.get_mut(&id) else {
                continue;
            };
            let key = flight.endpoint;
            if let Some(endpoint) = self.endpoints.get_mut(&key) {
                flight.overdue = true;
                endpoint.pace.overdue += 1;
            }
            self.count_again(key);
        }
    }

    /// Moves an endpoint's permits into the share where they belong now.
    fn count_again(&mut self, key: EndpointKey) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let slow = endpoint.pace.is_slow();
        if slow == endpoint.counted_slow {
            return;
        }
        endpoint.counted_slow = slow;
        if slow {
            self.slow_permits += endpoint.permits;
        } else {
            self.slow_permits = self.slow_permits.saturating_sub(endpoint.permits);
        }
    }
}
