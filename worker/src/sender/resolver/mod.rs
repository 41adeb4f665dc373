//! Names to addresses: asked for once, remembered for half a minute at most, kept through an outage of DNS.
//!
//! Not here: which addresses may be dialled. An answer is a claim of the name's owner, remembered or
//! not; whoever dials judges it (S1).
//!
//! # Invariants
//! - O1 names with silent servers do not keep out the others ([`turnstile`]).
//! - O2 what is remembered and what is under way is bounded ([`names`]).
//! - O3 a look-up ends within [`BUDGET`], whoever waits for it: one who gives up ends it for nobody.
//! - N1, N2 what may be given without an answer ([`entry`]).
//!
//! # Why
//! The system's resolver blocks a thread for as long as it likes, remembers nothing, tells no TTL and
//! puts the operator's search domains behind the names of tenants. A name is looked up as it stands,
//! from the root: so no tenant reaches into those domains, and none of these names leaks to them.

mod entry;
mod failure;
mod families;
mod host_name;
mod machine;
mod names;
mod turnstile;
mod upstream;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::supervisor::spawn_driver;
use tokio::sync::watch;
use tokio::time::timeout;

use self::entry::Given;
pub(super) use self::entry::LONGEST_TTL;
pub(super) use self::failure::LookupFailed;
use self::host_name::HostName;
use self::names::{Asked, Awaited, Names};
pub use self::turnstile::MOST_LOOKUP_SOCKETS;
use self::turnstile::Turnstile;
use self::upstream::Upstream;
use crate::metrics::DNS_LOOKUPS;

/// For one look-up with all its servers; within the time that a connection may take (5 s).
const BUDGET: Duration = Duration::from_secs(4);

/// How long a new answer is waited for where the last good one could stand in.
const PATIENCE: Duration = Duration::from_secs(1);

/// Names remembered: as many as TLS sessions. Some 20 MiB when full, 64 at the very most.
const MOST_NAMES: NonZeroUsize = NonZeroUsize::new(65_536).expect("is not zero");

/// What a resolver is made from.
#[derive(Debug, Clone)]
pub struct ResolverSettings {
    /// Whom to ask, at most three; none: whom this machine asks.
    pub servers: Vec<SocketAddr>,
    /// Names that are known without asking.
    pub hosts_file: PathBuf,
    /// Where this machine's servers stand. Its other lines mean nothing here.
    pub resolv_conf: PathBuf,
    /// How long one look-up may take.
    pub budget: Duration,
}

impl Default for ResolverSettings {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            hosts_file: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            budget: BUDGET,
        }
    }
}

/// Why there is no resolver.
#[derive(Debug, thiserror::Error)]
#[error("the DNS client cannot be set up: {0}")]
pub struct ResolverError(String);

type Clock = Box<dyn Fn() -> BootTime + Send + Sync>;

/// See the module. One for a whole process; clones are the same one.
#[derive(Clone)]
pub(super) struct Resolver(Arc<Shared>);

struct Shared {
    names: Names,
    turnstile: Turnstile,
    upstream: Upstream,
    budget: Duration,
    clock: Clock,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Resolver")
    }
}

impl Resolver {
    /// A resolver that remembers nothing yet. Asks nobody before it is asked.
    ///
    /// # Errors
    /// If the DNS client cannot be set up. A machine without DNS servers is no error.
    pub(super) fn new(settings: &ResolverSettings) -> Result<Self, ResolverError> {
        Self::with(settings, MOST_NAMES, Box::new(boot_time))
    }

    /// The same, which remembers so many names and takes its time from `clock`.
    pub(super) fn with(
        settings: &ResolverSettings,
        most_names: NonZeroUsize,
        clock: Clock,
    ) -> Result<Self, ResolverError> {
        Ok(Self(Arc::new(Shared {
            names: Names::new(most_names),
            turnstile: Turnstile::default(),
            upstream: Upstream::new(settings)?,
            budget: settings.budget,
            clock,
        })))
    }

    /// All addresses of a name, never none and not judged: IPv4 first, each family in the order of
    /// the answer, at most 16 of each. Upper case and one last dot make no difference.
    ///
    /// # Errors
    /// Why there are none, within a little over 4 s.
    pub(super) async fn addresses(&self, name: &str) -> Result<Arc<[IpAddr]>, LookupFailed> {
        let (result, given) = self.find(name).await;
        DNS_LOOKUPS.with_label_values(&[result]).inc();
        given
    }

    async fn find(&self, name: &str) -> (&'static str, Result<Arc<[IpAddr]>, LookupFailed>) {
        let name = match HostName::parse(name) {
            Ok(name) if name.is_localhost() => return ("fresh", Ok(this_machine())),
            Ok(name) => name,
            Err(malformed) => return ("failed", Err(malformed)),
        };
        let (result, given) = match self.0.names.ask(&name, (self.0.clock)()) {
            Asked::Known(given) => ("fresh", given),
            Asked::UnderWay {
                awaited,
                usable,
                first,
            } => {
                if let Some(tell) = first {
                    self.look_up(name, tell);
                }
                ("asked", wait(awaited, usable).await)
            }
        };
        match given {
            Given::Addresses(addresses) => (result, Ok(addresses)),
            Given::Stale(addresses) => ("stale", Ok(addresses)),
            Given::Failed(failure) => ("failed", Err(failure)),
        }
    }

    /// On its own, or the first who gives up would end it for all (O3).
    fn look_up(&self, name: HostName, tell: watch::Sender<Option<Given>>) {
        let shared = Arc::clone(&self.0);
        spawn_driver(async move {
            let look_up = || shared.upstream.look_up(&name);
            let reply = shared.turnstile.pass(shared.budget, look_up).await;
            let given = shared.names.keep(&name, reply, (shared.clock)());
            tell.send_replace(Some(given));
        });
    }
}

/// The reply of a look-up, or what stands in for one that takes long.
async fn wait(mut awaited: Awaited, usable: Option<Arc<[IpAddr]>>) -> Given {
    let told = async {
        let told = awaited.wait_for(Option::is_some).await;
        told.ok().and_then(|given| given.clone())
    };
    let broke_off = Given::Failed(LookupFailed::BrokeOff);
    match usable {
        None => told.await.unwrap_or(broke_off),
        Some(usable) => match timeout(PATIENCE, told).await {
            Ok(Some(given)) => given,
            Ok(None) | Err(_) => Given::Stale(usable),
        },
    }
}

fn this_machine() -> Arc<[IpAddr]> {
    Arc::new([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
}
