//! Lists across 10,000 tenants of one organization: by indexes, in a bounded time.

use std::time::Duration;

use shared::domain::delivery::Status;
use shared::ids::lower_bound;
use shared::runtime::clock::boot_time;
use shared::store::{Role, Session, organization_lists as lists, partitions};
use shared::testing::TestDatabase;
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::world::now;

/// Five events each, with a waiting delivery, a dead letter and a delivered one; half as many of another
/// organization in between.
async fn fill(session: &Session) {
    session
        .batch_execute(
            "INSERT INTO organizations (public_id, name) VALUES (gen_random_uuid(), 'one'), (gen_random_uuid(), 'two');
             INSERT INTO tenants (public_id, organization_id, external_id, name)
             SELECT gen_random_uuid(), 1 + (n % 3 = 0)::int, 'n' || n, 'n' FROM generate_series(1, 15000) n;
             INSERT INTO event_types (tenant_id, name) SELECT id, 'a' FROM tenants;
             INSERT INTO endpoints (public_id, tenant_id, slot, url) SELECT gen_random_uuid(), id, 1, 'http://127.0.0.1/' FROM tenants;
             CREATE TABLE made AS
             SELECT t.id AS tenant_id, ty.id AS type_id, ep.id AS endpoint_id,
                    (lpad(to_hex((extract(epoch FROM date_trunc('day', now())) * 1000)::int8 + k * 15000 + t.id), 12, '0') || '70008000' || lpad(to_hex(t.id), 12, '0'))::uuid AS id
             FROM tenants t JOIN event_types ty ON ty.tenant_id = t.id JOIN endpoints ep ON ep.tenant_id = t.id
             CROSS JOIN generate_series(0, 4) k;
             INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
             SELECT id, tenant_id, type_id, '1', ARRAY[endpoint_id], ARRAY[id] FROM made;
             INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id) SELECT 1, tenant_id, endpoint_id, id, id FROM made;
             INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
             SELECT tenant_id, (left(id::text, 14) || '7001-8000-' || right(id::text, 12))::uuid, endpoint_id, id, 1, 1, 0, id FROM made;
             INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, status, final_status, applied)
             SELECT tenant_id, (left(id::text, 14) || '7002-8000-' || right(id::text, 12))::uuid, 1, 1, now(), endpoint_id, id, 1, 1, 1, 200::int2, 3::int2, true FROM made;",
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_page_across_ten_thousand_tenants_comes_from_indexes_and_soon() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let at = now(&session).await;
    partitions::ensure(&session, at, 1).await.unwrap();
    fill(&session).await;
    session.batch_execute("VACUUM ANALYZE").await.unwrap();
    let pool = database
        .database()
        .pool(Role::Api, 1, Duration::from_secs(10))
        .unwrap();
    let mut session = pool.get().await.unwrap();
    let session = shared::store::snapshot(&mut session).await.unwrap();
    let day = at.replace_time(time::Time::MIDNIGHT);
    let range = (lower_bound(day), lower_bound(day + time::Duration::days(1)));

    for round in 0..2 {
        let began = boot_time();
        let events = lists::events(&session, 1, None, range, 51).await.unwrap();
        let took_events = boot_time().since(began);
        let began = boot_time();
        let deliveries = lists::deliveries(&session, 1, None, range, 51)
            .await
            .unwrap();
        let took_deliveries = boot_time().since(began);
        let began = boot_time();
        let endpoints = lists::endpoints(&session, 1, None, 51).await.unwrap();
        let took_endpoints = boot_time().since(began);

        println!(
            "round {round}: events {took_events:?}, deliveries {took_deliveries:?}, endpoints {took_endpoints:?}"
        );
        assert_eq!(
            (events.len(), deliveries.len(), endpoints.len()),
            (51, 51, 51)
        );
        for took in [took_events, took_deliveries, took_endpoints] {
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
    }
    let dead = lists::deliveries(&session, 1, Some(Status::DeadLetter), range, 51).await;
    assert!(
        dead.unwrap()
            .iter()
            .all(|(_, row)| row.status == Status::DeadLetter)
    );

    // The newest events of all, and none of the other organization.
    let expected = session
        .query(
            "SELECT m.id FROM made m JOIN tenants t ON t.id = m.tenant_id WHERE t.organization_id = 1 ORDER BY m.id DESC LIMIT 51",
            &[],
        )
        .await
        .unwrap();
    let expected: Vec<Uuid> = expected.iter().map(|row| row.get(0)).collect();
    let found = lists::events(&session, 1, None, range, 51).await.unwrap();
    assert_eq!(
        found.iter().map(|(_, event)| event.id).collect::<Vec<_>>(),
        expected
    );

    by_indexes(&session, range).await;
}

async fn by_indexes(session: &Transaction<'_>, range: (Uuid, Uuid)) {
    for (name, sql) in lists::STATEMENTS {
        if !["organization_lists.events", "organization_lists.deliveries"].contains(name) {
            continue;
        }
        let sql = sql
            .replace("$1", "1")
            .replace("$2", &format!("'{}'::uuid", range.0))
            .replace("$3", &format!("'{}'::uuid", range.1))
            .replace("$4", "51")
            .replace("$5::int2", "NULL::int2")
            .replace("$5", "NULL::int2")
            .replace("$6", "now() - interval '2 days'");
        let plan = session.query(&format!("EXPLAIN {sql}"), &[]).await.unwrap();
        for row in plan {
            let line: String = row.get(0);
            for table in [
                "events",
                "ready",
                "retry",
                "dead_letters",
                "closed",
                "attempts",
            ] {
                assert!(
                    !line.contains(&format!("Seq Scan on {table}")),
                    "{name}: {line}"
                );
            }
        }
    }
}
