//! Ingest of ordered events: numbers in the order of the commits, whatever the clocks say.

use std::time::Duration;

use shared::domain::order::OrderKey;
use shared::ids::{EndpointKey, Slot, TenantKey, new_v7};
use shared::runtime::clock::wall_time;
use shared::store::ingest::{Batch, DeliveryRow, EventRow, Ingest, MOST_ORDERED};
use shared::store::{Role, Session};
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::world::count;

const PATIENCE: Duration = Duration::from_secs(20);

/// A tenant with one ordered endpoint; the tenant's key.
async fn tenant(session: &Session) -> i32 {
    let row = session
        .query_one(
            "INSERT INTO tenants (public_id, name) VALUES (gen_random_uuid(), 'acme') RETURNING id",
            &[],
        )
        .await
        .unwrap();
    row.get(0)
}

/// Inserts events of these ids and keys, one delivery each; the positions that were stale or repeated.
async fn insert(ingest: &Ingest, tenant: i32, events: &[(Uuid, i64)]) -> (Vec<usize>, Vec<usize>) {
    let mut batch = Batch::keyed();
    for (id, key) in events {
        let event = EventRow {
            id: *id,
            tenant: TenantKey(tenant),
            type_id: 1,
            deliver_before: None,
            channels: None,
            payload: b"1",
            trace: None,
            config_version: 1,
            order_key: Some(OrderKey(*key)),
            external_id: None,
            idempotency: &[],
        };
        let delivery = DeliveryRow {
            id: new_v7(wall_time()),
            endpoint: EndpointKey(1),
            slot: Slot(1),
            closed: None,
            ordered: true,
        };
        batch.push(event, std::iter::once(delivery));
    }
    let inserted = ingest.insert_keyed(&batch, wall_time()).await.unwrap();
    (inserted.stale, inserted.repeated)
}

/// The line of a key.
async fn line(session: &Session, key: i64) -> Vec<Uuid> {
    let select = "SELECT event_id FROM ready_ordered WHERE order_key = $1 ORDER BY order_seq";
    let rows = session.query(select, &[&key]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn order_is_that_of_acceptance_where_the_order_of_ids_is_not() {
    let test = TestDatabase::new().await;
    let session = test.session().await;
    let tenant = tenant(&session).await;
    let (even, odd) = (
        Ingest::open(&test.database()).await.unwrap(),
        Ingest::open(&test.database()).await.unwrap(),
    );
    let mut order = Vec::new();
    for n in 0..200 {
        // The clock of every other writer is 40 ms behind.
        let (writer, behind) = if n % 2 == 0 { (&even, 0) } else { (&odd, 40) };
        let id = new_v7(wall_time() - time::Duration::milliseconds(behind));
        assert_eq!(insert(writer, tenant, &[(id, 5)]).await, (vec![], vec![]));
        order.push(id);
    }

    assert!(!order.is_sorted(), "a test of skewed clocks");
    assert_eq!(line(&session, 5).await, order);
}

#[tokio::test]
async fn a_batch_keeps_its_order_and_a_repeated_or_outdated_event_takes_no_second_place() {
    let test = TestDatabase::new().await;
    let session = test.session().await;
    let tenant = tenant(&session).await;
    let ingest = Ingest::open(&test.database()).await.unwrap();
    // Ids in an order of their own.
    let events: Vec<_> = (0..MOST_ORDERED)
        .map(|_| (new_v7(wall_time()), 5))
        .collect();

    assert_eq!(
        insert(&ingest, tenant, &events).await,
        (vec![], vec![]),
        "the first time"
    );
    let (stale, repeated) = insert(&ingest, tenant, &events).await;

    assert_eq!((stale.len(), repeated.len()), (0, MOST_ORDERED));
    let ids: Vec<_> = events.iter().map(|(id, _)| *id).collect();
    assert_eq!(line(&session, 5).await, ids);
    session
        .execute("UPDATE tenants SET config_version = 2", &[])
        .await
        .unwrap();
    let (stale, _) = insert(&ingest, tenant, &[(new_v7(wall_time()), 5)]).await;
    assert_eq!(stale, [0]);
    assert_eq!(line(&session, 5).await, ids);
}

#[tokio::test]
async fn a_number_is_drawn_only_after_whoever_drew_before_has_committed() {
    let test = TestDatabase::new().await;
    let session = test.session().await;
    let tenant = tenant(&session).await;
    let ingest = Ingest::open(&test.database()).await.unwrap();
    let mut other = test.database().connect(Role::Api).await.unwrap();
    // Another process has the lock of key 5 and its number, and commits late.
    let slow = other.transaction().await.unwrap();
    slow.batch_execute("SELECT pg_advisory_xact_lock(5)")
        .await
        .unwrap();
    let (first, second) = (new_v7(wall_time()), new_v7(wall_time()));
    let place = "INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id)
                 VALUES (1, 1, 5, nextval('order_seq'), $1, $2, $3)";
    slow.execute(place, &[&Uuid::new_v4(), &first, &tenant])
        .await
        .unwrap();

    let events = [(second, 5)];
    let inserting = insert(&ingest, tenant, &events);
    let committing = async {
        eventually(PATIENCE, || async {
            let waiting = "pg_locks WHERE locktype = 'advisory' AND NOT granted";
            (count(&session, waiting).await == 1).then_some(())
        })
        .await;
        assert!(line(&session, 5).await.is_empty());
        slow.commit().await.unwrap();
    };
    tokio::join!(inserting, committing);

    assert_eq!(line(&session, 5).await, [first, second]);
}

#[tokio::test]
async fn batches_with_the_same_keys_in_opposite_orders_do_not_deadlock() {
    let test = TestDatabase::new().await;
    let session = test.session().await;
    let tenant = tenant(&session).await;
    let writer = async |up: bool| {
        let ingest = Ingest::open(&test.database()).await.unwrap();
        for _ in 0..50 {
            let key = |n| if up { n } else { 99 - n };
            let events: Vec<_> = (0..100).map(|n| (new_v7(wall_time()), key(n))).collect();
            insert(&ingest, tenant, &events).await;
        }
    };

    tokio::join!(writer(true), writer(false), writer(true), writer(false));

    assert_eq!(count(&session, "ready_ordered").await, 4 * 50 * 100);
}
