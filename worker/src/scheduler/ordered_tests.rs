//! The rules of lines: one row of a key at a time, and no key forgotten.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks at one kind of effect"
)]

use std::sync::Arc;

use shared::domain::endpoint::{EndpointState, OnDeadLetter};
use shared::domain::order::OrderKey;
use uuid::Uuid;

use super::tests::{Bench, ENDPOINT, EPOCH, SLOT, TENANT, config, failed, id, row, sent};
use super::*;

fn in_line(key: i64, id: Uuid) -> LiveRow {
    LiveRow {
        order: Some(OrderKey(key)),
        ..row(id)
    }
}

/// What an ordered endpoint answers.
struct Answer {
    rows: Vec<LiveRow>,
    walked: Option<OrderKey>,
    next_due: Option<OffsetDateTime>,
}

fn to_the_end(rows: Vec<LiveRow>) -> Answer {
    Answer {
        rows,
        walked: Some(OrderKey::START),
        next_due: None,
    }
}

impl Bench {
    fn hint_lines(&mut self) {
        self.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    }

    fn scan_finds_lines(&mut self) {
        self.tell(Input::Scanned {
            slots: vec![(SLOT, EPOCH)],
            found: vec![Found {
                slot: SLOT,
                endpoint: ENDPOINT,
                tenant: TENANT,
                ready: false,
                next_due: None,
                awake: false,
                lines: true,
            }],
            took: Duration::ZERO,
        });
    }

    fn answer_lines(&mut self, request: &LoadRequest, answer: Answer) {
        let config = request.config.then(|| {
            let mut config = config(ENDPOINT, EndpointState::Enabled);
            config.ordered = true;
            config.settings.on_dead_letter = OnDeadLetter::Block;
            Arc::new(config)
        });
        self.tell(Input::Loaded(vec![LoadedEndpoint {
            slot: SLOT,
            epoch: EPOCH,
            endpoint: ENDPOINT,
            rows: answer.rows,
            more_ready: false,
            fresh: Vec::new(),
            more_fresh: false,
            walked: answer.walked,
            retries_read: request.retry_limit > 0,
            next_due: answer.next_due,
            config,
            history: request.history.then(Vec::new),
        }]));
    }

    /// Hints, and answers the load that follows; what is sent then.
    fn load_lines(&mut self, rows: Vec<LiveRow>) -> Vec<Uuid> {
        self.hint_lines();
        let request = self.asked();
        self.answer_lines(&request, to_the_end(rows));
        let effects = self.effects();
        assert!(loads(&effects).is_empty());
        sent(&effects)
    }
}

fn loads(effects: &[Effect]) -> Vec<LoadRequest> {
    let loads = effects.iter().filter_map(|effect| match effect {
        Effect::Load(requests) => Some(requests.clone()),
        _ => None,
    });
    loads.flatten().collect()
}

fn keys(request: &LoadRequest) -> &[OrderKey] {
    request
        .lines
        .as_ref()
        .map(|lines| lines.keys.as_slice())
        .unwrap_or_default()
}

#[test]
fn two_rows_of_a_key_are_never_out_at_once_and_the_next_is_asked_for_by_its_key() {
    let mut bench = Bench::new();

    // The second of key 5 became its head by a record that is not acknowledged yet.
    let first = bench.load_lines(vec![
        in_line(5, id(1)),
        in_line(5, id(2)),
        in_line(6, id(3)),
    ]);
    bench.record(id(1), None);
    let request = bench.asked();
    bench.answer_lines(
        &request,
        Answer {
            walked: None,
            ..to_the_end(vec![in_line(5, id(2))])
        },
    );

    assert_eq!(first, [id(1), id(3)]);
    assert_eq!(keys(&request), [OrderKey(5)]);
    let lines = request.lines.unwrap();
    assert_eq!(
        (lines.limit, lines.due_limit),
        (0, 0),
        "nothing else is owed"
    );
    assert!(lines.block);
    assert_eq!(sent(&bench.effects()), [id(2)]);
}

#[test]
fn a_retry_holds_back_its_key_and_comes_back_when_it_is_due() {
    let mut bench = Bench::new();
    bench.load_lines(vec![in_line(5, id(1)), in_line(6, id(2))]);
    let due = bench.now().database + Duration::from_secs(30);

    bench.record(id(1), Some(due));
    let meanwhile = bench.effects();
    bench.record(id(2), None);
    let request = bench.asked();
    bench.answer_lines(
        &request,
        Answer {
            walked: None,
            ..to_the_end(vec![])
        },
    );
    bench.wait(Duration::from_secs(31));
    bench.renew();
    bench.tell(Input::Tick);
    let again = bench.asked();

    assert!(loads(&meanwhile).is_empty(), "its key is not asked for");
    assert_eq!(keys(&request), [OrderKey(6)]);
    assert!(again.lines.as_ref().unwrap().due_limit > 0);
    let tried = LiveRow {
        order: Some(OrderKey(5)),
        ..failed(id(1))
    };
    bench.answer_lines(
        &again,
        Answer {
            walked: None,
            ..to_the_end(vec![tried])
        },
    );
    assert_eq!(sent(&bench.effects()), [id(1)]);
}

#[test]
fn a_head_that_a_load_saw_before_its_record_is_not_sent_again() {
    let mut bench = Bench::new();
    bench.load_lines(vec![in_line(5, id(1))]);

    bench.hint_lines();
    let request = bench.asked();
    bench.record(id(1), None);
    // Its snapshot is older than the record.
    bench.answer_lines(&request, to_the_end(vec![in_line(5, id(1))]));
    let effects = bench.effects();

    assert!(sent(&effects).is_empty());
    assert_eq!(keys(loads(&effects).first().unwrap()), [OrderKey(5)]);
}

#[test]
fn a_walk_goes_on_from_where_it_stopped_and_begins_anew_for_what_came_meanwhile() {
    let mut bench = Bench::new();
    bench.hint_lines();
    let first = bench.asked();
    bench.answer_lines(
        &first,
        Answer {
            walked: Some(OrderKey(7)),
            ..to_the_end(vec![])
        },
    );
    let second = bench.asked();
    bench.hint_lines();
    bench.answer_lines(&second, to_the_end(vec![]));
    let third = bench.asked();
    bench.answer_lines(&third, to_the_end(vec![]));

    let from = |request: &LoadRequest| request.lines.as_ref().map(|lines| lines.after);
    assert_eq!(from(&first), Some(OrderKey::START));
    assert_eq!(from(&second), Some(OrderKey(7)));
    assert_eq!(from(&third), Some(OrderKey::START));
    assert!(loads(&bench.effects()).is_empty(), "all were seen");
    let end = Some(OrderKey::START);
    bench.scan_finds_lines();
    assert_eq!(from(&bench.asked()), end, "and the scan is the truth");
}

#[test]
fn keys_that_are_asked_for_by_name_leave_room_for_the_others() {
    let mut bench = Bench::new();
    bench.load_lines(vec![in_line(5, id(1)), in_line(6, id(2))]);
    bench.hint_lines();
    let request = bench.asked();
    bench.record(id(1), None);
    bench.record(id(2), None);
    bench.answer_lines(
        &request,
        Answer {
            walked: Some(OrderKey(4)),
            ..to_the_end(vec![])
        },
    );

    let next = bench.asked();

    assert_eq!(keys(&next), [OrderKey(5), OrderKey(6)]);
    let lines = next.lines.unwrap();
    assert!(
        lines.limit > 0 && lines.most_keys >= lines.limit,
        "{lines:?}"
    );
    assert_eq!(lines.after, OrderKey(4));
}

#[test]
fn what_a_failed_load_or_a_change_of_the_endpoint_dropped_is_found_by_a_walk() {
    let mut bench = Bench::new();
    bench.load_lines(vec![
        in_line(1, id(1)),
        in_line(2, id(2)),
        in_line(3, id(3)),
    ]);

    // The third waits for a permit of the endpoint; its settings change.
    bench.tell(Input::Reload {
        slot: SLOT,
        endpoint: ENDPOINT,
    });
    let request = bench.asked();
    bench.tell(Input::LoadFailed(vec![request]));
    bench.wait(Duration::from_secs(1));
    bench.tell(Input::Tick);
    let again = bench.asked();
    bench.answer_lines(
        &again,
        to_the_end(vec![
            in_line(1, id(1)),
            in_line(2, id(2)),
            in_line(3, id(3)),
        ]),
    );
    bench.record(id(1), None);

    assert_eq!(
        again.lines.as_ref().map(|lines| lines.after),
        Some(OrderKey::START)
    );
    assert_eq!(sent(&bench.effects()), [id(3)]);
}

#[test]
fn an_endpoint_that_is_not_ordered_asks_for_lines_only_where_a_scan_saw_some() {
    let mut bench = Bench::new();
    bench.load(vec![row(id(1))]);
    bench.hint_lines();
    let plain = bench.asked();
    bench.answer(&plain, vec![], EndpointState::Enabled);
    bench.scan_finds_lines();
    let left = bench.asked();
    bench.answer_lines(&left, to_the_end(vec![in_line(5, id(2))]));

    assert!(plain.lines.is_none());
    assert!(left.lines.is_some());
    assert_eq!(sent(&bench.effects()), [id(2)]);
}

#[test]
fn an_endpoint_that_turns_out_not_to_be_ordered_is_not_asked_for_lines_any_more() {
    let mut bench = Bench::new();
    bench.hint_lines();
    let unknown = bench.asked();
    // While it is not known what it is, more comes in.
    bench.hint_lines();
    bench.tell(Input::Loaded(vec![LoadedEndpoint {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        rows: vec![row(id(1))],
        more_ready: false,
        fresh: Vec::new(),
        more_fresh: false,
        walked: Some(OrderKey::START),
        retries_read: false,
        next_due: None,
        config: Some(Arc::new(config(ENDPOINT, EndpointState::Enabled))),
        history: None,
    }]));
    let known = bench.asked();
    bench.answer(&known, vec![], EndpointState::Enabled);
    bench.record(id(1), None);

    assert!(unknown.lines.is_some());
    assert!(known.lines.is_none() && known.ready_limit > 0);
    assert!(loads(&bench.effects()).is_empty());
}
