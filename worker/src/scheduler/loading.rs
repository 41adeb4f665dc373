//! Loading: whose rows are asked for next, and how many, so that memory stays bounded and nobody
//! waits behind somebody else's backlog (O1).

use std::sync::Arc;
use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::ids::EndpointKey;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Effect, LoadRequest, LoadedEndpoint, Now, Scheduler, pausing, size};
use crate::admission::Gate;
use crate::endpoint_config::SharedConfig;

/// Endpoints in one load statement; with twice the default limit each, some 2,500 rows at most.
pub(super) const LOAD_BATCH: usize = 128;
/// Rows in one load statement, so that it stays small and quick whatever the payloads.
const LOAD_ROWS: usize = 512;
/// Bytes that a payload is taken to have until some were seen.
pub(super) const FIRST_PAYLOAD: usize = 1_024;
/// Load statements under way at once: one works while the other's rows are handed out.
const MOST_LOADS: usize = 2;
/// How long to wait before reading again what could not be read.
const LOAD_PAUSE: Duration = Duration::from_millis(500);

impl Scheduler {
    pub(super) fn load(&mut self, now: Now) {
        while self.loads_out < MOST_LOADS && self.room_to_load() {
            let batch = self.next_loads(now);
            if batch.is_empty() {
                return;
            }
            self.loads_out += 1;
            self.effects.push(Effect::Load(batch));
        }
    }

    pub(super) fn room_to_load(&self) -> bool {
        self.loaded_rows < self.settings.max_loaded
            && self.loaded_bytes < self.settings.max_loaded_bytes
    }

    /// How many rows may be asked for: what fits into the bytes that are left, if they are as usual.
    pub(super) fn rows_to_load(&self) -> usize {
        let left = self
            .settings
            .max_loaded_bytes
            .saturating_sub(self.loaded_bytes);
        (left / self.usual_payload.max(1)).clamp(1, LOAD_ROWS)
    }

    pub(super) fn next_loads(&mut self, now: Now) -> Vec<LoadRequest> {
        let mut batch = Vec::new();
        let mut rows = self.rows_to_load();
        while batch.len() < self.load_batch && rows > 0 {
            let Some(key) = self.load_turns.next() else {
                break;
            };
            let Some(endpoint) = self.endpoints.get_mut(&key) else {
                continue;
            };
            endpoint.in_load_turns = false;
            let Some(epoch) = self.slots.working(endpoint.slot) else {
                continue;
            };
            if !endpoint.wants_load(now) {
                continue;
            }
            let most = rows;
            rows -= endpoint.wanted().min(rows);
            let request = LoadRequest {
                slot: endpoint.slot,
                epoch,
                endpoint: key,
                cursor: Uuid::nil(),
                ready_limit: 0,
                fresh: None,
                retry_limit: 0,
                lines: None,
                config: false,
                history: false,
            };
            batch.push(endpoint.ask(most, request, now));
        }
        batch
    }

    pub(super) fn loaded(&mut self, results: Vec<LoadedEndpoint>, now: Now) {
        self.loads_out = self.loads_out.saturating_sub(1);
        self.load_batch = (self.load_batch * 2).min(LOAD_BATCH);
        for mut result in results {
            let key = result.endpoint;
            if !self.slots.works(result.slot, result.epoch) {
                continue;
            }
            let Some(endpoint) = self.endpoints.get_mut(&key).filter(|found| found.load_out) else {
                continue;
            };
            let unreadable = endpoint.config_asked && result.config.is_none();
            let before = endpoint.config.clone();
            let history = result.history.take();
            let new = endpoint.loaded(result, now);
            if unreadable {
                endpoint.load_not_before = now.boot.after(LOAD_PAUSE);
                self.due.insert((now.database + LOAD_PAUSE, key));
            }
            for (lane, row) in new {
                endpoint.tenant = row.tenant;
                if pausing::is_paused(&self.pauses, &row, now) {
                    endpoint.parking.push(row);
                    continue;
                }
                if self.suspects.contains_key(&row.id) {
                    self.suspect_queue.push_back((key, row));
                    continue;
                }
                self.loaded_rows += 1;
                self.loaded_bytes += size(&row);
                self.usual_payload = (self.usual_payload * 15 + size(&row)) / 16;
                endpoint.lanes.push(lane, row);
            }
            let due = endpoint.next_due;
            self.wake_at(due, key, now);
            self.gate(key, before.as_ref(), now);
            self.pause(key);
            self.park(key, now);
            self.remember(key, history, now);
            self.leave_behind_breaker(key, now);
            self.close_unless_enabled(key, now);
            self.consider(key, now);
        }
    }

    /// Makes the gate of an endpoint that was read for the first time, or tells it what changed.
    fn gate(&mut self, key: EndpointKey, before: Option<&SharedConfig>, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let Some(config) = endpoint.config.clone() else {
            return;
        };
        match (&mut endpoint.gate, before) {
            (Some(_), Some(before)) if Arc::ptr_eq(before, &config) => return,
            (Some(gate), Some(before)) => gate.reconfigured(before, &config, now.database),
            (Some(_), None) | (None, _) => {
                let Some(taken) = self.slots.taken(endpoint.slot) else {
                    return;
                };
                let kept = self.buckets.remove(&key).map(|(_, _, position)| position);
                endpoint.gate = Some(Gate::new(&config, taken, kept, now.database));
                // A backlog that another owner left: what comes in does not wait for its end.
                if endpoint.more_ready {
                    endpoint.begin_fresh(now.database);
                }
            }
        }
        self.open_for_outage(key, now);
        self.wake_for_probe(key);
    }

    /// What was asked for before the breaker opened, or before that was known, stays in the database.
    fn leave_behind_breaker(&mut self, key: EndpointKey, now: Now) {
        let endpoint = self.endpoints.get(&key);
        if endpoint.is_some_and(|it| it.is_open() && !it.probe_due(now)) {
            self.unload(key, now);
        }
    }

    /// What was tried before this owner came.
    fn remember(
        &mut self,
        key: EndpointKey,
        history: Option<Vec<(Outcome, OffsetDateTime)>>,
        now: Now,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let known = (endpoint.gate.as_mut(), &endpoint.config, history);
        if let (Some(gate), Some(config), Some(history)) = known {
            let turns = gate.remember(config, &history, now.database);
            self.turned(key, &turns, None, now);
        }
    }

    pub(super) fn load_failed(&mut self, requests: &[LoadRequest], now: Now) {
        self.loads_out = self.loads_out.saturating_sub(1);
        self.load_batch = (requests.len() / 2).max(1);
        for request in requests {
            if self.slots.works(request.slot, request.epoch)
                && let Some(endpoint) = self.endpoints.get_mut(&request.endpoint)
            {
                endpoint.load_failed(now.boot.after(LOAD_PAUSE));
                self.due
                    .insert((now.database + LOAD_PAUSE, request.endpoint));
            }
        }
    }
}
