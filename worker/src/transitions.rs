//! Transitions: what changed about endpoints, stored and told outside of the path of any delivery.
//!
//! The engine puts a [`Change`] into [`Changes`] and goes on; one task writes it down. Of one endpoint only
//! the latest state waits, so what is kept while the database is away is bounded by the endpoints that
//! changed meanwhile.

use std::collections::HashMap;
use std::sync::Mutex;

use shared::domain::attempt::Outcome;
use shared::domain::notice::NoticeKind;
use shared::ids::{EndpointKey, TenantKey};
use shared::store::endpoint_runtime::Runtime;
use time::OffsetDateTime;
use tokio::sync::Notify;

use crate::job::Ownership;

/// What changed about one endpoint.
#[derive(Debug, Clone)]
pub struct Change {
    /// Under which ownership; a stale one changes nothing (D3).
    pub owner: Ownership,
    /// Which endpoint.
    pub endpoint: EndpointKey,
    /// Whose.
    pub tenant: TenantKey,
    /// What is stored of it now.
    pub runtime: Option<Runtime>,
    /// What its tenant is told, and the facts.
    pub notices: Vec<(NoticeKind, Facts)>,
    /// It has failed for so long that it is to be disabled, if the attempts bear that out.
    pub disable: Option<DisableFailing>,
}

/// What a notice says beside its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The outcome of the request that brought it about.
    pub outcome: Option<Outcome>,
    /// Since when the endpoint fails.
    pub failing_since: Option<OffsetDateTime>,
    /// When it is asked again.
    pub next_probe_at: Option<OffsetDateTime>,
}

/// An endpoint that has failed for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisableFailing {
    /// The version that failed.
    pub version: i32,
    /// The first failure since the last success.
    pub failing_since: OffsetDateTime,
}

/// Changes that wait to be written. Cheap to put into; never waits.
#[derive(Debug, Default)]
pub struct Changes {
    waiting: Mutex<HashMap<EndpointKey, Change>>,
    some: Notify,
}

impl Changes {
    /// Puts a change in; it takes the place of an earlier one of the same endpoint, whose notices and
    /// request to disable stay.
    pub fn put(&self, change: Change) {
        let Ok(mut waiting) = self.waiting.lock() else {
            return;
        };
        match waiting.get_mut(&change.endpoint) {
            Some(earlier) if earlier.owner == change.owner => {
                earlier.runtime = change.runtime.or(earlier.runtime.take());
                earlier.disable = change.disable.or(earlier.disable.take());
                for notice in change.notices {
                    if !earlier.notices.iter().any(|(kind, _)| *kind == notice.0) {
                        earlier.notices.push(notice);
                    }
                }
            }
            Some(_) | None => {
                waiting.insert(change.endpoint, change);
            }
        }
        self.some.notify_one();
    }

    /// Waits for changes, and takes all there are.
    pub async fn take(&self) -> Vec<Change> {
        loop {
            if let Ok(mut waiting) = self.waiting.lock()
                && !waiting.is_empty()
            {
                return waiting.drain().map(|(_, change)| change).collect();
            }
            self.some.notified().await;
        }
    }
}
