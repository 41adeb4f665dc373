//! Changes of endpoints on their way into a real database.

use std::sync::Arc;
use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::notice::NoticeKind;
use shared::ids::{self, EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use shared::policy::notice::Facts;
use shared::runtime::clock::{DatabaseClock, boot_time, wall_time};
use shared::runtime::spawn_driver;
use shared::store::endpoint_runtime::Runtime;
use shared::store::{Database, Role, Session, slots};
use shared::testing::{TestCluster, TestDatabase, eventually};
use time::OffsetDateTime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Change, Changes, DisableFailing, Transitions};
use crate::job::Ownership;

const DEADLINE: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3_600);
const SLOT: Slot = Slot(1);
const FAILING: EndpointKey = EndpointKey(1);
const LISTENER: EndpointKey = EndpointKey(2);
const TENANT: TenantKey = TenantKey(7);

/// A worker that owns every slot, an endpoint, and another that is told of it.
struct World {
    session: Session,
    owner: Ownership,
    changes: Arc<Changes>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl World {
    async fn new(database: Database) -> Self {
        let session = database.connect(Role::Worker).await.unwrap();
        let owner = life(&session).await;
        let endpoints = "
            INSERT INTO tenants (id, public_id, name) OVERRIDING SYSTEM VALUE VALUES (7, gen_random_uuid(), 't');
            INSERT INTO endpoints (id, public_id, tenant_id, slot, url, event_types) OVERRIDING SYSTEM VALUE
            VALUES (1, gen_random_uuid(), 7, 1, 'http://failing.example/', '{}'),
                   (2, gen_random_uuid(), 7, 1, 'http://listener.example/', '{postrider.*}')";
        session.batch_execute(endpoints).await.unwrap();
        let changes = Arc::new(Changes::default());
        let stop = CancellationToken::new();
        let task = Transitions {
            database,
            changes: Arc::clone(&changes),
            clock: Arc::new(DatabaseClock::new()),
        };
        let task = spawn_driver(task.run(stop.clone()));
        Self {
            session,
            owner,
            changes,
            stop,
            task,
        }
    }

    fn change(&self, opened_at: Option<OffsetDateTime>) -> Change {
        Change {
            owner: self.owner,
            endpoint: FAILING,
            tenant: TENANT,
            runtime: Some(Runtime {
                opened_at,
                ..Runtime::default()
            }),
            notices: Vec::new(),
            disable: None,
        }
    }

    fn told(&self, kind: NoticeKind) -> Change {
        Change {
            notices: vec![(kind, Facts::default())],
            ..self.change(Some(wall_time()))
        }
    }

    async fn until(&self, rows: &str, count: i64) {
        eventually(DEADLINE, || async {
            (self.count(rows).await == count).then_some(())
        })
        .await;
    }

    async fn count(&self, from: &str) -> i64 {
        let query = format!("SELECT count(*) FROM {from}");
        self.session.query_one(&query, &[]).await.unwrap().get(0)
    }

    /// Everything that was put in is done.
    async fn end(self) -> Session {
        self.changes.close();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap();
        self.session
    }
}

async fn life(session: &Session) -> Ownership {
    let incarnation = Incarnation(Uuid::new_v4());
    slots::join(session, incarnation, "test", Duration::from_secs(600))
        .await
        .unwrap();
    let taken = slots::acquire(session, incarnation, 256).await.unwrap();
    let epoch = taken
        .iter()
        .find(|it| it.slot == SLOT)
        .map_or(Epoch(0), |it| it.epoch);
    Ownership {
        incarnation,
        slot: SLOT,
        epoch,
    }
}

async fn count(session: &Session, from: &str) -> i64 {
    let query = format!("SELECT count(*) FROM {from}");
    session.query_one(&query, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_change_is_stored_and_told() {
    let test = TestDatabase::new().await;
    let world = World::new(test.database()).await;

    world.changes.put(world.told(NoticeKind::EndpointOpened));

    world
        .until("endpoint_runtime WHERE endpoint_id = 1 AND breaker = 1", 1)
        .await;
    world
        .until("ready WHERE kind = 4 AND endpoint_id = 2", 1)
        .await;
    let session = world.end().await;
    let told = "events e JOIN event_types t ON t.id = e.type_id WHERE t.name = 'postrider.endpoint.opened'";
    assert_eq!(count(&session, told).await, 1);
}

#[tokio::test]
async fn what_waits_at_the_end_is_written_before_the_task_ends() {
    let test = TestDatabase::new().await;
    let world = World::new(test.database()).await;
    for key in 10..1_300 {
        let endpoint = EndpointKey(key);
        let change = Change {
            endpoint,
            ..world.change(Some(wall_time()))
        };
        world.changes.put(change);
    }

    let session = world.end().await;

    assert_eq!(count(&session, "endpoint_runtime").await, 1_290);
}

#[tokio::test]
async fn of_a_stale_owner_nothing_is_stored_or_told() {
    // D3
    let test = TestDatabase::new().await;
    let world = World::new(test.database()).await;
    let declare_dead = "DELETE FROM workers WHERE id = $1";
    let me = world.owner.incarnation.0;
    world.session.execute(declare_dead, &[&me]).await.unwrap();
    life(&world.session).await;

    world.changes.put(world.told(NoticeKind::EndpointOpened));
    let session = world.end().await;

    for table in ["endpoint_runtime", "notices", "ready"] {
        assert_eq!(count(&session, table).await, 0, "{table}");
    }
}

#[tokio::test]
async fn an_endpoint_that_failed_for_long_is_disabled_and_its_tenant_told() {
    let test = TestDatabase::new().await;
    let world = World::new(test.database()).await;
    let at = wall_time();
    let attempt = "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id,
                     endpoint_version, total_ms, outcome, applied)
                   VALUES (7, $1, 1, 1, $2, 1, $1, 1, 5, $3, true)";
    let failed = Outcome::Transient.code();
    for n in 0..12_u32 {
        let started = at - n * 2 * HOUR;
        let id = ids::new_v7(started);
        world
            .session
            .execute(attempt, &[&id, &started, &failed])
            .await
            .unwrap();
    }
    let disable = |version| Change {
        disable: Some(DisableFailing {
            version,
            failing_since: at - 23 * HOUR,
        }),
        ..world.change(None)
    };

    world.changes.put(disable(9));
    world.until("endpoint_runtime", 1).await;
    let of_another_version = world.count("endpoints WHERE state = 2").await;
    world.changes.put(disable(1));
    let session = world.end().await;

    assert_eq!(of_another_version, 0);
    let disabled = "endpoints WHERE id = 1 AND state = 2 AND state_reason LIKE '%failed%'";
    assert_eq!(count(&session, disabled).await, 1);
    let told = "ready r JOIN events e ON e.id = r.event_id JOIN event_types t ON t.id = e.type_id
                WHERE r.endpoint_id = 2 AND t.name = 'postrider.endpoint.disabled'";
    assert_eq!(count(&session, told).await, 1);
}

#[tokio::test]
async fn a_notice_that_cannot_be_told_is_left_out_and_delays_nothing() {
    let test = TestDatabase::new().await;
    let world = World::new(test.database()).await;
    let refuse = "
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          RAISE EXCEPTION 'no' USING ERRCODE = '22000'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON notices FOR EACH ROW WHEN (NEW.kind = 6) EXECUTE FUNCTION refuse()";
    world.session.batch_execute(refuse).await.unwrap();
    let mut change = world.told(NoticeKind::EndpointClosed);
    change
        .notices
        .push((NoticeKind::EndpointMisconfigured, Facts::default()));

    world.changes.put(change);
    let session = world.end().await;

    assert_eq!(count(&session, "endpoint_runtime").await, 1);
    assert_eq!(count(&session, "notices WHERE kind = 2").await, 1);
    assert_eq!(count(&session, "notices").await, 1);
}

#[tokio::test]
async fn a_notice_that_waits_for_another_holds_up_no_state() {
    let test = TestDatabase::new().await;
    let world = World::new(test.database()).await;
    let mut other = test.database().connect(Role::Worker).await.unwrap();
    let transaction = other.transaction().await.unwrap();
    // Holds the window of this notice.
    let lock = "LOCK TABLE notices IN EXCLUSIVE MODE";
    transaction.batch_execute(lock).await.unwrap();

    world.changes.put(world.told(NoticeKind::EndpointOpened));
    let settled = world.changes.settled(&[SLOT], DEADLINE).await;
    let saved = count(&world.session, "endpoint_runtime WHERE breaker = 1").await;
    transaction.rollback().await.unwrap();
    let session = world.end().await;

    assert!(settled);
    assert_eq!(saved, 1);
    assert_eq!(
        count(&session, "notices WHERE event_id IS NOT NULL").await,
        1
    );
}

#[tokio::test]
async fn while_the_database_is_away_the_latest_state_wins_and_no_notice_is_lost() {
    let mut cluster = TestCluster::new().await;
    let world = World::new(cluster.database()).await;
    let (owner, stop) = (world.owner, world.stop.clone());
    cluster.stop().await.unwrap();
    let at = wall_time().replace_nanosecond(0).unwrap();

    let started = boot_time();
    world.changes.put(world.told(NoticeKind::EndpointOpened));
    for second in 1..=1_000 {
        let opened = at + Duration::from_secs(second);
        world.changes.put(world.change(Some(opened)));
    }
    world.changes.put(Change {
        endpoint: LISTENER,
        ..world.change(None)
    });
    let putting = boot_time().since(started);
    let unsettled = world
        .changes
        .settled(&[SLOT], Duration::from_millis(200))
        .await;
    let elsewhere = world.changes.settled(&[Slot(2)], DEADLINE).await;
    cluster.start().await.unwrap();
    let settled = world.changes.settled(&[SLOT], DEADLINE).await;
    world.changes.close();
    tokio::time::timeout(DEADLINE, world.task)
        .await
        .unwrap()
        .unwrap();

    assert!(putting < Duration::from_secs(1), "{putting:?}");
    assert_eq!((unsettled, elsewhere, settled), (false, true, true));
    let session = cluster.database().connect(Role::Worker).await.unwrap();
    let query = "SELECT opened_at, slot FROM endpoint_runtime WHERE endpoint_id = 1";
    let row = session.query_one(query, &[]).await.unwrap();
    let latest = at + Duration::from_secs(1_000);
    assert_eq!(row.get::<_, OffsetDateTime>(0), latest);
    assert_eq!(Slot(row.get(1)), owner.slot);
    assert_eq!(count(&session, "endpoint_runtime").await, 2);
    assert_eq!(count(&session, "notices WHERE kind = 1").await, 1);
    assert!(!stop.is_cancelled());
}
