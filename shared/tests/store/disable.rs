//! Endpoints that are disabled by themselves: 410, and failing for long.

use std::time::Duration;

use shared::domain::attempt::{Outcome, Phases};
use shared::domain::delivery::CloseReason;
use shared::runtime::clock::boot_time;
use shared::store::commands;
use shared::store::queue::{self, AttemptRow, Next, RecordRow, Statements};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::owner::{ENDPOINT, ITS_TENANT, Owner, SLOT};
use crate::world::{self, delivery, event};

const HOUR: Duration = Duration::from_secs(3_600);
const WHY: &str = "it failed for five days";

async fn disable(owner: &Owner, since: OffsetDateTime) -> bool {
    let endpoint = (ENDPOINT, 1);
    commands::disable_failing(&owner.session, endpoint, ITS_TENANT, since, WHY)
        .await
        .unwrap()
}

/// Ten failures in the day before `at`, the last just now.
async fn failures(owner: &Owner, outcome: Outcome, at: OffsetDateTime) {
    for n in 0..10_u32 {
        owner.attempt(ENDPOINT, outcome, at - n * 2 * HOUR).await;
    }
}

/// Everything that goes with a change of an endpoint, or nothing of it.
async fn is_disabled(owner: &Owner) -> bool {
    let counts = [
        owner
            .count("endpoints WHERE state = 2 AND version = 2 AND state_reason IS NOT NULL")
            .await,
        owner.count("tenants WHERE config_version = 2").await,
        owner
            .count("commands WHERE slot = 1 AND endpoint_id = 1 AND verb = 1")
            .await,
    ];
    assert!(counts == [0, 0, 0] || counts == [1, 1, 1], "{counts:?}");
    counts == [1, 1, 1]
}

#[tokio::test]
async fn an_endpoint_that_only_fails_is_disabled_once() {
    for outcome in [
        Outcome::Transient,
        Outcome::Misconfigured,
        Outcome::Permanent,
    ] {
        let owner = Owner::new().await;
        let at = owner.now().await;
        failures(&owner, outcome, at).await;

        let first = disable(&owner, at - 24 * HOUR).await;
        let again = disable(&owner, at - 24 * HOUR).await;

        assert_eq!((first, again), (true, false), "{outcome:?}");
        assert!(is_disabled(&owner).await);
    }
}

#[tokio::test]
async fn what_says_nothing_about_the_endpoint_does_not_disable_it() {
    for outcome in [
        Outcome::Throttled,
        Outcome::Internal,
        Outcome::Refused,
        Outcome::Expired,
    ] {
        let owner = Owner::new().await;
        let at = owner.now().await;
        failures(&owner, outcome, at).await;

        assert!(!disable(&owner, at - 24 * HOUR).await, "{outcome:?}");
        assert!(!is_disabled(&owner).await);
    }
}

#[tokio::test]
async fn too_few_failures_or_too_close_together_disable_nothing() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    // A monthly event: nine failures over most of a day.
    for n in 0..9_u32 {
        owner
            .attempt(ENDPOINT, Outcome::Transient, at - n * 5 * HOUR / 2)
            .await;
    }
    let few = disable(&owner, at - 24 * HOUR).await;
    // Many more within an hour.
    for n in 0..20_u32 {
        owner
            .attempt(ENDPOINT, Outcome::Transient, at - n * HOUR / 20)
            .await;
    }
    let close = disable(&owner, at - 11 * HOUR).await;
    let both = disable(&owner, at - 24 * HOUR).await;

    assert_eq!((few, close, both), (false, false, true));
}

#[tokio::test]
async fn one_success_since_then_keeps_it_enabled() {
    // Also one that the owner forgot in a crash.
    let owner = Owner::new().await;
    let at = owner.now().await;
    failures(&owner, Outcome::Transient, at).await;
    owner
        .attempt(ENDPOINT, Outcome::Delivered, at - 23 * HOUR)
        .await;

    let with = disable(&owner, at - 24 * HOUR).await;
    let since = disable(&owner, at - 22 * HOUR).await;

    assert_eq!((with, since), (false, true));
}

#[tokio::test]
async fn failures_from_before_it_was_enabled_again_do_not_count() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    failures(&owner, Outcome::Transient, at).await;
    let enabled = "INSERT INTO endpoint_runtime (endpoint_id, enabled_at) VALUES (1, $1)";
    let then = at - 10 * HOUR;
    owner.session.execute(enabled, &[&then]).await.unwrap();

    assert!(!disable(&owner, at - 24 * HOUR).await);
    assert!(!is_disabled(&owner).await);
}

#[tokio::test]
async fn another_version_or_a_state_that_changed_is_left_alone() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    failures(&owner, Outcome::Transient, at).await;
    let change = |sql: &'static str| owner.session.batch_execute(sql);

    change("UPDATE endpoints SET version = 3").await.unwrap();
    let patched = disable(&owner, at - 24 * HOUR).await;
    change("UPDATE endpoints SET version = 1, state = 3")
        .await
        .unwrap();
    let deleted = disable(&owner, at - 24 * HOUR).await;

    assert_eq!((patched, deleted), (false, false));
    assert_eq!(owner.count("commands").await, 0);
}

#[tokio::test]
async fn a_busy_endpoint_that_refuses_everything_is_judged_within_the_statements_time() {
    let owner = Owner::new().await;
    let insert = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, applied)
                  SELECT 7, gen_random_uuid(), 1, 1, now() - g * interval '80 ms', 1, gen_random_uuid(), 1, 5, 5, true FROM generate_series(1, 1000000) g";
    world::fill(&owner.database, insert).await;
    let at = owner.now().await;

    let started = boot_time();
    let disabled = disable(&owner, at - 24 * HOUR).await;
    let took = boot_time().since(started);

    println!("disable_failing among a million attempts: {took:?}");
    assert!(disabled);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Records a 410 of a new delivery; the delivery and when its request started.
async fn answered_410(owner: &Owner) -> (Uuid, OffsetDateTime) {
    let event = event(&owner.session, owner.now().await).await;
    let delivery = delivery(&owner.session, "ready", event).await;
    // Finer than the database's microseconds: what is looked for is what was stored.
    let started_at = owner.now().await + Duration::from_nanos(777);
    let sql = Statements::prepare(&owner.session).await.unwrap();
    let row = RecordRow {
        slot: SLOT,
        epoch: owner.epoch,
        endpoint: ENDPOINT,
        delivery,
        event_id: event,
        tenant: ITS_TENANT,
        attempts_before: 0,
        attempts_charged: 1,
        outcome: Outcome::Gone,
        next: Next::Closed(CloseReason::Gone),
        note: None,
        attempt: Some(AttemptRow {
            started_at,
            endpoint_version: 1,
            status: Some(410),
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
    queue::record(&owner.session, &sql, owner.life, &[row])
        .await
        .unwrap();
    (delivery, started_at)
}

async fn disable_gone(owner: &Owner, request: (Uuid, OffsetDateTime)) -> bool {
    let endpoint = (ENDPOINT, 1);
    commands::disable_gone(&owner.session, endpoint, ITS_TENANT, request, "410 Gone")
        .await
        .unwrap()
}

#[tokio::test]
async fn a_410_that_counted_disables_its_endpoint_whatever_was_acknowledged() {
    let owner = Owner::new().await;
    let request = answered_410(&owner).await;
    let another = (request.0, request.1 + Duration::from_secs(1));

    let of_another_request = disable_gone(&owner, another).await;
    let disabled = disable_gone(&owner, request).await;
    let again = disable_gone(&owner, request).await;

    assert_eq!((of_another_request, disabled, again), (false, true, false));
    assert!(is_disabled(&owner).await);
}

#[tokio::test]
async fn a_410_of_a_stale_owner_disables_nothing() {
    // D3: its attempt is kept as a sample and counts for nothing.
    let owner = Owner::new().await;
    owner.succeeded_by_another().await;
    let request = answered_410(&owner).await;

    assert_eq!(owner.count("attempts WHERE NOT applied").await, 1);
    assert!(!disable_gone(&owner, request).await);
    assert!(!is_disabled(&owner).await);
}
