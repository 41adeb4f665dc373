//! Daily partitions of `events`, `closed` (by the time in their id) and `attempts` (by `started_at`):
//! made ahead, found, counted. Dropping them is [`super::retention`].
//!
//! There is no default partition (it forbids `DETACH … CONCURRENTLY`), so a missing partition stops
//! ingest: [`ahead`] is for health checks, [`ensure`] runs at every migration and every ten minutes.
//!
//! # Invariants
//! - Ingest never waits: `LIKE` + `ATTACH` takes ShareUpdateExclusive on the parent, which lets
//!   reads and writes pass. `CREATE TABLE … PARTITION OF` takes AccessExclusive and is banned: behind
//!   one long reader it stops everybody.
//! - A partition is made and attached in one statement, so there is none that is not attached. It is
//!   empty then: there is nothing to validate, and a CHECK of its own would cost every insert.
//! - The days are UTC days of the database's clock, which also stamps the ids.

use std::time::Duration;

use time::{Date, Month, OffsetDateTime, UtcOffset};
use tokio_postgres::Client;

use super::StoreError;
use crate::ids;

/// How many days ahead partitions are made: a job that is down for a week does not stop ingest.
pub const DAYS_AHEAD: u16 = 8;

/// The longest wait for the parent's lock; only another maintenance holds one that conflicts.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a partition is tried.
const TRIES: u32 = 10;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// All partitions by their names, attached or left over. Reads the catalog, locks nothing.
const LIST: &str = "
SELECT c.relname::text, i.inhrelid IS NOT NULL AS attached, coalesce(i.inhdetachpending, false)
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
  AND c.relname ~ '^(events|closed|attempts)_p[0-9]{8}$'
ORDER BY c.relname";

/// The clock that stamps ids, so also the one that decides which partitions are needed.
const NOW: &str = "SELECT clock_timestamp()";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[("partitions.list", LIST), ("partitions.now", NOW)];

/// A partitioned table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Parent {
    /// What tenants published.
    Events,
    /// Deliveries that were skipped or cancelled.
    Closed,
    /// Requests that were made.
    Attempts,
}

impl Parent {
    /// Every one of them.
    pub const ALL: [Self; 3] = [Self::Events, Self::Closed, Self::Attempts];

    /// Its name.
    #[must_use]
    pub const fn table(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Closed => "closed",
            Self::Attempts => "attempts",
        }
    }

    /// An instant as a literal of the partition key.
    fn bound(self, at: OffsetDateTime) -> String {
        match self {
            Self::Events | Self::Closed => format!("'{}'", ids::lower_bound(at)),
            Self::Attempts => format!("'{} 00:00:00+00'", at.date()),
        }
    }
}

/// Whether a partition belongs to its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Read and written through the parent.
    Attached,
    /// A `DETACH … CONCURRENTLY` was interrupted: invisible to new statements, to be finalized.
    Detaching,
    /// Detached and not yet dropped.
    Detached,
}

/// One day of a partitioned table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// The table.
    pub parent: Parent,
    /// The UTC day.
    pub day: Date,
    /// Whether it is attached.
    pub state: State,
}

impl Partition {
    /// Its table's name: `events_p20261129`.
    #[must_use]
    pub fn name(&self) -> String {
        name(self.parent, self.day)
    }

    /// The first instant in it.
    #[must_use]
    pub fn begins_at(&self) -> OffsetDateTime {
        midnight(self.day)
    }

    /// The first instant after it.
    #[must_use]
    pub fn ends_at(&self) -> OffsetDateTime {
        midnight(self.day) + time::Duration::DAY
    }
}

/// Makes the partitions from yesterday (clocks differ, and requests end later than they start) to
/// `days_ahead` days after today, as far as they are missing. Returns the names of the new ones.
///
/// # Errors
/// [`StoreError::Contention`] when another maintenance holds the lock all the time.
pub async fn ensure(
    client: &Client,
    now: OffsetDateTime,
    days_ahead: u16,
) -> Result<Vec<String>, StoreError> {
    let have: Vec<String> = list(client)
        .await?
        .iter()
        .filter(|partition| partition.state != State::Detached)
        .map(Partition::name)
        .collect();
    let today = utc_day(now);
    let mut made = Vec::new();
    for offset in -1..=i64::from(days_ahead) {
        let day = today + time::Duration::days(offset);
        for parent in Parent::ALL {
            let name = name(parent, day);
            if !have.contains(&name) {
                make(client, parent, day).await?;
                made.push(name);
            }
        }
    }
    if !made.is_empty() {
        tracing::info!(
            partitions = made.len(),
            last = made.last(),
            "made partitions"
        );
    }
    Ok(made)
}

/// How many whole days after today have all their partitions, without a gap; −1 when today itself
/// has not: then nothing can be accepted.
///
/// # Errors
/// Those of the database.
pub async fn ahead(client: &Client, now: OffsetDateTime) -> Result<i64, StoreError> {
    let partitions = list(client).await?;
    let covers = |parent: Parent, day: Date| {
        partitions
            .iter()
            .any(|p| p.parent == parent && p.day == day && p.state == State::Attached)
    };
    let today = utc_day(now);
    let mut days = -1;
    while Parent::ALL
        .iter()
        .all(|parent| covers(*parent, today + time::Duration::days(days + 1)))
    {
        days += 1;
    }
    Ok(days)
}

/// The database's time, asked for and not estimated: a wrong clock would drop what is wanted.
///
/// # Errors
/// Those of the database.
pub async fn database_time(client: &Client) -> Result<OffsetDateTime, StoreError> {
    Ok(client.query_one(NOW, &[]).await?.get(0))
}

/// Every partition there is, oldest first within its table.
///
/// # Errors
/// Those of the database.
pub async fn list(client: &Client) -> Result<Vec<Partition>, StoreError> {
    let rows = client.query(LIST, &[]).await?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let (parent, day) = parse(row.get(0))?;
            let state = match (row.get(1), row.get(2)) {
                (true, false) => State::Attached,
                (true, true) => State::Detaching,
                (false, _) => State::Detached,
            };
            Some(Partition { parent, day, state })
        })
        .collect())
}

async fn make(client: &Client, parent: Parent, day: Date) -> Result<(), StoreError> {
    let statement = make_statement(parent, day);
    let mut tries = 1;
    loop {
        match client
            .batch_execute(&statement)
            .await
            .map_err(StoreError::from)
        {
            Err(StoreError::Contention(_)) if tries < TRIES => tries += 1,
            result => return result,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One statement, so one transaction without a client in the middle. The advisory lock keeps two
/// processes apart (`IF NOT EXISTS` alone races); what the first made is seen by the second.
fn make_statement(parent: Parent, day: Date) -> String {
    let (table, name) = (parent.table(), name(parent, day));
    let from = parent.bound(midnight(day));
    let to = parent.bound(midnight(day) + time::Duration::DAY);
    let timeout = LOCK_TIMEOUT.as_millis();
    format!(
        "DO $$ BEGIN
           PERFORM set_config('lock_timeout', '{timeout}', true);
           PERFORM pg_advisory_xact_lock(hashtextextended('postrider partitions', 0));
           IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass('{name}')) THEN
             CREATE TABLE IF NOT EXISTS {name} (LIKE {table} INCLUDING ALL);
             ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to});
           END IF;
         END $$"
    )
}

fn name(parent: Parent, day: Date) -> String {
    let (year, month, date) = (day.year(), u8::from(day.month()), day.day());
    format!("{}_p{year:04}{month:02}{date:02}", parent.table())
}

fn parse(name: &str) -> Option<(Parent, Date)> {
    let (table, digits) = name.rsplit_once("_p")?;
    let parent = Parent::ALL.into_iter().find(|p| p.table() == table)?;
    let month: u8 = digits.get(4..6)?.parse().ok()?;
    let day = Date::from_calendar_date(
        digits.get(..4)?.parse().ok()?,
        Month::try_from(month).ok()?,
        digits.get(6..)?.parse().ok()?,
    );
    Some((parent, day.ok()?))
}

fn utc_day(at: OffsetDateTime) -> Date {
    at.to_offset(UtcOffset::UTC).date()
}

fn midnight(day: Date) -> OffsetDateTime {
    day.midnight().assume_utc()
}

#[cfg(test)]
mod tests {
    use time::macros::{date, datetime};

    use super::*;

    #[test]
    fn a_name_is_read_back_and_other_tables_are_not() {
        for parent in Parent::ALL {
            let day = date!(2026 - 03 - 09);
            assert_eq!(parse(&name(parent, day)), Some((parent, day)));
        }
        for other in [
            "events_kept",
            "events_p20261301",
            "events_p2026",
            "x_p20260101",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn an_id_made_in_a_day_is_within_the_bounds_of_its_partition() {
        let partition = Partition {
            parent: Parent::Events,
            day: date!(2026 - 11 - 29),
            state: State::Attached,
        };
        let (from, to) = (
            ids::lower_bound(partition.begins_at()),
            ids::lower_bound(partition.ends_at()),
        );
        for at in [
            datetime!(2026-11-29 0:00 UTC),
            datetime!(2026-11-29 23:59:59.999 UTC),
        ] {
            let id = ids::new_v7(at);
            assert!(from <= id && id < to, "{id}");
        }
        assert!(ids::new_v7(datetime!(2026-11-30 0:00 UTC)) >= to);
    }

    #[test]
    fn a_day_is_a_utc_day() {
        assert_eq!(
            utc_day(datetime!(2026-11-29 23:30 -2)),
            date!(2026 - 11 - 30)
        );
    }
}
