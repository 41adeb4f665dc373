//! Whose turn it is: round robin over tenants, then over each tenant's endpoints, so that neither a
//! tenant with a million events nor one with ten thousand endpoints delays another's (O1).

use std::collections::VecDeque;

use shared::ids::{EndpointKey, TenantKey};

use super::Map;

/// Endpoints that wait for a turn. The caller puts each in at most once at a time.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tenants: VecDeque<TenantKey>,
    endpoints: Map<TenantKey, VecDeque<EndpointKey>>,
}

impl Turns {
    /// Puts an endpoint behind its tenant's others.
    pub(super) fn push(&mut self, tenant: TenantKey, endpoint: EndpointKey) {
        let waiting = self.endpoints.entry(tenant).or_default();
        if waiting.is_empty() {
            self.tenants.push_back(tenant);
        }
        waiting.push_back(endpoint);
    }

    /// Takes the endpoint whose turn it is; its tenant goes behind the other tenants.
    pub(super) fn next(&mut self) -> Option<EndpointKey> {
        let tenant = self.tenants.pop_front()?;
        let waiting = self.endpoints.get_mut(&tenant)?;
        let endpoint = waiting.pop_front();
        if waiting.is_empty() {
            self.endpoints.remove(&tenant);
        } else {
            self.tenants.push_back(tenant);
        }
        endpoint
    }

    pub(super) fn clear(&mut self) {
        self.tenants.clear();
        self.endpoints.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_many_endpoints_does_not_delay_a_tenant_with_one() {
        let mut turns = Turns::default();
        for endpoint in 0..1_000 {
            turns.push(TenantKey(1), EndpointKey(endpoint));
        }
        turns.push(TenantKey(2), EndpointKey(5_000));

        let order: Vec<_> = std::iter::from_fn(|| turns.next()).take(3).collect();

        assert_eq!(order, [EndpointKey(0), EndpointKey(5_000), EndpointKey(1)]);
    }

    #[test]
    fn every_endpoint_gets_exactly_one_turn_per_push() {
        let mut turns = Turns::default();
        for key in 0..100_i64 {
            turns.push(TenantKey(i32::try_from(key % 7).unwrap()), EndpointKey(key));
        }

        let mut seen: Vec<_> = std::iter::from_fn(|| turns.next()).collect();

        seen.sort_unstable();
        assert_eq!(seen, (0..100).map(EndpointKey).collect::<Vec<_>>());
    }
}
