//! Leases of jobs: one leader, and a stale one changes nothing (D3).

use std::time::Duration;

use shared::ids::Epoch;
use shared::store::leases::{acquire, release, still_mine};
use shared::store::{Role, StoreError};
use shared::testing::TestDatabase;

use crate::world;

#[tokio::test]
async fn of_two_incarnations_that_race_one_gets_the_lease() {
    let database = TestDatabase::new().await;
    let (one, other) = (database.session().await, database.session().await);
    let (a, b) = (
        world::incarnation(&one).await,
        world::incarnation(&one).await,
    );

    for round in 1..=50 {
        let (first, second) = tokio::join!(acquire(&one, "job", a), acquire(&other, "job", b));

        let got: Vec<_> = [first.unwrap(), second.unwrap()]
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(got.len(), 1, "{got:?}");
        let lease = got.into_iter().next().unwrap();
        assert_eq!(lease.epoch, Epoch(round));
        still_mine(&*one, &lease).await.unwrap();
        release(&one, &lease).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_is_kept_while_its_owner_lives_and_taken_when_it_is_declared_dead() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let (a, b) = (
        world::incarnation(&session).await,
        world::incarnation(&session).await,
    );
    let first = acquire(&session, "job", a).await.unwrap().unwrap();
    assert_eq!(acquire(&session, "job", b).await.unwrap(), None);

    world::declare_dead(&session, a).await;

    let stale = still_mine(&*session, &first).await;
    assert!(matches!(stale, Err(StoreError::NotOwner)), "{stale:?}");
    let second = acquire(&session, "job", b).await.unwrap().unwrap();
    assert_eq!(second.epoch, Epoch(2));
    assert_eq!(
        acquire(&session, "job", a).await.unwrap(),
        None,
        "the dead take nothing"
    );
    release(&session, &first).await.unwrap();
    still_mine(&*session, &second).await.unwrap();
}

#[tokio::test]
async fn a_job_that_was_started_again_fences_what_it_left_behind() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let a = world::incarnation(&session).await;

    let before = acquire(&session, "job", a).await.unwrap().unwrap();
    let after = acquire(&session, "job", a).await.unwrap().unwrap();

    assert!(matches!(
        still_mine(&*session, &before).await,
        Err(StoreError::NotOwner)
    ));
    still_mine(&*session, &after).await.unwrap();
}

#[tokio::test]
async fn a_take_over_comes_before_a_step_or_after_it_never_between() {
    let database = TestDatabase::new().await;
    let (mut leader, other) = (database.session().await, database.session().await);
    let (a, b) = (
        world::incarnation(&other).await,
        world::incarnation(&other).await,
    );
    let lease = acquire(&leader, "job", a).await.unwrap().unwrap();
    let step = leader.transaction().await.unwrap();
    still_mine(&step, &lease).await.unwrap();

    world::declare_dead(&other, a).await;
    let during = acquire(&other, "job", b).await.unwrap();
    step.commit().await.unwrap();
    let after = acquire(&other, "job", b).await.unwrap();

    assert_eq!(during, None, "the step is not over");
    assert_eq!(after.unwrap().epoch, Epoch(2));
    assert!(matches!(
        still_mine(&*leader, &lease).await,
        Err(StoreError::NotOwner)
    ));
}

#[tokio::test]
async fn declaring_a_worker_dead_does_not_wait_for_its_jobs() {
    let database = TestDatabase::new().await;
    let mut leader = database.session().await;
    let other = database.database().connect(Role::Worker).await.unwrap();
    let a = world::incarnation(&other).await;
    let lease = acquire(&leader, "job", a).await.unwrap().unwrap();
    let step = leader.transaction().await.unwrap();
    still_mine(&step, &lease).await.unwrap();

    let declared = world::declare_dead(&other, a);

    tokio::time::timeout(Duration::from_secs(2), declared)
        .await
        .unwrap();
    step.rollback().await.unwrap();
}
