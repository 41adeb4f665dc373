//! Loading: whose rows are asked for next, and how many, so that memory stays bounded and nobody
//! waits behind somebody else's backlog (O1).

use std::time::Duration;

use super::{Effect, LoadRequest, LoadedEndpoint, Now, Scheduler, size};

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
            if !endpoint.wants_load(now.boot, now.database) {
                continue;
            }
            endpoint.load_out = true;
            endpoint.config_asked = endpoint.config_stale;
            let (cursor, fresh, known) = endpoint.load_from();
            let fresh = fresh.min(rows);
            rows -= fresh;
            // What is known comes back with the rest and must not use up the limit.
            let limit = fresh + known;
            batch.push(LoadRequest {
                slot: endpoint.slot,
                epoch,
                endpoint: key,
                cursor,
                ready_limit: if endpoint.more_ready { limit } else { 0 },
                retry_limit: if endpoint.retry_due(now.database) {
                    limit
                } else {
                    0
                },
                config: endpoint.config_stale,
            });
        }
        batch
    }

    pub(super) fn loaded(&mut self, results: Vec<LoadedEndpoint>, now: Now) {
        self.loads_out = self.loads_out.saturating_sub(1);
        self.load_batch = (self.load_batch * 2).min(LOAD_BATCH);
        for result in results {
            let key = result.endpoint;
            if !self.slots.works(result.slot, result.epoch) {
                continue;
            }
            let Some(endpoint) = self.endpoints.get_mut(&key).filter(|found| found.load_out) else {
                continue;
            };
            let unreadable = endpoint.config_asked && result.config.is_none();
            let fresh = endpoint.loaded(result, now);
            if unreadable {
                endpoint.load_not_before = now.boot.after(LOAD_PAUSE);
                self.due.insert((now.database + LOAD_PAUSE, key));
            }
            for row in fresh {
                endpoint.tenant = row.tenant;
                if self.suspects.contains_key(&row.id) {
                    self.suspect_queue.push_back((key, row, now.boot));
                    continue;
                }
                self.loaded_rows += 1;
                self.loaded_bytes += size(&row);
                self.usual_payload = (self.usual_payload * 15 + size(&row)) / 16;
                endpoint.queue.push_back((row, now.boot));
            }
            if let Some(due) = endpoint.next_due {
                self.due.insert((due, key));
            }
            self.close_unless_enabled(key, now);
            self.consider(key, now);
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
