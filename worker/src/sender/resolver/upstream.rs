//! Asks DNS servers, one after the other, for both address families at once.
//!
//! The protocol is `hickory-resolver`'s: ids, random ports, repeated questions, TCP after a truncated
//! answer, aliases. Which server is asked next is decided here: the library takes the first reply
//! of any server, also a SERVFAIL while another would know.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_resolver::config::{
    NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts, ServerOrderingStrategy,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use tokio::time::timeout;
use tracing::Dispatch;
use tracing::instrument::WithSubscriber as _;

use super::super::explain;
use super::entry::{NotFound, Reply};
use super::families::{both, family};
use super::host_name::HostName;
use super::machine::{self, Watched};
use super::{LookupFailed, ResolverError, ResolverSettings};

/// Questions under way on one TCP connection; above it the library makes others wait. More than there
/// are look-ups.
const MOST_ON_A_CONNECTION: usize = 1_024;

/// Whom to ask.
pub(super) struct Upstream {
    hosts: Watched<Hosts>,
    servers: Source,
}

enum Source {
    Given(Arc<Servers>),
    Machine(Watched<Result<Arc<Servers>, LookupFailed>>),
}

impl Upstream {
    pub(super) fn new(settings: &ResolverSettings) -> Result<Self, ResolverError> {
        let budget = settings.budget;
        let servers = if settings.servers.is_empty() {
            Source::Machine(Watched::new(&settings.resolv_conf, move |path| {
                Servers::new(&machine::servers(path), budget)
                    .map(Arc::new)
                    .map_err(|_unusable| LookupFailed::Unreachable)
            }))
        } else {
            Source::Given(Arc::new(Servers::new(&settings.servers, budget)?))
        };
        Ok(Self {
            hosts: Watched::new(&settings.hosts_file, machine::hosts),
            servers,
        })
    }

    /// Looks a name up. Ends within the budget but for a tick.
    pub(super) async fn look_up(&self, name: &HostName) -> Reply {
        let name = name.absolute()?;
        if let Some(known) = on_this_machine(&self.hosts.current(), &name) {
            return known;
        }
        let servers = match &self.servers {
            Source::Given(servers) => Arc::clone(servers),
            Source::Machine(watched) => (*watched.current()).clone()?,
        };
        both(
            servers.ask(&name, RecordType::A),
            servers.ask(&name, RecordType::AAAA),
        )
        .await
    }
}

/// A name of the hosts file has the addresses that stand there, and no others.
fn on_this_machine(hosts: &Hosts, name: &Name) -> Option<Reply> {
    let of = |kind| hosts.lookup_static_host(&Query::query(name.clone(), kind));
    let (v4, v6) = (of(RecordType::A), of(RecordType::AAAA));
    if v4.is_none() && v6.is_none() {
        return None;
    }
    let addresses: Vec<IpAddr> = [v4, v6]
        .iter()
        .flatten()
        .flat_map(|found| found.answers())
        .filter_map(|record| record.data.ip_addr())
        .collect();
    Some(family(addresses.into_iter(), Duration::ZERO))
}

/// DNS servers, each asked on its own.
struct Servers {
    each: Vec<TokioResolver>,
    /// How long one of them is waited for.
    patience: Duration,
    /// The one that answered last.
    answering: AtomicUsize,
}

impl Servers {
    fn new(servers: &[SocketAddr], budget: Duration) -> Result<Self, ResolverError> {
        let count = u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1);
        let patience = budget / count;
        let each = servers.iter().map(|server| client(*server, patience));
        Ok(Self {
            each: each.collect::<Result<_, _>>()?,
            patience,
            answering: AtomicUsize::new(0),
        })
    }

    /// Asks until one knows: those that fail, refuse or keep silent are passed over.
    async fn ask(&self, name: &Name, kind: RecordType) -> Reply {
        let first = self.answering.load(Ordering::Relaxed);
        let order = (0..self.each.len()).cycle().skip(first);
        let mut failed = NotFound::from(LookupFailed::Unreachable);
        for turn in order.take(self.each.len()) {
            let Some(server) = self.each.get(turn) else {
                continue;
            };
            // The library warns of odd answers, with the names: strangers would fill the log.
            let asking = server
                .lookup(name.clone(), kind)
                .with_subscriber(Dispatch::none());
            let reply = match timeout(self.patience, asking).await {
                Ok(Ok(found)) => addresses(&found, kind),
                Ok(Err(error)) => Err(explained(&error)),
                Err(_elapsed) => Err(LookupFailed::TimedOut.into()),
            };
            match reply {
                Err(no_answer) if !no_answer.failure.is_answer() => failed = no_answer,
                answer @ (Ok(_) | Err(_)) => {
                    self.answering.store(turn, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(failed)
    }
}

/// The client of one server: it keeps nothing, searches nowhere and reads no files.
fn client(server: SocketAddr, patience: Duration) -> Result<TokioResolver, ResolverError> {
    let mut config = NameServerConfig::udp_and_tcp(server.ip());
    for connection in &mut config.connections {
        connection.port = server.port();
    }
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![config]);
    let provider = TokioRuntimeProvider::default();
    let mut builder = TokioResolver::builder_with_config(config, provider);
    let options: &mut ResolverOpts = builder.options_mut();
    options.timeout = patience;
    options.attempts = 0;
    options.cache_size = 0;
    options.ndots = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    options.num_concurrent_reqs = 1;
    options.max_active_requests = MOST_ON_A_CONNECTION;
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    builder
        .build()
        .map_err(|error| ResolverError(error.to_string()))
}

/// The addresses of one type in an answer; they hold as long as its shortest-lived record, aliases
/// included.
fn addresses(found: &Lookup, kind: RecordType) -> Reply {
    let shortest = found.answers().iter().map(|record| record.ttl).min();
    let of_kind = found
        .answers()
        .iter()
        .filter(|record| record.record_type() == kind)
        .filter_map(|record| record.data.ip_addr());
    family(of_kind, Duration::from_secs(shortest.unwrap_or(0).into()))
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enum, open and mostly about encryption: what is new is a failure too"
)]
fn explained(error: &NetError) -> NotFound {
    let failure = match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => return not_found(none),
        NetError::Dns(DnsError::ResponseCode(ResponseCode::Refused)) => LookupFailed::Refused,
        NetError::Timeout => LookupFailed::TimedOut,
        NetError::Io(_) | NetError::NoConnections | NetError::Busy => unreachable(),
        _ => LookupFailed::ServerFailure,
    };
    failure.into()
}

/// The library forgets why it could ask nobody: whether it is because this machine has no socket.
fn unreachable() -> LookupFailed {
    let tried = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let short = tried.err().as_ref().and_then(explain::shortage);
    short.map_or(LookupFailed::Unreachable, LookupFailed::NoSocket)
}

fn not_found(none: &NoRecords) -> NotFound {
    let failure = if none.response_code == ResponseCode::NXDomain {
        LookupFailed::NoSuchName
    } else if none.response_code == ResponseCode::NoError {
        LookupFailed::NoAddress
    } else {
        LookupFailed::ServerFailure
    };
    let ttl = none.negative_ttl;
    NotFound {
        failure,
        ttl: ttl.map(|ttl| Duration::from_secs(ttl.into())),
    }
}
