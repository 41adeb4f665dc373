//! New deliveries of what a replay finds, as many as there is room for.

use std::time::Duration;

use tokio_postgres::Transaction;
use uuid::Uuid;

use super::super::again::{Again, Whose, hold_floor, make, not_taken};
use super::super::range;
use super::super::walk::{self, Found, Stretch, Walk};
use super::{Held, SOON, Statements, StoreError, Sums, pause};
use crate::domain::replay::NotReplayable;
use crate::policy::replay as policy;

/// Rows looked at in one turn, whatever is found.
const MOST_SEEN: usize = 2_000;
/// Rows looked at first. Each costs a look at its event, so a turn that may make a few looks at no more than it
/// finds them in; where little fits, it looks at so many times as many next.
const LEAST_SEEN: usize = 64;
const SEEN_GROWS: usize = 4;

/// Makes new deliveries, if there is room. Returns the pause until the next turn.
pub(super) async fn advance(
    transaction: &Transaction<'_>,
    sql: &Statements,
    held: &mut Held,
    sums: &mut Sums,
) -> Result<Duration, StoreError> {
    let taken = not_taken(held.state);
    // What cannot be sent is only counted, which costs nobody anything.
    let most = if taken.is_some() {
        policy::MOST_AT_ONCE
    } else if held.backlog_full {
        0
    } else {
        let room = policy::room(held.max_in_flight, sums.waiting, sums.outstanding);
        room.min(policy::allowance(
            held.per_second,
            held.paced_until,
            held.now,
        ))
    };
    if most == 0 {
        let paced = Duration::try_from(held.paced_until - held.now).unwrap_or_default();
        return Ok(pause(sums).max(paced).min(Duration::from_secs(60)));
    }
    let before = (held.phase, held.range.0);
    let items = find(transaction, sql, (most, taken), held, sums).await?;
    if items.is_empty() {
        return Ok(SOON);
    }
    let whose = Whose {
        tenant: held.tenant,
        endpoint: held.part.endpoint,
        replay: Some(held.part.replay),
    };
    let made = make(transaction, &sql.make, whose, &items, held.now).await?;
    if made.is_empty() {
        // The endpoint was disabled since this turn looked, or another replay took them all: look again.
        (held.phase, held.range.0) = before;
        (sums.found, sums.not_count) = (0, 0);
        sums.not.clear();
        return Ok(SOON);
    }
    // What another replay took meanwhile is that one's.
    sums.found -= items.len() - made.len();
    sums.made = made.len();
    sums.own += made.len();
    held.paced_until = policy::paced_until(held.per_second, held.paced_until, made.len(), held.now);
    Ok(SOON)
}

/// At most so many to be sent again, and moves the cursor behind them.
async fn find(
    transaction: &Transaction<'_>,
    sql: &Statements,
    (most, taken): (usize, Option<NotReplayable>),
    held: &mut Held,
    sums: &mut Sums,
) -> Result<Vec<Again>, StoreError> {
    let floor = hold_floor(transaction).await?;
    let phase = held.phase;
    let mut items = Vec::new();
    let (mut seen, mut rows) = (0, most.max(LEAST_SEEN));
    while items.len() < most && held.phase == phase && seen < MOST_SEEN {
        rows = rows.min(MOST_SEEN - seen);
        let walk = Walk {
            tenant: held.tenant,
            endpoint: held.part.endpoint,
            filter: &held.filter,
            range: held.range,
            event_types: &held.event_types,
            channels: &held.channels,
            floor,
            now: held.now,
            rows: i64::try_from(rows).unwrap_or(i64::MAX),
        };
        let stretch = if phase == 1 {
            walk::deliveries(transaction, &sql.walks, &walk).await?
        } else {
            walk::events(transaction, &sql.walks, &walk).await?
        };
        take(stretch, (most, taken), &mut items, held, sums);
        seen += rows;
        rows *= SEEN_GROWS;
    }
    Ok(in_order(items))
}

/// The first of what was found, and moves the cursor behind it.
fn take(
    stretch: Stretch,
    (most, taken): (usize, Option<NotReplayable>),
    items: &mut Vec<Again>,
    held: &mut Held,
    sums: &mut Sums,
) {
    let refuse = |sums: &mut Sums, reason, event| {
        sums.not_count += 1;
        let named = sums.not.entry(reason).or_default();
        named.push(event);
    };
    for (place, found) in stretch.found {
        if items.len() >= most {
            // The next turn begins with this one.
            held.range.0 = Uuid::from_u128(place.as_u128().saturating_sub(1));
            return;
        }
        sums.found += 1;
        match (found, taken) {
            (Found::Not(reason, event), _) => refuse(sums, reason, event),
            (Found::Again(again), Some(reason)) => refuse(sums, reason, again.event),
            (Found::Again(again), None) => items.push(again),
        }
    }
    match stretch.seen_to {
        Some(seen_to) => held.range.0 = seen_to,
        None if held.phase == 1 && held.filter.wants_events() => {
            held.phase = 2;
            held.range.0 = range(&held.filter, held.now).0;
        }
        None => held.phase = 3,
    }
}

/// Ids are nearly in the order in which events were accepted, but for clocks that differ; what has a place in an
/// order knows it.
fn in_order(mut items: Vec<Again>) -> Vec<Again> {
    if items.iter().any(|item| item.order.is_some()) {
        items.sort_by_key(|item| item.order.map(|(_key, place)| place));
    }
    items
}
