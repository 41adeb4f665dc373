//! The batches of a removal: what a worker's job does, one at a time.

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::statements::{
    CLOSE_READY, CLOSE_READY_ORDERED, CLOSE_RETRY, DELETE_ATTEMPTS, DELETE_CLOSED,
    DELETE_DEAD_LETTERS, DELETE_ENDPOINTS, DELETE_EVENTS, DELETE_EVENTS_KEPT, DELETE_ORGANIZATION,
    DELETE_READY, DELETE_READY_ORDERED, DELETE_REPLAYED, DELETE_REST, DELETE_RETRY, DELETE_TENANT,
    EMPTY_ATTEMPTS, EMPTY_EVENTS, EMPTY_EVENTS_KEPT, MARK_TENANTS_OF, NEXT, RECLASS_DEAD_LETTERS,
    SAVE, STOP_ENDPOINTS,
};
use super::{Kind, Removal, begin, read};
use crate::domain::delivery::{CloseReason, DeadLetterClass};
use crate::store::leases::{self, Lease};
use crate::store::{Session, StoreError};

/// Rows of a batch with payloads, and without.
const PAYLOADS: i64 = 200;
const NARROW: i64 = 2_000;
/// How long whatever was under way when a removal began may still write, in seconds.
const SETTLE_SECONDS: f64 = 60.0;

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

/// Which parameters a batch of an expunging walk has besides the first five.
#[derive(Clone, Copy)]
enum Batch {
    Close,
    Reclass,
    Empty,
}

/// Payloads first: nothing that is loaded after that is sent. The last three are repeated later, for what was on
/// the wire, or on its way to `events_kept` by a copy of retention that had read it before.
const EXPUNGE_STEPS: [(&str, Batch, i64); 10] = [
    (EMPTY_EVENTS, Batch::Empty, PAYLOADS),
    (EMPTY_EVENTS_KEPT, Batch::Empty, PAYLOADS),
    (CLOSE_READY, Batch::Close, NARROW),
    (CLOSE_RETRY, Batch::Close, NARROW),
    (CLOSE_READY_ORDERED, Batch::Close, NARROW),
    (RECLASS_DEAD_LETTERS, Batch::Reclass, NARROW),
    (EMPTY_ATTEMPTS, Batch::Empty, PAYLOADS),
    (EMPTY_EVENTS_KEPT, Batch::Empty, PAYLOADS),
    (RECLASS_DEAD_LETTERS, Batch::Reclass, NARROW),
    (EMPTY_ATTEMPTS, Batch::Empty, PAYLOADS),
];
/// How many of them empty payloads.
const PAYLOAD_STEPS: usize = 2;
/// The first that is a repetition.
const SECOND_LOOK: i16 = 7;

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
        Kind::Payloads | Kind::Payload => expunge_next(&transaction, &removal).await?,
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
struct Next {
    step: i16,
    after: Uuid,
    rows: i64,
    wait_seconds: f64,
    finished: bool,
    stopped: bool,
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

async fn expunge_next(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let step = usize::try_from(removal.step).unwrap_or(usize::MAX);
    let Some((statement, kind, limit)) = EXPUNGE_STEPS.get(step) else {
        return Ok(Next {
            step: removal.step,
            finished: true,
            ..Next::default()
        });
    };
    let (last, rows) = expunge(transaction, removal, (statement, *kind), *limit).await?;
    Ok(match last {
        Some(after) => Next {
            step: removal.step,
            after,
            rows,
            ..Next::default()
        },
        None => Next {
            step: removal.step + 1,
            after: removal.first(),
            rows,
            wait_seconds: if removal.step + 1 == SECOND_LOOK {
                SETTLE_SECONDS
            } else {
                0.0
            },
            ..Next::default()
        },
    })
}

/// The payload of one event, in the transaction of the request.
pub(super) async fn expunge_at_once(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<(), StoreError> {
    for (statement, batch, limit) in EXPUNGE_STEPS.into_iter().take(PAYLOAD_STEPS) {
        expunge(transaction, removal, (statement, batch), limit).await?;
    }
    Ok(())
}

async fn expunge(
    transaction: &Transaction<'_>,
    removal: &Removal,
    (statement, kind): (&str, Batch),
    limit: i64,
) -> Result<(Option<Uuid>, i64), StoreError> {
    let tenant = removal.tenant.unwrap_or_default();
    let (from, to) = removal.events();
    let reason = CloseReason::Expunged;
    let (status, code) = (reason.status().code(), reason.code());
    let class = DeadLetterClass::Expired.code();
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&tenant, &removal.after, &limit, &from, &to];
    match kind {
        Batch::Close => params.extend([&status as &(dyn ToSql + Sync), &code]),
        Batch::Reclass => params.push(&class),
        Batch::Empty => {}
    }
    batch(transaction, statement, &params).await
}

/// The last id that a batch has walked over, if there was one, and how many rows it changed.
async fn batch(
    transaction: &Transaction<'_>,
    statement: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<(Option<Uuid>, i64), StoreError> {
    let row = transaction.query_one(statement, params).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

impl Removal {
    /// The same step again.
    fn stays(&self, rows: i64) -> Next {
        Next {
            step: self.step,
            after: self.after,
            rows,
            ..Next::default()
        }
    }

    /// The next step, from its beginning.
    fn moves_on(&self, rows: i64) -> Next {
        Next {
            step: self.step.saturating_add(1),
            rows,
            ..Next::default()
        }
    }

    /// The events whose payloads are expunged: from the first (included) to the second (excluded).
    fn events(&self) -> (Uuid, Uuid) {
        match (self.kind, self.before) {
            (Kind::Payload, _) => {
                let next = self.object.as_u128().saturating_add(1);
                (self.object, Uuid::from_u128(next))
            }
            (_, before) => (Uuid::nil(), before.unwrap_or(Uuid::nil())),
        }
    }

    /// Where a walk begins: no delivery is older than its event.
    fn first(&self) -> Uuid {
        begin(self.kind, self.object)
    }
}
