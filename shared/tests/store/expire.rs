//! The life of a delivery is bounded (D8), also where nobody looks at it.

use std::time::Duration;

use shared::domain::delivery::CloseReason;
use shared::ids::{self, EndpointKey, Epoch};
use shared::store::{Role, StoreError, queue};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::owner::{ENDPOINT, Owner, SLOT, waits};
use crate::world::{TENANT, delivery, event};

const MINUTE: Duration = Duration::from_secs(60);
const TABLES: [&str; 3] = ["ready", "retry", "ready_ordered"];

async fn put(owner: &Owner, table: &str, made_at: OffsetDateTime) -> Uuid {
    let event = event(&owner.session, made_at).await;
    delivery(&owner.session, table, event).await
}

async fn expire(
    owner: &Owner,
    older_than: OffsetDateTime,
    now: OffsetDateTime,
    except: &[Uuid],
) -> Result<u64, StoreError> {
    let bounds = (ids::lower_bound(older_than), now);
    queue::expire(&owner.session, owner.fence(), ENDPOINT, bounds, except).await
}

async fn ends(owner: &Owner, table: &str, id: Uuid, at: OffsetDateTime) {
    let update = format!("UPDATE {table} SET deliver_before = $1 WHERE id = $2");
    assert_eq!(
        owner.session.execute(&update, &[&at, &id]).await.unwrap(),
        1
    );
}

async fn live(owner: &Owner) -> Vec<Uuid> {
    let query = "SELECT id FROM ready UNION ALL SELECT id FROM retry UNION ALL SELECT id FROM ready_ordered ORDER BY id";
    let rows = owner.session.query(query, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_is_too_old_or_past_its_date_is_a_dead_letter_that_says_why() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let mut young = Vec::new();
    for table in TABLES {
        put(&owner, table, at - 10 * MINUTE).await;
        let late = put(&owner, table, at).await;
        ends(&owner, table, late, at).await;
        let in_time = put(&owner, table, at).await;
        ends(&owner, table, in_time, at + MINUTE).await;
        young.extend([in_time, put(&owner, table, at - 4 * MINUTE).await]);
    }
    owner
        .session
        .batch_execute("UPDATE retry SET attempts_made = 3, last_status = 503")
        .await
        .unwrap();

    let expired = expire(&owner, at - 5 * MINUTE, at, &[]).await.unwrap();
    let again = expire(&owner, at - 5 * MINUTE, at, &[]).await.unwrap();

    young.sort_unstable();
    assert_eq!((expired, again), (6, 0));
    assert_eq!(live(&owner).await, young);
    let by_age = "dead_letters WHERE class = 7 AND outcome = 9 AND reason LIKE '%max_age_seconds%' AND root_id = id";
    let by_date = "dead_letters WHERE class = 7 AND outcome = 9 AND reason LIKE '%deliver_before%'";
    assert_eq!(owner.count(by_age).await, 3);
    assert_eq!(owner.count(by_date).await, 3);
    let facts = "dead_letters WHERE attempts_made = 3 AND status = 503 AND fingerprint = (7::int8 << 32) + (9 << 16) + 503";
    assert_eq!(owner.count(facts).await, 2);
    let in_order = "dead_letters WHERE order_key = 1 AND order_seq = 1";
    assert_eq!(owner.count(in_order).await, 2);
}

#[tokio::test]
async fn what_is_on_the_wire_and_what_is_of_another_endpoint_stays() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let mut flying = Vec::new();
    for table in TABLES {
        let id = put(&owner, table, at - 10 * MINUTE).await;
        ends(&owner, table, id, at).await;
        flying.push(id);
    }
    let other = put(&owner, "ready", at - 10 * MINUTE).await;
    let move_it = "UPDATE ready SET endpoint_id = 2 WHERE id = $1";
    owner.session.execute(move_it, &[&other]).await.unwrap();

    let expired = expire(&owner, at, at, &flying).await.unwrap();

    assert_eq!(expired, 0);
    assert_eq!(live(&owner).await.len(), 4);
}

#[tokio::test]
async fn a_backlog_is_ended_in_bounded_steps() {
    let owner = Owner::new().await;
    let at = owner.now().await;
    let insert = format!(
        "INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
         SELECT 1, {TENANT}, 1, ('01980000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, gen_random_uuid()
         FROM generate_series(1, 2500) g"
    );
    owner.session.batch_execute(&insert).await.unwrap();

    let mut steps = Vec::new();
    loop {
        let step = expire(&owner, at, at, &[]).await.unwrap();
        steps.push(step);
        if step == 0 {
            break;
        }
    }

    assert_eq!(steps, [1_000, 1_000, 500, 0]);
    assert_eq!(owner.count("dead_letters").await, 2_500);
}

#[tokio::test]
async fn a_stale_owner_ends_nothing() {
    // D3: neither under an epoch that has passed nor after its death.
    let owner = Owner::new().await;
    let at = owner.now().await;
    let old = put(&owner, "ready", at - MINUTE).await;
    let past = (owner.life, SLOT, Epoch(owner.epoch.0 - 1));
    let bounds = (ids::lower_bound(at), at);
    let under_a_past_epoch = queue::expire(&owner.session, past, ENDPOINT, bounds, &[]).await;
    owner.succeeded_by_another().await;

    let late = expire(&owner, at, at, &[]).await;

    assert!(matches!(under_a_past_epoch, Err(StoreError::NotOwner)));
    assert!(matches!(late, Err(StoreError::NotOwner)), "{late:?}");
    assert_eq!(live(&owner).await, [old]);
}

#[tokio::test]
async fn a_sweep_that_waited_for_a_hand_over_ends_nothing() {
    // D3: its snapshot is older than the hand-over, its locks are younger.
    let owner = Owner::new().await;
    let at = owner.now().await;
    put(&owner, "ready", at - MINUTE).await;
    let watcher = owner.database.connect(Role::Worker).await.unwrap();
    let mut other = owner.database.connect(Role::Worker).await.unwrap();
    let transaction = other.transaction().await.unwrap();
    let lock = "SELECT 1 FROM workers WHERE id = $1 FOR UPDATE";
    transaction.query(lock, &[&owner.life.0]).await.unwrap();

    let sweeping = expire(&owner, at, at, &[]);
    let handing_over = async {
        waits(&watcher, "FOR SHARE OF s").await;
        let release = "UPDATE slots SET owner = NULL WHERE slot = $1";
        transaction.execute(release, &[&SLOT.0]).await.unwrap();
        transaction.commit().await.unwrap();
    };
    let (expired, ()) = tokio::join!(sweeping, handing_over);

    assert!(matches!(expired, Err(StoreError::NotOwner)), "{expired:?}");
    assert_eq!(owner.count("ready").await, 1);
}

#[tokio::test]
async fn a_cancelled_delivery_is_not_ended_as_well() {
    // D6: closed and then swept is closed.
    let owner = Owner::new().await;
    let at = owner.now().await;
    let id = put(&owner, "ready", at - MINUTE).await;
    let tenant = shared::ids::TenantKey(TENANT);
    let cancelled = shared::store::deliveries::cancel(&*owner.session, tenant, id).await;

    let expired = expire(&owner, at, at, &[]).await.unwrap();

    assert!(cancelled.unwrap());
    assert_eq!(expired, 0);
    let reason = CloseReason::Cancelled.code();
    let closed = format!("closed WHERE reason = {reason}");
    assert_eq!(owner.count(&closed).await, 1);
    assert_eq!(owner.count("dead_letters").await, 0);
    let nobody = EndpointKey(9);
    let bounds = (ids::lower_bound(at), at);
    let none = queue::expire(&owner.session, owner.fence(), nobody, bounds, &[]).await;
    assert_eq!(none.unwrap(), 0);
}
