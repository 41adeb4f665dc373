//! Pauses, and rows that are put aside for one.

use std::time::Duration;

use shared::domain::delivery::CloseReason;
use shared::domain::pause::Pause;
use shared::ids::{EndpointKey, Slot};
use shared::store::pauses::{self, Parked, What};
use shared::store::queue::{self, Statements, Waiting};
use shared::store::{StoreError, backlog, deliveries};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::owner::{ENDPOINT, ITS_TENANT, Owner, SLOT};
use crate::world::{TENANT, delivery, event};

const HOUR: Duration = Duration::from_secs(3_600);
const PARKED_SLOT: Slot = Slot(SLOT.0 - 256);

async fn put(owner: &Owner, table: &str) -> Uuid {
    let event = event(&owner.session, owner.now().await).await;
    delivery(&owner.session, table, event).await
}

async fn park(owner: &Owner, deliveries: &[Uuid]) -> Result<(), StoreError> {
    let whose = (ITS_TENANT, ENDPOINT);
    let again = owner.now().await + HOUR;
    pauses::park(&owner.session, owner.fence(), whose, deliveries, again).await
}

async fn found(owner: &Owner) -> Vec<Waiting> {
    let sql = Statements::prepare(&owner.session).await.unwrap();
    queue::scan(&owner.session, &sql, &[SLOT]).await.unwrap()
}

async fn parked(owner: &Owner) -> Vec<Parked> {
    pauses::parked(&owner.session).await.unwrap()
}

async fn one_of(owner: &Owner, table: &str, id: Uuid) -> (i16, Option<OffsetDateTime>) {
    let due = if table == "ready" { "NULL" } else { "due_at" };
    let select = format!("SELECT slot, {due}::timestamptz FROM {table} WHERE id = $1");
    let row = owner.session.query_one(&select, &[&id]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn what_is_parked_is_found_by_no_owner_and_given_back_as_it_was() {
    let owner = Owner::new().await;
    let (ready, retry) = (put(&owner, "ready").await, put(&owner, "retry").await);
    let other = put(&owner, "ready").await;
    let before = one_of(&owner, "retry", retry).await;

    park(&owner, &[ready, retry]).await.unwrap();

    let left = found(&owner).await;
    assert_eq!(
        (left.len(), left[0].ready, left[0].next_due),
        (1, true, None)
    );
    assert_eq!(owner.count("ready WHERE slot = 1").await, 1);
    assert_eq!(one_of(&owner, "ready", other).await.0, SLOT.0);
    let aside = parked(&owner).await;
    assert_eq!(aside.len(), 1);
    assert_eq!(
        (aside[0].slot, aside[0].endpoint, aside[0].tenant),
        (PARKED_SLOT, ENDPOINT, ITS_TENANT)
    );

    assert_eq!(pauses::unpark(&owner.session, &aside[0]).await.unwrap(), 2);
    assert_eq!(pauses::unpark(&owner.session, &aside[0]).await.unwrap(), 0);
    assert_eq!(one_of(&owner, "ready", ready).await.0, SLOT.0);
    assert_eq!(one_of(&owner, "retry", retry).await, before);
    assert_eq!(parked(&owner).await, []);
}

#[tokio::test]
async fn a_row_in_a_line_keeps_its_place_and_waits() {
    let owner = Owner::new().await;
    let head = put(&owner, "ready_ordered").await;

    park(&owner, &[head]).await.unwrap();

    let (slot, due) = one_of(&owner, "ready_ordered", head).await;
    assert_eq!(slot, SLOT.0);
    assert!(due.unwrap() > owner.now().await + HOUR / 2);
    assert_eq!(parked(&owner).await, []);
}

#[tokio::test]
async fn d3_who_was_declared_dead_parks_nothing() {
    let owner = Owner::new().await;
    let ready = put(&owner, "ready").await;
    owner.succeeded_by_another().await;

    let late = park(&owner, &[ready]).await;

    assert!(matches!(late, Err(StoreError::NotOwner)), "{late:?}");
    assert_eq!(one_of(&owner, "ready", ready).await.0, SLOT.0);
}

#[tokio::test]
async fn somebody_elses_rows_are_not_parked_with_ours() {
    let owner = Owner::new().await;
    let ready = put(&owner, "ready").await;
    let moved = "UPDATE ready SET endpoint_id = 2 WHERE id = $1";
    owner.session.execute(moved, &[&ready]).await.unwrap();

    park(&owner, &[ready]).await.unwrap();

    assert_eq!(one_of(&owner, "ready", ready).await.0, SLOT.0);
}

#[tokio::test]
async fn what_is_parked_is_pending_counted_and_can_be_cancelled() {
    let owner = Owner::new().await;
    let (ready, retry) = (put(&owner, "ready").await, put(&owner, "retry").await);
    park(&owner, &[ready, retry]).await.unwrap();

    let waiting = backlog::count_waiting(&owner.session).await.unwrap();
    assert_eq!(waiting.endpoints.get(&ENDPOINT), Some(&2));
    let asked = deliveries::retry(&*owner.session, ITS_TENANT, ready).await;
    assert!(asked.unwrap(), "it waits");
    let command = "commands WHERE slot = 1 AND delivery_id IS NOT NULL";
    assert_eq!(owner.count(command).await, 1, "for its owner");
    for id in [ready, retry] {
        let cancelled = deliveries::cancel(&*owner.session, ITS_TENANT, id).await;
        assert!(cancelled.unwrap());
    }
    assert_eq!(owner.count("ready").await + owner.count("retry").await, 0);
    let closed = format!("closed WHERE reason = {}", CloseReason::Cancelled.code());
    assert_eq!(owner.count(&closed).await, 2);
}

#[tokio::test]
async fn endpoints_that_take_nothing_are_told_from_those_that_do() {
    let owner = Owner::new().await;
    let (disabled, gone) = (EndpointKey(2), EndpointKey(3));
    owner.endpoint(disabled, "http://receiver.example/2").await;
    let disable = "UPDATE endpoints SET state = 2 WHERE id = $1";
    owner
        .session
        .execute(disable, &[&disabled.0])
        .await
        .unwrap();

    let asked = [ENDPOINT, disabled, gone];
    let found = pauses::not_enabled(&owner.session, &asked).await.unwrap();

    assert_eq!(found, [disabled, gone]);
}

#[tokio::test]
async fn a_pause_is_started_changed_ended_and_forgotten_when_it_was_over_long_enough() {
    let owner = Owner::new().await;
    let what = What {
        tenant: Some(ITS_TENANT),
        event_type: Some("report.*"),
    };
    let every = What {
        tenant: None,
        ..what
    };
    let start = async |what, length| {
        let started = pauses::start(&*owner.session, what, length, "too many").await;
        started.unwrap().unwrap()
    };
    start(what, HOUR).await;
    start(every, HOUR).await;
    let until = start(what, 2 * HOUR).await;

    let read = pauses::read(&owner.session).await.unwrap();
    let rows: Vec<_> = read.0.iter().map(|it| (it.tenant, it.until)).collect();
    assert_eq!((rows.len(), rows[0]), (2, (Some(ITS_TENANT), until)));
    assert!(pauses::end(&*owner.session, what).await.unwrap());
    assert!(!pauses::end(&*owner.session, what).await.unwrap(), "over");
    let type_only = What {
        event_type: Some("report.a"),
        ..what
    };
    assert!(!pauses::end(&*owner.session, type_only).await.unwrap());

    let listed = pauses::list(&*owner.session).await.unwrap();
    let over: Vec<_> = listed
        .iter()
        .map(|it| (it.over, it.tenant.is_some()))
        .collect();
    assert_eq!(over, [(true, true), (false, false)]);
    let read = pauses::read(&owner.session).await.unwrap();
    let now = owner.now().await;
    let ids: Vec<i64> = read.0.iter().map(|it| it.id).collect();
    pauses::forget(&owner.session, &ids, now - HOUR)
        .await
        .unwrap();
    assert_eq!(owner.count("pauses").await, 2, "not over for long enough");
    pauses::forget(&owner.session, &ids, now).await.unwrap();
    let left: Vec<Pause> = pauses::read(&owner.session).await.unwrap().0;
    assert_eq!((left.len(), left[0].tenant), (1, None));
}

#[tokio::test]
async fn there_is_a_bound_on_pauses_that_a_change_of_one_does_not_hit() {
    let owner = Owner::new().await;
    for number in 0..pauses::MOST {
        let event_type = format!("t.{number}");
        let what = What {
            tenant: None,
            event_type: Some(&event_type),
        };
        let started = pauses::start(&*owner.session, what, HOUR, "x").await;
        assert!(started.unwrap().is_some());
    }
    let start = async |event_type| {
        let what = What {
            tenant: None,
            event_type: Some(event_type),
        };
        pauses::start(&*owner.session, what, HOUR, "x")
            .await
            .unwrap()
    };

    assert_eq!(start("one.more").await, None);
    assert!(start("t.7").await.is_some());
    assert_eq!(owner.count("pauses").await, pauses::MOST);
}

#[tokio::test]
async fn a_long_backlog_is_given_back_in_batches() {
    let owner = Owner::new().await;
    let insert = format!(
        "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
         SELECT {}, {TENANT}, 1, gen_random_uuid(), gen_random_uuid() FROM generate_series(1, 2500)",
        PARKED_SLOT.0
    );
    owner.session.batch_execute(&insert).await.unwrap();
    let aside = parked(&owner).await;

    let mut batches = Vec::new();
    loop {
        match pauses::unpark(&owner.session, &aside[0]).await.unwrap() {
            0 => break,
            count => batches.push(count),
        }
    }

    assert_eq!(batches, [1_000, 1_000, 500]);
    assert_eq!(owner.count("ready WHERE slot = 1").await, 2_500);
}
