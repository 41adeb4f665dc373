//! Looks names up and hands on only the addresses that may be dialled.
//!
//! Judged is the very answer that is dialled next: a name that was public when its endpoint was
//! saved and is private now leads nowhere (S1).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use shared::policy::address::{AddressRules, vet};

use super::trace::Trace;

/// The name could not be looked up. Told from other errors by its type.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct LookupFailed(std::io::Error);

/// The system's resolver behind the address policy.
pub(super) struct VettingResolver {
    rules: Arc<AddressRules>,
}

impl VettingResolver {
    pub(super) fn new(rules: AddressRules) -> Self {
        Self {
            rules: Arc::new(rules),
        }
    }
}

impl Resolve for VettingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            Trace::read(Trace::lookup_started);
            // Port 0: the connector puts in the URL's.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            Trace::read(Trace::lookup_ended);
            let found: Vec<IpAddr> = found.map_err(LookupFailed)?.map(|one| one.ip()).collect();
            let vetted = vet(&found, &rules)?.into_addresses();
            if let [only] = vetted.as_slice() {
                Trace::read(|trace| trace.dials(*only));
            }
            let dialled = vetted
                .into_iter()
                .map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(dialled) as Addrs)
        })
    }
}
