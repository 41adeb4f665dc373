//! What an endpoint's owner knows of it, across hand-overs and crashes.

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::ids::EndpointKey;
use shared::store::endpoint_runtime::{self, Recovery, Runtime};
use shared::store::slots::{self, Handed};
use shared::store::{Role, StoreError, endpoint_configs};
use time::OffsetDateTime;

use crate::owner::{ENDPOINT, ITS_TENANT, Owner, SLOT, join, take_all, waits};

const OTHER: EndpointKey = EndpointKey(2);

/// As the database keeps it.
fn micros(at: OffsetDateTime) -> OffsetDateTime {
    at.replace_microsecond(at.microsecond()).unwrap()
}

fn broken(at: OffsetDateTime) -> Runtime {
    let at = micros(at);
    Runtime {
        opened_at: Some(at),
        cooldown: Duration::from_millis(300_500),
        next_probe_at: Some(at + Duration::from_secs(300)),
        failing_since: Some(at - Duration::from_secs(60)),
        refusing_since: Some(at - Duration::from_secs(50)),
        recovery: Some(Recovery {
            from: at - Duration::from_secs(600),
            until: at,
            refused: true,
        }),
        ..Runtime::default()
    }
}

async fn stored(owner: &Owner) -> Runtime {
    let read = endpoint_configs::read(&owner.session, &[ENDPOINT])
        .await
        .unwrap();
    read.into_iter().next().unwrap().runtime
}

async fn save(owner: &Owner, runtime: &Runtime) -> Result<(), StoreError> {
    let fence = owner.fence();
    endpoint_runtime::save(&owner.session, fence, ENDPOINT, ITS_TENANT, runtime).await
}

/// The version under which buckets were counted.
const VERSION: i32 = 3;

fn handed(owner: &Owner, endpoint: EndpointKey, tat: Option<OffsetDateTime>) -> Handed {
    Handed {
        endpoint,
        slot: SLOT,
        epoch: owner.epoch,
        tenant: ITS_TENANT,
        tat,
        version: VERSION,
        parked_until: None,
    }
}

#[tokio::test]
async fn what_was_saved_is_read_with_the_configuration() {
    let owner = Owner::new().await;
    let unknown = stored(&owner).await;
    let runtime = broken(owner.now().await);

    save(&owner, &runtime).await.unwrap();
    let open = stored(&owner).await;
    save(&owner, &Runtime::default()).await.unwrap();
    let closed = stored(&owner).await;

    assert_eq!(unknown, Runtime::default());
    assert_eq!(open, runtime);
    assert_eq!(closed, Runtime::default());
}

#[tokio::test]
async fn saving_leaves_alone_what_others_write() {
    let owner = Owner::new().await;
    let at = micros(owner.now().await);
    let insert = "INSERT INTO endpoint_runtime (endpoint_id, tat_at, tat_version, parked_until, p95_ms, enabled_at)
                  VALUES (1, $1, 7, $1, 6000, $1)";
    owner.session.execute(insert, &[&at]).await.unwrap();

    save(&owner, &broken(at)).await.unwrap();

    let expected = Runtime {
        bucket: Some((at, 7)),
        parked_until: Some(at),
        p95_ms: Some(6_000),
        enabled_at: Some(at),
        ..broken(at)
    };
    assert_eq!(stored(&owner).await, expected);
}

#[tokio::test]
async fn a_stale_owner_saves_nothing() {
    // D3: neither after its death nor under an epoch that has passed.
    let owner = Owner::new().await;
    let runtime = broken(owner.now().await);
    let stale = (owner.life, SLOT, shared::ids::Epoch(owner.epoch.0 - 1));
    let under_a_past_epoch =
        endpoint_runtime::save(&owner.session, stale, ENDPOINT, ITS_TENANT, &runtime).await;
    owner.succeeded_by_another().await;

    let after_its_death = save(&owner, &runtime).await;

    assert!(matches!(under_a_past_epoch, Err(StoreError::NotOwner)));
    assert!(matches!(after_its_death, Err(StoreError::NotOwner)));
    assert_eq!(stored(&owner).await, Runtime::default());
}

#[tokio::test]
async fn a_state_that_waited_for_a_hand_over_is_not_saved() {
    // D3: its snapshot is older than the hand-over, its locks are younger.
    let owner = Owner::new().await;
    let mut other = owner.database.connect(Role::Worker).await.unwrap();
    let watcher = owner.database.connect(Role::Worker).await.unwrap();
    let runtime = broken(owner.now().await);
    let transaction = other.transaction().await.unwrap();
    let lock = "SELECT 1 FROM workers WHERE id = $1 FOR UPDATE";
    transaction.query(lock, &[&owner.life.0]).await.unwrap();

    let saving = save(&owner, &runtime);
    let handing_over = async {
        waits(&watcher, "FOR SHARE OF s").await;
        let release = "UPDATE slots SET owner = NULL WHERE slot = $1";
        transaction.execute(release, &[&SLOT.0]).await.unwrap();
        transaction.commit().await.unwrap();
    };
    let (saved, ()) = tokio::join!(saving, handing_over);

    assert!(matches!(saved, Err(StoreError::NotOwner)), "{saved:?}");
    assert_eq!(owner.count("endpoint_runtime").await, 0);
}

#[tokio::test]
async fn a_batch_saves_what_is_ours_and_names_it() {
    let owner = Owner::new().await;
    let runtime = broken(owner.now().await);
    let mine = endpoint_runtime::Save {
        slot: SLOT,
        epoch: owner.epoch,
        endpoint: ENDPOINT,
        tenant: ITS_TENANT,
        runtime: &runtime,
    };
    let past = endpoint_runtime::Save {
        epoch: shared::ids::Epoch(owner.epoch.0 - 1),
        endpoint: OTHER,
        ..mine
    };

    let saved = endpoint_runtime::save_all(&owner.session, owner.life, &[past, mine]).await;

    assert_eq!(saved.unwrap(), [ENDPOINT]);
    assert_eq!(owner.count("endpoint_runtime").await, 1);
}

#[tokio::test]
async fn awake_are_enabled_endpoints_with_an_open_breaker_or_a_recovery() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let kinds = [
        (2, broken(at)),
        (
            3,
            Runtime {
                opened_at: Some(at),
                ..Runtime::default()
            },
        ),
        (
            4,
            Runtime {
                recovery: broken(at).recovery,
                ..Runtime::default()
            },
        ),
        (
            5,
            Runtime {
                failing_since: Some(at),
                ..Runtime::default()
            },
        ),
        (6, broken(at)),
    ];
    for (key, runtime) in &kinds {
        let key = EndpointKey(*key);
        owner.endpoint(key, "http://receiver.example/").await;
        let fence = owner.fence();
        endpoint_runtime::save(&owner.session, fence, key, ITS_TENANT, runtime)
            .await
            .unwrap();
    }
    let disable = "UPDATE endpoints SET state = 2 WHERE id = 6";
    owner.session.execute(disable, &[]).await.unwrap();

    let awake = endpoint_runtime::awake(&owner.session, &[shared::ids::Slot(0), SLOT])
        .await
        .unwrap();
    let elsewhere = endpoint_runtime::awake(&owner.session, &[shared::ids::Slot(2)])
        .await
        .unwrap();

    let expected = [2, 3, 4].map(|key| (SLOT, EndpointKey(key), ITS_TENANT));
    assert_eq!(awake, expected);
    assert_eq!(elsewhere, []);
}

#[tokio::test]
async fn the_history_is_the_last_attempts_that_counted_newest_first() {
    let owner = Owner::new().await;
    let at = micros(owner.now().await);
    let ago = |seconds| at - Duration::from_secs(seconds);
    owner.attempt(ENDPOINT, Outcome::Delivered, ago(30)).await;
    owner.attempt(ENDPOINT, Outcome::Transient, ago(10)).await;
    owner.attempt(ENDPOINT, Outcome::Throttled, ago(20)).await;
    owner.attempt(ENDPOINT, Outcome::Delivered, ago(5)).await;
    let unapplied = "UPDATE attempts SET applied = false WHERE started_at = $1";
    owner.session.execute(unapplied, &[&ago(5)]).await.unwrap();

    let two = endpoint_runtime::history(&owner.session, &[OTHER, ENDPOINT], ago(3_600), 2)
        .await
        .unwrap();
    let late = endpoint_runtime::history(&owner.session, &[ENDPOINT], ago(15), 100)
        .await
        .unwrap();

    let newest = (Outcome::Transient, ago(10));
    let expected = vec![newest, (Outcome::Throttled, ago(20))];
    assert_eq!(two, [(OTHER, vec![]), (ENDPOINT, expected)]);
    assert_eq!(late, [(ENDPOINT, vec![newest])]);
}

#[tokio::test]
async fn after_a_clean_hand_over_the_bucket_is_there_with_its_version_and_never_earlier() {
    // R1: rounded up to the database's microseconds.
    let mut owner = Owner::new().await;
    let exact = micros(owner.now().await) + Duration::from_secs(30);
    let tat = exact + Duration::from_nanos(1);
    let parked = Handed {
        parked_until: Some(exact),
        ..handed(&owner, OTHER, None)
    };
    let buckets = [handed(&owner, ENDPOINT, Some(tat)), parked];
    let leaving = [(SLOT, owner.epoch)];

    let released = slots::release(&mut owner.session, owner.life, &leaving, &buckets, &[]).await;
    let successor = join(&owner.session).await;
    let taken = take_all(&owner.session, successor).await;

    assert_eq!(released.unwrap(), [SLOT]);
    let taken = taken.iter().find(|it| it.slot == SLOT).unwrap();
    assert!(taken.clean);
    assert_eq!(taken.epoch.0, owner.epoch.0 + 1);
    assert!((owner.now().await - taken.at).abs() < Duration::from_secs(60));
    let runtime = stored(&owner).await;
    let rounded = exact + Duration::from_micros(1);
    assert_eq!(runtime.bucket, Some((rounded, VERSION)));
    assert_eq!(
        owner.count("endpoint_runtime WHERE endpoint_id = 2 AND tat_at IS NULL AND parked_until IS NOT NULL").await,
        1
    );
}

#[tokio::test]
async fn a_crash_after_a_clean_hand_over_is_not_clean() {
    // R1: what was stored two owners ago is in the past, and would be a full bucket.
    let mut owner = Owner::new().await;
    let leaving = [(SLOT, owner.epoch)];
    let buckets = [handed(&owner, ENDPOINT, Some(owner.now().await))];
    slots::release(&mut owner.session, owner.life, &leaving, &buckets, &[])
        .await
        .unwrap();
    let crashing = join(&owner.session).await;
    take_all(&owner.session, crashing).await;
    crate::world::declare_dead(&owner.session, crashing).await;

    let last = join(&owner.session).await;
    let taken = take_all(&owner.session, last).await;

    let taken = taken.iter().find(|it| it.slot == SLOT).unwrap();
    assert!(!taken.clean);
    let emptied = taken.emptied_at.unwrap();
    assert!(
        (taken.at - emptied).abs() < Duration::from_secs(1),
        "no bucket is fuller"
    );
}

#[tokio::test]
async fn what_is_taken_anew_after_a_lost_answer_is_not_clean() {
    let mut owner = Owner::new().await;
    let mine = slots::census(&owner.session, owner.life)
        .await
        .unwrap()
        .mine;

    let anew = slots::reclaim(&mut owner.session, owner.life, &mine).await;

    let anew = anew.unwrap();
    assert_eq!(anew.len(), 256);
    assert!(anew.iter().all(|it| !it.clean));
}

#[tokio::test]
async fn buckets_of_slots_that_are_not_handed_over_are_not_stored() {
    // D3: another epoch, another slot, and all of a worker that is dead.
    let mut owner = Owner::new().await;
    let at = owner.now().await;
    let past = Handed {
        epoch: shared::ids::Epoch(owner.epoch.0 - 1),
        ..handed(&owner, ENDPOINT, Some(at))
    };
    let kept = Handed {
        slot: shared::ids::Slot(2),
        ..handed(&owner, OTHER, Some(at))
    };
    let leaving = [(SLOT, owner.epoch)];
    let partly = slots::release(&mut owner.session, owner.life, &leaving, &[past, kept], &[]).await;
    owner.succeeded_by_another().await;
    let dead = [Handed {
        slot: shared::ids::Slot(2),
        ..handed(&owner, OTHER, Some(at))
    }];
    let leaving = [(shared::ids::Slot(2), owner.epoch)];

    let late = slots::release(&mut owner.session, owner.life, &leaving, &dead, &[]).await;

    assert_eq!(partly.unwrap(), [SLOT]);
    assert_eq!(late.unwrap(), []);
    assert_eq!(owner.count("endpoint_runtime").await, 0);
}

#[tokio::test]
async fn handing_a_bucket_over_leaves_the_breaker_as_it_is() {
    let mut owner = Owner::new().await;
    let at = micros(owner.now().await);
    save(&owner, &broken(at)).await.unwrap();
    let buckets = [handed(&owner, ENDPOINT, Some(at))];
    let leaving = [(SLOT, owner.epoch)];

    slots::release(&mut owner.session, owner.life, &leaving, &buckets, &[])
        .await
        .unwrap();

    let expected = Runtime {
        bucket: Some((at, VERSION)),
        ..broken(at)
    };
    assert_eq!(stored(&owner).await, expected);
}

#[tokio::test]
async fn a_state_that_is_saved_late_does_not_overwrite_a_later_one() {
    let owner = Owner::new().await;
    let at = micros(owner.now().await);
    let later = Runtime {
        sequence: 20,
        ..broken(at)
    };
    let earlier = Runtime {
        sequence: 10,
        ..Runtime::default()
    };

    save(&owner, &later).await.unwrap();
    save(&owner, &earlier).await.unwrap();

    assert_eq!(stored(&owner).await, broken(at));
}
