//! Against a DNS server of the test's own, over real sockets; the clock of what is remembered is the
//! test's.

mod answers;
mod machine;
mod memory;
mod servers;

use std::sync::Mutex;

use shared::testing::dns::{DnsServer, RecordType, Reply};

use super::*;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const OTHER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const NAME: &str = "a.test";

/// A resolver, whom it asks, and what it takes for the time.
struct World {
    dns: DnsServer,
    resolver: Resolver,
    now: Arc<Mutex<Duration>>,
}

impl World {
    async fn new() -> Self {
        Self::remembering(MOST_NAMES.get(), BUDGET).await
    }

    /// For what times out.
    async fn impatient() -> Self {
        Self::remembering(MOST_NAMES.get(), Duration::from_millis(700)).await
    }

    async fn remembering(most_names: usize, budget: Duration) -> Self {
        let dns = DnsServer::start().await;
        let settings = ResolverSettings {
            budget,
            ..asking(&[&dns])
        };
        let now = Arc::new(Mutex::new(Duration::from_secs(1_000_000)));
        let clock = Arc::clone(&now);
        let resolver = Resolver::with(
            &settings,
            NonZeroUsize::new(most_names).unwrap(),
            Box::new(move || BootTime(*clock.lock().unwrap())),
        );
        Self {
            dns,
            resolver: resolver.unwrap(),
            now,
        }
    }

    fn pass(&self, milliseconds: u64) {
        *self.now.lock().unwrap() += Duration::from_millis(milliseconds);
    }

    async fn ask(&self, name: &str) -> Result<Vec<IpAddr>, LookupFailed> {
        let found = self.resolver.addresses(name).await;
        found.map(|found| found.to_vec())
    }

    /// How often the server was asked for a name, which is as often for one family as for the other.
    fn asked(&self, name: &str) -> usize {
        let asked = self.dns.asked(name, RecordType::A);
        assert_eq!(self.dns.asked(name, RecordType::AAAA), asked);
        asked
    }
}

/// No names but those of the servers.
fn asking(servers: &[&DnsServer]) -> ResolverSettings {
    ResolverSettings {
        servers: servers.iter().map(|server| server.addr()).collect(),
        hosts_file: "/nonexistent/hosts".into(),
        resolv_conf: "/nonexistent/resolv.conf".into(),
        budget: BUDGET,
    }
}
