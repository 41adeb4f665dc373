//! Looks names up and hands on only the addresses that may be dialled.
//!
//! Judged is the very answer that is dialled next: a name that was public when its endpoint was
//! saved and is private now leads nowhere (S1).

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use shared::policy::address::{AddressRules, vet};

use super::lookups::Lookups;
use super::trace::Trace;

/// The system's resolver behind the address policy.
pub(super) struct VettingResolver {
    rules: Arc<AddressRules>,
    lookups: Lookups,
}

impl VettingResolver {
    pub(super) fn new(rules: AddressRules) -> Self {
        Self {
            rules: Arc::new(rules),
            lookups: Lookups::default(),
        }
    }
}

impl Resolve for VettingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.rules);
        let lookups = self.lookups.clone();
        Box::pin(async move {
            Trace::read(Trace::lookup_started);
            let found = lookups.find(name.as_str(), system).await;
            Trace::read(Trace::lookup_ended);
            let vetted = vet(&found?, &rules)?.into_addresses();
            if let [only] = vetted.as_slice() {
                Trace::read(|trace| trace.dials(*only));
            }
            // Port 0: the connector puts in the URL's.
            let dialled = vetted
                .into_iter()
                .map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(dialled) as Addrs)
        })
    }
}

async fn system(name: String) -> std::io::Result<Vec<std::net::IpAddr>> {
    let found = tokio::net::lookup_host((name, 0)).await?;
    Ok(found.map(|one| one.ip()).collect())
}
