//! Time budgets: lengths that must fit into one another, added up before anything starts.
//!
//! A process whose budgets don't nest loses or repeats deliveries when it is stopped, or holds a
//! lease that it cannot renew in time; so it refuses to start and names both numbers.

use std::time::Duration;

use super::settings::{ConfigErrors, Settings};
use crate::domain::endpoint::EndpointSettings;

/// How often a worker renews its lease.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(2);
/// A send may start until this long before the lease ends.
pub const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// To connect to a receiver, DNS and TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// One request to a receiver, from DNS to the last byte, unless the endpoint says otherwise.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(15);
/// To record an outcome after its request ended.
pub const RECORD_BUDGET: Duration = Duration::from_secs(4);
/// One request to the API, from the last byte in to the first byte out.
pub const API_DEADLINE: Duration = Duration::from_secs(10);
/// To wait for a connection of the pool.
pub const POOL_WAIT: Duration = Duration::from_secs(3);
/// The life of a delivery, unless its endpoint says otherwise.
pub const MAX_AGE: Duration = Duration::from_secs(5 * 86_400);
/// Between a delivery's longest life and the end of its event.
pub const MAX_AGE_MARGIN: Duration = Duration::from_secs(2 * 86_400);
/// To send the last spans to the collector, when all else has ended.
pub const TRACES_FLUSH: Duration = Duration::from_secs(2);

/// Two lengths of which the first must fit into the second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// What must fit, in words.
    pub inner: &'static str,
    /// Its length.
    pub inner_length: Duration,
    /// Into what, in words.
    pub outer: &'static str,
    /// Its length.
    pub outer_length: Duration,
    /// The setting to change when it does not fit.
    pub setting: &'static str,
    /// Whether equal lengths fit.
    pub may_equal: bool,
}

impl Budget {
    /// Whether the first fits into the second.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.inner_length < self.outer_length
            || (self.may_equal && self.inner_length == self.outer_length)
    }
}

/// The sums of a configuration.
#[must_use]
pub fn budgets(settings: &Settings) -> Vec<Budget> {
    let lease = settings.duration("POSTRIDER_LEASE_TTL");
    let drain = settings.duration("POSTRIDER_DRAIN_TIMEOUT");
    let events = settings.duration("POSTRIDER_RETENTION_EVENTS");
    let strict = |inner, inner_length, outer, outer_length, setting| Budget {
        inner,
        inner_length,
        outer,
        outer_length,
        setting,
        may_equal: false,
    };
    let loose = |inner, inner_length, outer, outer_length, setting| Budget {
        may_equal: true,
        ..strict(inner, inner_length, outer, outer_length, setting)
    };
    let flush = settings
        .get("POSTRIDER_OTLP_ENDPOINT")
        .map_or(Duration::ZERO, |_on| TRACES_FLUSH);
    vec![
        loose(
            "three renewals of the lease",
            RENEW_INTERVAL * 3,
            "the lease less its margin of 2s",
            lease.saturating_sub(LEASE_MARGIN),
            "POSTRIDER_LEASE_TTL",
        ),
        strict(
            "connecting to a receiver",
            CONNECT_TIMEOUT,
            "a request's deadline",
            REQUEST_DEADLINE,
            "timeout_ms",
        ),
        strict(
            "a request's deadline and the recording of its outcome",
            REQUEST_DEADLINE + RECORD_BUDGET,
            "the drain",
            drain,
            "POSTRIDER_DRAIN_TIMEOUT",
        ),
        strict(
            if flush.is_zero() {
                "the drain"
            } else {
                "the drain and the sending of the last spans"
            },
            drain + flush,
            "the grace before SIGKILL",
            settings.duration("POSTRIDER_KILL_GRACE"),
            "POSTRIDER_KILL_GRACE",
        ),
        strict(
            "waiting for a connection of the pool",
            POOL_WAIT,
            "the deadline of an API request",
            API_DEADLINE,
            "POSTRIDER_CONNECTIONS",
        ),
        loose(
            "a delivery's longest life and two days",
            MAX_AGE + MAX_AGE_MARGIN,
            "the events' retention",
            events,
            "POSTRIDER_RETENTION_EVENTS",
        ),
    ]
}

/// Refuses a configuration whose budgets don't nest.
///
/// # Errors
/// Each pair that does not fit, with both numbers and the setting to change.
pub fn check(settings: &Settings) -> Result<(), ConfigErrors> {
    let mut errors = ConfigErrors::default();
    for budget in budgets(settings).iter().filter(|budget| !budget.fits()) {
        let show = humantime::format_duration;
        errors.add(
            budget.setting,
            format!(
                "{} ({}) must {} {} ({})",
                budget.inner,
                show(budget.inner_length),
                if budget.may_equal {
                    "fit into"
                } else {
                    "be shorter than"
                },
                budget.outer,
                show(budget.outer_length)
            ),
        );
    }
    errors.into_result()
}

/// The longest timeout that an endpoint may ask for: what the drain leaves beside the recording,
/// less a second to spare (20 s with the defaults).
#[must_use]
pub fn longest_request(settings: &Settings) -> Duration {
    settings
        .duration("POSTRIDER_DRAIN_TIMEOUT")
        .saturating_sub(RECORD_BUDGET + Duration::from_secs(1))
        .max(REQUEST_DEADLINE)
}

/// The longest time from a delivery's first attempt to its dead letter, with the default backoff and
/// no `Retry-After`.
#[must_use]
pub fn longest_ladder() -> Duration {
    crate::policy::outage::longest_ladder(&EndpointSettings::default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn defaults() -> Settings {
        Settings::load(BTreeMap::new(), []).unwrap()
    }

    #[test]
    fn the_defaults_nest() {
        assert_eq!(check(&defaults()), Ok(()));
        assert_eq!(longest_request(&defaults()), Duration::from_secs(20));
        assert_eq!(longest_ladder(), Duration::from_secs(975));
    }

    #[test]
    fn each_budget_that_does_not_nest_is_refused_with_both_numbers() {
        for (name, value, inner, outer) in [
            ("POSTRIDER_LEASE_TTL", "7s", "(6s)", "(5s)"),
            ("POSTRIDER_DRAIN_TIMEOUT", "19s", "(19s)", "(19s)"),
            ("POSTRIDER_KILL_GRACE", "25s", "(25s)", "(25s)"),
            ("POSTRIDER_RETENTION_EVENTS", "6d", "(7days)", "(6days)"),
        ] {
            let settings = defaults().with(name, value).unwrap();

            let text = check(&settings).unwrap_err().to_string();

            assert!(text.contains(name), "{text}");
            assert!(text.contains(inner) && text.contains(outer), "{text}");
        }
    }

    #[test]
    fn where_spans_are_sent_the_last_ones_have_time_too() {
        let tight = defaults().with("POSTRIDER_KILL_GRACE", "27s").unwrap();
        assert_eq!(check(&tight), Ok(()));
        let traced = tight
            .with("POSTRIDER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
            .unwrap();

        let text = check(&traced).unwrap_err().to_string();

        assert!(text.contains("the last spans (27s)"), "{text}");
        assert_eq!(
            check(&traced.with("POSTRIDER_KILL_GRACE", "28s").unwrap()),
            Ok(())
        );
    }

    #[test]
    fn the_tightest_settings_that_still_nest_are_accepted() {
        for (name, value) in [
            ("POSTRIDER_LEASE_TTL", "8s"),
            ("POSTRIDER_DRAIN_TIMEOUT", "20s"),
            ("POSTRIDER_KILL_GRACE", "26s"),
            ("POSTRIDER_RETENTION_EVENTS", "7d"),
        ] {
            assert_eq!(
                check(&defaults().with(name, value).unwrap()),
                Ok(()),
                "{name}"
            );
        }
    }
}
