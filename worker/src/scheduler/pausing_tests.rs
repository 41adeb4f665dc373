//! What an operator holds back: nothing of it is sent, the others go on, and all of it comes back.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks at one kind of effect"
)]

use std::sync::Arc;

use shared::domain::endpoint::EndpointState;
use shared::domain::order::OrderKey;
use shared::domain::pause::Pause;

use super::tests::{Bench, ENDPOINT, EPOCH, SLOT, TENANT, failed, id, row, sent};
use super::*;
use crate::job::EventData;

const NOBODY: [Uuid; 0] = [];

impl Bench {
    /// From now on this is held back, for so long.
    fn pause(&mut self, what: &[(Option<TenantKey>, Option<&str>)], length: Duration) {
        let until = self.now().database + length;
        let pause = |(tenant, event_type): &(Option<TenantKey>, Option<&str>)| Pause {
            id: 1,
            tenant: *tenant,
            event_type: event_type.map(str::to_owned),
            until,
        };
        self.tell(Input::Pauses(Pauses(what.iter().map(pause).collect())));
    }

    fn parked(&mut self, done: bool) {
        self.tell(Input::Parked {
            slot: SLOT,
            epoch: EPOCH,
            endpoint: ENDPOINT,
            done,
        });
    }
}

fn of_type(event_type: &str, row: LiveRow) -> LiveRow {
    let event = row.event.as_ref().map(|event| {
        Arc::new(EventData {
            event_type: event_type.to_owned(),
            payload: event.payload.clone(),
            deliver_before: None,
            trace: None,
        })
    });
    LiveRow { event, ..row }
}

/// Which deliveries are put aside.
fn put_aside(effects: &[Effect]) -> Vec<Uuid> {
    let parks = effects.iter().filter_map(|effect| match effect {
        Effect::Chore(Chore::Park(park)) => {
            assert_eq!(park.tenant, TENANT);
            Some(park.deliveries.clone())
        }
        _ => None,
    });
    parks.flatten().collect()
}

fn asks_for_rows(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Load(_)))
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn nothing_of_a_paused_tenant_is_sent_or_kept_in_memory_until_its_pause_ends_by_itself() {
    let mut bench = Bench::new();
    bench.pause(&[(Some(TENANT), None)], HOUR);

    let paused = bench.load(vec![row(id(1))]);
    assert_eq!((sent(&paused), put_aside(&paused)), (vec![], vec![]));
    assert_eq!(bench.scheduler.loaded_rows, 0);
    bench.wait(HOUR / 2);
    bench.renew();
    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    assert!(
        !asks_for_rows(&bench.effects()),
        "nothing is loaded meanwhile"
    );

    bench.wait(HOUR / 2);
    bench.renew();
    bench.tell(Input::Tick);
    let request = bench.asked();
    bench.answer(&request, vec![row(id(1))], EndpointState::Enabled);
    assert_eq!(sent(&bench.effects()), [id(1)]);
}

#[test]
fn a_pause_reaches_what_is_in_memory_and_ending_it_brings_all_back() {
    let mut bench = Bench::with_permits(1);
    assert_eq!(sent(&bench.load(vec![row(id(1)), row(id(2))])), [id(1)]);

    bench.pause(&[(Some(TENANT), None)], HOUR);
    bench.record(id(1), None);
    assert_eq!(sent(&bench.effects()), NOBODY);
    assert_eq!(bench.scheduler.loaded_rows, 0);

    bench.pause(&[], HOUR);
    let request = bench.asked();
    bench.answer(&request, vec![row(id(2))], EndpointState::Enabled);
    assert_eq!(sent(&bench.effects()), [id(2)]);
}

#[test]
fn another_tenants_pause_holds_nothing_back() {
    let mut bench = Bench::new();
    let other = Some(TenantKey(TENANT.0 + 1));
    bench.pause(&[(other, None), (other, Some("order.*"))], HOUR);

    assert_eq!(sent(&bench.load(vec![row(id(1))])), [id(1)]);
}

#[test]
fn rows_of_a_paused_type_are_put_aside_and_those_among_them_are_sent() {
    let mut bench = Bench::new();
    bench.pause(&[(None, Some("report.*"))], HOUR);

    let rows = vec![
        of_type("report.made", row(id(1))),
        row(id(2)),
        of_type("report.sent", failed(id(3))),
    ];
    let effects = bench.load(rows);

    assert_eq!(sent(&effects), [id(2)]);
    assert_eq!(put_aside(&effects), [id(1), id(3)]);
    assert_eq!(
        (bench.scheduler.loaded_rows, bench.scheduler.sent()),
        (0, 1)
    );
}

#[test]
fn nothing_is_loaded_while_rows_are_on_their_way_aside() {
    let mut bench = Bench::new();
    bench.pause(&[(None, Some("report.*"))], HOUR);
    bench.load(vec![of_type("report.made", row(id(1)))]);

    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    assert!(!asks_for_rows(&bench.effects()));

    bench.parked(true);
    let request = bench.asked();
    bench.answer(&request, vec![row(id(2))], EndpointState::Enabled);
    assert_eq!(sent(&bench.effects()), [id(2)]);
}

#[test]
fn what_could_not_be_put_aside_is_met_again() {
    let mut bench = Bench::new();
    bench.pause(&[(None, Some("report.*"))], HOUR);
    let report = of_type("report.made", row(id(1)));
    bench.load(vec![report.clone()]);

    bench.parked(false);
    let request = bench.asked();
    bench.answer(&request, vec![report], EndpointState::Enabled);

    assert_eq!(request.cursor, Uuid::nil());
    assert_eq!(put_aside(&bench.effects()), [id(1)]);
}

#[test]
fn a_type_that_is_paused_while_its_rows_are_in_memory_is_not_sent_from_there() {
    let mut bench = Bench::with_permits(1);
    let rows = vec![row(id(1)), row(id(2))];
    assert_eq!(sent(&bench.load(rows)), [id(1)]);

    bench.pause(&[(Some(TENANT), Some("order.created"))], HOUR);
    bench.record(id(1), None);
    let request = bench.asked();
    bench.answer(&request, vec![row(id(2))], EndpointState::Enabled);
    let effects = bench.effects();

    assert_eq!((sent(&effects), put_aside(&effects)), (vec![], vec![id(2)]));
}

#[test]
fn the_head_of_a_line_keeps_its_place_and_is_looked_at_again() {
    let mut bench = Bench::new();
    bench.pause(&[(None, Some("order.created"))], HOUR);
    let head = LiveRow {
        order: Some(OrderKey(5)),
        ..row(id(1))
    };
    let effects = bench.load(vec![head]);
    assert_eq!(put_aside(&effects), [id(1)]);

    bench.parked(true);
    let due = bench.scheduler.next_due();

    assert_eq!(due, Some(bench.now().database + pausing::LOOK_AGAIN));
}
