//! Finding work: hints, scans and due times name endpoints; their rows are loaded on demand.

use std::time::Duration;

use shared::ids::{EndpointKey, Epoch, Slot, TenantKey};

use super::endpoint::Endpoint;
use super::{Found, Now, Scheduler, consider_load, size};

/// Endpoints that were idle this long are forgotten; a hint or scan brings them back.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Where endpoints wait whose tenant is not known before their first row is loaded.
const UNKNOWN_TENANT: TenantKey = TenantKey(0);

impl Scheduler {
    pub(super) fn hinted(&mut self, pairs: &[(Slot, EndpointKey)], now: Now) {
        for (slot, key) in pairs {
            if self.slots.working(*slot).is_none() {
                continue;
            }
            // The tenant of an endpoint that is not known yet comes with its rows; until then it
            // takes its turn to load among the unknown.
            let endpoint = self
                .endpoints
                .entry(*key)
                .or_insert_with(|| Endpoint::new(*key, *slot, UNKNOWN_TENANT, now.boot));
            endpoint.hinted();
            consider_load(endpoint, &mut self.load_turns, now);
        }
    }

    pub(super) fn scanned(
        &mut self,
        slots: &[(Slot, Epoch)],
        found: Vec<Found>,
        took: Duration,
        now: Now,
    ) {
        self.slots.scanned(slots, took, now.boot);
        for found in found {
            let epoch = slots
                .iter()
                .find(|(slot, _)| *slot == found.slot)
                .map(|(_, epoch)| *epoch);
            if epoch.is_none() || self.slots.working(found.slot) != epoch {
                continue;
            }
            let endpoint = self.endpoints.entry(found.endpoint).or_insert_with(|| {
                Endpoint::new(found.endpoint, found.slot, found.tenant, now.boot)
            });
            endpoint.tenant = found.tenant;
            endpoint.scanned(found.ready, found.next_due);
            if found.lines {
                endpoint.lines.scanned();
            }
            if let Some(due) = endpoint.next_due.filter(|due| *due > now.database) {
                self.due.insert((due, found.endpoint));
            }
            // Nothing of it may be pending, and yet somebody has to look after it.
            if found.awake && endpoint.gate.is_none() {
                endpoint.changed();
            }
            // Rows of an endpoint that takes none: it may be enabled again. Asked before they are closed.
            if !endpoint.config_stale && !endpoint.enabled() && !endpoint.closing {
                endpoint.changed();
            }
            consider_load(endpoint, &mut self.load_turns, now);
        }
    }

    pub(super) fn retries_due(
        &mut self,
        slot: Slot,
        key: EndpointKey,
        tenant: TenantKey,
        now: Now,
    ) {
        if self.slots.working(slot).is_none() {
            return;
        }
        let new = || Endpoint::new(key, slot, tenant, now.boot);
        let endpoint = self.endpoints.entry(key).or_insert_with(new);
        endpoint.due(Some(now.database));
        if let Some(gate) = &mut endpoint.gate {
            gate.probe_asked_for(now.database);
        }
        consider_load(endpoint, &mut self.load_turns, now);
    }

    pub(super) fn reload(&mut self, slot: Slot, key: EndpointKey, now: Now) {
        let Some(endpoint) = self
            .endpoints
            .get_mut(&key)
            .filter(|found| found.slot == slot)
        else {
            return;
        };
        endpoint.changed();
        self.unload(key, now);
        self.consider(key, now);
    }

    /// Drops what is loaded of an endpoint and not sent.
    pub(super) fn unload(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        for row in endpoint.unload(now) {
            self.loaded_rows -= 1;
            self.loaded_bytes -= size(&row);
        }
        self.suspect_queue.retain(|(waiting, row)| {
            if *waiting == key {
                endpoint.dropped(row, now);
            }
            *waiting != key
        });
    }

    pub(super) fn tick(&mut self, now: Now) {
        while let Some((due, key)) = self
            .due
            .first()
            .copied()
            .filter(|(due, _)| *due <= now.database)
        {
            self.due.remove(&(due, key));
            self.consider(key, now);
        }
        self.find_overdue(now);
        if now.boot.since(self.swept_at) >= FORGET_AFTER {
            self.swept_at = now.boot;
            self.sweep(now);
        }
    }

    /// Once a minute: ends deliveries that grew too old behind a stuck endpoint, forgets idle endpoints.
    fn sweep(&mut self, now: Now) {
        let mut keys: Vec<_> = self.endpoints.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.expire(key, now);
            if let Some(endpoint) = self.endpoints.get_mut(&key) {
                endpoint.forget_revived();
            }
            self.unlock(key, now);
            self.consider(key, now);
        }
        self.buckets
            .retain(|_, (_, _, (position, _))| *position > now.database);
        let buckets = &mut self.buckets;
        self.endpoints.retain(|key, endpoint| {
            let gate = endpoint.gate.as_ref();
            let forgets = endpoint.is_idle()
                && now.boot.since(endpoint.last_active) >= FORGET_AFTER
                && (!endpoint.enabled() || gate.is_none_or(|it| it.is_forgettable(now.database)));
            if let Some(position) = gate
                .filter(|_| forgets)
                .and_then(|gate| gate.hand_over(now.database).0)
            {
                buckets.insert(*key, (endpoint.slot, endpoint.tenant, position));
            }
            !forgets
        });
    }

    /// Reads a locked endpoint again.
    pub(super) fn unlock(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let config = endpoint.config.as_ref();
        if config.is_some_and(|config| config.locked) {
            endpoint.changed();
            consider_load(endpoint, &mut self.load_turns, now);
        }
    }
}
