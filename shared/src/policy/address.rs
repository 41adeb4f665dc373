//! Where requests may go: the guard against server-side request forgery.
//!
//! [`vet`] judges the addresses of a name just before they are dialled, [`vet_literal`] those that
//! stand in a URL and that no resolver ever sees. Both use one rule, [`AddressRules::check`]: only
//! globally reachable unicast addresses, and what the operator opened. An IPv6 address that carries
//! an IPv4 address (mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP) is judged by that
//! one too. [`parse_endpoint_url`] judges the rest of a URL. Not here: looking names up.
//!
//! # Invariants
//! - S1 nothing is sent to an address that this module did not pass. Only a [`Vetted`] has any.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use url::{Host, Url};

use self::forms::Forms;

mod endpoint_url;
mod forms;
mod ports;
mod ranges;

pub use self::endpoint_url::{MAX_URL_LENGTH, UrlError, parse_endpoint_url, unicode_form};

/// The setting with the ranges that an operator opens.
pub const ALLOW_SETTING: &str = "POSTRIDER_ALLOW_CIDRS";

/// Why an address is not dialled. Names no address: what a private name resolves to is not for a
/// tenant to learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenyReason {
    /// RFC 1918, or unique local in IPv6.
    Private,
    /// This machine.
    Loopback,
    /// Only this link.
    LinkLocal,
    /// Shared by a carrier's customers (RFC 6598).
    SharedByCarrier,
    /// Many machines.
    Multicast,
    /// Set aside for text.
    Documentation,
    /// Set aside for measurements.
    Benchmarking,
    /// No address at all (`0.0.0.0`, `::`).
    Unspecified,
    /// Set aside, or not assigned to anybody.
    Reserved,
    /// A cloud's metadata service, which hands out credentials.
    Metadata,
    /// The name has no address.
    NoAddress,
}

impl DenyReason {
    /// The name in metrics and logs. A closed set.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link_local",
            Self::SharedByCarrier => "shared_by_carrier",
            Self::Multicast => "multicast",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Unspecified => "unspecified",
            Self::Reserved => "reserved",
            Self::Metadata => "metadata",
            Self::NoAddress => "no_address",
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::Private => "a private address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::SharedByCarrier => "a shared carrier address (100.64.0.0/10)",
            Self::Multicast => "a multicast address",
            Self::Documentation => "an address reserved for documentation",
            Self::Benchmarking => "an address reserved for benchmarking",
            Self::Unspecified => "the unspecified address",
            Self::Reserved => "a reserved address",
            Self::Metadata => "a cloud metadata address",
            Self::NoAddress => "no address",
        }
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.what();
        match self {
            Self::NoAddress => write!(out, "the endpoint's host has {what}"),
            Self::Metadata => write!(
                out,
                "the endpoint leads to {what}, which is not permitted; the operator can permit it \
                 by naming that address alone (/32 or /128) in {ALLOW_SETTING}"
            ),
            Self::Private
            | Self::Loopback
            | Self::LinkLocal
            | Self::SharedByCarrier
            | Self::Multicast
            | Self::Documentation
            | Self::Benchmarking
            | Self::Unspecified
            | Self::Reserved => write!(
                out,
                "the endpoint leads to {what}, which is not permitted; the operator can permit \
                 its range in {ALLOW_SETTING}"
            ),
        }
    }
}

impl std::error::Error for DenyReason {}

/// The ranges that the operator opened. By default none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRules {
    allowed: Vec<IpNet>,
}

impl AddressRules {
    /// Rules that open these ranges besides the public ones.
    #[must_use]
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self { allowed }
    }

    /// Rules from the setting: ranges or single addresses, separated by commas or blanks.
    ///
    /// # Errors
    /// A sentence that names the setting and the part that is wrong.
    pub fn parse(setting: &str) -> Result<Self, String> {
        setting
            .split([',', ' ', '\t', '\n'])
            .filter(|part| !part.is_empty())
            .map(|part| {
                let single = || part.parse::<IpAddr>().map(IpNet::from);
                part.parse::<IpNet>().or_else(|_no_range| single()).map_err(|_neither| {
                    format!("{ALLOW_SETTING}: `{part}` is not a range such as 10.0.0.0/8 or fd00::/8")
                })
            })
            .collect::<Result<_, _>>()
            .map(Self::new)
    }

    /// Whether one address may be dialled.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, address: IpAddr) -> Result<(), DenyReason> {
        let forms = Forms::of(address);
        match forms.denied() {
            None => Ok(()),
            Some(_) if self.opens(&forms) => Ok(()),
            Some(reason) => Err(reason),
        }
    }

    /// Opened is an address that lies in a range itself, or one that is denied only for what it
    /// carries, if all of that is opened.
    /// A metadata address is opened only by a range of one address.
    fn opens(&self, forms: &Forms) -> bool {
        let alone = forms.denied() == Some(DenyReason::Metadata);
        let holds = |address: IpAddr| {
            self.allowed
                .iter()
                .filter(|range| !alone || range.prefix_len() == range.max_prefix_len())
                .any(|range| range.contains(&address))
        };
        holds(forms.address())
            || forms
                .denied_inside_only()
                .is_some_and(|mut inside| inside.all(holds))
    }
}

/// Addresses that may be dialled; never none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vetted(Vec<IpAddr>);

impl Vetted {
    /// The addresses, in the order they came in.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0
    }

    /// The addresses, owned.
    #[must_use]
    pub fn into_addresses(self) -> Vec<IpAddr> {
        self.0
    }
}

/// The addresses among these that may be dialled. A name with public and private addresses is
/// reached by its public ones only.
///
/// # Errors
/// If none may be: why the first may not.
pub fn vet(addresses: &[IpAddr], rules: &AddressRules) -> Result<Vetted, DenyReason> {
    let mut denied = None;
    let mut vetted = Vec::with_capacity(addresses.len());
    for &address in addresses {
        match rules.check(address) {
            Ok(()) => vetted.push(address),
            Err(reason) => denied = denied.or(Some(reason)),
        }
    }
    if vetted.is_empty() {
        return Err(denied.unwrap_or(DenyReason::NoAddress));
    }
    Ok(Vetted(vetted))
}

/// Judges the host of a URL if it is an address, in whatever spelling it was written. A name other
/// than `localhost` passes: its addresses are judged when it is resolved.
///
/// # Errors
/// Why it may not be dialled.
pub fn vet_literal(url: &Url, rules: &AddressRules) -> Result<(), DenyReason> {
    match url.host() {
        Some(Host::Ipv4(address)) => rules.check(address.into()),
        Some(Host::Ipv6(address)) => rules.check(address.into()),
        Some(Host::Domain(name)) if is_localhost(name) => {
            rules.check(Ipv4Addr::LOCALHOST.into()).or_else(|denied| {
                rules
                    .check(Ipv6Addr::LOCALHOST.into())
                    .map_err(|_same| denied)
            })
        }
        Some(Host::Domain(_)) => Ok(()),
        None => Err(DenyReason::NoAddress),
    }
}

/// RFC 6761: `localhost` and all below it are this machine, whatever a resolver says.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests;
