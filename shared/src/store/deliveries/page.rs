//! Which deliveries a list shows: a page of ids, newest first.
//!
//! What a filter leaves can lie far apart, so a page looks at a stretch of each table and no further. It may hold fewer
//! ids than were asked for, or none, and still be followed by another one: [`Found::seen_to`].
//!
//! No index of `attempts` has an endpoint's deliveries in their order, and one more would be paid for by every attempt.
//! Its days are found instead (`attempts_endpoint`): on a day with few attempts these are read, on one with many the
//! tenant's deliveries are walked, and days without any are passed over.
//!
//! # Invariants
//! - A walk sees each delivery that existed throughout once: pages follow each other by id, and whatever is not looked
//!   at lies below `seen_to`.
//! - S3: every statement names the tenant.

use time::OffsetDateTime;
use time::macros::datetime;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{CLOCK_SLACK, earliest_attempt};
use crate::domain::delivery::Status;
use crate::ids::{EndpointKey, TenantKey, created_at, lower_bound};
use crate::store::events::IdRange;
use crate::store::{Found, Reader, StoreError};

/// Rows of each table that a page looks at.
const STRETCH: i64 = 2_000;
/// The same where the event of each is looked up for its type.
const STRETCH_OF_TYPE: i64 = 800;
/// An endpoint with fewer attempts on a day has few: they are read, whatever the page needs of them. More than a page.
const FEW: i64 = 300;
/// Statements are put together from literals: they say 300, and 301 for one more.
const _: () = assert!(FEW == 300);
/// No delivery is made later; a later instant has no date.
const LATEST: OffsetDateTime = datetime!(9999-01-01 0:00 UTC);

/// The page's ids out of `$rows`, of which each table gives the newest. $1 tenant, $2 and $3 the range, $4 the most, $5
/// the type of their events: one probe of `events_pkey` (and `events_kept_pkey`) for each until the page is full.
macro_rules! page {
    ([$($with:tt)*] $rows:literal) => {
        concat!(
            "
WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now())",
            $($with)*,
            "
SELECT x.id FROM (SELECT u.id, u.event_id FROM (",
            $rows,
            ") u ORDER BY u.id DESC OFFSET 0) x
WHERE $5::text IS NULL OR (SELECT t.id FROM event_types t WHERE t.tenant_id = $1 AND t.name = $5) = (
  SELECT e.type_id FROM events e WHERE e.tenant_id = $1 AND e.id = x.event_id
  UNION ALL SELECT e.type_id FROM events_kept e WHERE e.tenant_id = $1 AND e.id = x.event_id LIMIT 1)
LIMIT $4"
        )
    };
}

/// The id below which a page does not look: the highest of those that come after $4 rows of a table. Of one status ($5)
/// only the tables that may have it. Walks the `…_by_id` indexes and primary keys backwards.
const FLOOR: &str = "
SELECT id FROM (
  (SELECT id FROM ready WHERE ($5::int2 IS NULL OR $5 = 1) AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM ready_ordered WHERE ($5 IS NULL OR $5 IN (1, 4)) AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM retry WHERE ($5 IS NULL OR $5 = 4) AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM dead_letters WHERE ($5 IS NULL OR $5 = 5) AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM closed WHERE ($5 IS NULL OR $5 IN (6, 7)) AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT delivery_id FROM attempts WHERE ($5 IS NULL OR $5 = 3) AND tenant_id = $1 AND delivery_id >= $2 AND delivery_id < $3
     AND started_at >= $6 ORDER BY delivery_id DESC OFFSET $4 LIMIT 1)
) x ORDER BY id DESC LIMIT 1";

/// $6: only this status (not `in_flight`); $7: the most rows of each table. The indexes of [`FLOOR`].
const PAGE: &str = page!([""] "
  (SELECT id, event_id FROM ready WHERE ($6::int2 IS NULL OR $6 = 1) AND tenant_id = $1 AND id >= $2 AND id < $3
     AND ($6 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY id DESC LIMIT $7)
  UNION ALL
  (SELECT id, event_id FROM ready_ordered WHERE ($6 IS NULL OR $6 IN (1, 4)) AND tenant_id = $1 AND id >= $2 AND id < $3
     AND ($6 IS NULL OR $6 = CASE WHEN due_at IS NULL THEN 1 ELSE 4 END AND NOT id IN (SELECT id FROM flying)) ORDER BY id DESC LIMIT $7)
  UNION ALL
  (SELECT id, event_id FROM retry WHERE ($6 IS NULL OR $6 = 4) AND tenant_id = $1 AND id >= $2 AND id < $3
     AND ($6 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY id DESC LIMIT $7)
  UNION ALL
  (SELECT id, event_id FROM dead_letters WHERE ($6 IS NULL OR $6 = 5) AND tenant_id = $1 AND id >= $2 AND id < $3
     ORDER BY id DESC LIMIT $7)
  UNION ALL
  (SELECT id, event_id FROM closed WHERE ($6 IS NULL OR $6 IN (6, 7)) AND tenant_id = $1 AND id >= $2 AND id < $3
     AND ($6 IS NULL OR status = $6) ORDER BY id DESC LIMIT $7)
  UNION ALL
  (SELECT delivery_id, event_id FROM attempts WHERE ($6 IS NULL OR $6 = 3) AND tenant_id = $1 AND delivery_id >= $2 AND delivery_id < $3
     AND started_at >= $8 AND applied AND final_status = 3 ORDER BY delivery_id DESC LIMIT $7)
");

/// What living workers list, as far as it is this tenant's, still live and to this endpoint ($6).
const PAGE_IN_FLIGHT: &str = page!([""] "
  SELECT f.id, l.event_id FROM (SELECT DISTINCT id FROM flying) f
  CROSS JOIN LATERAL (
    SELECT endpoint_id, event_id FROM ready WHERE tenant_id = $1 AND id = f.id
    UNION ALL SELECT endpoint_id, event_id FROM retry WHERE tenant_id = $1 AND id = f.id
    UNION ALL SELECT endpoint_id, event_id FROM ready_ordered WHERE tenant_id = $1 AND id = f.id) l
  WHERE f.id >= $2 AND f.id < $3 AND ($6::int8 IS NULL OR l.endpoint_id = $6)
");

/// The days on which an endpoint ($1) made attempts, the last first, each with its last attempt and how many, up to $2: until those before $5
/// have $3 together. What is later may be the late attempts of older deliveries. Uses `attempts_endpoint`.
const DAYS: &str = "
WITH RECURSIVE days AS (
  SELECT 'infinity'::timestamptz AS day, NULL::timestamptz AS last, 0::int8 AS count, 0::int8 AS sum
  UNION ALL
  SELECT l.day, l.last, c.count, d.sum + CASE WHEN l.day < $5 THEN c.count ELSE 0 END
  FROM days d CROSS JOIN LATERAL (
    SELECT date_trunc('day', a.started_at, 'UTC') AS day, a.started_at AS last FROM attempts a
    WHERE a.endpoint_id = $1 AND a.started_at >= $4 AND a.started_at < d.day
    ORDER BY a.started_at DESC LIMIT 1) l
  CROSS JOIN LATERAL (
    SELECT count(*) FROM (
      SELECT FROM attempts a WHERE a.endpoint_id = $1 AND a.started_at >= l.day AND a.started_at < l.day + interval '1 day' LIMIT $2) x) c
  WHERE d.sum < $3)
SELECT day, last, count, sum FROM days WHERE count > 0";

/// The slots of an endpoint ($6: also that of what is parked), and what waits there in another order than that of the ids:
/// all of it if there is little, else the tenant's is walked. Uses `retry_pkey` and `ready_ordered_pkey`.
macro_rules! waiting {
    () => {
        "
slots AS MATERIALIZED (
  SELECT unnest(ARRAY[slot, slot - 256]) AS slot FROM endpoints WHERE id = $6 AND tenant_id = $1),
retries AS MATERIALIZED (
  SELECT r.* FROM slots s CROSS JOIN LATERAL (
    SELECT id, event_id FROM retry r WHERE r.slot = s.slot AND r.endpoint_id = $6
    ORDER BY r.due_at, r.id LIMIT 301) r),
lines AS MATERIALIZED (
  SELECT r.* FROM slots s CROSS JOIN LATERAL (
    SELECT id, event_id, due_at FROM ready_ordered r WHERE r.slot = s.slot AND r.endpoint_id = $6
    ORDER BY r.order_key, r.order_seq, r.id LIMIT 301) r)"
    };
}

/// As [`FLOOR`], to one endpoint ($6): its own rows where they are in the order of ids (`ready_pkey`,
/// `dead_letters_endpoint`, `closed_endpoint`), the tenant's where they are not and many; of the attempts those of
/// the days $7, each below an id of $8.
const FLOOR_OF_ENDPOINT: &str = concat!(
    "WITH ",
    waiting!(),
    "
SELECT id FROM (
  (SELECT r.id FROM slots s CROSS JOIN LATERAL (
     SELECT id FROM ready WHERE ($5::int2 IS NULL OR $5 = 1) AND slot = s.slot AND endpoint_id = $6 AND id >= $2 AND id < $3
     ORDER BY id DESC OFFSET $4 LIMIT 1) r)
  UNION ALL
  (SELECT id FROM retry WHERE ($5 IS NULL OR $5 = 4) AND (SELECT count(*) FROM retries) > 300 AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM ready_ordered WHERE ($5 IS NULL OR $5 IN (1, 4)) AND (SELECT count(*) FROM lines) > 300 AND tenant_id = $1 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM dead_letters WHERE ($5 IS NULL OR $5 = 5) AND endpoint_id = $6 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT id FROM closed WHERE ($5 IS NULL OR $5 IN (6, 7)) AND endpoint_id = $6 AND id >= $2 AND id < $3
   ORDER BY id DESC OFFSET $4 LIMIT 1)
  UNION ALL
  (SELECT a.id FROM unnest($7::timestamptz[], $8::uuid[]) d(day, until) CROSS JOIN LATERAL (
     SELECT delivery_id AS id FROM attempts WHERE ($5 IS NULL OR $5 = 3) AND tenant_id = $1 AND delivery_id >= $2 AND delivery_id < d.until
       AND started_at >= d.day AND started_at < d.day + interval '1 day' ORDER BY delivery_id DESC OFFSET $4 LIMIT 1) a)
) x ORDER BY id DESC LIMIT 1"
);

/// As [`PAGE`], to one endpoint ($6): status $7, the most rows of each table $8, the days with few attempts $9 and with many
/// $10, each below an id of $11. The indexes of [`FLOOR_OF_ENDPOINT`]; `attempts_endpoint` on days with few. `IS TRUE` keeps a condition from
/// being a reason for another index.
const PAGE_OF_ENDPOINT: &str = page!([",", waiting!()] "
  (SELECT r.id, r.event_id FROM slots s CROSS JOIN LATERAL (
     SELECT id, event_id FROM ready WHERE ($7::int2 IS NULL OR $7 = 1) AND slot = s.slot AND endpoint_id = $6 AND id >= $2 AND id < $3
       AND ($7 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY id DESC LIMIT $8) r)
  UNION ALL
  (SELECT id, event_id FROM retries WHERE ($7 IS NULL OR $7 = 4) AND (SELECT count(*) FROM retries) <= 300 AND id >= $2 AND id < $3
     AND ($7 IS NULL OR NOT id IN (SELECT id FROM flying)))
  UNION ALL
  (SELECT id, event_id FROM retry WHERE ($7 IS NULL OR $7 = 4) AND (SELECT count(*) FROM retries) > 300 AND tenant_id = $1 AND id >= $2 AND id < $3
     AND (endpoint_id = $6) IS TRUE AND ($7 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY id DESC LIMIT $8)
  UNION ALL
  (SELECT id, event_id FROM lines WHERE ($7 IS NULL OR $7 IN (1, 4)) AND (SELECT count(*) FROM lines) <= 300 AND id >= $2 AND id < $3
     AND ($7 IS NULL OR $7 = CASE WHEN due_at IS NULL THEN 1 ELSE 4 END AND NOT id IN (SELECT id FROM flying)))
  UNION ALL
  (SELECT id, event_id FROM ready_ordered WHERE ($7 IS NULL OR $7 IN (1, 4)) AND (SELECT count(*) FROM lines) > 300 AND tenant_id = $1 AND id >= $2 AND id < $3
     AND (endpoint_id = $6) IS TRUE
     AND ($7 IS NULL OR $7 = CASE WHEN due_at IS NULL THEN 1 ELSE 4 END AND NOT id IN (SELECT id FROM flying)) ORDER BY id DESC LIMIT $8)
  UNION ALL
  (SELECT id, event_id FROM dead_letters WHERE ($7 IS NULL OR $7 = 5) AND (tenant_id = $1) IS TRUE AND endpoint_id = $6 AND id >= $2 AND id < $3
     ORDER BY id DESC LIMIT $8)
  UNION ALL
  (SELECT id, event_id FROM closed WHERE ($7 IS NULL OR $7 IN (6, 7)) AND (tenant_id = $1) IS TRUE AND endpoint_id = $6 AND id >= $2 AND id < $3
     AND ($7 IS NULL OR status = $7) ORDER BY id DESC LIMIT $8)
  UNION ALL
  (SELECT a.delivery_id, a.event_id FROM unnest($9::timestamptz[]) d(day) CROSS JOIN LATERAL (
     SELECT delivery_id, event_id FROM attempts WHERE ($7 IS NULL OR $7 = 3) AND endpoint_id = $6
       AND started_at >= d.day AND started_at < d.day + interval '1 day' AND applied AND final_status = 3
       AND (tenant_id = $1 AND delivery_id >= $2 AND delivery_id < $3) IS TRUE OFFSET 0) a)
  UNION ALL
  (SELECT a.delivery_id, a.event_id FROM unnest($10::timestamptz[], $11::uuid[]) d(day, until) CROSS JOIN LATERAL (
     SELECT delivery_id, event_id FROM attempts WHERE ($7 IS NULL OR $7 = 3) AND tenant_id = $1 AND delivery_id >= $2 AND delivery_id < d.until
       AND started_at >= d.day AND started_at < d.day + interval '1 day' AND applied AND final_status = 3
       AND (endpoint_id = $6) IS TRUE ORDER BY delivery_id DESC LIMIT $8) a)
");

/// Every statement here, for the test that prepares them.
pub(in crate::store) const STATEMENTS: &[(&str, &str)] = &[
    ("deliveries.floor", FLOOR),
    ("deliveries.page", PAGE),
    ("deliveries.page_in_flight", PAGE_IN_FLIGHT),
    ("deliveries.days", DAYS),
    ("deliveries.floor_of_endpoint", FLOOR_OF_ENDPOINT),
    ("deliveries.page_of_endpoint", PAGE_OF_ENDPOINT),
];

/// Which deliveries of a tenant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Ids from (included) and to (excluded).
    pub range: IdRange,
    /// Only to this endpoint, which is the tenant's.
    pub endpoint: Option<EndpointKey>,
    /// Only these.
    pub status: Option<Status>,
    /// Only of events of this type.
    pub event_type: Option<&'a str>,
}

/// The days of an endpoint's attempts that a page needs.
#[derive(Debug, Default)]
struct Days {
    few: Vec<OffsetDateTime>,
    many: Vec<OffsetDateTime>,
    /// Of each day with many: its deliveries lie below this id.
    below: Vec<Uuid>,
    /// There are earlier ones, which begin below this id.
    from: Option<Uuid>,
}

/// Ids of a tenant's deliveries, newest first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &impl Reader,
    tenant: TenantKey,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Found<Uuid>, StoreError> {
    let (floor, rows) = match (filter.status, filter.endpoint) {
        (Some(Status::InFlight), _) => in_flight(client, tenant, filter, limit).await?,
        (_, None) => of_tenant(client, tenant, filter, limit).await?,
        (_, Some(endpoint)) => of_endpoint(client, tenant, (endpoint, filter), limit).await?,
    };
    let rows: Vec<Uuid> = rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()?;
    Ok(Found::down_to(floor, filter.range.0, rows, limit))
}

/// A page from the floor up, and the floor.
type Looked = (Uuid, Vec<Row>);

async fn in_flight(
    client: &impl Reader,
    tenant: TenantKey,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Looked, StoreError> {
    let (from, to) = filter.range;
    let endpoint = filter.endpoint.map(|key| key.0);
    let params: [&(dyn ToSql + Sync); 6] =
        [&tenant.0, &from, &to, &limit, &filter.event_type, &endpoint];
    Ok((from, client.rows(PAGE_IN_FLIGHT, &params).await?))
}

async fn of_tenant(
    client: &impl Reader,
    tenant: TenantKey,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Looked, StoreError> {
    let (from, to) = filter.range;
    let (stretch, rows_of_each) = stretch(filter, limit);
    let status = filter.status.map(Status::code);
    let since = earliest_attempt(from);
    let params: [&(dyn ToSql + Sync); 6] = [&tenant.0, &from, &to, &stretch, &status, &since];
    let floor = floor(&client.rows(FLOOR, &params).await?, from)?;
    let since = earliest_attempt(floor);
    let params: [&(dyn ToSql + Sync); 8] = [
        &tenant.0,
        &floor,
        &to,
        &limit,
        &filter.event_type,
        &status,
        &rows_of_each,
        &since,
    ];
    Ok((floor, client.rows(PAGE, &params).await?))
}

async fn of_endpoint(
    client: &impl Reader,
    tenant: TenantKey,
    (endpoint, filter): (EndpointKey, Filter<'_>),
    limit: i64,
) -> Result<Looked, StoreError> {
    let (from, to) = filter.range;
    let (stretch, rows_of_each) = stretch(filter, limit);
    let status = filter.status.map(Status::code);
    let days = match filter.status {
        None | Some(Status::Delivered) => days(client, endpoint, filter.range, limit).await?,
        Some(_) => Days::default(),
    };
    let from = days.from.map_or(from, |begin| begin.max(from));
    let params: [&(dyn ToSql + Sync); 8] = [
        &tenant.0,
        &from,
        &to,
        &stretch,
        &status,
        &endpoint.0,
        &days.many,
        &days.below,
    ];
    let floor = floor(&client.rows(FLOOR_OF_ENDPOINT, &params).await?, from)?;
    let params: [&(dyn ToSql + Sync); 11] = [
        &tenant.0,
        &floor,
        &to,
        &limit,
        &filter.event_type,
        &endpoint.0,
        &status,
        &rows_of_each,
        &days.few,
        &days.many,
        &days.below,
    ];
    Ok((floor, client.rows(PAGE_OF_ENDPOINT, &params).await?))
}

async fn days(
    client: &impl Reader,
    endpoint: EndpointKey,
    (from, to): IdRange,
    limit: i64,
) -> Result<Days, StoreError> {
    // A delivery of a day has no attempt before it but for the slack, so the day's deliveries begin that much later.
    let before = created_at(to.min(lower_bound(LATEST))) - CLOCK_SLACK;
    let since = earliest_attempt(from);
    let params: [&(dyn ToSql + Sync); 5] = [&endpoint.0, &FEW, &limit, &since, &before];
    let mut days = Days::default();
    for row in client.rows(DAYS, &params).await? {
        let (day, last): (OffsetDateTime, OffsetDateTime) = (row.try_get(0)?, row.try_get(1)?);
        if row.try_get::<_, i64>(2)? < FEW {
            days.few.push(day);
        } else {
            // No delivery is made later than its attempt starts, but for the slack.
            let made_before = last + CLOCK_SLACK + time::Duration::MILLISECOND;
            days.many.push(day);
            days.below.push(lower_bound(made_before).min(to));
        }
        if row.try_get::<_, i64>(3)? >= limit {
            days.from = Some(lower_bound(day + CLOCK_SLACK));
        }
    }
    Ok(days)
}

/// How many rows of each table a page looks at, and how many of them it may need: of a type all down to the floor.
const fn stretch(filter: Filter<'_>, limit: i64) -> (i64, i64) {
    if filter.event_type.is_some() {
        (STRETCH_OF_TYPE, STRETCH_OF_TYPE + 1)
    } else {
        (STRETCH, limit)
    }
}

fn floor(rows: &[Row], from: Uuid) -> Result<Uuid, StoreError> {
    Ok(match rows.first() {
        Some(row) => row.try_get(0)?,
        None => from,
    })
}
