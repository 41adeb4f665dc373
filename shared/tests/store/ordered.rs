//! Lines of ordered endpoints: only heads are loaded, whatever happens to those before and behind them.

use std::collections::BTreeSet;

use shared::domain::attempt::{Outcome, Phases};
use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::domain::order::OrderKey;
use shared::ids::{self, EndpointKey, Incarnation, TenantKey};
use shared::store::queue::{self, AttemptRow, LineWant, Lines, Next, RecordRow, Statements};
use shared::store::{StoreError, commands};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::owner::{ENDPOINT, Owner, SLOT};
use crate::world::{TENANT, declare_dead, event};

/// An owner with an endpoint whose lines are written by hand.
struct Lined {
    owner: Owner,
    sql: Statements,
}

/// A row of a line.
#[derive(Debug, Clone, Copy)]
struct Place {
    id: Uuid,
    event: Uuid,
}

impl Lined {
    async fn new() -> Self {
        let owner = Owner::new().await;
        let sql = Statements::prepare(&owner.session).await.unwrap();
        Self { owner, sql }
    }

    /// One more at the end of a key's line.
    async fn line_up(&self, key: i64) -> Place {
        let event = event(&self.owner.session, self.owner.now().await).await;
        let id = ids::new_v7(ids::created_at(event));
        let insert = "INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id)
                      VALUES ($1, $2, $3, nextval('order_seq'), $4, $5, $6)";
        self.owner
            .session
            .execute(insert, &[&SLOT.0, &ENDPOINT.0, &key, &id, &event, &TENANT])
            .await
            .unwrap();
        Place { id, event }
    }

    async fn load(&self, want: LineWant) -> Lines {
        queue::load_lines(
            &self.owner.session,
            &self.sql,
            &[want],
            self.owner.now().await,
        )
        .await
        .unwrap()
    }

    /// Every head, by a walk.
    async fn heads(&self, block: bool) -> BTreeSet<Uuid> {
        let lines = self.load(LineWant { block, ..all() }).await;
        ids_of(&lines)
    }

    async fn record(&self, place: Place, made: u16, next: Next) -> bool {
        self.record_as(self.owner.life, place, made, next).await
    }

    async fn record_as(&self, life: Incarnation, place: Place, made: u16, next: Next) -> bool {
        let row = RecordRow {
            slot: SLOT,
            epoch: self.owner.epoch,
            endpoint: ENDPOINT,
            delivery: place.id,
            event_id: place.event,
            tenant: TenantKey(TENANT),
            attempts_before: made,
            attempts_charged: made + 1,
            outcome: Outcome::Transient,
            next,
            note: None,
            attempt: Some(AttemptRow {
                started_at: self.owner.now().await,
                endpoint_version: 1,
                status: Some(503),
                phases: Phases {
                    queue_us: Some(1),
                    first_byte_us: None,
                    ..Phases::default()
                },
                total_ms: 1,
                addr: None,
                dialled: &[],
                response: b"",
            }),
        };
        let answers = queue::record_ordered(&self.owner.session, &self.sql, life, &[row])
            .await
            .unwrap();
        answers.first().unwrap().1
    }

    async fn in_seconds(&self, seconds: i64) -> OffsetDateTime {
        self.owner.now().await + time::Duration::seconds(seconds)
    }

    async fn execute(&self, sql: &str) {
        self.owner.session.batch_execute(sql).await.unwrap();
    }
}

fn all() -> LineWant {
    LineWant {
        slot: SLOT,
        endpoint: ENDPOINT,
        block: false,
        keys: Vec::new(),
        due_limit: 0,
        after: OrderKey::START,
        limit: 100,
        most_keys: 400,
    }
}

fn ids_of(lines: &Lines) -> BTreeSet<Uuid> {
    lines.heads.iter().map(|head| head.row.id).collect()
}

fn set<const N: usize>(places: [Place; N]) -> BTreeSet<Uuid> {
    places.iter().map(|place| place.id).collect()
}

#[tokio::test]
async fn only_heads_are_loaded_and_a_record_makes_the_next_one_head() {
    let lined = Lined::new().await;
    let mut places = Vec::new();
    for key in [5, -5, 5, 9, -5, 5] {
        places.push(lined.line_up(key).await);
    }

    let first = lined.load(all()).await;

    let keys: Vec<_> = first.heads.iter().map(|head| head.key).collect();
    assert_eq!(keys, [OrderKey(-5), OrderKey(5), OrderKey(9)]);
    let found: Vec<_> = first.heads.iter().map(|head| head.row.id).collect();
    assert_eq!(found, [places[1].id, places[0].id, places[3].id]);
    assert!(first.cursors.is_empty() && first.next_due.is_empty());
    for head in &first.heads {
        let (name, payload, _) = head.row.event.as_ref().unwrap();
        assert_eq!(name, "order.created");
        assert_eq!(payload, head.row.event_id.to_string().as_bytes());
        assert_eq!((head.row.want, head.row.due_at), (0, None));
    }
    assert!(lined.record(places[0], 0, Next::Delivered).await);
    let by_key = LineWant {
        keys: vec![OrderKey(5), OrderKey(6)],
        limit: 0,
        ..all()
    };
    assert_eq!(ids_of(&lined.load(by_key).await), set([places[2]]));
    assert_eq!(
        lined.heads(false).await,
        set([places[1], places[2], places[3]])
    );
}

#[tokio::test]
async fn a_walk_stops_at_its_limits_and_goes_on_from_there() {
    let lined = Lined::new().await;
    let mut places = Vec::new();
    for key in 0..10 {
        places.push(lined.line_up(key).await);
    }
    let step = |after| LineWant {
        after,
        limit: 4,
        ..all()
    };

    let first = lined.load(step(OrderKey::START)).await;
    let second = lined.load(step(OrderKey(3))).await;
    let third = lined.load(step(OrderKey(7))).await;
    let narrow = lined
        .load(LineWant {
            most_keys: 2,
            ..step(OrderKey::START)
        })
        .await;

    assert_eq!(first.heads.len(), 4);
    assert_eq!(first.cursors, [(0, OrderKey(3))]);
    assert_eq!(second.cursors, [(0, OrderKey(7))]);
    assert_eq!(ids_of(&third), set([places[8], places[9]]));
    assert!(third.cursors.is_empty(), "the end");
    assert_eq!(
        (narrow.heads.len(), narrow.cursors),
        (2, vec![(0, OrderKey(1))])
    );
}

#[tokio::test]
async fn a_retry_keeps_its_place_and_holds_back_its_own_key_only() {
    let lined = Lined::new().await;
    let (first, second) = (lined.line_up(5).await, lined.line_up(5).await);
    let other = lined.line_up(6).await;
    let due = lined.in_seconds(60).await;

    assert!(lined.record(first, 0, Next::Retry(due)).await);
    assert!(!lined.record(first, 0, Next::Delivered).await, "repeated");

    assert_eq!(lined.heads(false).await, set([other]));
    let tried = LineWant {
        keys: vec![OrderKey(5)],
        due_limit: 10,
        limit: 0,
        ..all()
    };
    let waits = lined.load(tried.clone()).await;
    assert!(waits.heads.is_empty());
    let next_due: BTreeSet<_> = waits
        .next_due
        .iter()
        .map(|(want, at)| (*want, at.unix_timestamp()))
        .collect();
    assert_eq!(next_due, BTreeSet::from([(0, due.unix_timestamp())]));
    // "Retry now".
    commands::make_due(
        &lined.owner.session,
        lined.owner.life,
        (TenantKey(TENANT), first.id),
        lined.owner.now().await,
    )
    .await
    .unwrap();
    let again = lined.load(tried).await;
    let head = &again.heads.first().unwrap().row;
    assert_eq!(
        (head.id, head.attempts_made, head.attempts_charged),
        (first.id, 1, 1)
    );
    assert!(head.first_at.is_some() && head.event.is_some());
    let began = head.first_at;
    assert_eq!(lined.heads(false).await, set([first, other]));
    let later = lined.in_seconds(-1).await;
    assert!(lined.record(first, 1, Next::Retry(later)).await);
    let third = lined.load(all()).await;
    let head = &third.heads.first().unwrap().row;
    assert_eq!(
        (head.attempts_made, head.first_at),
        (2, began),
        "the first attempt's start stays"
    );
    assert!(lined.record(first, 2, Next::Delivered).await);
    assert_eq!(lined.heads(false).await, set([second, other]));
    assert_eq!(lined.owner.count("attempts").await, 4);
    assert_eq!(lined.owner.count("attempts WHERE applied").await, 3);
}

#[tokio::test]
async fn ten_thousand_blocked_keys_starve_no_other_one() {
    let lined = Lined::new().await;
    lined
        .execute(&format!(
            "INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id, due_at)
             SELECT {}, {}, g, g, gen_random_uuid(), gen_random_uuid(), {TENANT}, now() + interval '1 h'
             FROM generate_series(1, 10000) g",
            SLOT.0, ENDPOINT.0
        ))
        .await;
    let free = lined.line_up(20_000).await;

    let (mut after, mut rounds) = (OrderKey::START, 0);
    let found = loop {
        let lines = lined.load(LineWant { after, ..all() }).await;
        rounds += 1;
        if !lines.heads.is_empty() {
            break ids_of(&lines);
        }
        after = lines.cursors.first().unwrap().1;
    };

    assert_eq!(found, set([free]));
    assert_eq!(rounds, 10_001_usize.div_ceil(400));
}

#[tokio::test]
async fn a_dead_letter_releases_its_key_or_blocks_it_until_it_was_replayed() {
    let lined = Lined::new().await;
    let (first, second) = (lined.line_up(5).await, lined.line_up(5).await);
    let dead = Next::DeadLetter(DeadLetterClass::Transient);

    assert!(lined.record(first, 0, dead).await);

    let kept = "dead_letters d WHERE order_key = 5 AND root_id = id AND status = 503
                AND order_seq < (SELECT order_seq FROM ready_ordered)";
    assert_eq!(lined.owner.count(kept).await, 1);
    assert_eq!(lined.heads(false).await, set([second]));
    assert_eq!(lined.heads(true).await, set([]));
    let by_key = LineWant {
        keys: vec![OrderKey(5)],
        due_limit: 9,
        block: true,
        ..all()
    };
    assert!(lined.load(by_key.clone()).await.heads.is_empty());
    // In its old place again, as a new delivery: nothing stands before it.
    lined
        .execute(&format!(
            "INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id, kind)
             SELECT {}, endpoint_id, order_key, order_seq, gen_random_uuid(), event_id, tenant_id, 2 FROM dead_letters;
             UPDATE dead_letters SET replayed_as = (SELECT id FROM ready_ordered WHERE kind = 2)",
            SLOT.0
        ))
        .await;
    let lines = lined.load(by_key).await;
    assert!(
        lines
            .heads
            .iter()
            .all(|head| head.row.event_id == first.event)
    );
    assert_eq!(ids_of(&lines).len(), 1);
}

#[tokio::test]
async fn a_dead_letter_blocks_only_what_stands_behind_it() {
    let lined = Lined::new().await;
    let (first, second) = (lined.line_up(5).await, lined.line_up(5).await);
    let third = lined.line_up(5).await;
    // The second expired while the first waits.
    assert!(
        lined
            .record(second, 0, Next::DeadLetter(DeadLetterClass::Expired))
            .await
    );
    let due = lined.in_seconds(-1).await;
    assert!(lined.record(first, 0, Next::Retry(due)).await);

    let tried = LineWant {
        due_limit: 9,
        block: true,
        ..all()
    };
    assert_eq!(ids_of(&lined.load(tried).await), set([first]));
    assert!(lined.record(first, 1, Next::Delivered).await);
    assert_eq!(lined.heads(true).await, set([]));
    assert_eq!(lined.heads(false).await, set([third]));
}

#[tokio::test]
async fn a_stale_owner_changes_nothing_in_a_line() {
    // D3
    let lined = Lined::new().await;
    let first = lined.line_up(5).await;
    lined.line_up(5).await;
    let due = lined.in_seconds(60).await;
    declare_dead(&lined.owner.session, lined.owner.life).await;

    for next in [
        Next::Delivered,
        Next::Retry(due),
        Next::DeadLetter(DeadLetterClass::Transient),
        Next::Closed(CloseReason::Gone),
    ] {
        assert!(!lined.record(first, 0, next).await);
    }

    assert_eq!(lined.heads(false).await, set([first]));
    assert_eq!(
        lined
            .owner
            .count("ready_ordered WHERE attempts_made = 0")
            .await,
        2
    );
    assert_eq!(
        lined.owner.count("dead_letters").await + lined.owner.count("closed").await,
        0
    );
    assert_eq!(lined.owner.count("attempts WHERE NOT applied").await, 4);
}

#[tokio::test]
async fn a_scan_names_endpoints_with_lines_and_closing_empties_them() {
    let lined = Lined::new().await;
    let first = lined.line_up(5).await;
    lined.line_up(5).await;
    lined.line_up(6).await;
    lined
        .owner
        .endpoint(EndpointKey(2), "http://receiver.example/")
        .await;
    lined
        .execute(
            "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
             VALUES (1, 7, 2, gen_random_uuid(), gen_random_uuid());
             UPDATE endpoints SET state = 2",
        )
        .await;

    let session = &lined.owner.session;
    let found = queue::scan(session, &lined.sql, &[SLOT]).await.unwrap();
    let what = (ENDPOINT, CloseReason::EndpointDisabled);
    let closed = queue::close(session, &lined.sql, lined.owner.fence(), what, &[first.id])
        .await
        .unwrap();

    let kinds: Vec<_> = found
        .iter()
        .map(|it| (it.endpoint, it.tenant, it.ready, it.ordered))
        .collect();
    assert_eq!(
        kinds,
        [
            (ENDPOINT, TenantKey(TENANT), false, true),
            (EndpointKey(2), TenantKey(TENANT), true, false)
        ]
    );
    assert_eq!(closed, 2);
    assert_eq!(lined.heads(false).await, set([first]));
    assert_eq!(
        lined
            .owner
            .count("closed WHERE status = 7 AND reason = 1")
            .await,
        2
    );
    declare_dead(session, lined.owner.life).await;
    let stale = queue::close(session, &lined.sql, lined.owner.fence(), what, &[]).await;
    assert!(matches!(stale, Err(StoreError::NotOwner)), "{stale:?}");
}
