//! Slots on their way from one worker to another, with answers lost and statements that overlap:
//! the SQL side of what `worker/tests/model` explores.

use std::time::Duration;

use shared::domain::delivery::CloseReason;
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot};
use shared::store::queue::{self, Statements};
use shared::store::slots::Taken;
use shared::store::{Database, Role, Session, StoreError, slots};
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::world::{TENANT, count, delivery, event, now};

const TTL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);
const SLOT: Slot = Slot(1);
const ENDPOINT: EndpointKey = EndpointKey(1);

async fn worker(database: &Database) -> (Session, Incarnation) {
    let session = database.connect(Role::Worker).await.unwrap();
    let incarnation = Incarnation(Uuid::new_v4());
    slots::join(&session, incarnation, "test", TTL)
        .await
        .unwrap();
    (session, incarnation)
}

fn epoch_of(slots: &[Taken], slot: Slot) -> Epoch {
    slots.iter().find(|it| it.slot == slot).unwrap().epoch
}

fn pairs(taken: &[Taken]) -> Vec<(Slot, Epoch)> {
    taken.iter().map(|it| (it.slot, it.epoch)).collect()
}

/// Until a statement of that text waits for a lock.
async fn waits(session: &Session, text: &str) {
    let waiting = format!(
        "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{text}%' AND datname = current_database()"
    );
    eventually(PATIENCE, || async {
        (count(session, &waiting).await > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn joining_again_after_a_lost_answer_is_joining() {
    let test = TestDatabase::new().await;
    let (session, me) = worker(&test.database()).await;

    slots::join(&session, me, "test", TTL).await.unwrap();

    assert_eq!(count(&session, "workers").await, 1);
}

#[tokio::test]
async fn what_is_owned_without_being_known_is_taken_anew_once() {
    let test = TestDatabase::new().await;
    let (mut session, me) = worker(&test.database()).await;
    let taken = pairs(&slots::acquire(&session, me, 3).await.unwrap());

    let census = slots::census(&session, me).await.unwrap();
    let anew = slots::reclaim(&mut session, me, &census.mine)
        .await
        .unwrap();
    let again = slots::reclaim(&mut session, me, &census.mine)
        .await
        .unwrap();
    let late = slots::release(&mut session, me, &taken, &[], &[])
        .await
        .unwrap();

    assert_eq!(
        (census.workers, census.free, census.mine),
        (1, 253, taken.clone())
    );
    let next = taken
        .iter()
        .map(|(slot, epoch)| (*slot, Epoch(epoch.0 + 1)));
    assert_eq!(pairs(&anew), next.collect::<Vec<_>>());
    assert_eq!(
        (again, late),
        (vec![], vec![]),
        "an earlier statement finds another epoch"
    );
    assert_eq!(
        slots::census(&session, me).await.unwrap().mine,
        pairs(&anew)
    );
}

#[tokio::test]
async fn a_draining_worker_is_not_counted_among_those_who_share() {
    let test = TestDatabase::new().await;
    let database = test.database();
    let (first, leaving) = worker(&database).await;
    let (second, staying) = worker(&database).await;

    slots::drain(&first, leaving).await.unwrap();

    assert_eq!(slots::census(&second, staying).await.unwrap().workers, 1);
}

const HOLD_UP: &str = "
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF current_setting('test.held_up', true) = 'on' THEN PERFORM pg_advisory_xact_lock(1); END IF;
  RETURN NULL; END $$;
CREATE TRIGGER hold_up BEFORE UPDATE ON slots FOR EACH STATEMENT EXECUTE FUNCTION hold_up()";

#[tokio::test]
async fn a_take_over_leaves_alone_what_a_worker_that_joined_meanwhile_has_taken() {
    // The statement began before the other joined: in its snapshot the new owner does not live.
    let test = TestDatabase::new().await;
    let database = test.database();
    let (slow, me) = worker(&database).await;
    let (mut blocker, _) = worker(&database).await;
    let watcher = database.connect(Role::Worker).await.unwrap();
    let transaction = blocker.transaction().await.unwrap();
    // Holds up the one statement after it took its snapshot.
    watcher.batch_execute(HOLD_UP).await.unwrap();
    slow.batch_execute("SET test.held_up = 'on'").await.unwrap();
    let hold = "SELECT pg_advisory_xact_lock(1)";
    transaction.query(hold, &[]).await.unwrap();

    let taking = async { slots::acquire(&slow, me, 256).await.unwrap() };
    let other = async {
        waits(&watcher, "UPDATE slots SET owner").await;
        let (session, newcomer) = worker(&database).await;
        let theirs = slots::acquire(&session, newcomer, 100).await.unwrap();
        transaction.rollback().await.unwrap();
        (theirs, newcomer)
    };
    let (mine, (theirs, newcomer)) = tokio::join!(taking, other);

    let owned = |owner: Incarnation| format!("slots WHERE owner = '{}'", owner.0);
    assert_eq!(
        count(&watcher, &owned(me)).await,
        i64::try_from(mine.len()).unwrap()
    );
    assert_eq!(
        count(&watcher, &owned(newcomer)).await,
        i64::try_from(theirs.len()).unwrap()
    );
    assert_eq!(mine.len() + theirs.len(), 256);
}

#[tokio::test]
async fn a_closing_that_waited_for_a_hand_over_closes_nothing() {
    // D3: its snapshot is older than the hand-over, its locks are younger.
    let test = TestDatabase::new().await;
    let database = test.database();
    let (mut session, me) = worker(&database).await;
    let closing = database.connect(Role::Worker).await.unwrap();
    let sql = Statements::prepare(&closing).await.unwrap();
    let watcher = database.connect(Role::Worker).await.unwrap();
    let taken = slots::acquire(&session, me, 256).await.unwrap();
    let epoch = epoch_of(&taken, SLOT);
    let event = event(&watcher, now(&watcher).await).await;
    delivery(&watcher, "ready", event).await;
    let transaction = session.transaction().await.unwrap();
    let lock = "SELECT 1 FROM workers WHERE id = $1 FOR UPDATE";
    transaction.query(lock, &[&me.0]).await.unwrap();

    let what = (ENDPOINT, CloseReason::EndpointDisabled);
    let close = async { queue::close(&closing, &sql, (me, SLOT, epoch), what, &[]).await };
    let release = async {
        waits(&watcher, "FOR SHARE OF s").await;
        let release = "UPDATE slots SET owner = NULL WHERE slot = $1";
        transaction.execute(release, &[&SLOT.0]).await.unwrap();
        transaction.commit().await.unwrap();
    };
    let (closed, ()) = tokio::join!(close, release);

    assert!(matches!(closed, Err(StoreError::NotOwner)), "{closed:?}");
    assert_eq!(count(&watcher, "ready").await, 1);
}

#[tokio::test]
async fn nothing_of_an_endpoint_that_is_enabled_again_is_closed() {
    let test = TestDatabase::new().await;
    let (session, me) = worker(&test.database()).await;
    let sql = Statements::prepare(&session).await.unwrap();
    let taken = slots::acquire(&session, me, 256).await.unwrap();
    let fence = (me, SLOT, epoch_of(&taken, SLOT));
    let what = (ENDPOINT, CloseReason::EndpointDisabled);
    let insert = "INSERT INTO endpoints (id, public_id, tenant_id, slot, url, state)
                  OVERRIDING SYSTEM VALUE VALUES (1, gen_random_uuid(), $1, 1, 'http://x/', 1)";
    session.execute(insert, &[&TENANT]).await.unwrap();
    let event = event(&session, now(&session).await).await;
    delivery(&session, "ready", event).await;

    let enabled = queue::close(&session, &sql, fence, what, &[]).await;
    session
        .execute("UPDATE endpoints SET state = 2", &[])
        .await
        .unwrap();
    let disabled = queue::close(&session, &sql, fence, what, &[]).await;

    assert!(matches!(enabled, Err(StoreError::NotOwner)), "{enabled:?}");
    assert_eq!(disabled.unwrap(), 1);
}
