//! Pages: `?limit=&cursor=` in, `{"data": […], "next_cursor": …}` out, newest first.
//!
//! A cursor is the id of the last row shown, so a walk sees every row that existed throughout once,
//! whatever is written meanwhile. It carries a hash of the filters that it was made under.

use actix_web::HttpRequest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest, Sha256};
use shared::ids::lower_bound;
use shared::store::Found;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, SchemaFormat, Type};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::json::{NOT_AN_INSTANT, instant};
use crate::problem::{ApiError, Kind};

const DEFAULT_LIMIT: i64 = 50;
const MOST_LIMIT: i64 = 250;
/// Rows that a page of what no index serves looks at: so many at once, and so often.
const STRETCH: i64 = 250;
const MOST_STRETCHES: usize = 4;
/// Bytes of the filters' hash in a cursor: enough to tell a mistake.
const HASH_BYTES: usize = 8;

/// The parameters of a request's query.
#[derive(Debug)]
pub(crate) struct Query {
    values: BTreeMap<String, String>,
    /// What the cursor belongs to.
    path: String,
}

/// Where a page begins and how long it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    pub(crate) before: Option<Uuid>,
    pub(crate) limit: i64,
    filters: [u8; HASH_BYTES],
}

/// A page of a list, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct List<T> {
    data: Vec<T>,
    /// For `?cursor=`; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// `limit` and `cursor`, for the documentation.
pub(crate) struct PageParams;

/// `since` and `until`, for the documentation.
pub(crate) struct RangeParams;

impl IntoParams for PageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let limit = Object::builder()
            .schema_type(Type::Integer)
            .minimum(Some(1))
            .maximum(Some(MOST_LIMIT))
            .default(Some(DEFAULT_LIMIT.into()));
        let cursor = Object::builder()
            .schema_type(Type::String)
            .pattern(Some("^[A-Za-z0-9_-]{32}$"));
        vec![
            parameter("limit", "The most rows of the page", limit),
            parameter(
                "cursor",
                "`next_cursor` of the page before; it belongs to the same filters",
                cursor,
            ),
        ]
    }
}

impl IntoParams for RangeParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let instant = || {
            Object::builder()
                .schema_type(Type::String)
                .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        };
        vec![
            parameter("since", "Created then or later", instant()),
            parameter("until", "Created before", instant()),
        ]
    }
}

fn parameter(name: &str, description: &str, schema: ObjectBuilder) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

impl<T> List<T> {
    pub(crate) const fn new(data: Vec<T>, next_cursor: Option<String>) -> Self {
        Self { data, next_cursor }
    }
}

impl Query {
    /// Parses a query of which only these parameters are known.
    pub(crate) fn parse(request: &HttpRequest, known: &[&str]) -> Result<Self, ApiError> {
        let mut values = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(request.query_string().as_bytes()) {
            if !known.contains(&&*name) {
                let detail = if known.is_empty() {
                    format!("`{name}` is not a parameter of this path")
                } else {
                    format!(
                        "`{name}` is not a parameter here; known: {}",
                        known.join(", ")
                    )
                };
                return Err(ApiError::new(Kind::InvalidParameter, detail));
            }
            if value.contains('\0') {
                // No text of ours has one, and PostgreSQL refuses it.
                return Err(invalid(&name, "must not contain U+0000"));
            }
            if values
                .insert(name.to_string(), value.into_owned())
                .is_some()
            {
                return Err(invalid(&name, "is given twice"));
            }
        }
        Ok(Self {
            values,
            path: request.path().to_owned(),
        })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(crate) fn instant(&self, name: &str) -> Result<Option<OffsetDateTime>, ApiError> {
        self.get(name)
            .map(|text| {
                instant(text).ok_or_else(|| {
                    invalid(name, format!("{NOT_AN_INSTANT} (percent-encode a `+`)"))
                })
            })
            .transpose()
    }

    pub(crate) fn id<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ApiError>
    where
        T::Err: std::fmt::Display,
    {
        self.get(name)
            .map(|text| text.parse().map_err(|error: T::Err| invalid(name, error)))
            .transpose()
    }

    /// The ids that `since` (inclusive), `until` (exclusive) and the cursor leave: `created_at` of
    /// events and deliveries is in their ids, to the millisecond.
    pub(crate) fn id_range(&self, before: Option<Uuid>) -> Result<(Uuid, Uuid), ApiError> {
        let since = self.instant("since")?.map_or(Uuid::nil(), first_id);
        let until = self.instant("until")?.map_or(Uuid::max(), first_id);
        Ok((since, before.map_or(until, |before| before.min(until))))
    }

    /// The page asked for.
    pub(crate) fn page(&self) -> Result<Page, ApiError> {
        let limit = match self.get("limit") {
            None => DEFAULT_LIMIT,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=MOST_LIMIT).contains(limit))
                .ok_or_else(|| invalid("limit", format!("must be 1 to {MOST_LIMIT}")))?,
        };
        let filters = self.filters();
        let before = self
            .get("cursor")
            .map(|text| {
                let (hash, id) = decode(text)
                    .ok_or_else(|| invalid("cursor", "is not one that this API gave out"))?;
                if hash != filters {
                    let detail = "belongs to other filters; start without a cursor";
                    return Err(invalid("cursor", detail));
                }
                Ok(id)
            })
            .transpose()?;
        Ok(Page {
            before,
            limit,
            filters,
        })
    }

    fn filters(&self) -> [u8; HASH_BYTES] {
        let mut hash = Sha256::new();
        hash.update(self.path.as_bytes());
        for (name, value) in &self.values {
            if name != "cursor" && name != "limit" {
                hash.update([0]);
                hash.update(name.as_bytes());
                hash.update([1]);
                hash.update(value.as_bytes());
            }
        }
        let mut short = [0; HASH_BYTES];
        for (to, from) in short.iter_mut().zip(hash.finalize()) {
            *to = from;
        }
        short
    }
}

impl Page {
    /// What to ask the store for: one more than the page, to know whether there is a next one.
    pub(crate) const fn fetch(&self) -> i64 {
        self.limit + 1
    }

    /// The reply, from at most [`Page::fetch`] rows.
    pub(crate) fn reply<R, T>(
        &self,
        mut rows: Vec<R>,
        id: impl Fn(&R) -> Uuid,
        show: impl Fn(R) -> T,
    ) -> List<T> {
        let next_cursor = self.cut(&mut rows, id);
        List::new(rows.into_iter().map(show).collect(), next_cursor)
    }

    /// Cuts at most [`Page::fetch`] rows to the page; gives the cursor of the next one.
    pub(crate) fn cut<R>(&self, rows: &mut Vec<R>, id: impl Fn(&R) -> Uuid) -> Option<String> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        rows.last()
            .filter(|_| more)
            .map(|last| self.cursor(id(last)))
    }

    /// The page of what a bounded look found, with the cursor of the next one, if there may be more.
    pub(crate) fn found<R>(
        &self,
        found: Found<R>,
        id: impl Fn(&R) -> Uuid,
    ) -> (Vec<R>, Option<String>) {
        let Found { mut rows, seen_to } = found;
        let next = self.cut(&mut rows, id);
        (rows, next.or_else(|| seen_to.map(|id| self.cursor(id))))
    }

    /// A page of what no index serves: rows are looked at from the newest on, so many at most, and those that
    /// fit are taken. A page may be short, or empty, and still have a cursor. `read` gives up to so many rows of
    /// a range, each with whether it fits.
    pub(crate) async fn sift<R>(
        &self,
        (from, mut to): (Uuid, Uuid),
        read: impl AsyncFn((Uuid, Uuid), i64) -> Result<Vec<(R, bool)>, ApiError>,
        id: impl Fn(&R) -> Uuid,
    ) -> Result<(Vec<R>, Option<String>), ApiError> {
        let mut rows = Vec::new();
        for _stretch in 0..MOST_STRETCHES {
            let stretch = read((from, to), STRETCH).await?;
            let is_last = i64::try_from(stretch.len()).is_ok_and(|count| count < STRETCH);
            if let Some((last, _)) = stretch.last() {
                to = id(last);
            }
            rows.extend(
                stretch
                    .into_iter()
                    .filter(|(_, fits)| *fits)
                    .map(|(row, _)| row),
            );
            if let Some(next) = self.cut(&mut rows, &id) {
                return Ok((rows, Some(next)));
            }
            if is_last {
                return Ok((rows, None));
            }
        }
        Ok((rows, Some(self.cursor(to))))
    }

    /// The cursor of the page after this row.
    pub(crate) fn cursor(&self, last: Uuid) -> String {
        let mut bytes = self.filters.to_vec();
        bytes.extend_from_slice(last.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

/// The first id of the first millisecond that is not before an instant.
fn first_id(at: OffsetDateTime) -> Uuid {
    // The last instant there is has no next millisecond; nothing is as late as that.
    lower_bound(at.saturating_add(time::Duration::nanoseconds(999_999)))
}

fn decode(text: &str) -> Option<([u8; HASH_BYTES], Uuid)> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (hash, id) = bytes.split_first_chunk()?;
    Some((*hash, Uuid::from_slice(id).ok()?))
}

fn invalid(name: &str, why: impl std::fmt::Display) -> ApiError {
    ApiError::new(Kind::InvalidParameter, format!("`{name}` {why}"))
}
