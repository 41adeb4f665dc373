//! Lists across an organization's tenants: `Postrider-Tenant: *` with an organization's key.
//!
//! A page of events or deliveries is looked for window by window, from the newest: an hour at first, as each tenant's
//! rows of a window are read up to a page, then longer ones up to a day. When that has taken [`BUDGET`], the page is given
//! as it is, with the cursor of where to go on: it can be short, or empty, while `next_cursor` is not null. A walk over all
//! pages sees every row once all the same.
//!
//! # Invariants
//! - S3: rows of the organization's tenants only; each names its tenant.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use serde::Serialize;
use shared::domain::delivery::Status;
use shared::ids::{TenantId, created_at, lower_bound};
use shared::runtime::clock::boot_time;
use shared::store::events::IdRange;
use shared::store::organization_lists::{self as store, Owned};
use shared::store::{StoreError, snapshot};
use time::OffsetDateTime;
use uuid::Uuid;

use super::delivery_document::Delivery;
use super::{App, endpoints, events, json as reply};
use crate::paging::{List, Page, Query};
use crate::problem::{ApiError, Kind};

/// The first window of a page; the next is twice as long, if that is still within a day.
const FIRST_WINDOW: time::Duration = time::Duration::HOUR;
/// How long a page is looked for before it is given as it is; a window more may be on its way.
const BUDGET: Duration = Duration::from_millis(20);

/// A row with the tenant that it belongs to.
#[derive(Serialize)]
struct OfTenant<T> {
    tenant_id: TenantId,
    #[serde(flatten)]
    row: T,
}

fn of_tenant<T>(tenant: Uuid, row: T) -> OfTenant<T> {
    OfTenant {
        tenant_id: TenantId(tenant),
        row,
    }
}

/// `GET /v1/endpoints`
pub(super) async fn endpoints(
    app: &App,
    organization: i32,
    page: Page,
) -> Result<HttpResponse, ApiError> {
    let mut client = app.client().await?;
    let snapshot = snapshot(&mut client).await?;
    let mut rows = store::endpoints(&snapshot, organization, page.before, page.fetch()).await?;
    snapshot.commit().await?;
    let next = page.cut(&mut rows, |(_, row)| row.id);
    let (tenants, rows): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let documents = endpoints::documents(app, &**client, &rows).await?;
    drop(client);
    let data = tenants
        .into_iter()
        .zip(documents)
        .map(|(tenant, row)| of_tenant(tenant, row));
    reply(StatusCode::OK, &List::new(data.collect(), next))
}

/// `GET /v1/events`
pub(super) async fn events(
    app: &App,
    organization: i32,
    query: &Query,
) -> Result<HttpResponse, ApiError> {
    if query.get("external_id").or(query.get("channel")).is_some() {
        let detail = "external_id and channel are one tenant's: name that one in Postrider-Tenant";
        return Err(ApiError::new(Kind::InvalidParameter, detail));
    }
    let page = query.page()?;
    let range = bounded(app, query.id_range(page.before)?);
    let mut client = app.client().await?;
    let snapshot = snapshot(&mut client).await?;
    let read = async |range: IdRange, limit: i64| {
        store::events(&snapshot, organization, query.get("type"), range, limit).await
    };
    let (rows, next) = by_windows(page, range, read, |row| row.id).await?;
    snapshot.commit().await?;
    drop(client);
    let show = |(tenant, row)| of_tenant(tenant, events::Document::new(row));
    let data = rows.into_iter().map(show).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// `GET /v1/deliveries`
pub(super) async fn deliveries(
    app: &App,
    organization: i32,
    query: &Query,
    status: Option<Status>,
) -> Result<HttpResponse, ApiError> {
    if query
        .get("endpoint_id")
        .or(query.get("event_type"))
        .is_some()
    {
        let detail =
            "endpoint_id and event_type are one tenant's: name that one in Postrider-Tenant";
        return Err(ApiError::new(Kind::InvalidParameter, detail));
    }
    let page = query.page()?;
    let range = bounded(app, query.id_range(page.before)?);
    let mut client = app.client().await?;
    let snapshot = snapshot(&mut client).await?;
    let read = async |range: IdRange, limit: i64| {
        store::deliveries(&snapshot, organization, status, range, limit).await
    };
    let (rows, next) = by_windows(page, range, read, |row| row.id).await?;
    snapshot.commit().await?;
    drop(client);
    let show = |(tenant, row)| of_tenant(tenant, Delivery::new(row));
    let data = rows.into_iter().map(show).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// Nothing is older than the retention, or from later today.
fn bounded(app: &App, (from, to): IdRange) -> IdRange {
    let now = app.clock.now();
    let oldest = now - app.config.events_retention - time::Duration::days(2);
    let newest = now + time::Duration::hours(1);
    (from.max(lower_bound(oldest)), to.min(lower_bound(newest)))
}

/// Reads window by window, from the newest, until the page is full or its budget is spent.
async fn by_windows<T>(
    page: Page,
    (from, to): IdRange,
    read: impl AsyncFn(IdRange, i64) -> Result<Vec<Owned<T>>, StoreError>,
    id: impl Fn(&T) -> Uuid,
) -> Result<(Vec<Owned<T>>, Option<String>), ApiError> {
    let began = boot_time();
    let mut rows = Vec::new();
    let mut to = to;
    let mut length = FIRST_WINDOW;
    while from < to {
        let begin = window_before(to, length).max(from);
        length = length.saturating_mul(2).min(time::Duration::DAY);
        let missing = page.fetch() - i64::try_from(rows.len()).unwrap_or(i64::MAX);
        rows.extend(read((begin, to), missing).await?);
        if let Some(next) = page.cut(&mut rows, |(_, row)| id(row)) {
            return Ok((rows, Some(next)));
        }
        to = begin;
        if boot_time().since(began) > BUDGET && from < to {
            return Ok((rows, Some(page.cursor(to))));
        }
    }
    Ok((rows, None))
}

/// The first id of so long a time before this id, but of the day of the last id before this one.
fn window_before(to: Uuid, length: time::Duration) -> Uuid {
    let last: OffsetDateTime = created_at(Uuid::from_u128(to.as_u128().saturating_sub(1)));
    let midnight = last.replace_time(time::Time::MIDNIGHT);
    let begin: OffsetDateTime = last.saturating_sub(length);
    lower_bound(midnight.max(begin))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn windows_follow_each_other_without_a_gap_and_end_with_the_day() {
        let midnight = lower_bound(datetime!(2026-11-30 00:00 UTC));
        let noon = lower_bound(datetime!(2026-11-30 12:00 UTC));
        let before = |to, hours| window_before(to, time::Duration::hours(hours));

        assert_eq!(before(noon, 24), midnight);
        assert_eq!(
            before(midnight, 24),
            lower_bound(datetime!(2026-11-29 00:00 UTC))
        );
        let eleven = lower_bound(datetime!(2026-11-30 11:00 UTC));
        assert!((before(noon, 1)..noon).contains(&eleven));
    }
}
