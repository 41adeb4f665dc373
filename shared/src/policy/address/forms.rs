//! Addresses inside addresses: what a gateway on the way would dial.
//!
//! Not here: a network's own prefixes for NAT64, 6rd or MAP. They look like any public prefix, and
//! only its operator knows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::DenyReason;
use super::ranges::{denied, denied_v4};

/// The most IPv4 addresses that one IPv6 address carries: Teredo has a server's and a client's, and
/// its last bits may look like an ISATAP interface.
const MOST_CARRIED: usize = 3;

/// `64:ff9b:1::/48`: NAT64 for local use (RFC 8215), under any prefix length that fits in it.
const LOCAL_NAT64: [u16; 3] = [0x64, 0xff9b, 1];

/// An address and the IPv4 addresses that it carries.
pub(super) struct Forms {
    address: IpAddr,
    /// Why the address itself is denied; nothing where it only wraps what it carries.
    own: Option<DenyReason>,
    carried: [Option<Ipv4Addr>; MOST_CARRIED],
}

impl Forms {
    pub(super) fn of(address: IpAddr) -> Self {
        let (wrapped, interface) = match address {
            IpAddr::V4(_) => ([None, None], None),
            IpAddr::V6(address) => (wrapped(address), isatap(address)),
        };
        let own = match address {
            IpAddr::V6(_) if wrapped.iter().any(Option::is_some) => None,
            IpAddr::V6(v6) if is_local_metadata(v6) => Some(DenyReason::Metadata),
            IpAddr::V4(_) | IpAddr::V6(_) => denied(address),
        };
        let [first, second] = wrapped;
        Self {
            address,
            own,
            carried: [first, second, interface],
        }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The denied addresses that it carries, if only they are denied; else `None`.
    pub(super) fn denied_inside_only(&self) -> Option<impl Iterator<Item = IpAddr>> {
        let inside = self.carried.iter().flatten().copied();
        let denied = inside.filter(|&one| denied_v4(one).is_some());
        self.own.is_none().then_some(denied.map(IpAddr::V4))
    }

    /// The worst reason of any form, metadata first: it takes the strictest permission.
    pub(super) fn denied(&self) -> Option<DenyReason> {
        let inside = self.carried.iter().flatten();
        let mut reasons = self
            .own
            .into_iter()
            .chain(inside.filter_map(|&v4| denied_v4(v4)));
        let first = reasons.next()?;
        let metadata = reasons.find(|reason| *reason == DenyReason::Metadata);
        Some(metadata.unwrap_or(first))
    }
}

fn join(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}

/// The IPv4 addresses that an IPv6 address stands for. Teredo has two, the server's and the client's.
fn wrapped(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None], // unspecified and loopback, not compatible
        [0, 0, 0, 0, 0, 0, high, low]                 // compatible
        | [0, 0, 0, 0, 0, 0xffff, high, low]          // mapped
        | [0, 0, 0, 0, 0xffff, 0, high, low]          // translated
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]       // NAT64
        | [0x2002, high, low, _, _, _, _, _] => [Some(join(high, low)), None], // 6to4
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            [Some(join(high, low)), Some(join(!client_high, !client_low))] // Teredo
        }
        _ => [None, None],
    }
}

/// The address of an ISATAP interface (RFC 5214), under whatever prefix: a router of the site would
/// unwrap it. The two lowest bits of the id's first byte say unique and group.
fn isatap(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [_, _, _, _, id, 0x5efe, high, low] if id & !0x0300 == 0 => Some(join(high, low)),
        _ => None,
    }
}

/// Whether a local NAT64 would make a metadata address of it, whatever prefix length it is set to.
/// The range as a whole is denied anyway; this keeps it from being opened along with the range.
fn is_local_metadata(address: Ipv6Addr) -> bool {
    let [a, b, c, ..] = address.segments();
    [a, b, c] == LOCAL_NAT64
        && translated(address)
            .into_iter()
            .any(|v4| denied_v4(v4) == Some(DenyReason::Metadata))
}

/// What RFC 6052 (2.2) takes for the IPv4 address, for prefixes of 48, 56, 64 and 96 bits.
fn translated(address: Ipv6Addr) -> [Ipv4Addr; 4] {
    let [
        _,
        _,
        _,
        _,
        _,
        _,
        b6,
        b7,
        _,
        b9,
        b10,
        b11,
        b12,
        b13,
        b14,
        b15,
    ] = address.octets();
    [
        Ipv4Addr::new(b6, b7, b9, b10),
        Ipv4Addr::new(b7, b9, b10, b11),
        Ipv4Addr::new(b9, b10, b11, b12),
        Ipv4Addr::new(b12, b13, b14, b15),
    ]
}
