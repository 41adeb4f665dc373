//! What an ordered endpoint promises, looked at whenever a request starts.

use std::collections::BTreeMap;

use shared::domain::order::OrderKey;
use shared::ids::EndpointKey;
use worker::job::Job;

use crate::check::Invariant;
use crate::store::short;
use crate::world::World;

/// How far each key came: the place of the last row of it whose request started.
pub(crate) type Furthest = BTreeMap<(EndpointKey, OrderKey), i64>;

/// Which endpoints are ordered.
pub(crate) const fn is_ordered(key: EndpointKey) -> bool {
    key.0 % 3 == 2
}

impl World {
    /// A request starts only when nothing that was accepted after it has gone, and nothing of its key is on
    /// the wire. So after a crash the last request of a key may be repeated, and nothing else.
    pub(crate) fn check_order(&mut self, job: &Job) {
        let id = job.row.id;
        let Some((key, place)) = self.store.places.get(&id).copied() else {
            return;
        };
        self.counts.in_line += 1;
        assert_eq!(job.row.order, Some(key), "the line that it was accepted in");
        let endpoint = job.endpoint.key;
        let furthest = self.furthest.entry((endpoint, key)).or_insert(place);
        if *furthest > place {
            let text = format!(
                "{} goes at {place} of {key:?}, which came to {furthest}",
                short(id)
            );
            self.violated(Invariant::Order, text);
            return;
        }
        *furthest = place;
        let same_key = |other: &uuid::Uuid| {
            self.store
                .places
                .get(other)
                .is_some_and(|(other, _)| *other == key)
        };
        // What a stale owner has on the wire is what may be repeated.
        let together = self.flights.iter().find(|((other, ..), flight)| {
            flight.endpoint == endpoint && self.store.owns(flight.owner) && same_key(other)
        });
        if let Some(((other, ..), _)) = together {
            let text = format!("{} and {} of {key:?} at once", short(id), short(*other));
            self.violated(Invariant::Order, text);
        }
    }
}
