//! Everything that lies sealed in the database, to be sealed anew under another master key.
//!
//! A walk over each column in the order of its rows, a bounded number at a time; it may be stopped, run
//! again and run twice at once. Not here: what seals ([`crate::sealing`]).
//!
//! # Invariants
//! - A value is replaced only if it still is what was read: a change by the API meanwhile wins.
//! - One row is locked at a time, each in a transaction of its own: no deadlock with anybody.
//! - S2: what is opened is sealed again at once and goes nowhere else.

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::StoreError;
use crate::ids::EndpointId;
use crate::sealing::{MasterKeys, SealedWith};

/// Rows that are looked at in one step.
pub const BATCH: i64 = 500;

/// A column whose values are sealed.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// `table.column`.
    pub name: &'static str,
    /// What its values are sealed for: this, a colon, and the endpoint's public id.
    context: &'static str,
    read: &'static str,
    replace: &'static str,
    count: &'static str,
}

/// By the primary keys of both tables. Rows without a value come too, so that a step is bounded.
macro_rules! read {
    ($table:literal, $column:literal, $endpoint:literal) => {
        concat!(
            "SELECT t.id, t.sealed, e.public_id FROM (SELECT id, ",
            $endpoint,
            " AS endpoint, ",
            $column,
            " AS sealed FROM ",
            $table,
            " WHERE id > $1 ORDER BY id LIMIT $2) t LEFT JOIN endpoints e ON e.id = t.endpoint ORDER BY t.id"
        )
    };
}

/// By the primary key, whose row it locks.
macro_rules! replace {
    ($table:literal, $column:literal) => {
        concat!(
            "UPDATE ",
            $table,
            " SET ",
            $column,
            " = $3 WHERE id = $1 AND ",
            $column,
            " = $2"
        )
    };
}

/// Reads a whole table of configuration. Five bytes are [`crate::sealing::HEAD_BYTES`].
macro_rules! count {
    ($table:literal, $column:literal) => {
        concat!(
            "SELECT substring(",
            $column,
            " FROM 1 FOR 5), count(*) FROM ",
            $table,
            " WHERE ",
            $column,
            " IS NOT NULL GROUP BY 1"
        )
    };
}

macro_rules! columns {
    ($(($table:literal, $column:literal, $endpoint:literal, $context:literal)),+ $(,)?) => {
        /// All there are; a test compares them with the schema.
        pub const COLUMNS: &[Column] = &[$(Column {
            name: concat!($table, ".", $column),
            context: $context,
            read: read!($table, $column, $endpoint),
            replace: replace!($table, $column),
            count: count!($table, $column),
        }),+];

        /// Every statement here, for the test that prepares them.
        pub const STATEMENTS: &[(&str, &str)] = &[$(
            (concat!("sealed.read_", $table, "_", $column), read!($table, $column, $endpoint)),
            (concat!("sealed.replace_", $table, "_", $column), replace!($table, $column)),
            (concat!("sealed.count_", $table, "_", $column), count!($table, $column)),
        )+];
    };
}

// Table, column, the column that names the endpoint, the context of the seal.
columns![
    ("endpoint_secrets", "sealed", "endpoint_id", "secret"),
    ("endpoint_key_pairs", "sealed", "endpoint_id", "key_pair"),
    ("endpoints", "sealed_headers", "id", "headers"),
    (
        "endpoints",
        "sealed_client_certificate",
        "id",
        "client_certificate"
    ),
];

/// How many values of a column need which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sealed with the current key.
    pub current: i64,
    /// Sealed with the previous one: to be done.
    pub previous: i64,
    /// Sealed with another one: nobody here can open them.
    pub other: i64,
}

/// A value that cannot be sealed anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Whose it is, if that is known.
    pub endpoint: Option<EndpointId>,
    /// Why, and what to do.
    pub why: String,
}

/// What one step did.
#[derive(Debug, Default)]
pub struct Step {
    /// Where the next one begins; `None`: this was the last.
    pub next: Option<i64>,
    /// Values that are now sealed with the current key.
    pub resealed: u64,
    /// Those that could not be opened.
    pub failed: Vec<Failed>,
}

/// Seals anew what needs it among the [`BATCH`] rows after this one; 0 is the beginning.
///
/// # Errors
/// Any [`StoreError`]; what was done stays done.
pub async fn reseal(
    client: &Client,
    keys: &MasterKeys,
    column: &Column,
    after: i64,
) -> Result<Step, StoreError> {
    let rows = client.query(column.read, &[&after, &BATCH]).await?;
    let mut step = Step::default();
    if let Some(last) = rows.last()
        && i64::try_from(rows.len()).is_ok_and(|count| count >= BATCH)
    {
        step.next = Some(last.try_get(0)?);
    }
    let mut changes = Vec::new();
    for row in &rows {
        match anew(keys, column, row)? {
            Ok(Some(change)) => changes.push(change),
            Ok(None) => {}
            Err(failed) => step.failed.push(failed),
        }
    }
    // Sent at once and carried out one after the other, each in a transaction of its own.
    let replacing = changes.iter().map(|change| async move {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&change.id, &change.old, &change.new];
        client.execute(column.replace, &params).await
    });
    step.resealed = try_join_all(replacing).await?.into_iter().sum();
    Ok(step)
}

/// How many values of a column need which key.
///
/// # Errors
/// Any [`StoreError`].
pub async fn count(
    client: &Client,
    keys: &MasterKeys,
    column: &Column,
) -> Result<Counts, StoreError> {
    let mut counts = Counts::default();
    for row in client.query(column.count, &[]).await? {
        let (head, count): (Vec<u8>, i64) = (row.try_get(0)?, row.try_get(1)?);
        match keys.sealed_with(&head) {
            SealedWith::Current => counts.current += count,
            SealedWith::Previous => counts.previous += count,
            SealedWith::Other => counts.other += count,
        }
    }
    Ok(counts)
}

struct Change<'a> {
    id: i64,
    old: &'a [u8],
    new: Vec<u8>,
}

fn anew<'a>(
    keys: &MasterKeys,
    column: &Column,
    row: &'a Row,
) -> Result<Result<Option<Change<'a>>, Failed>, StoreError> {
    let Some(old) = row.try_get::<_, Option<&[u8]>>(1)? else {
        return Ok(Ok(None));
    };
    let id = row.try_get(0)?;
    let Some(endpoint) = row.try_get::<_, Option<Uuid>>(2)? else {
        let why = format!("row {id} belongs to no endpoint: delete it");
        let failed = Failed {
            endpoint: None,
            why,
        };
        return Ok(Err(failed));
    };
    let context = format!("{}:{endpoint}", column.context);
    let resealed = keys.reseal(old, &context);
    let change = |new| Change { id, old, new };
    Ok(resealed.map(|new| new.map(change)).map_err(|error| Failed {
        endpoint: Some(EndpointId(endpoint)),
        why: error.to_string(),
    }))
}
