//! Ids of what people change: stamped by the database's clock, which is asked each time. A host's own clock may be set
//! while it works, and then lists would be in another order than that in which things happened.

use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::StoreError;
use crate::ids::new_v7;

const NOW: &str = "SELECT clock_timestamp()";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[("new_id.now", NOW)];

/// A new UUIDv7.
///
/// # Errors
/// As any statement.
pub(super) async fn new_id(client: &impl GenericClient) -> Result<Uuid, StoreError> {
    Ok(new_v7(client.query_one(NOW, &[]).await?.try_get(0)?))
}
