//! Who gets which of the rows that were loaded: pure, so that `tests/model` answers with it as well.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use shared::domain::attempt::Outcome;
use shared::domain::order::OrderKey;
use shared::ids::EndpointKey;
use shared::store::queue::{Row, Want};
use time::OffsetDateTime;

use crate::endpoint_config::SharedConfig;
use crate::job::{EventData, LiveRow};
use crate::scheduler::{LoadRequest, LoadedEndpoint};

/// What was read beside rows.
#[derive(Debug, Default)]
pub struct Known {
    /// Of endpoints whose configuration was asked for.
    pub configs: HashMap<EndpointKey, SharedConfig>,
    /// Of endpoints whose last attempts were.
    pub history: HashMap<EndpointKey, Vec<(Outcome, OffsetDateTime)>>,
}

/// Gives each request its rows and what is known of its endpoint. Pure; `tests/model` answers with it as
/// well. Rows say which of [`wants`] they answer.
#[must_use]
pub fn answers(
    requests: &[LoadRequest],
    mut known: Known,
    (ready, retry): (Vec<Row>, Vec<Row>),
    now: OffsetDateTime,
) -> Vec<LoadedEndpoint> {
    let mut results: Vec<LoadedEndpoint> = requests
        .iter()
        .map(|request| LoadedEndpoint {
            slot: request.slot,
            epoch: request.epoch,
            endpoint: request.endpoint,
            rows: Vec::new(),
            more_ready: false,
            fresh: Vec::new(),
            more_fresh: false,
            walked: None,
            retries_read: request.retry_limit > 0,
            next_due: None,
            config: known.configs.remove(&request.endpoint),
            history: known.history.remove(&request.endpoint),
        })
        .collect();
    hand_out_retries(&mut results, requests, retry, now);
    hand_out_ready(&mut results, requests, ready);
    results
}

/// What to ask the store for: one entry per request, in their order, then those for what came in since an
/// outage ended.
#[must_use]
pub fn wants(requests: &[LoadRequest]) -> Vec<Want> {
    let fresh = requests.iter().filter_map(|request| {
        let (cursor, limit) = request.fresh?;
        Some(Want {
            slot: request.slot,
            endpoint: request.endpoint,
            cursor,
            ready_limit: rows(limit),
            retry_limit: 0,
        })
    });
    requests.iter().map(want).chain(fresh).collect()
}

fn rows(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn want(request: &LoadRequest) -> Want {
    Want {
        slot: request.slot,
        endpoint: request.endpoint,
        cursor: request.cursor,
        ready_limit: rows(request.ready_limit),
        retry_limit: rows(request.retry_limit),
    }
}

fn hand_out_ready(results: &mut [LoadedEndpoint], requests: &[LoadRequest], rows: Vec<Row>) {
    let with_fresh: Vec<usize> = (0..requests.len())
        .filter(|index| requests.get(*index).is_some_and(|it| it.fresh.is_some()))
        .collect();
    let mut counts = vec![(0_usize, 0_usize); requests.len()];
    for row in rows {
        let fresh = row
            .want
            .checked_sub(requests.len())
            .and_then(|index| with_fresh.get(index));
        let index = fresh.copied().unwrap_or(row.want);
        let (Some(result), Some(count)) = (results.get_mut(index), counts.get_mut(index)) else {
            continue;
        };
        if fresh.is_some() {
            count.1 += 1;
            result.fresh.push(live(row, None));
        } else {
            count.0 += 1;
            result.rows.push(live(row, None));
        }
    }
    for ((result, request), (count, fresh)) in results.iter_mut().zip(requests).zip(counts) {
        result.more_ready = request.ready_limit > 0 && count >= request.ready_limit;
        result.more_fresh = request.fresh.is_some_and(|(_, limit)| fresh >= limit);
    }
}

fn hand_out_retries(
    results: &mut [LoadedEndpoint],
    requests: &[LoadRequest],
    rows: Vec<Row>,
    now: OffsetDateTime,
) {
    let mut counts = vec![0_usize; requests.len()];
    for row in rows {
        let (Some(result), Some(count)) = (results.get_mut(row.want), counts.get_mut(row.want))
        else {
            continue;
        };
        match row.due_at {
            Some(due) if due > now => result.next_due = result.next_due.or(Some(due)),
            Some(_) | None => {
                *count += 1;
                result.rows.push(live(row, None));
            }
        }
    }
    for ((result, request), count) in results.iter_mut().zip(requests).zip(counts) {
        if request.retry_limit > 0 && count >= request.retry_limit {
            // All that were asked for are due: there may be more, due already.
            result.next_due = Some(now);
        }
    }
}

/// A row as it travels through the worker; `order`: in whose line it stands.
pub(crate) fn live(row: Row, order: Option<OrderKey>) -> LiveRow {
    let trace = row.trace;
    let event = row.event.map(|(event_type, payload, deliver_before)| {
        Arc::new(EventData {
            event_type,
            payload: Bytes::from(payload),
            deliver_before,
            trace,
        })
    });
    LiveRow {
        id: row.id,
        event_id: row.event_id,
        tenant: row.tenant,
        attempts_made: row.attempts_made,
        attempts_charged: row.attempts_charged,
        kind: row.kind,
        due_at: row.due_at,
        first_at: row.first_at,
        order,
        event,
    }
}
