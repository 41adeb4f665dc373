//! What is remembered of a name: for how long an answer holds, and what stands in for it when DNS is
//! away. Pure: time comes in as an argument.
//!
//! # Invariants
//! - N1 after DNS said that a name is gone, no address of before is given.
//! - N2 an address is given without asking for half a minute at most, and after that only while DNS says
//!   nothing, for an hour at most.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use shared::runtime::clock::BootTime;

use super::LookupFailed;

/// A TTL of 0 would have every connection ask. Not for safety: each dial is judged anyway (S1).
const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// A receiver that moves is followed within a minute, whatever TTL it left behind: this and the age
/// that a connection made at its end may reach (30 s).
pub(in crate::sender) const LONGEST_TTL: Duration = Duration::from_secs(30);
/// A name without addresses: long enough not to ask for it at each retry, short enough that a
/// receiver that is being set up need not wait.
const SHORTEST_NEGATIVE_TTL: Duration = Duration::from_secs(5);
const LONGEST_NEGATIVE_TTL: Duration = Duration::from_secs(30);
/// How long a server that fails is left alone with a name.
const FAILURE_TTL: Duration = Duration::from_secs(2);
/// How long the last good answer stands in once it is due to be asked for again. Longer than most
/// outages, shorter than an address takes to be given to somebody else.
const USABLE_FOR: Duration = Duration::from_secs(3_600);

/// What a look-up gave.
pub(super) type Reply = Result<Found, NotFound>;

/// Addresses; never none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) addresses: Arc<[IpAddr]>,
    pub(super) ttl: Duration,
}

/// No addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotFound {
    pub(super) failure: LookupFailed,
    /// For how long the zone's owner says that it holds.
    pub(super) ttl: Option<Duration>,
}

impl From<LookupFailed> for NotFound {
    fn from(failure: LookupFailed) -> Self {
        Self { failure, ttl: None }
    }
}

/// What one who asks is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given {
    /// What DNS says.
    Addresses(Arc<[IpAddr]>),
    /// What DNS said when it last said anything.
    Stale(Arc<[IpAddr]>),
    /// No address.
    Failed(LookupFailed),
}

/// What is remembered of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    last_good: Option<LastGood>,
    /// Why the last look-up gave no address, if it gave none.
    failure: Option<LookupFailed>,
    fresh_until: BootTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LastGood {
    addresses: Arc<[IpAddr]>,
    usable_until: BootTime,
}

impl Entry {
    /// What to remember after a look-up that ended `now`.
    pub(super) fn after(before: Option<Self>, reply: Reply, now: BootTime) -> Self {
        match reply {
            Ok(found) => {
                let fresh_until = now.after(found.ttl.clamp(SHORTEST_TTL, LONGEST_TTL));
                Self {
                    last_good: Some(LastGood {
                        addresses: found.addresses,
                        usable_until: fresh_until.after(USABLE_FOR),
                    }),
                    failure: None,
                    fresh_until,
                }
            }
            Err(NotFound { failure, ttl }) if failure.is_answer() => {
                let ttl = ttl.unwrap_or_default();
                Self {
                    last_good: None,
                    failure: Some(failure),
                    fresh_until: now.after(ttl.clamp(SHORTEST_NEGATIVE_TTL, LONGEST_NEGATIVE_TTL)),
                }
            }
            Err(NotFound { failure, .. }) => Self {
                last_good: before.and_then(|before| before.last_good),
                failure: Some(failure),
                fresh_until: now.after(FAILURE_TTL),
            },
        }
    }

    /// What to give without asking; nothing if it is time to ask.
    pub(super) fn fresh(&self, now: BootTime) -> Option<Given> {
        (now < self.fresh_until).then(|| self.given(now))
    }

    /// What to give right after a look-up.
    pub(super) fn given(&self, now: BootTime) -> Given {
        match (self.failure, &self.last_good) {
            (None, Some(good)) => Given::Addresses(Arc::clone(&good.addresses)),
            (Some(failure), _) => self
                .usable(now)
                .map_or(Given::Failed(failure), Given::Stale),
            (None, None) => Given::Failed(LookupFailed::BrokeOff),
        }
    }

    /// What stands in while nobody knows better.
    pub(super) fn usable(&self, now: BootTime) -> Option<Arc<[IpAddr]>> {
        let good = self.last_good.as_ref()?;
        (now < good.usable_until).then(|| Arc::clone(&good.addresses))
    }
}

#[cfg(test)]
mod tests;
