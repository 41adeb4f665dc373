//! Pauses: what an operator holds back for a while, and how a worker finds out whether it is meant.
//!
//! Pure: the caller gives the time.

use time::{Duration, OffsetDateTime};

use super::endpoint::wants_type;
use crate::ids::TenantKey;

/// The longest pause: shorter than the events' retention, so that what waited can still be sent.
pub const LONGEST: Duration = Duration::days(7);

/// What is held back: deliveries of a tenant, of a type of event, or of both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pause {
    /// Its row.
    pub id: i64,
    /// Whose; `None`: everybody's.
    pub tenant: Option<TenantKey>,
    /// Of which types, as in an endpoint's `event_types`; `None`: of all.
    pub event_type: Option<String>,
    /// It ends by itself.
    pub until: OffsetDateTime,
}

/// All pauses of an installation: few, and read by every worker as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pauses(pub Vec<Pause>);

impl Pauses {
    /// Until when nothing of this tenant is sent.
    #[must_use]
    pub fn of_tenant(&self, tenant: TenantKey) -> Option<OffsetDateTime> {
        let meant = |pause: &&Pause| pause.tenant == Some(tenant) && pause.event_type.is_none();
        self.0.iter().filter(meant).map(|pause| pause.until).max()
    }

    /// Until when events of this type of this tenant wait, if they do now.
    #[must_use]
    pub fn of_type(
        &self,
        tenant: TenantKey,
        event_type: &str,
        now: OffsetDateTime,
    ) -> Option<OffsetDateTime> {
        let meant = |pause: &&Pause| {
            let pattern = pause.event_type.as_ref();
            pause.until > now
                && pause.tenant.is_none_or(|it| it == tenant)
                && pattern.is_some_and(|it| wants_type(std::slice::from_ref(it), event_type))
        };
        self.0.iter().filter(meant).map(|pause| pause.until).max()
    }

    /// Those that are over.
    pub fn over(&self, now: OffsetDateTime) -> impl Iterator<Item = &Pause> {
        self.0.iter().filter(move |pause| pause.until <= now)
    }

    /// Whether any types of this tenant may be held back now.
    #[must_use]
    pub fn has_types(&self, tenant: TenantKey, now: OffsetDateTime) -> bool {
        self.0.iter().any(|pause| {
            pause.event_type.is_some()
                && pause.until > now
                && pause.tenant.is_none_or(|it| it == tenant)
        })
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-30 12:00 UTC);
    const LATER: OffsetDateTime = datetime!(2026-11-30 13:00 UTC);
    const LATEST: OffsetDateTime = datetime!(2026-11-30 14:00 UTC);
    const ONE: TenantKey = TenantKey(1);
    const OTHER: TenantKey = TenantKey(2);

    fn pause(tenant: Option<TenantKey>, event_type: Option<&str>, until: OffsetDateTime) -> Pause {
        let event_type = event_type.map(str::to_owned);
        Pause {
            id: 1,
            tenant,
            event_type,
            until,
        }
    }

    #[test]
    fn a_tenants_pause_holds_back_that_tenant_and_no_single_type() {
        let pauses = Pauses(vec![pause(Some(ONE), None, LATER)]);

        assert_eq!(pauses.of_tenant(ONE), Some(LATER));
        assert_eq!(pauses.of_tenant(OTHER), None);
        assert_eq!(pauses.of_type(ONE, "a.b", NOW), None);
        assert!(!pauses.has_types(ONE, NOW));
    }

    #[test]
    fn a_types_pause_holds_back_the_types_it_names_until_it_ends() {
        let pauses = Pauses(vec![
            pause(Some(ONE), Some("order.*"), LATER),
            pause(None, Some("report.ready"), LATEST),
        ]);

        assert_eq!(pauses.of_tenant(ONE), None);
        assert_eq!(pauses.of_type(ONE, "order.made", NOW), Some(LATER));
        assert_eq!(pauses.of_type(ONE, "order", NOW), None);
        assert_eq!(pauses.of_type(OTHER, "order.made", NOW), None);
        assert_eq!(pauses.of_type(OTHER, "report.ready", NOW), Some(LATEST));
        assert_eq!(pauses.of_type(ONE, "order.made", LATER), None);
        assert!(pauses.has_types(OTHER, NOW));
        assert!(!pauses.has_types(OTHER, LATEST));
    }

    #[test]
    fn of_two_pauses_the_longer_one_counts() {
        let pauses = Pauses(vec![
            pause(None, Some("a.*"), LATEST),
            pause(Some(ONE), Some("a.b"), LATER),
        ]);

        assert_eq!(pauses.of_type(ONE, "a.b", NOW), Some(LATEST));
    }
}
