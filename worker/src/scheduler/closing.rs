//! Closing what a disabled or deleted endpoint left behind.

use shared::domain::delivery::CloseReason;
use shared::domain::endpoint::EndpointState;
use shared::ids::EndpointKey;

use super::{Chore, Close, Effect, Now, Scheduler};

impl Scheduler {
    pub(super) fn close_unless_enabled(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get(&key) else {
            return;
        };
        if endpoint.config_stale || endpoint.closing || endpoint.load_out {
            return;
        }
        let reason = match endpoint.config.as_ref().map(|config| config.state) {
            Some(EndpointState::Disabled) => CloseReason::EndpointDisabled,
            Some(EndpointState::Deleted) => CloseReason::EndpointDeleted,
            Some(EndpointState::Enabled) | None => return,
        };
        self.unload(key, now);
        let owner = self.owner_of(key);
        let (Some(owner), Some(endpoint)) = (owner, self.endpoints.get_mut(&key)) else {
            return;
        };
        endpoint.closing = true;
        self.effects.push(Effect::Chore(Chore::Close(Close {
            owner,
            endpoint: key,
            reason,
            except: endpoint.known.iter().copied().collect(),
        })));
    }

    pub(super) fn closed(&mut self, key: EndpointKey, more: bool, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        endpoint.closing = false;
        if more {
            self.close_unless_enabled(key, now);
        } else if !endpoint.enabled() {
            endpoint.nothing_left();
        }
        self.consider(key, now);
    }
}
