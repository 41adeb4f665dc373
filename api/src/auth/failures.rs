//! Who tries keys that do not exist: a count per address, which runs down by itself.
//!
//! The address is the peer's: behind a proxy that is the proxy. So a full count never concerns keys that
//! this process knows already, and the same wrong key sent again and again counts once a second at most
//! (`keys` remembers it): only many *different* wrong keys fill it.
//!
//! Bounded: at [`MOST_PEERS`] addresses those that ran down are forgotten; if that is not enough, further
//! addresses share one count.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shared::runtime::clock::BootTime;

/// Failures at once before an address has to wait.
const BURST: u32 = 50;
/// The time in which one failure is forgotten.
const FORGET: Duration = Duration::from_millis(500);
const MOST_PEERS: usize = 10_000;

/// Counts of failures. An address is full when its failures are forgotten only after [`BURST`] × [`FORGET`].
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// When all failures of an address are forgotten.
    forgotten_at: Mutex<HashMap<IpAddr, BootTime>>,
}

impl Failures {
    /// Whether an address failed so often that it has to wait.
    pub(super) fn is_full(&self, peer: IpAddr, now: BootTime) -> bool {
        let counts = self.lock();
        let at = counts
            .get(&group(peer))
            .or_else(|| (counts.len() >= MOST_PEERS).then(|| counts.get(&OTHERS))?);
        at.is_some_and(|at| at.since(now) > FORGET * (BURST - 1))
    }

    /// Counts a failure.
    pub(super) fn count(&self, peer: IpAddr, now: BootTime) {
        let mut counts = self.lock();
        let mut peer = group(peer);
        if counts.len() >= MOST_PEERS && !counts.contains_key(&peer) {
            counts.retain(|_, at| *at > now);
            if counts.len() >= MOST_PEERS {
                peer = OTHERS;
            }
        }
        let at = counts.entry(peer).or_insert(now);
        *at = (*at).max(now).after(FORGET);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, BootTime>> {
        self.forgotten_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever finds no room of their own.
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// One who has an IPv6 network has 2⁶⁴ addresses.
fn group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> BootTime {
        BootTime(Duration::from_millis(milliseconds))
    }

    #[test]
    fn an_address_waits_after_many_failures_and_is_let_through_again_when_some_are_forgotten() {
        let failures = Failures::default();
        let peer: IpAddr = "203.0.113.7".parse().unwrap();
        for _ in 0..BURST {
            assert!(!failures.is_full(peer, at(0)));
            failures.count(peer, at(0));
        }

        assert!(failures.is_full(peer, at(0)));
        assert!(!failures.is_full("203.0.113.8".parse().unwrap(), at(0)));
        assert!(!failures.is_full(peer, at(600)));
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_count_together() {
        let failures = Failures::default();
        for last in 0..BURST {
            let peer = format!("2001:db8::{last:x}").parse().unwrap();
            failures.count(peer, at(0));
        }

        assert!(failures.is_full("2001:db8::ffff".parse().unwrap(), at(0)));
        assert!(!failures.is_full("2001:db8:0:1::1".parse().unwrap(), at(0)));
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_fail() {
        let failures = Failures::default();
        for number in 0..20_000_u32 {
            failures.count(IpAddr::V4(number.into()), at(0));
        }

        assert!(failures.lock().len() <= MOST_PEERS + 1);
        assert!(failures.is_full(IpAddr::V4(15_000.into()), at(0)));
    }
}
