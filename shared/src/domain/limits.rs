//! What keys and tenants may at most: set for a tenant or its organization, else by the operator.

use serde::{Deserialize, Serialize};

/// How fast a key may be used: so many requests or events a second, after a quiet time `burst` at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRate {
    /// In the long run; at least 1.
    pub per_second: u32,
    /// At once; at least 1.
    pub burst: u32,
}

impl KeyRate {
    /// Whether it is no faster than another one.
    #[must_use]
    pub const fn is_within(self, other: Self) -> bool {
        self.per_second <= other.per_second && self.burst <= other.burst
    }
}

/// Limits as set at one level. `None`: what the next level says; nowhere set: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Of each key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<KeyRate>,
    /// Endpoints of a tenant that are not deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_endpoints: Option<u32>,
    /// Types of events that a tenant ever used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_event_types: Option<u32>,
    /// Events of a tenant accepted in a day of UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_per_day: Option<u32>,
    /// Events of a tenant accepted in a calendar month of UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_per_month: Option<u32>,
    /// Tenants of an organization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tenants: Option<u32>,
}

impl Limits {
    /// These, and where they say nothing those of the next level.
    #[must_use]
    pub fn or(self, next: Self) -> Self {
        Self {
            rate_limit: self.rate_limit.or(next.rate_limit),
            max_endpoints: self.max_endpoints.or(next.max_endpoints),
            max_event_types: self.max_event_types.or(next.max_event_types),
            events_per_day: self.events_per_day.or(next.events_per_day),
            events_per_month: self.events_per_month.or(next.events_per_month),
            max_tenants: self.max_tenants.or(next.max_tenants),
        }
    }

    /// Names of the limits that are others than these.
    #[must_use]
    pub fn different(self, other: Self) -> Vec<&'static str> {
        [
            (
                "events_per_day",
                self.events_per_day != other.events_per_day,
            ),
            (
                "events_per_month",
                self.events_per_month != other.events_per_month,
            ),
            ("max_endpoints", self.max_endpoints != other.max_endpoints),
            (
                "max_event_types",
                self.max_event_types != other.max_event_types,
            ),
            ("max_tenants", self.max_tenants != other.max_tenants),
            ("rate_limit", self.rate_limit != other.rate_limit),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
    }

    /// Whether events have to be counted.
    #[must_use]
    pub const fn count_events(&self) -> bool {
        self.events_per_day.is_some() || self.events_per_month.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_comes_from_the_nearest_level_that_sets_it() {
        let tenant = Limits {
            max_endpoints: Some(5),
            ..Limits::default()
        };
        let organization = Limits {
            max_endpoints: Some(9),
            events_per_day: Some(100),
            ..Limits::default()
        };

        let effective = tenant.or(organization);

        assert_eq!(effective.max_endpoints, Some(5));
        assert_eq!(effective.events_per_day, Some(100));
        assert_eq!(effective.rate_limit, None);
        assert!(effective.count_events() && !tenant.count_events());
    }
}
