//! A test event for one endpoint, asked for by a person who waits for its answer.
//!
//! # Invariants
//! - D1: the event and its delivery commit together.
//! - S3: the endpoint is the tenant's.

use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use super::{StoreError, notices, notify};
use crate::domain::delivery::Kind;
use crate::ids::{TenantKey, new_v7};
use crate::store::endpoints::Endpoint;

/// The type of test events; reserved.
pub const EVENT_TYPE: &str = "postrider.test";

const NOW: &str = "SELECT clock_timestamp()";

/// An event with its one delivery.
const INSERT: &str = "
WITH ev AS (
  INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
  VALUES ($1, $2, $3, $4, ARRAY[$5::int8], ARRAY[$7::uuid]))
INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id, kind) VALUES ($6, $2, $5, $7, $1, $8)";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[("test_sends::now", NOW), ("test_sends::insert", INSERT)];

/// A test that is on its way.
#[derive(Debug, Clone, Copy)]
pub struct TestSend {
    /// The event.
    pub event: Uuid,
    /// Its delivery.
    pub delivery: Uuid,
}

/// Makes a test event for an endpoint, and hints at its owner.
///
/// # Errors
/// Any [`StoreError`]; after a transient one it may be sent all the same.
pub async fn publish(
    client: &mut Client,
    tenant: TenantKey,
    endpoint: &Endpoint,
    payload: &[u8],
) -> Result<TestSend, StoreError> {
    let transaction = client.transaction().await?;
    let sent = insert(&transaction, tenant, endpoint, payload).await?;
    transaction.commit().await?;
    let place = format!("{}:{}", endpoint.slot.0, endpoint.key.0);
    notify::hint(client, &place).await;
    Ok(sent)
}

async fn insert(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    endpoint: &Endpoint,
    payload: &[u8],
) -> Result<TestSend, StoreError> {
    let event_type = notices::own_type(transaction, tenant, EVENT_TYPE).await?;
    // Read when the type is there: an id is of the time of its insertion.
    let now = transaction.query_one(NOW, &[]).await?.try_get(0)?;
    let sent = TestSend {
        event: new_v7(now),
        delivery: new_v7(now),
    };
    let kind = Kind::Test.code();
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 8] = [
        &sent.event,
        &tenant.0,
        &event_type,
        &payload,
        &endpoint.key.0,
        &endpoint.slot.0,
        &sent.delivery,
        &kind,
    ];
    transaction.execute(INSERT, &params).await?;
    Ok(sent)
}
