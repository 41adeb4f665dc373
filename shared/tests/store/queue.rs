//! Live deliveries under their fence: what the hot statements change, and what they refuse to.

use std::time::Duration;

use shared::domain::attempt::{Outcome, Phases};
use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use shared::runtime::clock::wall_time;
use shared::store::queue::{self, AttemptRow, Next, RecordRow, Statements, Want};
use shared::store::{Database, Role, Session, StoreError, slots};
use shared::testing::{TestDatabase, eventually};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::world::{TENANT, count, declare_dead, delivery, event, now};

const SLOT: Slot = Slot(1);
const ENDPOINT: EndpointKey = EndpointKey(1);
const PATIENCE: Duration = Duration::from_secs(20);

/// One worker that owns all slots, and one delivery in `ready`.
struct World {
    database: Database,
    session: Session,
    sql: Statements,
    owner: Incarnation,
    epoch: Epoch,
    event: Uuid,
    delivery: Uuid,
    _test: TestDatabase,
}

impl World {
    async fn new() -> Self {
        let test = TestDatabase::new().await;
        let database = test.database();
        let session = database.connect(Role::Worker).await.unwrap();
        let sql = Statements::prepare(&session).await.unwrap();
        let owner = join(&session).await;
        let epoch = take_over(&session, owner).await;
        session
            .execute(
                "INSERT INTO event_types (tenant_id, name) VALUES ($1, 'order.created')",
                &[&TENANT],
            )
            .await
            .unwrap();
        let event = event(&session, now(&session).await).await;
        let delivery = delivery(&session, "ready", event).await;
        Self {
            database,
            session,
            sql,
            owner,
            epoch,
            event,
            delivery,
            _test: test,
        }
    }

    fn row(&self, attempts_before: u16, next: Next) -> RecordRow<'static> {
        RecordRow {
            slot: SLOT,
            epoch: self.epoch,
            endpoint: ENDPOINT,
            delivery: self.delivery,
            event_id: self.event,
            tenant: TenantKey(TENANT),
            attempts_before,
            attempts_charged: attempts_before + 1,
            outcome: Outcome::Transient,
            next,
            note: None,
            attempt: Some(attempt(wall_time())),
        }
    }

    async fn record(&self, row: RecordRow<'_>) -> Result<bool, StoreError> {
        let answers = queue::record(&self.session, &self.sql, self.owner, &[row]).await?;
        Ok(answers.first().unwrap().1)
    }

    async fn tables(&self) -> [i64; 4] {
        let mut counts = [0; 4];
        for (count_of, table) in counts
            .iter_mut()
            .zip(["ready", "retry", "dead_letters", "closed"])
        {
            *count_of = count(&self.session, table).await;
        }
        counts
    }
}

fn attempt(started_at: OffsetDateTime) -> AttemptRow<'static> {
    AttemptRow {
        started_at,
        endpoint_version: 1,
        status: Some(503),
        phases: Phases {
            queue_us: Some(10),
            first_byte_us: Some(900),
            ..Phases::default()
        },
        total_ms: 1,
        addr: Some("127.0.0.1".parse().unwrap()),
        dialled: &[],
        response: b"\0\xff busy",
    }
}

async fn join(session: &Session) -> Incarnation {
    let incarnation = Incarnation(Uuid::new_v4());
    slots::join(session, incarnation, "test", Duration::from_secs(60))
        .await
        .unwrap();
    incarnation
}

async fn take_over(session: &Session, incarnation: Incarnation) -> Epoch {
    let taken = slots::acquire(session, incarnation, 256).await.unwrap();
    taken.iter().find(|it| it.slot == SLOT).unwrap().epoch
}

fn later(seconds: i64) -> OffsetDateTime {
    wall_time() + time::Duration::seconds(seconds)
}

#[tokio::test]
async fn a_stale_owner_cannot_record_an_outcome() {
    // D3
    let world = World::new().await;
    let successor = join(&world.session).await;
    declare_dead(&world.session, world.owner).await;
    let epoch = take_over(&world.session, successor).await;

    let late = world.record(world.row(0, Next::Delivered)).await.unwrap();

    assert_eq!(epoch.0, world.epoch.0 + 1);
    assert!(!late);
    assert_eq!(world.tables().await, [1, 0, 0, 0]);
    let kept = "attempts WHERE NOT applied AND final_status IS NULL";
    assert_eq!(
        count(&world.session, kept).await,
        1,
        "the late attempt stays as a sample"
    );
}

#[tokio::test]
async fn an_epoch_of_a_former_take_over_changes_nothing_even_for_the_same_owner() {
    // D3: owner and epoch, not one of them.
    let world = World::new().await;
    world
        .session
        .execute("UPDATE slots SET epoch = epoch + 1", &[])
        .await
        .unwrap();

    assert!(!world.record(world.row(0, Next::Delivered)).await.unwrap());
    assert_eq!(world.tables().await, [1, 0, 0, 0]);
}

#[tokio::test]
async fn declaring_a_worker_dead_waits_for_its_running_record_and_the_scan_after_it_sees_the_result()
 {
    // D3, the order that a plain epoch test gets wrong.
    let world = World::new().await;
    let mut recording = world.database.connect(Role::Worker).await.unwrap();
    let other = world.database.connect(Role::Worker).await.unwrap();
    let successor = join(&other).await;
    world
        .session
        .execute(
            "UPDATE workers SET expires_at = now() - interval '1 min' WHERE id = $1",
            &[&world.owner.0],
        )
        .await
        .unwrap();
    let transaction = recording.transaction().await.unwrap();
    // The record statement has run and its commit is under way.
    transaction
        .execute(
            "SELECT id FROM workers WHERE id = $1 FOR KEY SHARE",
            &[&world.owner.0],
        )
        .await
        .unwrap();
    transaction
        .execute("DELETE FROM ready WHERE id = $1", &[&world.delivery])
        .await
        .unwrap();

    let declaring = async { slots::declare_dead(&other, successor).await.unwrap() };
    let committing = async {
        eventually(PATIENCE, || async {
            let waiting = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE FROM workers%' AND datname = current_database()";
            (count(&world.session, waiting).await > 0).then_some(())
        })
        .await;
        transaction.commit().await.unwrap();
    };
    let (dead, ()) = tokio::join!(declaring, committing);
    take_over(&other, successor).await;
    let found = queue::scan(&other, &Statements::prepare(&other).await.unwrap(), &[SLOT])
        .await
        .unwrap();

    assert_eq!(dead, 1);
    assert!(
        found.is_empty(),
        "the recorded row is not found again: {found:?}"
    );
}

#[tokio::test]
async fn a_renewal_does_not_wait_for_a_running_record() {
    let world = World::new().await;
    let mut recording = world.database.connect(Role::Worker).await.unwrap();
    let transaction = recording.transaction().await.unwrap();
    transaction
        .execute(
            "SELECT id FROM workers WHERE id = $1 FOR KEY SHARE",
            &[&world.owner.0],
        )
        .await
        .unwrap();

    let renewed = slots::renew(&world.session, world.owner, Duration::from_secs(10), &[]);
    let renewed = tokio::time::timeout(PATIENCE, renewed)
        .await
        .unwrap()
        .unwrap();

    assert!(renewed.is_some());
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_record_submitted_twice_changes_nothing_the_second_time() {
    // D6: the acknowledgement was lost.
    let world = World::new().await;
    let started = wall_time();
    let row = || RecordRow {
        attempt: Some(attempt(started)),
        ..world.row(0, Next::Retry(later(60)))
    };

    let first = world.record(row()).await.unwrap();
    let second = world.record(row()).await.unwrap();

    assert_eq!((first, second), (true, false));
    assert_eq!(world.tables().await, [0, 1, 0, 0]);
    assert_eq!(count(&world.session, "attempts").await, 1);
}

#[tokio::test]
async fn a_delivery_goes_through_its_ladder_and_is_in_one_table_at_a_time() {
    // D4, D6
    let world = World::new().await;

    assert!(
        world
            .record(world.row(0, Next::Retry(later(1))))
            .await
            .unwrap()
    );
    assert_eq!(world.tables().await, [0, 1, 0, 0]);
    assert!(
        world
            .record(world.row(1, Next::Retry(later(2))))
            .await
            .unwrap()
    );
    assert_eq!(world.tables().await, [0, 1, 0, 0]);
    let made = count(
        &world.session,
        "retry WHERE attempts_made = 2 AND attempts_charged = 2",
    )
    .await;
    assert_eq!(made, 1);
    assert!(
        world
            .record(world.row(2, Next::DeadLetter(DeadLetterClass::Transient)))
            .await
            .unwrap()
    );
    assert_eq!(world.tables().await, [0, 0, 1, 0]);
    let late = world.record(world.row(2, Next::Delivered)).await.unwrap();

    assert!(!late, "a final state is final");
    assert_eq!(world.tables().await, [0, 0, 1, 0]);
    let finals = "attempts WHERE final_status IS NOT NULL";
    assert_eq!(count(&world.session, finals).await, 1);
    let explained = "dead_letters WHERE class = 1 AND status = 503 AND attempts_made = 3 AND fingerprint IS NOT NULL";
    assert_eq!(count(&world.session, explained).await, 1);
}

#[tokio::test]
async fn a_row_keeps_its_first_attempt_and_its_end_of_life_from_rung_to_rung() {
    let world = World::new().await;
    let ends = later(3_600).replace_nanosecond(0).unwrap();
    let first = wall_time().replace_nanosecond(0).unwrap();
    let update = "UPDATE ready SET deliver_before = $1";
    world.session.execute(update, &[&ends]).await.unwrap();
    let retried = |before, started_at| RecordRow {
        attempt: Some(attempt(started_at)),
        ..world.row(before, Next::Retry(first))
    };

    let fresh = loaded(&world).await;
    assert!(world.record(retried(0, first)).await.unwrap());
    let once = loaded(&world).await;
    assert!(world.record(retried(1, later(1))).await.unwrap());
    let twice = loaded(&world).await;

    let facts = |row: &queue::Row| (row.first_at, row.event.as_ref().unwrap().2);
    assert_eq!(facts(&fresh), (None, Some(ends)));
    assert_eq!(facts(&once), (Some(first), Some(ends)));
    assert_eq!(facts(&twice), (Some(first), Some(ends)));
    assert_eq!(twice.attempts_made, 2);
}

/// The world's delivery as its owner loads it.
async fn loaded(world: &World) -> queue::Row {
    let want = Want {
        slot: SLOT,
        endpoint: ENDPOINT,
        cursor: Uuid::nil(),
        ready_limit: 1,
        retry_limit: 1,
    };
    let (ready, retry) = queue::load(&world.session, &world.sql, &[want], later(60))
        .await
        .unwrap();
    ready.into_iter().chain(retry).next().unwrap()
}

#[tokio::test]
async fn a_delivery_that_ends_without_a_request_leaves_no_attempt() {
    let world = World::new().await;
    let expired = RecordRow {
        attempt: None,
        outcome: Outcome::Expired,
        ..world.row(0, Next::DeadLetter(DeadLetterClass::Expired))
    };

    assert!(world.record(expired).await.unwrap());

    assert_eq!(world.tables().await, [0, 0, 1, 0]);
    assert_eq!(count(&world.session, "attempts").await, 0);
    assert_eq!(
        count(&world.session, "dead_letters WHERE attempts_made = 0").await,
        1
    );
}

#[tokio::test]
async fn a_retry_whose_attempt_could_not_be_stored_is_found_by_the_next_record() {
    // D8: else it would be sent for ever, and no record of it would apply.
    let world = World::new().await;
    let refused = RecordRow {
        attempt: None,
        ..world.row(0, Next::Retry(later(1)))
    };

    assert!(world.record(refused).await.unwrap());
    assert_eq!(world.tables().await, [0, 1, 0, 0]);
    let ended = world.record(world.row(1, Next::Delivered)).await.unwrap();

    assert!(ended);
    assert_eq!(world.tables().await, [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_cancelled_delivery_stays_cancelled_whatever_is_recorded_later() {
    // D6: the API cancels while the request is on the wire.
    let world = World::new().await;
    world
        .session
        .execute("DELETE FROM ready WHERE id = $1", &[&world.delivery])
        .await
        .unwrap();

    let late = world
        .record(world.row(0, Next::Retry(later(1))))
        .await
        .unwrap();

    assert!(!late);
    assert_eq!(world.tables().await, [0, 0, 0, 0]);
}

#[tokio::test]
async fn what_the_database_cannot_store_is_named_bad_data() {
    let world = World::new().await;
    let nul = RecordRow {
        note: Some("broken\0text"),
        ..world.row(0, Next::Delivered)
    };
    let no_partition = RecordRow {
        attempt: Some(attempt(OffsetDateTime::UNIX_EPOCH)),
        ..world.row(0, Next::Delivered)
    };

    for row in [nul, no_partition] {
        let refused = world.record(row).await.unwrap_err();
        assert!(matches!(refused, StoreError::BadData(_)), "{refused:?}");
    }
    assert_eq!(
        world.tables().await,
        [1, 0, 0, 0],
        "nothing of a refused batch is stored"
    );
}

#[tokio::test]
async fn loading_brings_exact_payloads_from_both_event_tables_and_says_what_is_not_due() {
    // P1
    let world = World::new().await;
    let kept = event(&world.session, now(&world.session).await).await;
    world.session.batch_execute(&format!("INSERT INTO events_kept SELECT * FROM events WHERE id = '{kept}'; DELETE FROM events WHERE id = '{kept}'")).await.unwrap();
    let from_kept = delivery(&world.session, "ready", kept).await;
    let waiting = delivery(&world.session, "retry", world.event).await;
    world
        .session
        .execute(
            "UPDATE retry SET due_at = now() + interval '1 h', attempts_made = 1",
            &[],
        )
        .await
        .unwrap();
    let type_id: i32 = world
        .session
        .query_one("SELECT id FROM event_types", &[])
        .await
        .unwrap()
        .get(0);
    for table in ["events", "events_kept"] {
        world
            .session
            .execute(&format!("UPDATE {table} SET type_id = $1"), &[&type_id])
            .await
            .unwrap();
    }
    let want = Want {
        slot: SLOT,
        endpoint: ENDPOINT,
        cursor: Uuid::nil(),
        ready_limit: 10,
        retry_limit: 10,
    };

    let (ready, retry) = queue::load(
        &world.session,
        &world.sql,
        &[want],
        now(&world.session).await,
    )
    .await
    .unwrap();

    let payloads: Vec<_> = ready
        .iter()
        .map(|row| row.event.as_ref().unwrap().1.clone())
        .collect();
    let expected = [world.event, kept].map(|id| id.to_string().into_bytes());
    assert_eq!(payloads, expected);
    assert_eq!(
        ready.iter().map(|row| row.id).collect::<Vec<_>>(),
        [world.delivery, from_kept]
    );
    assert_eq!(
        ready.first().unwrap().event.as_ref().unwrap().0,
        "order.created"
    );
    let only = retry.first().unwrap();
    assert_eq!((retry.len(), only.id, only.attempts_made), (1, waiting, 1));
    assert!(only.event.is_none() && only.due_at.unwrap() > now(&world.session).await);
}

#[tokio::test]
async fn closing_takes_what_waits_and_leaves_what_is_on_the_wire() {
    let world = World::new().await;
    for _ in 0..3 {
        delivery(&world.session, "retry", world.event).await;
    }
    let fence = (world.owner, SLOT, world.epoch);
    let what = (ENDPOINT, CloseReason::EndpointDisabled);

    let closed = queue::close(&world.session, &world.sql, fence, what, &[world.delivery])
        .await
        .unwrap();
    let again = queue::close(&world.session, &world.sql, fence, what, &[world.delivery])
        .await
        .unwrap();

    assert_eq!((closed, again), (3, 0));
    assert_eq!(world.tables().await, [1, 0, 0, 3]);
    assert_eq!(
        count(&world.session, "closed WHERE status = 7 AND reason = 1").await,
        3
    );
    declare_dead(&world.session, world.owner).await;
    let stale = queue::close(&world.session, &world.sql, fence, what, &[]).await;
    assert!(matches!(stale, Err(StoreError::NotOwner)), "{stale:?}");
}

#[tokio::test]
async fn two_workers_that_take_slots_at_once_never_share_one() {
    let world = World::new().await;
    world
        .session
        .execute("UPDATE slots SET owner = NULL", &[])
        .await
        .unwrap();
    let (a, b) = (
        world.database.connect(Role::Worker).await.unwrap(),
        world.database.connect(Role::Worker).await.unwrap(),
    );
    let (first, second) = (join(&a).await, join(&b).await);

    let (one, two) = tokio::join!(
        slots::acquire(&a, first, 200),
        slots::acquire(&b, second, 200)
    );

    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(
        one.iter()
            .all(|it| two.iter().all(|other| it.slot != other.slot))
    );
    let owned = count(&world.session, "slots WHERE owner IS NOT NULL").await;
    assert_eq!(i64::try_from(one.len() + two.len()).unwrap(), owned);
}

#[tokio::test]
async fn what_a_dead_worker_had_in_flight_is_suspect_and_counts_each_death() {
    let world = World::new().await;
    let other = join(&world.session).await;
    slots::renew(
        &world.session,
        world.owner,
        Duration::from_secs(10),
        &[world.delivery],
    )
    .await
    .unwrap();
    world
        .session
        .execute(
            "UPDATE workers SET expires_at = now() - interval '1 min' WHERE id = $1",
            &[&world.owner.0],
        )
        .await
        .unwrap();

    assert_eq!(slots::declare_dead(&world.session, other).await.unwrap(), 1);
    assert_eq!(
        slots::suspects(&world.session)
            .await
            .unwrap()
            .get(&world.delivery),
        Some(&1)
    );
    slots::charge_suspect(&world.session, world.delivery)
        .await
        .unwrap();
    assert_eq!(
        slots::suspects(&world.session)
            .await
            .unwrap()
            .get(&world.delivery),
        Some(&2)
    );
    slots::clear_suspects(&world.session, &[world.delivery])
        .await
        .unwrap();
    assert!(slots::suspects(&world.session).await.unwrap().is_empty());
}
