//! What DNS does wrong, and what follows.

#![expect(clippy::too_many_lines, reason = "a table has as many lines as rows")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use shared::policy::address::AddressRules;
use shared::testing::dns::{DnsServer, Reply};
use tokio::time::Instant;
use worker::sender::{OutboundRequest, ResolverSettings, Sender, SenderSettings};

use super::run::{Many, Row, post, told};

/// Long enough for a look-up to be given up (4 s).
const TIMEOUT: Duration = Duration::from_secs(10);

/// One way for a name to be wrong.
struct Named {
    name: &'static str,
    host: &'static str,
    replies: Vec<Reply>,
    expected: &'static str,
}

const GOOD: [u8; 4] = [127, 0, 0, 1];
const DENIED: [u8; 4] = [10, 0, 0, 1];

fn addresses(of: &[[u8; 4]]) -> Reply {
    Reply::Addresses(of.iter().copied().map(IpAddr::from).collect(), 60)
}

fn table() -> Vec<Named> {
    const REFUSED: &str = "address_denied: the endpoint leads to a private address, which is not \
         permitted; the operator can permit its range in POSTRIDER_ALLOW_CIDRS; refused";
    const FINE: &str = "200, 2 B, whole; delivered";
    let named = |name, host, replies, expected| Named {
        name,
        host,
        replies,
        expected,
    };
    vec![
        named("dns-good", "good.test", vec![addresses(&[GOOD])], FINE),
        named(
            "dns-no-such-name",
            "none.test",
            vec![Reply::NoSuchName(5)],
            "dns: the host name could not be resolved: there is no such name; transient",
        ),
        named(
            "dns-no-address",
            "empty.test",
            vec![Reply::NoData(5)],
            "dns: the host name could not be resolved: the name has no address; transient",
        ),
        named(
            "dns-server-failure",
            "servfail.test",
            vec![Reply::ServerFailure],
            "dns: the host name could not be resolved: the DNS server failed to look it up; transient",
        ),
        named(
            "dns-refused",
            "refused.test",
            vec![Reply::Refused],
            "dns: the host name could not be resolved: the DNS server refused to look it up; transient",
        ),
        named(
            "dns-silent",
            "silent.test",
            vec![Reply::Silence],
            "dns: the host name could not be resolved: the DNS server did not answer in time; transient",
        ),
        named(
            "dns-garbage",
            "garbage.test",
            vec![Reply::Garbage],
            "dns: the host name could not be resolved: the DNS server failed to look it up; transient",
        ),
        named(
            "dns-wrong-id",
            "forged.test",
            vec![Reply::WrongId(Box::new(addresses(&[GOOD])))],
            "dns: the host name could not be resolved: the DNS server did not answer in time; transient",
        ),
        named(
            "dns-truncated",
            "long.test",
            vec![Reply::Truncated(Box::new(addresses(&[GOOD])))],
            FINE,
        ),
        named(
            "dns-alias",
            "alias.test",
            vec![Reply::Alias("good.test".to_owned(), 60)],
            FINE,
        ),
        named(
            "dns-private",
            "private.test",
            vec![addresses(&[DENIED])],
            REFUSED,
        ),
        named(
            "dns-alias-to-private",
            "alias2.test",
            vec![Reply::Alias("private.test".to_owned(), 60)],
            REFUSED,
        ),
        named(
            "dns-private-and-good",
            "mixed.test",
            vec![addresses(&[DENIED, GOOD])],
            FINE,
        ),
        named(
            "dns-seven-dead-addresses-and-a-good-one",
            "eight.test",
            vec![addresses(&[
                [127, 0, 0, 11],
                [127, 0, 0, 12],
                [127, 0, 0, 13],
                [127, 0, 0, 14],
                [127, 0, 0, 15],
                [127, 0, 0, 16],
                [127, 0, 0, 17],
                GOOD,
            ])],
            FINE,
        ),
        named(
            "dns-dead-ipv6-and-good-ipv4",
            "both.test",
            vec![Reply::Addresses(
                vec![Ipv6Addr::LOCALHOST.into(), GOOD.into()],
                60,
            )],
            FINE,
        ),
        named(
            "dns-private-in-ipv6",
            "mapped.test",
            vec![Reply::address(Ipv4Addr::from(DENIED).to_ipv6_mapped(), 60)],
            REFUSED,
        ),
        named(
            "dns-metadata",
            "metadata.test",
            vec![addresses(&[[169, 254, 169, 254]])],
            "address_denied: the endpoint leads to a cloud metadata address, which is not \
             permitted; the operator can permit it by naming that address alone (/32 or /128) in \
             POSTRIDER_ALLOW_CIDRS; refused",
        ),
        named(
            "dns-alias-of-itself",
            "loop.test",
            vec![Reply::Alias("loop.test".to_owned(), 60)],
            "dns: the host name could not be resolved: the DNS server failed to look it up; transient",
        ),
        named(
            "dns-wildcard-to-private",
            "10.0.0.1.rebind.test",
            vec![],
            REFUSED,
        ),
        named(
            "dns-label-too-long",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.test",
            vec![],
            "dns: the host name could not be resolved: it is not a name that DNS can hold; transient",
        ),
    ]
}

/// A DNS server that answers as the table says, and what is sent to.
pub(super) struct Names {
    dns: DnsServer,
    table: Vec<Named>,
    /// Where a receiver that answers listens, at 127.0.0.1.
    port: u16,
}

impl Names {
    /// Those with this in their names.
    pub(super) async fn start(port: u16, wanted: &str) -> Self {
        let dns = DnsServer::start().await;
        dns.lead_where_names_say("rebind.test");
        let mut table = table();
        for named in &table {
            if !named.replies.is_empty() {
                dns.answer_in_turn(named.host, named.replies.clone());
            }
        }
        table.retain(|named| named.name.contains(wanted));
        Self { dns, table, port }
    }

    /// One that knows no name yet.
    fn sender(&self) -> anyhow::Result<Sender> {
        Sender::new(SenderSettings {
            rules: AddressRules::parse("127.0.0.0/8 ::1").map_err(anyhow::Error::msg)?,
            resolver: ResolverSettings {
                servers: vec![self.dns.addr()],
                ..ResolverSettings::default()
            },
            ..SenderSettings::default()
        })
        .map_err(anyhow::Error::from)
    }

    fn request(&self, named: &Named) -> OutboundRequest {
        let url = format!("http://{}:{}/hooks", named.host, self.port);
        post(&url, 2, TIMEOUT)
    }

    /// Sends to each once.
    pub(super) async fn each_alone(&self) -> anyhow::Result<Vec<Row>> {
        let sender = self.sender()?;
        let sending = self.table.iter().map(async |named| {
            let started = Instant::now();
            let (result, _) = sender.send(self.request(named)).await;
            Row {
                name: named.name,
                expected: named.expected.to_owned(),
                got: told(&result),
                took: started.elapsed(),
            }
        });
        Ok(futures_util::future::join_all(sending).await)
    }

    /// Sends to each many times at once; what came late or otherwise than alone.
    pub(super) async fn each_by_many(&self, parallel: usize) -> anyhow::Result<Vec<String>> {
        let sender = Arc::new(self.sender()?);
        let mut strays = Vec::new();
        for named in &self.table {
            let many = Many {
                name: named.name,
                expected: Some(named.expected),
                parallel,
            };
            strays.extend(many.send(&sender, || self.request(named)).await?);
        }
        Ok(strays)
    }
}
