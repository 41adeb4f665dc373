//! The batches of a removal: what a worker's job does, one at a time.

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::expunge::{close, expunge};
use super::statements::{
    DELETE_ATTEMPTS, DELETE_CLOSED, DELETE_DEAD_LETTERS, DELETE_ENDPOINTS, DELETE_EVENTS,
    DELETE_EVENTS_KEPT, DELETE_ORGANIZATION, DELETE_READY, DELETE_READY_ORDERED, DELETE_REPLAYED,
    DELETE_REST, DELETE_RETRY, DELETE_TENANT, LIVE_OF_ENDPOINT, MARK_TENANTS_OF, NEXT, SAVE,
    STOP_ENDPOINTS, WIPE_ENDPOINT,
};
use super::{Kind, Removal, read};
use crate::domain::delivery::CloseReason;
use crate::store::leases::{self, Lease};
use crate::store::{Session, StoreError};

/// Rows of a batch with payloads, and without.
pub(super) const PAYLOADS: i64 = 200;
const NARROW: i64 = 2_000;
/// How long whatever was under way when a removal began may still write, in seconds.
pub(super) const SETTLE_SECONDS: f64 = 60.0;

/// What a batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is due.
    Idle,
    /// A batch was done.
    Batch,
    /// The endpoints of a tenant were stopped: their owners should be told.
    Stopped,
}

/// What a walk does with a table, in order. A tenant's begins when its endpoints have stopped.
const TENANT_STEPS: [(&str, i64); 8] = [
    (DELETE_READY, NARROW),
    (DELETE_RETRY, NARROW),
    (DELETE_READY_ORDERED, NARROW),
    (DELETE_DEAD_LETTERS, NARROW),
    (DELETE_CLOSED, NARROW),
    (DELETE_EVENTS, PAYLOADS),
    (DELETE_EVENTS_KEPT, PAYLOADS),
    (DELETE_ATTEMPTS, PAYLOADS),
];

/// One batch of the removal that has waited longest.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is lost (D3); else those of the database.
pub async fn advance(session: &mut Session, lease: &Lease) -> Result<Progress, StoreError> {
    let transaction = session.transaction().await?;
    leases::still_mine(&transaction, lease).await?;
    let Some(row) = transaction.query_opt(NEXT, &[]).await? else {
        return Ok(Progress::Idle);
    };
    let removal = read(&row)?;
    let next = match removal.kind {
        Kind::Tenant => remove_tenant(&transaction, &removal).await?,
        Kind::Organization => remove_organization(&transaction, &removal).await?,
        Kind::Payloads | Kind::Payload => expunge(&transaction, &removal).await?,
        Kind::Endpoint => wipe_endpoint(&transaction, &removal).await?,
    };
    let params: [&(dyn ToSql + Sync); 6] = [
        &removal.key,
        &next.step,
        &next.after,
        &next.rows,
        &next.wait_seconds,
        &next.finished,
    ];
    transaction.execute(SAVE, &params).await?;
    transaction.commit().await?;
    Ok(if next.stopped {
        Progress::Stopped
    } else {
        Progress::Batch
    })
}

/// Where a removal stands after a batch.
#[derive(Default)]
pub(super) struct Next {
    pub(super) step: i16,
    pub(super) after: Uuid,
    pub(super) rows: i64,
    pub(super) wait_seconds: f64,
    pub(super) finished: bool,
    pub(super) stopped: bool,
}

/// Step 0 stops endpoints, then come the tables, the endpoints, the rest and the tenant.
async fn remove_tenant(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let tenant = removal.tenant.unwrap_or_default();
    let Some(table) = usize::try_from(removal.step)
        .ok()
        .and_then(|step| step.checked_sub(1))
    else {
        return stop_tenant(transaction, removal).await;
    };
    if let Some((statement, limit)) = TENANT_STEPS.get(table) {
        let params: [&(dyn ToSql + Sync); 3] = [&tenant, &removal.after, limit];
        let (last, rows) = batch(transaction, statement, &params).await?;
        return Ok(match last {
            Some(after) => Next {
                after,
                ..removal.stays(rows)
            },
            None => removal.moves_on(rows),
        });
    }
    let statement = match table - TENANT_STEPS.len() {
        0 => DELETE_REPLAYED,
        1 => DELETE_REST,
        2 => DELETE_ENDPOINTS,
        _ => return end_tenant(transaction, removal).await,
    };
    let row = transaction.query_one(statement, &[&tenant]).await?;
    Ok(match row.try_get(0)? {
        0 => removal.moves_on(0),
        rows => removal.stays(rows),
    })
}

async fn stop_tenant(transaction: &Transaction<'_>, removal: &Removal) -> Result<Next, StoreError> {
    let row = transaction
        .query_one(STOP_ENDPOINTS, &[&removal.tenant, &NARROW])
        .await?;
    let stopped: i64 = row.try_get(0)?;
    let next = if stopped == NARROW {
        removal.stays(0)
    } else {
        Next {
            wait_seconds: SETTLE_SECONDS,
            ..removal.moves_on(0)
        }
    };
    Ok(Next {
        stopped: stopped > 0,
        ..next
    })
}

async fn end_tenant(transaction: &Transaction<'_>, removal: &Removal) -> Result<Next, StoreError> {
    let gone = transaction
        .execute(DELETE_TENANT, &[&removal.tenant])
        .await?;
    Ok(if gone > 0 {
        Next {
            finished: true,
            ..removal.stays(1)
        }
    } else {
        // Something was written meanwhile: once more from the first table.
        Next {
            step: 1,
            wait_seconds: 1.0,
            ..Next::default()
        }
    })
}

async fn remove_organization(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let organization = removal.organization.unwrap_or_default();
    // A key that was still believed may have made another one.
    transaction
        .execute(MARK_TENANTS_OF, &[&organization])
        .await?;
    let row = transaction
        .query_one(DELETE_ORGANIZATION, &[&organization])
        .await?;
    let gone: i64 = row.try_get(0)?;
    Ok(Next {
        rows: gone,
        finished: gone > 0,
        wait_seconds: 1.0,
        ..Next::default()
    })
}

/// Whatever is under way is waited for; what its owner did not close, because a pause holds it back, is closed here.
async fn wipe_endpoint(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    if removal.step == 0 {
        return Ok(Next {
            wait_seconds: SETTLE_SECONDS,
            ..removal.moves_on(0)
        });
    }
    let live = transaction
        .query(LIVE_OF_ENDPOINT, &[&removal.object, &NARROW])
        .await?;
    if !live.is_empty() {
        let live: Vec<Uuid> = live
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?;
        let tenant = removal.tenant.unwrap_or_default();
        let closed = close(transaction, tenant, &live, CloseReason::EndpointDeleted).await?;
        return Ok(Next {
            // What is on the wire ends by itself.
            wait_seconds: 1.0,
            ..removal.stays(closed)
        });
    }
    let row = transaction
        .query_one(WIPE_ENDPOINT, &[&removal.object])
        .await?;
    Ok(Next {
        finished: true,
        ..removal.stays(row.try_get(0)?)
    })
}

/// The last id that a batch has walked over, if there was one, and how many rows it changed.
pub(super) async fn batch(
    transaction: &Transaction<'_>,
    statement: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<(Option<Uuid>, i64), StoreError> {
    let row = transaction.query_one(statement, params).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

impl Removal {
    /// The same step again.
    pub(super) fn stays(&self, rows: i64) -> Next {
        Next {
            step: self.step,
            after: self.after,
            rows,
            ..Next::default()
        }
    }

    /// The next step, from its beginning.
    pub(super) fn moves_on(&self, rows: i64) -> Next {
        Next {
            step: self.step.saturating_add(1),
            rows,
            ..Next::default()
        }
    }
}
