//! What expunging one event costs a tenant that has sent much else.

use std::time::Duration;

use shared::ids;
use shared::runtime::clock::boot_time;
use shared::store::removals::{self, Progress};
use shared::store::{Role, Session, leases};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::owner::{ITS_TENANT, Owner};
use crate::world::{self, TENANT};

/// Far above what is measured (tens of milliseconds); a walk of the tenant takes a thousand batches.
const BOUND: Duration = Duration::from_millis(500);
/// Its steps, each of them twice, and a last look at each of them.
const MOST_BATCHES: usize = 12;

/// Rows of a tenant that came after the event, and 10,000 endpoints.
async fn much_else(owner: &Owner) {
    let id = "('7fffffff-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid";
    let rows = "FROM generate_series(1, 250000) g";
    let vacuum = "VACUUM ANALYZE ready, dead_letters, attempts, replayed, endpoints, events";
    world::fill(&owner.database, vacuum).await;
    let filling = format!(
            "INSERT INTO endpoints (id, public_id, tenant_id, slot, url) OVERRIDING SYSTEM VALUE
               SELECT 1 + g, gen_random_uuid(), {TENANT}, 1, 'http://receiver.example/' FROM generate_series(1, 10000) g;
             INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id) SELECT 1, {TENANT}, 1, {id}, {id} {rows};
             INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
               SELECT {TENANT}, {id}, 1, {id}, 3, 1, 0, {id} {rows};
             INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id) SELECT {TENANT}, {id}, 1, {id} {rows};
             INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                 total_ms, outcome, applied, response)
               SELECT {TENANT}, {id}, 1, 1, now(), 1, {id}, 1, 5, 1, true, 'x' {rows}"
        );
    world::fill(&owner.database, &filling).await;
}

/// By plans made with the statistics of before, as a worker makes them.
async fn no_statement_walks(session: &mut Session, deliveries: [Uuid; 2]) {
    let (code, nil) = (7_i16, Uuid::nil());
    let [first, _again] = deliveries;
    let since = ids::created_at(first) - time::Duration::MINUTE;
    let deliveries = deliveries.to_vec();
    let transaction = session.transaction().await.unwrap();
    for (name, statement) in removals::STATEMENTS {
        let params: Vec<&(dyn ToSql + Sync)> = match *name {
            "removals.close" => vec![&TENANT, &deliveries, &code, &code],
            "removals.reclass" => vec![&TENANT, &deliveries, &code],
            "removals.empty_attempts" => vec![&TENANT, &first, &since],
            "removals.of_event" => vec![&TENANT, &nil, &500_i64, &first, &first],
            _ => continue,
        };
        let explain = format!("EXPLAIN (ANALYZE, TIMING off) {statement}");
        for line in transaction.query(&explain, &params).await.unwrap() {
            let line: String = line.get(0);
            let passed_over = line.trim().strip_prefix("Rows Removed by Filter: ");
            let passed_over: u32 = passed_over.map_or(0, |rows| rows.parse().unwrap());
            assert!(passed_over < 100, "{name}: {line}");
        }
    }
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn one_event_of_a_tenant_with_a_million_rows_is_expunged_in_a_few_batches() {
    let owner = Owner::new().await;
    let event = world::event(&owner.session, owner.now().await).await;
    let waiting = world::delivery(&owner.session, "ready", event).await;
    let again = ids::new_v7(owner.now().await);
    owner
        .session
        .batch_execute(&format!(
            "UPDATE events SET fan_endpoint = '{{1}}', fan_delivery = '{{{waiting}}}' WHERE id = '{event}';
             INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id) VALUES ({TENANT}, '{again}', 1, '{event}');
             INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
                 total_ms, outcome, applied, response)
               VALUES ({TENANT}, '{again}', 1, 1, now(), 1, '{event}', 1, 5, 1, true, 'x')"
        ))
        .await
        .unwrap();
    much_else(&owner).await;
    let mut session = owner.database.connect(Role::Worker).await.unwrap();
    let lease = leases::acquire(&session, "removal", owner.life).await;
    let lease = lease.unwrap().unwrap();

    no_statement_walks(&mut session, [waiting, again]).await;

    let began = boot_time();
    let transaction = session.transaction().await.unwrap();
    let begun = removals::begin_payload(&transaction, ITS_TENANT, event).await;
    assert!(begun.unwrap().is_some());
    transaction.commit().await.unwrap();
    let asked = boot_time().since(began);
    let mut batches = Vec::new();
    loop {
        let hurry = "UPDATE removals SET not_before = now()";
        owner.session.batch_execute(hurry).await.unwrap();
        let began = boot_time();
        if removals::advance(&mut session, &lease).await.unwrap() == Progress::Idle {
            break;
        }
        batches.push(boot_time().since(began));
        assert!(batches.len() <= MOST_BATCHES, "it walks");
    }

    println!("request {asked:?}, batches {batches:?}");
    assert!(asked < BOUND, "the request took {asked:?}");
    assert!(batches.iter().all(|took| *took < BOUND), "{batches:?}");
    let closed = format!("closed WHERE id = '{waiting}' AND reason = 7");
    assert_eq!(owner.count(&closed).await, 1);
    let answered = format!("attempts WHERE event_id = '{event}' AND response IS NOT NULL");
    assert_eq!(owner.count(&answered).await, 0);
    assert_eq!(owner.count("ready").await, 250_000);
    let others = "attempts WHERE response IS NOT NULL";
    assert_eq!(owner.count(others).await, 250_000);
}
