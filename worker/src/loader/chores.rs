//! Chores: what the scheduler asks the database to change, each fenced and answered.

use shared::ids::{Epoch, Incarnation, Slot, lower_bound, new_v7};
use shared::store::pool::within;
use shared::store::queue::{self, Statements};
use shared::store::{Session, StoreError, pauses, recovery};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{HISTORY, STATEMENT_BUDGET};
use crate::job::Ownership;
use crate::scheduler::{Chore, Close, Expire, Input, Park, Revive};

/// Does it; the answer for the scheduler. What is not ours any more (D3) is answered as done.
pub(super) async fn carry_out(
    session: &mut Session,
    sql: &Statements,
    chore: &Chore,
    now: OffsetDateTime,
) -> Result<Input, StoreError> {
    match chore {
        Chore::Close(it) => close(session, sql, it).await,
        Chore::Revive(it) => revive(session, it, now).await,
        Chore::Expire(it) => expire(session, it, now).await,
        Chore::Park(it) => park(session, it).await,
        Chore::FindOutages { slots, taken_at } => {
            let numbers: Vec<Slot> = slots.iter().map(|(slot, _)| *slot).collect();
            let finding = recovery::outages(session, &numbers, (now - HISTORY, *taken_at));
            let found = within(STATEMENT_BUDGET, finding).await?;
            Ok(Input::Outages {
                slots: slots.clone(),
                found: Some(found),
            })
        }
    }
}

/// What the scheduler is told when it could not be done.
pub(super) fn failure(chore: Chore) -> Input {
    match chore {
        Chore::Close(close) => closed(&close, true),
        Chore::Revive(revive) => revived(&revive, None),
        // The next sweep asks again.
        Chore::Expire(expire) => expired(&expire, false),
        Chore::Park(park) => parked(&park, false),
        Chore::FindOutages { slots, .. } => Input::Outages { slots, found: None },
    }
}

const fn fence(owner: Ownership) -> (Incarnation, Slot, Epoch) {
    (owner.incarnation, owner.slot, owner.epoch)
}

/// `None`: the slot is not ours any more.
fn if_ours<T>(result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(StoreError::NotOwner) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn close(session: &Session, sql: &Statements, it: &Close) -> Result<Input, StoreError> {
    let what = (it.endpoint, it.reason);
    let closing = queue::close(session, sql, fence(it.owner), what, &it.except);
    let done = if_ours(within(STATEMENT_BUDGET, closing).await)?;
    Ok(closed(it, done.is_some_and(|count| count > 0)))
}

async fn revive(
    session: &mut Session,
    it: &Revive,
    now: OffsetDateTime,
) -> Result<Input, StoreError> {
    let ids = std::iter::repeat_with(|| new_v7(now));
    let ids: Vec<Uuid> = ids.take(it.count).collect();
    let what = recovery::Revive {
        window: it.window,
        ids: &ids,
    };
    let reviving = recovery::revive(session, fence(it.owner), it.endpoint, what);
    let deliveries = if_ours(within(STATEMENT_BUDGET, reviving).await)?;
    Ok(revived(it, deliveries))
}

async fn expire(session: &Session, it: &Expire, now: OffsetDateTime) -> Result<Input, StoreError> {
    let age = (lower_bound(it.older_than), now);
    let expiring = queue::expire(session, fence(it.owner), it.endpoint, age, &it.except);
    let done = if_ours(within(STATEMENT_BUDGET, expiring).await)?;
    Ok(expired(it, done.is_some_and(|count| count > 0)))
}

async fn park(session: &Session, it: &Park) -> Result<Input, StoreError> {
    let whose = (it.tenant, it.endpoint);
    let parking = pauses::park(
        session,
        fence(it.owner),
        whose,
        &it.deliveries,
        it.look_again,
    );
    let done = if_ours(within(STATEMENT_BUDGET, parking).await)?;
    Ok(parked(it, done.is_some()))
}

const fn closed(close: &Close, more: bool) -> Input {
    Input::Closed {
        slot: close.owner.slot,
        epoch: close.owner.epoch,
        endpoint: close.endpoint,
        more,
    }
}

const fn revived(revive: &Revive, deliveries: Option<Vec<Uuid>>) -> Input {
    Input::Revived {
        slot: revive.owner.slot,
        epoch: revive.owner.epoch,
        endpoint: revive.endpoint,
        deliveries,
    }
}

const fn expired(expire: &Expire, more: bool) -> Input {
    Input::Expired {
        slot: expire.owner.slot,
        epoch: expire.owner.epoch,
        endpoint: expire.endpoint,
        more,
    }
}

const fn parked(park: &Park, done: bool) -> Input {
    Input::Parked {
        slot: park.owner.slot,
        epoch: park.owner.epoch,
        endpoint: park.endpoint,
        done,
    }
}
