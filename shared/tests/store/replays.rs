//! Replays, turn by turn.

use shared::domain::delivery::{DeadLetterClass, Kind, Status};
use shared::domain::replay::{NotReplayable, ReplayFilter, ReplayStatus};
use shared::ids::{self, EndpointKey};
use shared::store::leases::Lease;
use shared::store::replays::work::{self, Part, Statements, Turn};
use shared::store::replays::{self, Ask, Created, Replay};
use shared::store::{Session, StoreError, deliveries};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::owner::{ENDPOINT, ITS_TENANT, Owner};
use crate::world::{self, TENANT, lease_of};

const MINUTE: time::Duration = time::Duration::MINUTE;

/// What does the job's part.
struct Worker {
    session: Session,
    lease: Lease,
    sql: Statements,
}

impl Worker {
    async fn new(owner: &Owner) -> Self {
        let session = owner.database.connect(shared::store::Role::Worker).await;
        let session = session.unwrap();
        let lease = lease_of(&session, "replays").await;
        let sql = Statements::prepare(&session).await.unwrap();
        Self {
            session,
            lease,
            sql,
        }
    }

    async fn turn(&mut self, part: Part) -> Result<Turn, StoreError> {
        work::turn(&mut self.session, &self.lease, &self.sql, part).await
    }

    /// One turn of every part, whether it is due or not.
    async fn round(&mut self) -> Vec<Turn> {
        let now = "UPDATE replay_parts SET due_at = now(); UPDATE replays SET paced_until = now()";
        self.session.batch_execute(now).await.unwrap();
        let parts = work::due(&self.session, 100).await.unwrap();
        let mut turns = Vec::new();
        for part in parts {
            turns.push(self.turn(part).await.unwrap());
        }
        turns
    }
}

async fn ask(owner: &mut Owner, endpoint: Option<EndpointKey>, filter: ReplayFilter) -> Replay {
    let (id, created) = asked(owner, endpoint, filter).await;
    assert_eq!(created, Created::Running);
    shown(owner, id).await
}

async fn asked(
    owner: &mut Owner,
    endpoint: Option<EndpointKey>,
    filter: ReplayFilter,
) -> (Uuid, Created) {
    let id = ids::new_v7(owner.now().await);
    let ask = Ask {
        id,
        tenant: ITS_TENANT,
        endpoint,
        filter,
        per_second: 1_000.0,
    };
    let transaction = owner.session.transaction().await.unwrap();
    let created = replays::create(&transaction, ask).await.unwrap();
    transaction.commit().await.unwrap();
    (id, created)
}

async fn shown(owner: &Owner, id: Uuid) -> Replay {
    let found = replays::find(&*owner.session, ITS_TENANT, id).await;
    found.unwrap().unwrap()
}

fn dead() -> ReplayFilter {
    ReplayFilter {
        statuses: vec![Status::DeadLetter],
        ..ReplayFilter::default()
    }
}

async fn dead_letters(owner: &Owner, count: i32) -> Vec<Uuid> {
    let at = owner.now().await - MINUTE;
    let mut all = Vec::new();
    for number in 0..count {
        let at = at + time::Duration::milliseconds(i64::from(number));
        let class = DeadLetterClass::Transient;
        all.push(owner.dead_letter(class, Kind::Live, at).await);
    }
    all
}

/// What is waiting at the endpoint is delivered.
async fn deliver(owner: &Owner) -> u64 {
    let deliver = "WITH gone AS (DELETE FROM ready RETURNING *)
        INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                              total_ms, outcome, status, final_status, applied)
        SELECT tenant_id, id, 1, 1, now(), endpoint_id, event_id, 1, 5, 1, 200, 3, true FROM gone";
    owner.session.execute(deliver, &[]).await.unwrap()
}

/// Rounds until the replay has ended, with everything delivered at once; how many were delivered.
async fn run_to_its_end(owner: &Owner, worker: &mut Worker, id: Uuid) -> u64 {
    let mut delivered = 0;
    for _ in 0..1_000 {
        worker.round().await;
        delivered += deliver(owner).await;
        if shown(owner, id).await.finished_at.is_some() {
            return delivered;
        }
    }
    panic!("it has no end: {:?}", shown(owner, id).await);
}

#[tokio::test]
async fn d6_each_dead_letter_lives_again_once_as_a_new_delivery_of_its_event() {
    let mut owner = Owner::new().await;
    let all = dead_letters(&owner, 25).await;
    let replay = ask(&mut owner, Some(ENDPOINT), dead()).await;
    let mut worker = Worker::new(&owner).await;

    assert_eq!(run_to_its_end(&owner, &mut worker, replay.id).await, 25);

    let replay = shown(&owner, replay.id).await;
    assert_eq!(replay.status, ReplayStatus::Finished);
    assert_eq!((replay.total, replay.done, replay.failed), (25, 25, 0));
    assert!(!replay.finding && replay.not_replayable.is_empty());
    let same = "dead_letters d JOIN attempts a ON a.delivery_id = d.replayed_as AND a.event_id = d.event_id";
    assert_eq!(owner.count(same).await, 25);
    let first = deliveries::by_ids(&*owner.session, ITS_TENANT, &all[..1]).await;
    assert_eq!(first.unwrap()[0].status, Status::DeadLetter, "it stays");
    assert_eq!(owner.count("replay_parts").await, 0);
    assert_eq!(owner.count("replay_outstanding").await, 0);

    // A second time there is nothing left.
    let again = ask(&mut owner, Some(ENDPOINT), dead()).await;
    assert_eq!(run_to_its_end(&owner, &mut worker, again.id).await, 0);
    assert_eq!(shown(&owner, again.id).await.total, 0);
}

#[tokio::test]
async fn o1_no_more_waits_at_an_endpoint_than_it_takes_at_once() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 30).await;
    ask(&mut owner, Some(ENDPOINT), dead()).await;
    // Another one, of the same endpoint: they share the room.
    let skipped = ReplayFilter {
        statuses: vec![Status::DeadLetter, Status::Cancelled],
        ..dead()
    };
    ask(&mut owner, Some(ENDPOINT), skipped).await;
    let mut worker = Worker::new(&owner).await;

    for _ in 0..3 {
        worker.round().await;
        assert_eq!(owner.count("ready").await, 10);
    }
    // What waits for its next attempt gives way.
    let move_on = "WITH gone AS (DELETE FROM ready RETURNING *)
        INSERT INTO retry (slot, attempts_made, tenant_id, endpoint_id, id, event_id, kind, replay_id, due_at)
        SELECT slot, 1, tenant_id, endpoint_id, id, event_id, kind, replay_id, now() + interval '1 h' FROM gone";
    owner.session.batch_execute(move_on).await.unwrap();
    worker.round().await;
    assert_eq!(owner.count("ready").await, 10);
    assert_eq!(owner.count("retry").await, 10);
}

#[tokio::test]
async fn the_rate_that_was_asked_for_is_kept() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 5).await;
    let replay = ask(&mut owner, Some(ENDPOINT), dead()).await;
    let slow = "UPDATE replays SET per_second = 0.5";
    owner.session.batch_execute(slow).await.unwrap();
    let mut worker = Worker::new(&owner).await;
    let part = work::due(&worker.session, 1).await.unwrap()[0];

    let first = worker.turn(part).await.unwrap();
    let second = worker.turn(part).await.unwrap();

    assert_eq!((first.made, second.made), (1, 0));
    let pause = work::next_due(&worker.session).await.unwrap().unwrap();
    assert!(pause > std::time::Duration::from_millis(1_000), "{pause:?}");
    assert!(shown(&owner, replay.id).await.finding);
}

#[tokio::test]
async fn the_same_request_twice_is_one_replay_while_it_runs() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 1).await;
    let first = ask(&mut owner, Some(ENDPOINT), dead()).await;

    let (_, second) = asked(&mut owner, Some(ENDPOINT), dead()).await;
    let (_, other) = asked(&mut owner, None, dead()).await;

    assert_eq!(second, Created::Same(first.id));
    assert_eq!(other, Created::Running, "of all endpoints");
    let mut worker = Worker::new(&owner).await;
    run_to_its_end(&owner, &mut worker, first.id).await;
    assert_eq!(owner.count("attempts").await, 1, "by one of the two");
    let (_, third) = asked(&mut owner, Some(ENDPOINT), dead()).await;
    assert_eq!(third, Created::Running);
}

#[tokio::test]
async fn at_most_ten_run_at_a_time() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 1).await;
    let of_type = |number: i64| ReplayFilter {
        event_type: Some(format!("t{number}")),
        ..dead()
    };
    for number in 0..replays::MOST_RUNNING {
        ask(&mut owner, None, of_type(number)).await;
    }

    let (_, created) = asked(&mut owner, None, of_type(99)).await;

    assert_eq!(created, Created::TooMany);
}

#[tokio::test]
async fn what_is_past_its_retention_or_its_deadline_is_counted_with_its_reason() {
    let mut owner = Owner::new().await;
    let all = dead_letters(&owner, 4).await;
    let gone =
        "DELETE FROM events WHERE id IN (SELECT event_id FROM dead_letters WHERE id = ANY ($1))";
    owner.session.execute(gone, &[&&all[..2]]).await.unwrap();
    let late = "UPDATE events SET deliver_before = now() - interval '1 s'
                WHERE id = (SELECT event_id FROM dead_letters WHERE id = $1)";
    owner.session.execute(late, &[&all[2]]).await.unwrap();
    let replay = ask(&mut owner, Some(ENDPOINT), dead()).await;
    let mut worker = Worker::new(&owner).await;

    assert_eq!(run_to_its_end(&owner, &mut worker, replay.id).await, 1);

    let replay = shown(&owner, replay.id).await;
    let reasons: Vec<_> = replay
        .not_replayable
        .iter()
        .map(|it| (it.0, it.1, it.2.len()))
        .collect();
    assert_eq!(
        reasons,
        [
            (NotReplayable::PayloadExpired, 2, 2),
            (NotReplayable::DeliverBeforePassed, 1, 1)
        ]
    );
    assert_eq!((replay.total, replay.done), (4, 1));
    let open = "dead_letters WHERE replayed_as IS NULL";
    assert_eq!(owner.count(open).await, 3);
}

#[tokio::test]
async fn few_that_fit_among_many_that_do_not_are_found_in_a_few_turns_and_none_is_left_out() {
    let mut owner = Owner::new().await;
    let all = dead_letters(&owner, 20).await;
    // As many before and behind each of them, of a class that is not asked for.
    let others = "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, dead_at)
        SELECT d.tenant_id, (left(d.id::text, 24) || lpad(to_hex(i * 17), 12, '0'))::uuid, d.endpoint_id, d.event_id, 2, 1, 0,
               d.root_id, d.dead_at
        FROM dead_letters d CROSS JOIN generate_series(1, 300) i ON CONFLICT DO NOTHING";
    owner.session.execute(others, &[]).await.unwrap();
    let filter = ReplayFilter {
        classes: vec![DeadLetterClass::Transient],
        ..dead()
    };
    let replay = ask(&mut owner, Some(ENDPOINT), filter).await;
    let mut worker = Worker::new(&owner).await;

    let mut turns = 0;
    while shown(&owner, replay.id).await.finished_at.is_none() {
        turns += worker.round().await.len();
        deliver(&owner).await;
        assert!(turns < 12, "it has no end");
    }

    let replay = shown(&owner, replay.id).await;
    assert_eq!((replay.total, replay.done), (20, 20));
    let fitting = "dead_letters WHERE class = 1 AND replayed_as IS NOT NULL";
    assert_eq!(
        owner.count(fitting).await,
        i64::try_from(all.len()).unwrap()
    );
    assert_eq!(
        owner
            .count("dead_letters WHERE replayed_as IS NOT NULL")
            .await,
        20
    );
}

#[tokio::test]
async fn a_disabled_or_deleted_endpoint_gets_nothing_and_the_summary_says_so() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 3).await;
    let replay = ask(&mut owner, None, dead()).await;
    let disable = "UPDATE endpoints SET state = 2";
    owner.session.batch_execute(disable).await.unwrap();
    let mut worker = Worker::new(&owner).await;

    run_to_its_end(&owner, &mut worker, replay.id).await;

    let replay = shown(&owner, replay.id).await;
    assert_eq!(replay.not_replayable[0].0, NotReplayable::EndpointDisabled);
    assert_eq!(replay.not_replayable[0].1, 3);
    assert_eq!((replay.total, replay.done), (3, 0));
    assert_eq!(owner.count("ready").await, 0);
}

#[tokio::test]
async fn a_cancel_stops_what_was_not_sent_and_counts_what_was() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 30).await;
    let replay = ask(&mut owner, Some(ENDPOINT), dead()).await;
    let mut worker = Worker::new(&owner).await;
    worker.round().await;
    // One is on the wire.
    let flying = "UPDATE workers SET in_flight = ARRAY(SELECT id FROM ready ORDER BY id LIMIT 1)";
    owner.session.batch_execute(flying).await.unwrap();

    assert!(
        replays::cancel(&*owner.session, ITS_TENANT, replay.id)
            .await
            .unwrap()
    );
    assert!(
        !replays::cancel(&*owner.session, ITS_TENANT, replay.id)
            .await
            .unwrap()
    );
    let turns = worker.round().await;

    assert!(turns[0].stopped && turns[0].made == 0);
    assert_eq!(owner.count("ready").await, 1);
    assert_eq!(owner.count("closed WHERE status = 6").await, 9);
    assert_eq!(owner.count("commands WHERE verb = 1").await, 1);
    let stopping = shown(&owner, replay.id).await;
    assert_eq!(stopping.status, ReplayStatus::Cancelled);
    assert_eq!(stopping.finished_at, None);
    run_to_its_end(&owner, &mut worker, replay.id).await;
    let ended = shown(&owner, replay.id).await;
    assert_eq!(ended.status, ReplayStatus::Cancelled);
    assert_eq!((ended.total, ended.done, ended.skipped), (10, 1, 9));
}

#[tokio::test]
async fn d3_a_leader_that_was_replaced_makes_nothing_and_its_successor_goes_on() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 15).await;
    let replay = ask(&mut owner, Some(ENDPOINT), dead()).await;
    let mut stale = Worker::new(&owner).await;
    stale.round().await;
    world::declare_dead(&owner.session, stale.lease.owner).await;
    let mut worker = Worker::new(&owner).await;
    deliver(&owner).await;
    let part = work::due(&worker.session, 1).await.unwrap();
    let now = "UPDATE replay_parts SET due_at = now()";
    owner.session.batch_execute(now).await.unwrap();
    let part = part.first().copied().unwrap_or(Part {
        replay: shared::ids::ReplayKey(1),
        endpoint: ENDPOINT,
    });

    let refused = stale.turn(part).await;

    assert!(matches!(refused, Err(StoreError::NotOwner)), "{refused:?}");
    assert_eq!(owner.count("ready").await, 0);
    run_to_its_end(&owner, &mut worker, replay.id).await;
    assert_eq!(shown(&owner, replay.id).await.done, 15);
    let once = "(SELECT event_id FROM attempts GROUP BY event_id HAVING count(*) > 1) x";
    assert_eq!(owner.count(once).await, 0);
}

/// An event of that time with the deliveries that it had.
async fn event(owner: &Owner, at: OffsetDateTime, delivery: Option<Uuid>) -> Uuid {
    let id = world::event(&owner.session, at).await;
    let fan = "UPDATE events SET fan_endpoint = CASE WHEN $2::uuid IS NULL THEN '{}' ELSE '{1}'::int8[] END,
               fan_delivery = CASE WHEN $2 IS NULL THEN '{}' ELSE ARRAY[$2] END WHERE id = $1";
    owner.session.execute(fan, &[&id, &delivery]).await.unwrap();
    id
}

#[tokio::test]
async fn missing_are_events_that_the_endpoint_wants_and_never_had_in_any_way() {
    let mut owner = Owner::new().await;
    let at = owner.now().await - MINUTE;
    event(&owner, at, Some(ids::new_v7(at))).await;
    let missed = event(&owner, at, None).await;
    event(&owner, at - 10 * MINUTE, None).await;
    let wanted =
        "UPDATE endpoints SET channels = '{eu}'; UPDATE events SET channels = '{eu}' WHERE id = $1";
    let (first, second) = wanted.split_once("; ").unwrap();
    owner.session.batch_execute(first).await.unwrap();
    owner.session.execute(second, &[&missed]).await.unwrap();
    event(&owner, at, None).await;
    let filter = ReplayFilter {
        missing: true,
        since: Some(at - MINUTE),
        ..ReplayFilter::default()
    };
    let mut worker = Worker::new(&owner).await;

    for expected in [1, 0] {
        let replay = ask(&mut owner, Some(ENDPOINT), filter.clone()).await;
        let delivered = run_to_its_end(&owner, &mut worker, replay.id).await;
        assert_eq!(delivered, expected);
        assert_eq!(
            shown(&owner, replay.id).await.total,
            i64::try_from(expected).unwrap()
        );
    }
    let sent = format!("attempts WHERE event_id = '{missed}'");
    assert_eq!(owner.count(&sent).await, 1);
}

#[tokio::test]
async fn what_was_delivered_or_skipped_is_replayed_when_it_is_asked_for() {
    let mut owner = Owner::new().await;
    let at = owner.now().await - MINUTE;
    let (delivered, skipped) = (ids::new_v7(at), ids::new_v7(at));
    let sent = event(&owner, at, Some(delivered)).await;
    let not_sent = event(&owner, at, Some(skipped)).await;
    let rows = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                                      total_ms, outcome, status, final_status, applied)
                VALUES ($1, $2, 1, 1, $4, 1, $3, 1, 5, 1, 200, 3, true)";
    owner
        .session
        .execute(rows, &[&TENANT, &delivered, &sent, &at])
        .await
        .unwrap();
    let rows = "INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason) VALUES ($1, $2, 1, $3, 7, 1)";
    owner
        .session
        .execute(rows, &[&TENANT, &skipped, &not_sent])
        .await
        .unwrap();
    let of = |statuses: &[Status]| ReplayFilter {
        statuses: statuses.to_vec(),
        ..ReplayFilter::default()
    };
    let mut worker = Worker::new(&owner).await;
    let times = async |owner: &Owner, event: Uuid| {
        let from = format!("attempts WHERE event_id = '{event}'");
        owner.count(&from).await
    };

    let replay = ask(
        &mut owner,
        Some(ENDPOINT),
        of(&[Status::Skipped, Status::DeadLetter]),
    )
    .await;
    run_to_its_end(&owner, &mut worker, replay.id).await;
    assert_eq!(
        (times(&owner, sent).await, times(&owner, not_sent).await),
        (1, 1)
    );
    // It was replayed: what it was is not asked for twice, but what became of it is.
    let replay = ask(
        &mut owner,
        Some(ENDPOINT),
        of(&[Status::Skipped, Status::Delivered]),
    )
    .await;
    run_to_its_end(&owner, &mut worker, replay.id).await;
    assert_eq!(
        (times(&owner, sent).await, times(&owner, not_sent).await),
        (2, 2)
    );
    let shown = deliveries::by_ids(&*owner.session, ITS_TENANT, &[delivered])
        .await
        .unwrap();
    assert_eq!(shown[0].status, Status::Delivered);
    assert!(shown[0].replay.is_none());
}

#[tokio::test]
async fn an_ordered_endpoints_dead_letters_go_to_the_tail_in_their_order() {
    let mut owner = Owner::new().await;
    let all = dead_letters(&owner, 6).await;
    owner
        .session
        .batch_execute("UPDATE endpoints SET ordered = true; SELECT setval('order_seq', 1000)")
        .await
        .unwrap();
    // Accepted in another order than their ids say.
    for (place, id) in (1_i64..).zip(all.iter().rev()) {
        let event = "WITH d AS (UPDATE dead_letters SET order_key = 5, order_seq = $2 WHERE id = $1 RETURNING event_id)
                     UPDATE events SET order_key = 5, order_seq = $2 WHERE id IN (SELECT event_id FROM d)";
        owner.session.execute(event, &[id, &place]).await.unwrap();
    }
    ask(&mut owner, Some(ENDPOINT), dead()).await;
    let mut worker = Worker::new(&owner).await;

    worker.round().await;

    let line = "SELECT d.id FROM ready_ordered r JOIN dead_letters d ON d.replayed_as = r.id WHERE r.order_seq > 1000 ORDER BY r.order_seq";
    let rows = owner.session.query(line, &[]).await.unwrap();
    let line: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    let expected: Vec<Uuid> = all.into_iter().rev().collect();
    assert_eq!(line, expected);
}

#[tokio::test]
async fn s3_a_replay_touches_nothing_of_another_tenant() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 2).await;
    let other = "INSERT INTO tenants (id, public_id, name) OVERRIDING SYSTEM VALUE VALUES (8, gen_random_uuid(), 'other');
                 INSERT INTO endpoints (id, public_id, tenant_id, slot, url) OVERRIDING SYSTEM VALUE VALUES (2, gen_random_uuid(), 8, 1, 'http://other.example');
                 INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
                 SELECT 8, gen_random_uuid(), 2, event_id, 1, 5, 0, id FROM dead_letters";
    owner.session.batch_execute(other).await.unwrap();
    let replay = ask(&mut owner, None, dead()).await;
    let mut worker = Worker::new(&owner).await;

    assert_eq!(run_to_its_end(&owner, &mut worker, replay.id).await, 2);

    assert_eq!(
        owner
            .count("dead_letters WHERE tenant_id = 8 AND replayed_as IS NOT NULL")
            .await,
        0
    );
    let theirs = replays::find(&*owner.session, shared::ids::TenantKey(8), replay.id).await;
    assert_eq!(theirs.unwrap(), None);
}

#[tokio::test]
async fn a_replay_that_ended_is_told_once_to_who_asks_for_it() {
    let mut owner = Owner::new().await;
    dead_letters(&owner, 2).await;
    owner
        .endpoint(EndpointKey(2), "http://ops.example/in")
        .await;
    let subscribe = "UPDATE endpoints SET event_types = '{postrider.replay.finished}' WHERE id = 2";
    owner.session.batch_execute(subscribe).await.unwrap();
    let mut worker = Worker::new(&owner).await;
    let of_one = ask(&mut owner, Some(ENDPOINT), dead()).await;

    run_to_its_end(&owner, &mut worker, of_one.id).await;
    let more = dead_letters(&owner, 1).await;
    let of_all = ask(&mut owner, None, dead()).await;
    run_to_its_end(&owner, &mut worker, of_all.id).await;

    assert_eq!(more.len(), 1);
    let notices = "SELECT convert_from(v.payload, 'UTF8') FROM events v JOIN event_types t ON t.id = v.type_id
                   WHERE t.name = 'postrider.replay.finished' ORDER BY v.id";
    let rows = owner.session.query(notices, &[]).await.unwrap();
    let bodies: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| serde_json::from_str(row.get(0)).unwrap())
        .collect();
    assert_eq!(bodies.len(), 2, "{bodies:?}");
    for (body, replay) in bodies.iter().zip([&of_one, &of_all]) {
        assert_eq!(body["replay_id"], ids::ReplayId(replay.id).to_string());
        assert_eq!(body["status"], "finished");
        assert!(body["done"].as_i64().unwrap() > 0 && body["next"].is_string());
    }
    assert!(bodies[0]["endpoint_id"].is_string());
    assert!(bodies[1]["endpoint_id"].is_null());
}
