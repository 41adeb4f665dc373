//! The ranges that nobody's requests may go to, and the addresses inside addresses.
//!
//! Source: the IANA special-purpose address registries for IPv4 and IPv6; metadata addresses from
//! the clouds' documentation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use super::DenyReason;

/// An address and the IPv4 addresses that it carries: what a gateway on the way would dial.
pub(super) struct Forms {
    address: IpAddr,
    carried: [Option<Ipv4Addr>; 2],
}

impl Forms {
    pub(super) fn of(address: IpAddr) -> Self {
        let carried = match address {
            IpAddr::V4(_) => [None, None],
            IpAddr::V6(address) => carried(address),
        };
        Self { address, carried }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The denied addresses that it carries; `None` if it carries none at all.
    pub(super) fn denied_inside(&self) -> Option<impl Iterator<Item = IpAddr>> {
        let inside = self.carried.iter().flatten().copied();
        let denied = inside
            .clone()
            .filter(|&one| denied_v4(one).is_some())
            .map(IpAddr::V4);
        (inside.count() > 0).then_some(denied)
    }

    /// The worst reason of any form, metadata first: it takes the strictest permission.
    pub(super) fn denied(&self) -> Option<DenyReason> {
        let own = match self.address {
            IpAddr::V4(address) => denied_v4(address),
            IpAddr::V6(_) if self.carried.iter().any(Option::is_some) => None,
            IpAddr::V6(address) => denied_v6(address),
        };
        let mut reasons = own.into_iter().chain(
            self.carried
                .iter()
                .flatten()
                .filter_map(|&v4| denied_v4(v4)),
        );
        let first = reasons.next()?;
        let metadata = reasons.find(|reason| *reason == DenyReason::Metadata);
        Some(metadata.unwrap_or(first))
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(a: u16, b: u16, c: u16, d: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), length)
}

/// The first range that holds an address decides.
const DENIED_V4: &[(Ipv4Net, DenyReason)] = &[
    (v4(169, 254, 169, 254, 32), DenyReason::Metadata), // nearly every cloud
    (v4(169, 254, 170, 2, 32), DenyReason::Metadata),   // AWS container credentials
    (v4(169, 254, 170, 23, 32), DenyReason::Metadata),  // AWS pod identity
    (v4(100, 100, 100, 200, 32), DenyReason::Metadata), // Alibaba
    (v4(168, 63, 129, 16, 32), DenyReason::Metadata),   // Azure; a public address
    (v4(192, 0, 0, 192, 32), DenyReason::Metadata),     // Oracle
    (v4(0, 0, 0, 0, 32), DenyReason::Unspecified),
    (v4(0, 0, 0, 0, 8), DenyReason::Reserved),
    (v4(10, 0, 0, 0, 8), DenyReason::Private),
    (v4(100, 64, 0, 0, 10), DenyReason::SharedByCarrier),
    (v4(127, 0, 0, 0, 8), DenyReason::Loopback),
    (v4(169, 254, 0, 0, 16), DenyReason::LinkLocal),
    (v4(172, 16, 0, 0, 12), DenyReason::Private),
    (v4(192, 0, 0, 0, 24), DenyReason::Reserved), // protocol assignments
    (v4(192, 0, 2, 0, 24), DenyReason::Documentation),
    (v4(192, 88, 99, 0, 24), DenyReason::Reserved), // 6to4 relays
    (v4(192, 168, 0, 0, 16), DenyReason::Private),
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
];

/// The first range that holds an address decides; what is in none is reserved.
const DENIED_V6: &[(Ipv6Net, DenyReason)] = &[
    (v6(0x2001, 0xdb8, 0, 0, 32), DenyReason::Documentation),
    (v6(0x3fff, 0, 0, 0, 20), DenyReason::Documentation),
    (v6(0x2001, 2, 0, 0, 48), DenyReason::Benchmarking),
    (v6(0x2001, 0, 0, 0, 23), DenyReason::Reserved), // protocol assignments
    (v6(0xfc00, 0, 0, 0, 7), DenyReason::Private),
    (v6(0xfe80, 0, 0, 0, 10), DenyReason::LinkLocal),
    (v6(0xfec0, 0, 0, 0, 10), DenyReason::Private), // site-local, deprecated
    (v6(0xff00, 0, 0, 0, 8), DenyReason::Multicast),
];

const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 0, 3);

fn denied_v4(address: Ipv4Addr) -> Option<DenyReason> {
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

/// The IPv4 addresses inside an IPv6 address. Teredo has two, the server's and the client's.
fn carried(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let v4 = |high: u16, low: u16| {
        let bits = (u32::from(high) << 16) | u32::from(low);
        Some(Ipv4Addr::from_bits(bits))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None], // unspecified and loopback, not compatible
        [0, 0, 0, 0, 0, 0, high, low]                 // compatible
        | [0, 0, 0, 0, 0, 0xffff, high, low]          // mapped
        | [0, 0, 0, 0, 0xffff, 0, high, low]          // translated
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]       // NAT64
        | [0x2002, high, low, _, _, _, _, _] => [v4(high, low), None], // 6to4
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            [v4(high, low), v4(!client_high, !client_low)] // Teredo
        }
        _ => [None, None],
    }
}
