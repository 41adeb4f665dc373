//! Ports that are never dialled: what listens there speaks another protocol.
//!
//! # Why
//! A webhook is a POST whose body its sender chose. Servers of line-based protocols skip the lines
//! that they don't know and obey the rest, so such a body is a list of commands to them. The address
//! policy keeps requests out of private networks; this holds for public addresses and for the
//! ranges that an operator opened.
//!
//! Source: the "bad ports" of the WHATWG Fetch standard, which no browser connects to either, and
//! servers that read on after an unknown line.

/// The standard's; sorted. Its port 0 is no port at all, see [`super::UrlError::PortZero`].
const BAD: &[u16] = &[
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102,
    103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465,
    512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993,
    995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668,
    6669, 6679, 6697, 10080,
];

/// Servers that obey lines in the body of a request. JSON too can hold some, on lines of their own:
/// Redis takes a command in quotes.
const OBEY_LINES: &[u16] = &[
    4_730,  // gearmand
    5_038,  // Asterisk's manager
    6_379,  // Redis
    11_211, // memcached
    11_300, // beanstalkd
];

/// Whether a port is left alone.
pub(super) fn is_denied(port: u16) -> bool {
    BAD.binary_search(&port).is_ok() || OBEY_LINES.contains(&port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_the_lists_is_found() {
        assert!(BAD.is_sorted_by(|one, next| one < next));
        let found = (0..=u16::MAX).filter(|port| is_denied(*port)).count();
        assert_eq!(found, BAD.len() + OBEY_LINES.len());
        for port in [22, 25, 6_000, 10_080, 6_379, 11_211] {
            assert!(is_denied(port), "{port}");
        }
    }

    #[test]
    fn ports_of_web_servers_are_not_on_the_list() {
        for port in [
            80, 443, 3_000, 4_000, 5_000, 8_000, 8_080, 8_443, 9_000, 9_443, 65_535,
        ] {
            assert!(!is_denied(port), "{port}");
        }
    }
}
