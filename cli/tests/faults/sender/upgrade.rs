//! P1 over an upgrade (field report F29): what an older schema holds is migrated and sent as it was posted,
//! signed with the secret of before.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use shared::ids::new_v7;
use shared::sealing::MasterKeys;
use shared::store::migrate::{MIGRATIONS, migrate, migrate_to};
use shared::store::{Database, Role, Session, partitions};
use shared::testing::{TestDatabase, eventually};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{documents, question, verified};
use crate::process::PATIENCE;
use crate::receiver::Receiver;
use crate::world::World;

/// The schema before the sender had columns of its own.
const OLD: usize = 6;
/// A tenant, an endpoint and the slot that it is in, as the older program stored them.
const TENANT: i32 = 700;
const ENDPOINT: i64 = 700;
const SECRET: [u8; 24] = [9; 24];

/// A database of that schema, in a schema of its own, and the URL that leads there.
async fn old_database(test: &TestDatabase) -> (String, Session) {
    let session = test.session().await;
    session.batch_execute("CREATE SCHEMA old").await.unwrap();
    let sign = if test.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{sign}options=-csearch_path%3Dold", test.url());
    let old = Database::new(&url).unwrap();
    let (session, applied) = migrate_to(&old, &MIGRATIONS[..OLD], Duration::from_secs(30))
        .await
        .unwrap();
    assert_eq!(applied.len(), OLD);
    drop(session);
    (url, old.connect(Role::Maintenance).await.unwrap())
}

/// What the older program left behind: an endpoint with a secret, and one delivery for each document, half of
/// them waiting for their first attempt and half for another.
async fn leave_behind(session: &Session, url: &str, documents: &[Vec<u8>]) -> Vec<Uuid> {
    let row = session.query_one("SELECT clock_timestamp()", &[]).await;
    let now: OffsetDateTime = row.unwrap().get(0);
    partitions::ensure(session, now, 2).await.unwrap();
    let id = Uuid::new_v4();
    let sealed = MasterKeys::new([7; 32], None).seal(&SECRET, &format!("secret:{id}"));
    let endpoint = "
        WITH t AS (INSERT INTO tenants (id, public_id, name) OVERRIDING SYSTEM VALUE VALUES ($1, gen_random_uuid(), 'old')),
        y AS (INSERT INTO event_types (id, tenant_id, name) OVERRIDING SYSTEM VALUE VALUES ($1, $1, 'old.made')),
        e AS (INSERT INTO endpoints (id, public_id, tenant_id, slot, url) OVERRIDING SYSTEM VALUE VALUES ($2, $3, $1, 9, $4))
        INSERT INTO endpoint_secrets (endpoint_id, sealed) VALUES ($2, $5)";
    session
        .execute(endpoint, &[&TENANT, &ENDPOINT, &id, &url, &sealed])
        .await
        .unwrap();
    let event = "
        WITH e AS (INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
                   VALUES ($1, $2, $2, $3, ARRAY[$4::int8], ARRAY[$5::uuid])),
        r AS (INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id) SELECT 9, $2, $4, $5, $1 WHERE NOT $6)
        INSERT INTO retry (slot, attempts_made, attempts_charged, tenant_id, endpoint_id, id, event_id, due_at)
        SELECT 9, 1, 1, $2, $4, $5, $1, now() WHERE $6";
    let mut events = Vec::new();
    for (number, document) in documents.iter().enumerate() {
        let (event_id, delivery) = (new_v7(now), new_v7(now));
        let tried = number % 2 == 1;
        session
            .execute(
                event,
                &[&event_id, &TENANT, document, &ENDPOINT, &delivery, &tried],
            )
            .await
            .unwrap();
        events.push(event_id);
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_what_an_older_schema_holds_is_sent_byte_for_byte_after_an_upgrade() {
    let test = TestDatabase::new().await;
    let (url, session) = old_database(&test).await;
    let receiver = Receiver::start().await;
    let documents: Vec<_> = documents::special().collect();
    let events = leave_behind(&session, &receiver.url("/old"), &documents).await;

    let database = Database::new(&url).unwrap();
    let applied = migrate(&database).await.unwrap();
    assert_eq!(applied.len(), MIGRATIONS.len() - OLD);
    let world = World::start(&url, database).await;
    let _worker = world.worker().await;
    eventually(PATIENCE, || async {
        (receiver.count_at("/old") == events.len()).then_some(())
    })
    .await;

    let secret = format!("whsec_{}", STANDARD.encode(SECRET));
    let arrivals = receiver.at("/old");
    let mut requests = Vec::new();
    for (number, (event, document)) in events.iter().zip(&documents).enumerate() {
        let found = arrivals.iter().find(|arrival| arrival.event == *event);
        let arrival = found.unwrap();
        assert_eq!(arrival.request.body(), document);
        assert_eq!(usize::from(arrival.attempt), 1 + number % 2);
        requests.push(question(arrival, &secret));
    }
    verified(&requests);
}
