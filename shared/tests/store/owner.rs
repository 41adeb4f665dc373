//! A worker that owns every slot, an endpoint of slot 1, and what happens to its deliveries.

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::delivery::{DeadLetterClass, Kind};
use shared::ids::{self, EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use shared::store::slots::{self, Taken};
use shared::store::{Database, Role, Session};
use shared::testing::{TestDatabase, eventually};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::world::{TENANT, count, declare_dead, event, now};

pub(crate) const SLOT: Slot = Slot(1);
pub(crate) const ENDPOINT: EndpointKey = EndpointKey(1);
pub(crate) const ITS_TENANT: TenantKey = TenantKey(TENANT);
const TTL: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
pub(crate) struct Owner {
    pub(crate) database: Database,
    pub(crate) session: Session,
    pub(crate) life: Incarnation,
    pub(crate) epoch: Epoch,
    _test: TestDatabase,
}

impl Owner {
    pub(crate) async fn new() -> Self {
        let test = TestDatabase::new().await;
        let database = test.database();
        let session = database.connect(Role::Worker).await.unwrap();
        let life = join(&session).await;
        let taken = take_all(&session, life).await;
        let epoch = taken.iter().find(|it| it.slot == SLOT).unwrap().epoch;
        let owner = Self {
            database,
            session,
            life,
            epoch,
            _test: test,
        };
        owner.tenant().await;
        owner.endpoint(ENDPOINT, "http://receiver.example/in").await;
        owner
    }

    pub(crate) fn fence(&self) -> (Incarnation, Slot, Epoch) {
        (self.life, SLOT, self.epoch)
    }

    async fn tenant(&self) {
        let insert = format!(
            "INSERT INTO tenants (id, public_id, name) OVERRIDING SYSTEM VALUE
             VALUES ({TENANT}, gen_random_uuid(), 'test');
             INSERT INTO event_types (tenant_id, name) VALUES ({TENANT}, 'order.created')"
        );
        self.session.batch_execute(&insert).await.unwrap();
    }

    /// An enabled endpoint of slot 1 that takes every event.
    pub(crate) async fn endpoint(&self, key: EndpointKey, url: &str) {
        let insert = "INSERT INTO endpoints (id, public_id, tenant_id, slot, url)
                      OVERRIDING SYSTEM VALUE VALUES ($1, gen_random_uuid(), $2, $3, $4)";
        self.session
            .execute(insert, &[&key.0, &TENANT, &SLOT.0, &url])
            .await
            .unwrap();
    }

    pub(crate) async fn now(&self) -> OffsetDateTime {
        now(&self.session).await
    }

    pub(crate) async fn count(&self, from: &str) -> i64 {
        count(&self.session, from).await
    }

    /// An attempt that counted, of a delivery of its own.
    pub(crate) async fn attempt(
        &self,
        endpoint: EndpointKey,
        outcome: Outcome,
        at: OffsetDateTime,
    ) {
        let delivery = ids::new_v7(at);
        let insert = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id,
                        endpoint_version, total_ms, outcome, applied)
                      VALUES ($1, $2, 1, 1, $3, $4, $2, 1, 5, $5, true)";
        self.session
            .execute(
                insert,
                &[&TENANT, &delivery, &at, &endpoint.0, &outcome.code()],
            )
            .await
            .unwrap();
    }

    /// A dead letter of the endpoint, with its event.
    pub(crate) async fn dead_letter(
        &self,
        class: DeadLetterClass,
        kind: Kind,
        dead_at: OffsetDateTime,
    ) -> Uuid {
        let event = event(&self.session, dead_at).await;
        let id = ids::new_v7(dead_at);
        let insert = "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, dead_at)
                      VALUES ($1, $2, $3, $4, $5, 5, $6, $2, $7)";
        self.session
            .execute(
                insert,
                &[
                    &TENANT,
                    &id,
                    &ENDPOINT.0,
                    &event,
                    &class.code(),
                    &kind.code(),
                    &dead_at,
                ],
            )
            .await
            .unwrap();
        id
    }

    /// This worker is declared dead and its slots are taken by another.
    pub(crate) async fn succeeded_by_another(&self) -> (Incarnation, Epoch) {
        let successor = join(&self.session).await;
        declare_dead(&self.session, self.life).await;
        let taken = take_all(&self.session, successor).await;
        let epoch = taken.iter().find(|it| it.slot == SLOT).unwrap().epoch;
        (successor, epoch)
    }
}

/// Until a statement of that text waits for a lock.
pub(crate) async fn waits(session: &Session, text: &str) {
    let waiting = format!(
        "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
         AND query LIKE '%{text}%' AND pid <> pg_backend_pid()"
    );
    eventually(PATIENCE, || async {
        (count(session, &waiting).await > 0).then_some(())
    })
    .await;
}

pub(crate) async fn join(session: &Session) -> Incarnation {
    let life = Incarnation(Uuid::new_v4());
    slots::join(session, life, "test", TTL).await.unwrap();
    life
}

pub(crate) async fn take_all(session: &Session, life: Incarnation) -> Vec<Taken> {
    slots::acquire(session, life, 256).await.unwrap()
}
