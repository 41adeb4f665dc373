//! Expunging: payloads, what receivers answered to them, and deliveries that still want to send them.
//!
//! A delivery of an event may be in any of five tables, and all that has to be done about one is done at once
//! ([`end`]). For all events of a tenant those tables are walked; the deliveries of one event are known.
//!
//! Everything is looked at twice, the second time when what was under way has ended: a request on the wire, a
//! replay that had found the payload, a copy to `events_kept` that had read it.

use futures_util::future::try_join_all;
use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::batches::{Next, PAYLOADS, SETTLE_SECONDS, batch};
use super::statements::{
    CLOSE, EMPTY_ATTEMPTS, EMPTY_EVENTS, EMPTY_EVENTS_KEPT, EMPTY_REPLIES, OF_EVENT, RECLASS,
    WALK_ATTEMPTS, WALK_DEAD_LETTERS, WALK_READY, WALK_READY_ORDERED, WALK_RETRY,
};
use super::{Kind, Removal};
use crate::domain::delivery::{CloseReason, DeadLetterClass};
use crate::store::StoreError;
use crate::store::deliveries::earliest_attempt;

/// Deliveries of a batch.
const DELIVERIES: i64 = 200;

#[derive(Clone, Copy)]
enum Step {
    /// Empties what is kept of the events themselves.
    Empty(&'static str),
    /// Ends the deliveries that this finds.
    End(&'static str),
}
use Step::{Empty, End};

/// Payloads first: nothing that is loaded after that is sent.
const OF_TENANT: &[Step] = &[
    Empty(EMPTY_EVENTS),
    Empty(EMPTY_EVENTS_KEPT),
    Empty(EMPTY_REPLIES),
    End(WALK_READY),
    End(WALK_RETRY),
    End(WALK_READY_ORDERED),
    End(WALK_DEAD_LETTERS),
    End(WALK_ATTEMPTS),
];
const OF_ONE: &[Step] = &[
    Empty(EMPTY_EVENTS),
    Empty(EMPTY_EVENTS_KEPT),
    Empty(EMPTY_REPLIES),
    End(OF_EVENT),
];
/// The first that is repeated: nobody writes payloads to `events` again.
const REPEATED_FROM: usize = 1;

fn steps(kind: Kind) -> &'static [Step] {
    if kind == Kind::Payload {
        OF_ONE
    } else {
        OF_TENANT
    }
}

/// The next batch of a removal of payloads.
pub(super) async fn expunge(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let steps = steps(removal.kind);
    let at = usize::try_from(removal.step).unwrap_or(usize::MAX);
    let step = match at.checked_sub(steps.len()) {
        None => steps.get(at),
        Some(again) => steps.get(again.saturating_add(REPEATED_FROM)),
    };
    let Some(step) = step else {
        return Ok(Next {
            finished: true,
            ..removal.stays(0)
        });
    };
    let (last, rows) = take(transaction, removal, *step).await?;
    Ok(match last {
        Some(after) => Next {
            after,
            ..removal.stays(rows)
        },
        None => Next {
            wait_seconds: if at + 1 == steps.len() {
                SETTLE_SECONDS
            } else {
                0.0
            },
            ..removal.moves_on(rows)
        },
    })
}

/// The payload of one event, in the transaction of the request.
pub(super) async fn empty_at_once(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<(), StoreError> {
    for step in OF_ONE {
        if let Empty(_) = step {
            take(transaction, removal, *step).await?;
        }
    }
    Ok(())
}

/// A batch: up to where it looked, and how many rows it changed.
async fn take(
    transaction: &Transaction<'_>,
    removal: &Removal,
    step: Step,
) -> Result<(Option<Uuid>, i64), StoreError> {
    let tenant = removal.tenant.unwrap_or_default();
    let (from, to) = events(removal);
    let limit = match step {
        Empty(_) => PAYLOADS,
        End(_) => DELIVERIES,
    };
    let params: [&(dyn ToSql + Sync); 5] = [&tenant, &removal.after, &limit, &from, &to];
    let statement = match step {
        Empty(statement) => return batch(transaction, statement, &params).await,
        End(statement) => statement,
    };
    let mut last = None;
    let mut deliveries = Vec::new();
    for row in transaction.query(statement, &params).await? {
        let delivery: Uuid = row.try_get(0)?;
        // Attempts of one delivery follow one another.
        if row.try_get(1)? && deliveries.last() != Some(&delivery) {
            deliveries.push(delivery);
        }
        last = Some(delivery);
    }
    Ok((last, end(transaction, tenant, &deliveries).await?))
}

/// The events whose payloads are expunged: from the first (included) to the second (excluded).
fn events(removal: &Removal) -> (Uuid, Uuid) {
    match (removal.kind, removal.before) {
        (Kind::Payload, _) => {
            let next = removal.object.as_u128().saturating_add(1);
            (removal.object, Uuid::from_u128(next))
        }
        (_, before) => (Uuid::nil(), before.unwrap_or(Uuid::nil())),
    }
}

/// Ends deliveries whose payload is gone, wherever they are, and forgets what was answered to them.
async fn end(
    transaction: &Transaction<'_>,
    tenant: i32,
    deliveries: &[Uuid],
) -> Result<i64, StoreError> {
    if deliveries.is_empty() {
        return Ok(0);
    }
    let closed = close(transaction, tenant, deliveries, CloseReason::Expunged).await?;
    let class = DeadLetterClass::Expired.code();
    let dead = transaction
        .execute(RECLASS, &[&tenant, &deliveries, &class])
        .await?;
    let empty = transaction.prepare(EMPTY_ATTEMPTS).await?;
    let emptied = deliveries.iter().map(async |delivery| {
        let since = earliest_attempt(*delivery);
        let params: [&(dyn ToSql + Sync); 3] = [&tenant, delivery, &since];
        transaction.execute(&empty, &params).await
    });
    let attempts: u64 = try_join_all(emptied).await?.into_iter().sum();
    Ok(closed + i64::try_from(dead + attempts).unwrap_or(0))
}

/// Closes those of these deliveries that live; how many.
pub(super) async fn close(
    transaction: &Transaction<'_>,
    tenant: i32,
    deliveries: &[Uuid],
    reason: CloseReason,
) -> Result<i64, StoreError> {
    let (status, code) = (reason.status().code(), reason.code());
    let row = transaction
        .query_one(CLOSE, &[&tenant, &deliveries, &status, &code])
        .await?;
    Ok(row.try_get(0)?)
}
