//! Looks names up.

use std::net::IpAddr;
use std::sync::Arc;

use super::lookups::{LookupFailed, Lookups};

/// The system's resolver.
pub(super) struct Resolver {
    lookups: Lookups,
}

impl Resolver {
    pub(super) fn new() -> Self {
        Self {
            lookups: Lookups::default(),
        }
    }

    /// All addresses of a name.
    pub(super) async fn addresses(&self, name: &str) -> Result<Arc<[IpAddr]>, LookupFailed> {
        self.lookups.find(name, system).await
    }
}

async fn system(name: String) -> std::io::Result<Vec<std::net::IpAddr>> {
    let found = tokio::net::lookup_host((name, 0)).await?;
    Ok(found.map(|one| one.ip()).collect())
}
