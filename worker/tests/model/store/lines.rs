//! What `queue::load_lines` of `shared::store` does: the lines of ordered endpoints, of which only heads go.

use std::collections::BTreeMap;

use shared::domain::order::OrderKey;
use shared::ids::EndpointKey;
use shared::store::queue::{Head, LineWant, Lines};
use time::OffsetDateTime;

use super::{Answer, Live, Store, answer_row};
use crate::check::Mutation;

impl Store {
    pub(super) fn lines(&self, wants: &[LineWant], due_by: OffsetDateTime) -> Answer {
        let mut lines = Lines::default();
        for (number, want) in wants.iter().enumerate() {
            let heads = self.heads(want.endpoint, due_by);
            let head = |row: &Live| {
                let (key, _) = row.order?;
                let row = answer_row(number, row, due_by);
                Some(Head { key, row })
            };
            let by_key = want.keys.iter().filter_map(|key| heads.get(key));
            let by_key = by_key.filter(|row| may_go(row, due_by));
            lines.heads.extend(by_key.filter_map(|row| head(row)));
            let mut tried: Vec<&Live> = heads
                .values()
                .filter(|row| row.due.is_some())
                .copied()
                .collect();
            tried.sort_by_key(|row| row.due);
            for row in tried.into_iter().take(count(want.due_limit)) {
                if may_go(row, due_by) {
                    lines.heads.extend(head(row));
                } else {
                    lines.next_due.extend(row.due.map(|due| (number, due)));
                }
            }
            let (mut found, mut walked, mut last) = (0, 0, None);
            let after = heads
                .range(want.after..)
                .filter(|(key, _)| **key > want.after);
            for (key, row) in after {
                if found >= want.limit || walked >= want.most_keys {
                    break;
                }
                (walked, last) = (walked + 1, Some(*key));
                if may_go(row, due_by) {
                    found += 1;
                    lines.heads.extend(head(row));
                }
            }
            let stopped = want.limit > 0 && (found >= want.limit || walked >= want.most_keys);
            lines
                .cursors
                .extend(last.filter(|_| stopped).map(|key| (number, key)));
        }
        Answer::Lines(lines)
    }

    /// The first row of each key.
    fn heads(&self, endpoint: EndpointKey, due_by: OffsetDateTime) -> BTreeMap<OrderKey, &Live> {
        let rows = self.live.values().filter(|row| row.endpoint == endpoint);
        let mut heads: BTreeMap<OrderKey, &Live> = BTreeMap::new();
        for row in rows {
            let Some((key, place)) = row.order else {
                continue;
            };
            // A retry that does not hold back those behind it.
            if self.mutation == Mutation::NotHeads && !may_go(row, due_by) {
                continue;
            }
            let head = heads.entry(key).or_insert(row);
            if head.order.is_some_and(|(_, first)| place < first) {
                *head = row;
            }
        }
        heads
    }
}

fn may_go(row: &Live, due_by: OffsetDateTime) -> bool {
    row.due.is_none_or(|due| due <= due_by)
}

fn count(limit: i64) -> usize {
    usize::try_from(limit).unwrap()
}
