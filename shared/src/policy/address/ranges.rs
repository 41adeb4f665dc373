//! The ranges that nobody's requests may go to.
//!
//! Source: the IANA special-purpose address registries for IPv4 and IPv6, the multicast registries;
//! metadata addresses from the clouds' documentation.
//!
//! # Why
//! Stricter than the registries' "globally reachable" where no receiver can be: anycast addresses of
//! the infrastructure (AS112, AMT, PCP, TURN) are answered by whatever instance is nearest, often
//! one inside the operator's network; identifiers (ORCHID, DRIP) and segment ids are no hosts.
//! In `2000::/3` everything else passes, assigned or not: IANA goes on assigning blocks, and a list
//! of today's would refuse tomorrow's receivers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use super::DenyReason;

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(a: u16, b: u16, c: u16, d: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), length)
}

const METADATA_V4: &[Ipv4Addr] = &[
    Ipv4Addr::new(169, 254, 169, 254), // nearly every cloud
    Ipv4Addr::new(169, 254, 170, 2),   // AWS container credentials
    Ipv4Addr::new(169, 254, 170, 23),  // AWS pod identity
    Ipv4Addr::new(169, 254, 169, 252), // Google, on the nodes of its Kubernetes
    Ipv4Addr::new(169, 254, 169, 250), // Rancher
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(169, 254, 0, 23),    // Tencent
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(100, 96, 0, 96),     // Volcengine
    Ipv4Addr::new(100, 80, 80, 80),    // UCloud
    Ipv4Addr::new(168, 63, 129, 16),   // Azure; a public address
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle
];

/// The first range that holds an address decides.
const DENIED_V4: &[(Ipv4Net, DenyReason)] = &[
    (v4(0, 0, 0, 0, 32), DenyReason::Unspecified),
    (v4(0, 0, 0, 0, 8), DenyReason::Reserved),
    (v4(10, 0, 0, 0, 8), DenyReason::Private),
    (v4(100, 64, 0, 0, 10), DenyReason::SharedByCarrier),
    (v4(127, 0, 0, 0, 8), DenyReason::Loopback),
    (v4(169, 254, 0, 0, 16), DenyReason::LinkLocal),
    (v4(172, 16, 0, 0, 12), DenyReason::Private),
    // Protocol assignments: DS-Lite, the dummy address, anycast for PCP and TURN, NAT64 discovery.
    (v4(192, 0, 0, 0, 24), DenyReason::Reserved),
    (v4(192, 0, 2, 0, 24), DenyReason::Documentation),
    (v4(192, 31, 196, 0, 24), DenyReason::Reserved), // AS112 anycast
    (v4(192, 52, 193, 0, 24), DenyReason::Reserved), // AMT relays, anycast
    (v4(192, 88, 99, 0, 24), DenyReason::Reserved),  // 6to4 and 6a44 relays
    (v4(192, 168, 0, 0, 16), DenyReason::Private),
    (v4(192, 175, 48, 0, 24), DenyReason::Reserved), // AS112 by direct delegation
    (v4(198, 18, 0, 0, 15), DenyReason::Benchmarking),
    (v4(198, 51, 100, 0, 24), DenyReason::Documentation),
    (v4(203, 0, 113, 0, 24), DenyReason::Documentation),
    (v4(224, 0, 0, 0, 4), DenyReason::Multicast),
    (v4(240, 0, 0, 0, 4), DenyReason::Reserved), // and broadcast
];

const METADATA_V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // AWS pod identity
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // Oracle
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), // Linode
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // OpenStack
];

/// The first range that holds an address decides; what is in none and outside `2000::/3` is
/// reserved: `100::/64` and `100:0:0:1::/64` (discard, dummy), `64:ff9b:1::/48` (local NAT64),
/// `5f00::/16` (segment ids), `200::/7` and all that was never assigned.
const DENIED_V6: &[(Ipv6Net, DenyReason)] = &[
    (v6(0x2001, 2, 0, 0, 48), DenyReason::Benchmarking),
    // Protocol assignments: anycast for PCP, TURN and SRP, AMT, AS112, ORCHID old and new, DRIP.
    // Teredo, also in it, is judged by what it carries.
    (v6(0x2001, 0, 0, 0, 23), DenyReason::Reserved),
    (v6(0x2001, 0xdb8, 0, 0, 32), DenyReason::Documentation),
    (v6(0x2620, 0x4f, 0x8000, 0, 48), DenyReason::Reserved), // AS112 by direct delegation
    (v6(0x3ffe, 0, 0, 0, 16), DenyReason::Reserved),         // 6bone, given back
    (v6(0x3fff, 0, 0, 0, 20), DenyReason::Documentation),
    (v6(0xfc00, 0, 0, 0, 7), DenyReason::Private),
    (v6(0xfe80, 0, 0, 0, 10), DenyReason::LinkLocal),
    (v6(0xfec0, 0, 0, 0, 10), DenyReason::Private), // site-local, deprecated
    (v6(0xff00, 0, 0, 0, 8), DenyReason::Multicast),
];

const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 0, 3);

/// Why an address may not be dialled, by itself: what it carries is another question.
pub(super) fn denied(address: IpAddr) -> Option<DenyReason> {
    match address {
        IpAddr::V4(address) => denied_v4(address),
        IpAddr::V6(address) => denied_v6(address),
    }
}

pub(super) fn denied_v4(address: Ipv4Addr) -> Option<DenyReason> {
    if METADATA_V4.contains(&address) {
        return Some(DenyReason::Metadata);
    }
    DENIED_V4
        .iter()
        .find(|(range, _)| range.contains(&address))
        .map(|(_, reason)| *reason)
}

fn denied_v6(address: Ipv6Addr) -> Option<DenyReason> {
    if METADATA_V6.contains(&address) {
        return Some(DenyReason::Metadata);
    }
    if address.is_loopback() {
        return Some(DenyReason::Loopback);
    }
    if address.is_unspecified() {
        return Some(DenyReason::Unspecified);
    }
    let denied = DENIED_V6.iter().find(|(range, _)| range.contains(&address));
    let reserved = || (!GLOBAL_UNICAST.contains(&address)).then_some(DenyReason::Reserved);
    denied.map(|(_, reason)| *reason).or_else(reserved)
}
