//! Whether the database can take a write, found out by preparing to make one.

use time::OffsetDateTime;
use tokio_postgres::GenericClient;

use super::StoreError;

/// A transaction id is given only by a server that can write: not in recovery, not out of ids.
const WRITE_ROUND_TRIP: &str = "SELECT clock_timestamp(), pg_current_xact_id()::text, current_setting('transaction_read_only')";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[("health.write_round_trip", WRITE_ROUND_TRIP)];

/// The database's time, if it can write.
///
/// # Errors
/// [`StoreError::Unavailable`] when it is away or read-only.
pub async fn write_round_trip(client: &impl GenericClient) -> Result<OffsetDateTime, StoreError> {
    let row = client.query_one(WRITE_ROUND_TRIP, &[]).await?;
    let read_only: String = row.try_get(2)?;
    if read_only == "on" {
        return Err(StoreError::Unavailable("it is read-only".to_owned()));
    }
    Ok(row.try_get(0)?)
}
