//! Dead letters that live again, and outages that nobody wrote down.

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::delivery::{DeadLetterClass, Kind, Status};
use shared::ids::{self, EndpointKey, Epoch, Slot};
use shared::store::endpoint_runtime::{self, Recovery, Runtime};
use shared::store::recovery::{self, Revive};
use shared::store::{Role, StoreError, deliveries};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::owner::{ENDPOINT, ITS_TENANT, Owner, SLOT, waits};
use crate::world::TENANT;

const MINUTE: Duration = Duration::from_secs(60);

fn window(at: OffsetDateTime) -> Recovery {
    Recovery {
        from: at - 10 * MINUTE,
        until: at,
        refused: false,
    }
}

fn new_ids(at: OffsetDateTime, count: usize) -> Vec<Uuid> {
    (0..count).map(|_| ids::new_v7(at)).collect()
}

async fn revive(owner: &Owner, window: Recovery, ids: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    let what = Revive { window, ids };
    recovery::revive(&owner.session, owner.fence(), ENDPOINT, what).await
}

/// Dead letters by what they were replayed as.
async fn replayed(owner: &Owner, dead: Uuid) -> Option<Uuid> {
    let query = "SELECT replayed_as FROM dead_letters WHERE id = $1";
    let row = owner.session.query_one(query, &[&dead]).await.unwrap();
    row.get(0)
}

async fn outages(owner: &Owner, at: OffsetDateTime) -> Vec<(EndpointKey, OffsetDateTime)> {
    let found = recovery::outages(&owner.session, &[SLOT], (at - 10 * MINUTE, at))
        .await
        .unwrap();
    found.into_iter().map(|it| (it.1, it.3)).collect()
}

/// As the database keeps it.
fn micros(at: OffsetDateTime) -> OffsetDateTime {
    at.replace_microsecond(at.microsecond()).unwrap()
}

#[tokio::test]
async fn the_oldest_of_an_outage_live_again_first_as_new_deliveries_of_their_events() {
    // D6
    let owner = Owner::new().await;
    let at = owner.now().await;
    let class = DeadLetterClass::Transient;
    let later = owner.dead_letter(class, Kind::Live, at - MINUTE).await;
    let first = owner.dead_letter(class, Kind::Live, at - 2 * MINUTE).await;
    let second = owner
        .dead_letter(
            DeadLetterClass::Misconfigured,
            Kind::Replay,
            at - MINUTE * 3 / 2,
        )
        .await;
    let mut ids = new_ids(at, 2);

    let revived = revive(&owner, window(at), &ids).await.unwrap();

    ids.sort_unstable();
    assert_eq!(revived.len(), 2);
    assert_eq!(replayed(&owner, first).await, Some(ids[0]));
    assert_eq!(replayed(&owner, second).await, Some(ids[1]));
    assert_eq!(replayed(&owner, later).await, None);
    let noted =
        "replayed y JOIN dead_letters d ON d.replayed_as = y.delivery_id AND d.id = y.source_id
                   AND d.event_id = y.event_id AND d.endpoint_id = y.endpoint_id";
    assert_eq!(
        owner.count(noted).await,
        2,
        "found by who expunges the event"
    );
    let same = "ready r JOIN dead_letters d ON d.replayed_as = r.id AND d.event_id = r.event_id
                WHERE r.kind = 2 AND r.slot = 1 AND r.endpoint_id = 1 AND r.attempts_made = 0";
    assert_eq!(owner.count(same).await, 2);
    assert_eq!(owner.count("dead_letters").await, 3, "they stay");
}

#[tokio::test]
async fn a_second_call_after_a_lost_answer_doubles_nothing() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    for minutes in 1..=3 {
        owner
            .dead_letter(
                DeadLetterClass::Transient,
                Kind::Live,
                at - minutes * MINUTE,
            )
            .await;
    }

    let lost = revive(&owner, window(at), &new_ids(at, 2)).await.unwrap();
    let again = revive(&owner, window(at), &new_ids(at, 2)).await.unwrap();
    let nothing = revive(&owner, window(at), &new_ids(at, 2)).await.unwrap();

    assert_eq!((lost.len(), again.len(), nothing.len()), (2, 1, 0));
    assert_eq!(owner.count("ready").await, 3);
    assert_eq!(
        owner.count("(SELECT DISTINCT event_id FROM ready) e").await,
        3
    );
}

#[tokio::test]
async fn what_may_not_live_again_stays_dead() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let then = at - MINUTE;
    let live = Kind::Live;
    // Classes that say nothing about an outage, and the class that needs its own word.
    for class in DeadLetterClass::ALL {
        if !matches!(
            class,
            DeadLetterClass::Transient | DeadLetterClass::Misconfigured
        ) {
            owner.dead_letter(*class, live, then).await;
        }
    }
    let transient = DeadLetterClass::Transient;
    // Made by auto-replay: no loops.
    owner.dead_letter(transient, Kind::AutoReplay, then).await;
    // Outside the window.
    owner.dead_letter(transient, live, at - 11 * MINUTE).await;
    owner.dead_letter(transient, live, at + MINUTE).await;
    // Replayed by somebody, without its payload, too late for its event.
    for change in [
        "UPDATE dead_letters SET replayed_as = gen_random_uuid() WHERE id = $1",
        "DELETE FROM events WHERE id = (SELECT event_id FROM dead_letters WHERE id = $1)",
        "UPDATE events SET deliver_before = now() WHERE id = (SELECT event_id FROM dead_letters WHERE id = $1)",
    ] {
        let dead = owner.dead_letter(transient, live, then).await;
        assert_eq!(owner.session.execute(change, &[&dead]).await.unwrap(), 1);
    }

    let revived = revive(&owner, window(at), &new_ids(at, 20)).await.unwrap();
    let refused = Recovery {
        refused: true,
        ..window(at)
    };
    let permanent = revive(&owner, refused, &new_ids(at, 20)).await.unwrap();

    assert_eq!(revived, Vec::<Uuid>::new());
    assert_eq!(permanent.len(), 1);
    let class = "dead_letters d JOIN ready r ON r.id = d.replayed_as WHERE d.class = 3";
    assert_eq!(owner.count(class).await, 1);
}

#[tokio::test]
async fn nothing_lives_again_at_an_endpoint_that_is_not_enabled() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let disable = "UPDATE endpoints SET state = 2";
    owner.session.execute(disable, &[]).await.unwrap();

    let revived = revive(&owner, window(at), &new_ids(at, 1)).await.unwrap();

    assert_eq!(revived, Vec::<Uuid>::new());
    assert_eq!(owner.count("ready").await, 0);
}

#[tokio::test]
async fn a_stale_owner_revives_nothing() {
    // D3: neither under an epoch that has passed nor after its death.
    let owner = Owner::new().await;
    let at = owner.now().await;
    owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let ids = new_ids(at, 1);
    let what = Revive {
        window: window(at),
        ids: &ids,
    };
    let past = (owner.life, SLOT, Epoch(owner.epoch.0 - 1));
    let under_a_past_epoch = recovery::revive(&owner.session, past, ENDPOINT, what).await;
    owner.succeeded_by_another().await;

    let late = revive(&owner, window(at), &ids).await;

    assert!(matches!(under_a_past_epoch, Err(StoreError::NotOwner)));
    assert!(matches!(late, Err(StoreError::NotOwner)), "{late:?}");
    assert_eq!(owner.count("ready").await, 0);
    assert_eq!(
        owner.count("dead_letters WHERE replayed_as IS NULL").await,
        1
    );
}

#[tokio::test]
async fn a_revival_that_waited_for_a_hand_over_revives_nothing() {
    // D3: its snapshot is older than the hand-over, its locks are younger.
    let owner = Owner::new().await;
    let at = owner.now().await;
    owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let watcher = owner.database.connect(Role::Worker).await.unwrap();
    let mut other = owner.database.connect(Role::Worker).await.unwrap();
    let transaction = other.transaction().await.unwrap();
    let lock = "SELECT 1 FROM workers WHERE id = $1 FOR UPDATE";
    transaction.query(lock, &[&owner.life.0]).await.unwrap();

    let ids = new_ids(at, 1);
    let reviving = revive(&owner, window(at), &ids);
    let handing_over = async {
        waits(&watcher, "FROM retention r").await;
        let release = "UPDATE slots SET owner = NULL WHERE slot = $1";
        transaction.execute(release, &[&SLOT.0]).await.unwrap();
        transaction.commit().await.unwrap();
    };
    let (revived, ()) = tokio::join!(reviving, handing_over);

    assert!(matches!(revived, Err(StoreError::NotOwner)), "{revived:?}");
    assert_eq!(owner.count("ready").await, 0);
}

#[tokio::test]
async fn an_event_from_before_the_floor_is_revived_only_once_it_is_kept() {
    // The rule of retention: nobody makes a delivery of an event whose partition is being dropped.
    let owner = Owner::new().await;
    let at = owner.now().await;
    let dead = owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let raise = "UPDATE retention SET replay_floor = $1";
    owner.session.execute(raise, &[&at]).await.unwrap();

    let refused = revive(&owner, window(at), &new_ids(at, 1)).await.unwrap();
    let keep = "INSERT INTO events_kept SELECT * FROM events";
    owner.session.execute(keep, &[]).await.unwrap();
    let kept = revive(&owner, window(at), &new_ids(at, 1)).await.unwrap();

    assert_eq!(refused, Vec::<Uuid>::new());
    assert_eq!(replayed(&owner, dead).await, kept.first().copied());
    assert_eq!(kept.len(), 1);
}

#[tokio::test]
async fn a_revival_waits_for_the_floor_that_is_being_raised_and_obeys_it() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let watcher = owner.database.connect(Role::Worker).await.unwrap();
    let mut other = owner.database.connect(Role::Worker).await.unwrap();
    let transaction = other.transaction().await.unwrap();
    let raise = "UPDATE retention SET replay_floor = $1";
    transaction.execute(raise, &[&at]).await.unwrap();

    let ids = new_ids(at, 1);
    let reviving = revive(&owner, window(at), &ids);
    let raising = async {
        waits(&watcher, "FROM retention r").await;
        transaction.commit().await.unwrap();
    };
    let (revived, ()) = tokio::join!(reviving, raising);

    assert_eq!(revived.unwrap(), Vec::<Uuid>::new());
    assert_eq!(owner.count("ready").await, 0);
}

#[tokio::test]
async fn a_revived_delivery_is_found_by_its_id_and_in_the_list() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let dead = owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let revived = revive(&owner, window(at), &new_ids(at, 1)).await.unwrap();

    let by_id = deliveries::by_ids(&*owner.session, ITS_TENANT, &[revived[0], dead])
        .await
        .unwrap();
    let filter = deliveries::Filter {
        range: (Uuid::nil(), Uuid::max()),
        endpoint: Some(ENDPOINT),
        ..deliveries::Filter::default()
    };
    let page = deliveries::page(&*owner.session, ITS_TENANT, filter, 10)
        .await
        .unwrap();

    let statuses: Vec<_> = by_id.iter().map(|it| it.status).collect();
    assert_eq!(statuses, [Status::Pending, Status::DeadLetter]);
    assert_eq!(by_id[0].event, by_id[1].event);
    assert_eq!(page.rows, [revived[0], dead]);
}

#[tokio::test]
async fn in_line_they_go_to_the_tail_in_their_old_order_or_back_to_the_place_that_they_block() {
    for (on_dead_letter, places) in [("release", [78, 79]), ("block", [76, 77])] {
        let owner = Owner::new().await;
        let at = owner.now().await;
        owner
            .session
            .batch_execute(&format!(
                "UPDATE endpoints SET ordered = true, settings = '{{\"on_dead_letter\": \"{on_dead_letter}\"}}';
                 SELECT setval('order_seq', 77)"
            ))
            .await
            .unwrap();
        let class = DeadLetterClass::Transient;
        let mut dead = Vec::new();
        for (age, order_seq) in [(1, 76_i64), (2, 77)] {
            let id = owner
                .dead_letter(class, Kind::Live, at - age * MINUTE)
                .await;
            let place = "UPDATE dead_letters SET order_key = 5, order_seq = $2 WHERE id = $1";
            owner
                .session
                .execute(place, &[&id, &order_seq])
                .await
                .unwrap();
            dead.push(id);
        }
        owner.dead_letter(class, Kind::Live, at - MINUTE).await;

        let revived = revive(&owner, window(at), &new_ids(at, 3)).await.unwrap();

        assert_eq!(revived.len(), 3);
        let line = "SELECT d.id, r.order_seq FROM ready_ordered r JOIN dead_letters d ON d.replayed_as = r.id
                    WHERE r.slot = 1 AND r.order_key = 5 AND r.kind = 2 AND r.due_at IS NULL ORDER BY r.order_seq";
        let rows = owner.session.query(line, &[]).await.unwrap();
        let there: Vec<(Uuid, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected: Vec<_> = dead.into_iter().zip(places).collect();
        assert_eq!(there, expected, "{on_dead_letter}");
        assert_eq!(owner.count("ready").await, 1, "the one without a key");
    }
}

/// A dead letter whose only attempt failed, as a killed owner leaves it.
async fn exhausted(owner: &Owner, at: OffsetDateTime) -> Uuid {
    let dead = owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at)
        .await;
    let insert = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id,
                    endpoint_version, total_ms, outcome, applied)
                  VALUES ($1, $2, 1, 1, $3, $4, $2, 1, 5, 2, true)";
    let started = at - MINUTE;
    owner
        .session
        .execute(insert, &[&TENANT, &dead, &started, &ENDPOINT.0])
        .await
        .unwrap();
    dead
}

#[tokio::test]
async fn an_outage_that_nobody_wrote_down_is_found() {
    let owner = Owner::new().await;
    let at = micros(owner.now().await);
    owner
        .attempt(ENDPOINT, Outcome::Delivered, at - 8 * MINUTE)
        .await;
    // From before the last success, and so of no outage that still lasts.
    exhausted(&owner, at - 9 * MINUTE).await;
    exhausted(&owner, at - 5 * MINUTE).await;
    exhausted(&owner, at - 3 * MINUTE).await;

    let found = outages(&owner, at).await;
    let elsewhere = recovery::outages(&owner.session, &[Slot(2)], (at - 10 * MINUTE, at))
        .await
        .unwrap();

    assert_eq!(found, [(ENDPOINT, at - 5 * MINUTE)]);
    assert_eq!(elsewhere, []);
}

#[tokio::test]
async fn a_dead_letter_at_an_endpoint_that_is_well_is_no_outage() {
    // A success since its first attempt, even while it was being retried: one bad payload opens nothing.
    let owner = Owner::new().await;
    let at = owner.now().await;
    exhausted(&owner, at - 5 * MINUTE).await;
    owner
        .attempt(ENDPOINT, Outcome::Delivered, at - MINUTE * 11 / 2)
        .await;

    assert_eq!(outages(&owner, at).await, []);
}

#[tokio::test]
async fn no_outage_is_found_twice_or_where_nothing_is_to_be_done() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let save = async |runtime: Runtime| {
        let fence = owner.fence();
        endpoint_runtime::save(&owner.session, fence, ENDPOINT, ITS_TENANT, &runtime)
            .await
            .unwrap();
    };
    let permanent = DeadLetterClass::Permanent;
    owner.dead_letter(permanent, Kind::Live, at - MINUTE).await;
    let transient = DeadLetterClass::Transient;
    owner
        .dead_letter(transient, Kind::AutoReplay, at - MINUTE)
        .await;
    owner
        .dead_letter(transient, Kind::Live, at - 11 * MINUTE)
        .await;
    let of_no_outage = outages(&owner, at).await;
    exhausted(&owner, at - 5 * MINUTE).await;
    let found = outages(&owner, at).await;

    save(Runtime {
        opened_at: Some(at),
        ..Runtime::default()
    })
    .await;
    let open = outages(&owner, at).await;
    save(Runtime {
        recovery: Some(window(at)),
        ..Runtime::default()
    })
    .await;
    let recovering = outages(&owner, at).await;
    save(Runtime {
        recovery: Some(Recovery {
            until: at - 6 * MINUTE,
            ..window(at)
        }),
        ..Runtime::default()
    })
    .await;
    let another = outages(&owner, at).await;
    save(Runtime::default()).await;
    let again = outages(&owner, at).await;
    let disable = "UPDATE endpoints SET state = 2";
    owner.session.execute(disable, &[]).await.unwrap();
    let disabled = outages(&owner, at).await;

    assert_eq!(of_no_outage, []);
    assert_eq!((found.len(), again.len(), another.len()), (1, 1, 1));
    assert_eq!((open, recovering, disabled), (vec![], vec![], vec![]));
}

#[tokio::test]
async fn a_dead_letter_of_a_replay_names_the_first_delivery_of_its_event() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let first = owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - MINUTE)
        .await;
    let revived = revive(&owner, window(at), &new_ids(at, 1)).await.unwrap();

    let tomorrow = at + Duration::from_secs(86_400);
    let too_old = (ids::lower_bound(tomorrow), at);
    let fence = owner.fence();
    let expired = shared::store::queue::expire(&owner.session, fence, ENDPOINT, too_old, &[]).await;

    assert_eq!(expired.unwrap(), 1);
    let query = "SELECT root_id, kind FROM dead_letters WHERE id = $1";
    let row = owner
        .session
        .query_one(query, &[&revived[0]])
        .await
        .unwrap();
    assert_eq!(row.get::<_, Uuid>(0), first);
    assert_eq!(row.get::<_, i16>(1), Kind::AutoReplay.code());
    assert_eq!(owner.count("ready").await, 0);
}
