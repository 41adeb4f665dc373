//! What a bounded look at a list found.

use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;
use uuid::Uuid;

use super::StoreError;

/// Some rows, newest first, and where to go on.
#[derive(Debug, Clone)]
pub struct Found<T, Id = Uuid> {
    /// As many as were asked for, or fewer.
    pub rows: Vec<T>,
    /// Nothing below this id was looked at, although fewer were found than were asked for.
    pub seen_to: Option<Id>,
}

impl<T> Found<T> {
    /// A page of up to `limit` rows, for which nothing below `floor` was looked at; the list begins at `from`.
    pub(super) fn down_to(floor: Uuid, from: Uuid, rows: Vec<T>, limit: i64) -> Self {
        let is_short = i64::try_from(rows.len()).is_ok_and(|count| count < limit);
        let seen_to = (is_short && floor > from).then_some(floor);
        Self { rows, seen_to }
    }
}

impl<T, Id: FromSqlOwned> Found<T, Id> {
    /// What a statement found in a stretch of so many rows. Its columns: how many rows there were, the last one's id, then
    /// the row, which `read` reads from there on; null in the one row of a stretch in which nothing was found.
    pub(super) fn in_stretch(
        rows: &[Row],
        stretch: i64,
        read: impl Fn(&Row, usize) -> Result<T, StoreError>,
    ) -> Result<Self, StoreError> {
        let mut found = Self {
            rows: Vec::new(),
            seen_to: None,
        };
        for row in rows {
            if row.try_get::<_, i64>(0)? >= stretch {
                found.seen_to = row.try_get(1)?;
            }
            if row.try_get::<_, Option<Id>>(2)?.is_some() {
                found.rows.push(read(row, 2)?);
            }
        }
        Ok(found)
    }
}
