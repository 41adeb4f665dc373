//! How many events tenants with a quota have posted, in a day and in a month of UTC.
//!
//! Counted in memory and written once a second, never per event; nothing at all is counted of tenants
//! without a quota. So each process knows the others' events a second or two late: a tenant that posts
//! through n processes at r events a second may pass its quota by about 2 · r. What a process that is
//! killed had counted in its last second is not counted; what was being written when the connection was
//! lost may be counted twice.
//!
//! Bounded: at [`MOST_TENANTS`] tenants those that were idle are forgotten; they are read again when
//! needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::domain::limits::Limits;
use shared::ids::TenantKey;
use shared::store::{StoreError, limits as store};
use time::{Date, OffsetDateTime, Time};

use crate::connections::Connections;
use crate::problem::{ApiError, Kind};

const MOST_TENANTS: usize = 100_000;

/// See the module.
pub(crate) struct Quotas {
    connections: Connections,
    counts: Mutex<HashMap<(TenantKey, Date), Count>>,
}

/// A tenant's events of a day.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    /// In the database: of the day, and of its month.
    day: i64,
    month: i64,
    /// Not in the database yet.
    here: i64,
    /// Since the last writing.
    used: bool,
}

/// Room in a quota, given back unless the events are kept.
#[must_use]
pub(crate) struct Reserved {
    quotas: Arc<Quotas>,
    place: (TenantKey, Date),
    events: i64,
}

impl Reserved {
    /// So many of the events were accepted.
    pub(crate) fn keep(mut self, events: u32) {
        self.events -= i64::from(events);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(count) = self.quotas.lock().get_mut(&self.place) {
            count.here -= self.events;
        }
    }
}

impl Quotas {
    pub(crate) fn new(connections: Connections) -> Arc<Self> {
        Arc::new(Self {
            connections,
            counts: Mutex::default(),
        })
    }

    /// Takes room for events, if the tenant has a quota.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        (tenant, limits): (TenantKey, Limits),
        events: u32,
        now: OffsetDateTime,
    ) -> Result<Option<Reserved>, ApiError> {
        if !limits.count_events() {
            return Ok(None);
        }
        let place = (tenant, now.date());
        let known = self.lock().contains_key(&place);
        if !known {
            self.connections.bounded(self.read(place)).await?;
        }
        let mut counts = self.lock();
        let count = counts.entry(place).or_default();
        count.used = true;
        let events = i64::from(events);
        let of_day = count.day + count.here + events;
        let of_month = count.month + count.here + events;
        if let Some(most) = limits
            .events_per_day
            .filter(|most| of_day > i64::from(*most))
        {
            let tomorrow = now.date().next_day().unwrap_or(now.date());
            return Err(used_up("a day", most, tomorrow, now));
        }
        if let Some(most) = limits
            .events_per_month
            .filter(|most| of_month > i64::from(*most))
        {
            return Err(used_up("a month", most, next_month(now.date()), now));
        }
        count.here += events;
        drop(counts);
        Ok(Some(Reserved {
            quotas: Arc::clone(self),
            place,
            events,
        }))
    }

    async fn read(&self, place: (TenantKey, Date)) -> Result<(), ApiError> {
        let client = self.connections.get().await?;
        let found = store::events(&**client, &[place]).await?;
        drop(client);
        let mut counts = self.lock();
        if counts.len() >= MOST_TENANTS {
            counts.retain(|_, count| count.used || count.here != 0);
        }
        let (day, month) = found.first().copied().unwrap_or_default();
        counts.entry(place).or_insert(Count {
            day,
            month,
            ..Count::default()
        });
        Ok(())
    }

    /// Writes what was counted, and reads what all processes counted.
    pub(crate) async fn write(&self, today: Date) -> Result<(), StoreError> {
        let used: Vec<(TenantKey, Date, i64)> = {
            let mut counts = self.lock();
            counts.retain(|(_, day), count| *day >= today || count.here != 0 || count.used);
            let used = counts.iter_mut().filter_map(|((tenant, day), count)| {
                let used = std::mem::take(&mut count.used) || count.here != 0;
                used.then_some((*tenant, *day, count.here))
            });
            used.collect()
        };
        if used.is_empty() {
            return Ok(());
        }
        let client = self.connections.try_get().await?;
        store::add_events(&**client, &used).await?;
        for (tenant, day, written) in &used {
            if let Some(count) = self.lock().get_mut(&(*tenant, *day)) {
                count.here -= written;
                count.day += written;
                count.month += written;
            }
        }
        let places: Vec<_> = used.iter().map(|used| (used.0, used.1)).collect();
        let totals = store::events(&**client, &places).await?;
        let mut counts = self.lock();
        for (place, (day, month)) in places.iter().zip(totals) {
            if let Some(count) = counts.get_mut(place) {
                (count.day, count.month) = (day, month);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(TenantKey, Date), Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn used_up(span: &str, most: u32, begins: Date, now: OffsetDateTime) -> ApiError {
    let detail = format!("the tenant has posted its {most} events of {span} (UTC)");
    let wait = begins.with_time(Time::MIDNIGHT).assume_utc() - now;
    ApiError::new(Kind::QuotaReached, detail)
        .retry_after(u64::try_from(wait.whole_seconds()).unwrap_or(0) + 1)
}

fn next_month(day: Date) -> Date {
    let month = day.month().next();
    let year = day.year() + i32::from(month == time::Month::January);
    Date::from_calendar_date(year, month, 1).unwrap_or(day)
}

#[cfg(test)]
mod tests {
    use time::macros::date;

    use super::*;

    #[test]
    fn the_month_after_december_is_in_the_next_year() {
        assert_eq!(next_month(date!(2026 - 12 - 31)), date!(2027 - 01 - 01));
        assert_eq!(next_month(date!(2026 - 01 - 31)), date!(2026 - 02 - 01));
    }
}
