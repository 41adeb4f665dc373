//! Loads of ordered endpoints: what the scheduler asks, in the store's words, and the store's answer in the
//! scheduler's. Pure; `tests/model` uses it as well.

use std::collections::HashMap;

use shared::domain::endpoint::OnDeadLetter;
use shared::domain::order::OrderKey;
use shared::ids::EndpointKey;
use shared::store::queue::{LineWant, Lines};
use time::OffsetDateTime;

use crate::endpoint_config::SharedConfig;
use crate::loader::live;
use crate::scheduler::{LoadRequest, LoadedEndpoint};

/// What to ask the store for, each with the position of its request. `configs`: those that were read for it.
#[must_use]
pub fn wants(
    requests: &[LoadRequest],
    configs: &HashMap<EndpointKey, SharedConfig>,
) -> (Vec<usize>, Vec<LineWant>) {
    let asked = requests.iter().enumerate().filter_map(|(index, request)| {
        let lines = request.lines.as_ref()?;
        let read = configs.get(&request.endpoint);
        let want = LineWant {
            slot: request.slot,
            endpoint: request.endpoint,
            block: read.map_or(lines.block, blocks),
            keys: lines.keys.clone(),
            due_limit: count(lines.due_limit),
            after: lines.after,
            limit: count(lines.limit),
            most_keys: count(lines.most_keys),
        };
        Some((index, want))
    });
    asked.unzip()
}

/// Whether a dead letter blocks its key.
#[must_use]
pub fn blocks(config: &SharedConfig) -> bool {
    match config.settings.on_dead_letter {
        OnDeadLetter::Block => true,
        OnDeadLetter::Release => false,
    }
}

/// Gives each request the heads that were found for it. `asked`: the positions of [`wants`].
pub fn hand_out(
    results: &mut [LoadedEndpoint],
    requests: &[LoadRequest],
    (asked, lines): (&[usize], Lines),
    now: OffsetDateTime,
) {
    let mut tried = vec![0_usize; requests.len()];
    for head in lines.heads {
        let position = asked.get(head.row.want).copied().unwrap_or(usize::MAX);
        let (Some(result), Some(tried)) = (results.get_mut(position), tried.get_mut(position))
        else {
            continue;
        };
        *tried += usize::from(head.row.due_at.is_some());
        result.rows.push(live(head.row, Some(head.key)));
    }
    let mut sooner = |position: usize, due: OffsetDateTime| {
        if let Some(result) = results.get_mut(position) {
            result.next_due = Some(result.next_due.map_or(due, |other| other.min(due)));
        }
    };
    for (want, due) in lines.next_due {
        sooner(asked.get(want).copied().unwrap_or(usize::MAX), due);
    }
    for ((position, request), tried) in requests.iter().enumerate().zip(tried) {
        let limit = request.lines.as_ref().map_or(0, |lines| lines.due_limit);
        if limit > 0 && tried >= limit {
            // All that were asked for are due: there may be more, due already.
            sooner(position, now);
        }
    }
    let walks = requests.iter().zip(results.iter_mut());
    for (request, result) in walks {
        let walked = request.lines.as_ref().filter(|lines| lines.limit > 0);
        result.walked = walked.map(|_| OrderKey::START);
    }
    for (want, cursor) in lines.cursors {
        let position = asked.get(want).copied().unwrap_or(usize::MAX);
        if let Some(result) = results.get_mut(position) {
            result.walked = Some(cursor);
        }
    }
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
