//! Statements of delivery policy at a million rows, with statistics made while the tables were empty (as
//! `plans`). The bounds stand far above what is measured and far below what a wrong plan takes.

use std::time::Duration;

use shared::domain::attempt::{Outcome, Phases};
use shared::domain::delivery::{DeadLetterClass, Kind};
use shared::ids::{self, EndpointKey, Slot};
use shared::runtime::clock::boot_time;
use shared::store::endpoint_runtime::{self, Recovery};
use shared::store::queue::{self, AttemptRow, Next, RecordRow, Statements};
use shared::store::recovery::{self, Revive};
use uuid::Uuid;

use crate::owner::{ENDPOINT, ITS_TENANT, Owner, SLOT};
use crate::world::{self, TENANT};

const BOUND: Duration = Duration::from_millis(500);
/// For thousands of rows that change, beside tests that fill other databases.
const BULK_BOUND: Duration = Duration::from_secs(4);
const HOUR: Duration = Duration::from_secs(3_600);
/// Most of three tries: the machine is shared.
const TRIES: usize = 3;
const ALL_SLOTS: std::ops::Range<i16> = 0..256;

async fn empty() -> Owner {
    let owner = Owner::new().await;
    owner
        .session
        .batch_execute("SET statement_timeout = '5min'")
        .await
        .unwrap();
    for table in [
        "ready",
        "retry",
        "ready_ordered",
        "dead_letters",
        "endpoint_runtime",
        "attempts",
        "events",
        "endpoints",
    ] {
        let vacuum = format!("VACUUM ANALYZE {table}");
        owner.session.batch_execute(&vacuum).await.unwrap();
    }
    owner
}

async fn fill(owner: &Owner, sql: &str) {
    let id = "('01980000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid";
    let sql = sql
        .replace("{id}", id)
        .replace("{tenant}", &TENANT.to_string());
    world::fill(&owner.database, &sql).await;
}

/// The quickest of a few tries, which must be quick enough.
#[expect(
    clippy::print_stdout,
    reason = "what a statement takes is worth seeing (--nocapture)"
)]
async fn timed<F: Future>(what: &str, bound: Duration, mut call: impl FnMut() -> F) -> F::Output {
    let mut best = (Duration::MAX, None);
    for _ in 0..TRIES {
        let started = boot_time();
        let output = call().await;
        let took = boot_time().since(started);
        if took < best.0 {
            best = (took, Some(output));
        }
    }
    println!("{what}: {:?}", best.0);
    assert!(best.0 < bound, "{what} took {:?}", best.0);
    best.1.unwrap()
}

async fn quickly<F: Future>(what: &str, call: impl FnMut() -> F) -> F::Output {
    timed(what, BOUND, call).await
}

fn all_slots() -> Vec<Slot> {
    ALL_SLOTS.map(Slot).collect()
}

const DEAD: &str = "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id, dead_at)";

#[tokio::test]
async fn a_million_dead_letters_of_one_endpoint_slow_neither_revival_nor_the_search_for_outages() {
    let owner = empty().await;
    let at = owner.now().await;
    let values = format!(
        "{DEAD} SELECT {{tenant}}, {{id}}, 1, {{id}}, 3, 1, 0, {{id}}, now() - interval '1 h' + g * interval '1 ms'
         FROM generate_series(1, 1000000) g"
    );
    fill(&owner, &values).await;
    let dead = owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at - HOUR / 2)
        .await;
    let window = Recovery {
        from: at - 2 * HOUR,
        until: at,
        refused: false,
    };

    let outages = quickly("outages", || {
        recovery::outages(&owner.session, &[SLOT], (at - 2 * HOUR, at))
    })
    .await;
    let ids: Vec<Uuid> = (0..20).map(|_| ids::new_v7(at)).collect();
    let revived = std::cell::Cell::new(0);
    quickly("revive", || async {
        let what = Revive { window, ids: &ids };
        let some = recovery::revive(&owner.session, owner.fence(), ENDPOINT, what).await;
        revived.set(revived.get() + some.unwrap().len());
    })
    .await;

    assert_eq!(outages.unwrap().len(), 1);
    assert_eq!(revived.get(), 1);
    let replayed = format!("dead_letters WHERE id = '{dead}' AND replayed_as IS NOT NULL");
    assert_eq!(owner.count(&replayed).await, 1);
}

#[tokio::test]
async fn a_hundred_of_a_million_live_again_quickly() {
    let owner = empty().await;
    let at = owner.now().await;
    // In the middle of an outage of everybody: others died before, between and after.
    let event = crate::world::event(&owner.session, at).await;
    let values = format!(
        "{DEAD} SELECT {{tenant}}, {{id}}, 1 + g % 10, '{event}', 1 + g % 2, 5, 0, {{id}}, now() - interval '1 h' + g * interval '1 ms'
         FROM generate_series(1, 1000000) g"
    );
    fill(&owner, &values).await;
    let window = Recovery {
        from: at - 2 * HOUR,
        until: at,
        refused: true,
    };

    let revived = std::cell::Cell::new(0);
    quickly("revive 100", || async {
        let ids: Vec<Uuid> = (0..100).map(|_| ids::new_v7(at)).collect();
        let what = Revive { window, ids: &ids };
        let some = recovery::revive(&owner.session, owner.fence(), ENDPOINT, what).await;
        revived.set(revived.get() + some.unwrap().len());
    })
    .await;

    assert_eq!(revived.get(), 100 * TRIES);
    // ... and what died again finds its first delivery among a million.
    let sql = Statements::prepare(&owner.session).await.unwrap();
    let lived = "SELECT id, event_id FROM ready ORDER BY id";
    let lived = owner.session.query(lived, &[]).await.unwrap();
    let batches = std::cell::RefCell::new(lived.chunks(100));
    quickly("record 100 dead letters of replays", || async {
        let batch = batches.borrow_mut().next().unwrap();
        let rows: Vec<_> = batch
            .iter()
            .map(|row| dead_again(&owner, row.get(0), row.get(1)))
            .collect();
        let answers = queue::record(&owner.session, &sql, owner.life, &rows).await;
        assert!(answers.unwrap().iter().all(|(_, applied)| *applied));
    })
    .await;
    let again = "dead_letters d JOIN dead_letters f ON f.replayed_as = d.id
                 WHERE d.kind = 2 AND d.root_id = f.id";
    assert_eq!(
        owner.count(again).await,
        i64::try_from(100 * TRIES).unwrap()
    );
}

fn dead_again(owner: &Owner, delivery: Uuid, event_id: Uuid) -> RecordRow<'static> {
    RecordRow {
        slot: SLOT,
        epoch: owner.epoch,
        endpoint: ENDPOINT,
        delivery,
        event_id,
        tenant: ITS_TENANT,
        attempts_before: 0,
        attempts_charged: 1,
        outcome: Outcome::Transient,
        next: Next::DeadLetter(DeadLetterClass::Transient),
        note: None,
        attempt: Some(AttemptRow {
            started_at: shared::runtime::clock::wall_time(),
            endpoint_version: 1,
            status: Some(500),
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
    }
}

#[tokio::test]
async fn a_hundred_thousand_endpoints_with_dead_letters_are_searched_in_seconds() {
    let owner = empty().await;
    let at = owner.now().await;
    fill(
        &owner,
        "INSERT INTO endpoints (id, public_id, tenant_id, slot, url) OVERRIDING SYSTEM VALUE
         SELECT g, gen_random_uuid(), {tenant}, g % 256, 'http://x/' FROM generate_series(10, 100009) g",
    )
    .await;
    let values = format!(
        "{DEAD} SELECT {{tenant}}, {{id}}, 10 + g % 100000, {{id}}, 2, 5, 0, {{id}}, now() - interval '1 h' + g * interval '1 ms'
         FROM generate_series(1, 1000000) g"
    );
    fill(&owner, &values).await;

    let started = boot_time();
    let found = recovery::outages(&owner.session, &all_slots(), (at - 2 * HOUR, at)).await;
    let took = boot_time().since(started);

    println!("outages of 100,000 endpoints: {took:?}");
    assert_eq!(found.unwrap().len(), 100_000);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[tokio::test]
async fn a_million_states_slow_the_look_for_those_awake_not_at_all() {
    let owner = empty().await;
    fill(
        &owner,
        "INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, failing_since)
         SELECT g, g % 256, {tenant}, now() FROM generate_series(10, 1000009) g;
         UPDATE endpoint_runtime SET breaker = 1 WHERE endpoint_id % 100000 = 11;
         INSERT INTO endpoints (id, public_id, tenant_id, slot, url) OVERRIDING SYSTEM VALUE
         SELECT endpoint_id, gen_random_uuid(), {tenant}, slot, 'http://x/' FROM endpoint_runtime WHERE breaker = 1",
    )
    .await;

    let slots = all_slots();
    let awake = quickly("awake", || endpoint_runtime::awake(&owner.session, &slots)).await;

    assert_eq!(awake.unwrap().len(), 10);
}

#[tokio::test]
async fn the_history_of_many_endpoints_is_read_quickly_among_a_million_attempts() {
    let owner = empty().await;
    let at = owner.now().await;
    fill(
        &owner,
        "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, applied)
         SELECT {tenant}, {id}, 1, 1, now() - interval '1 h' + g * interval '1 ms', g % 1000, {id}, 1, 5, 2, true
         FROM generate_series(1, 1000000) g",
    )
    .await;
    let endpoints: Vec<EndpointKey> = (0..200).map(EndpointKey).collect();

    let history = quickly("history of 200", || {
        endpoint_runtime::history(&owner.session, &endpoints, at - 24 * HOUR, 20)
    })
    .await
    .unwrap();

    assert!(history.iter().all(|(_, attempts)| attempts.len() == 20));
}

#[tokio::test]
async fn a_million_attempts_of_one_endpoint_slow_no_look_at_its_last_ones() {
    // Read whole and sorted they take half a second, and `LIMIT` does not help.
    let owner = empty().await;
    let at = owner.now().await;
    fill(
        &owner,
        "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, applied)
         SELECT {tenant}, {id}, 1, 1, now() - interval '20 min' + g * interval '1 ms', 1, {id}, 1, 5, 2, true
         FROM generate_series(1, 1000000) g",
    )
    .await;
    owner
        .dead_letter(DeadLetterClass::Transient, Kind::Live, at)
        .await;

    let history = quickly("history of one among 1M of its own", || {
        endpoint_runtime::history(&owner.session, &[ENDPOINT], at - 24 * HOUR, 20)
    })
    .await
    .unwrap();
    let outages = quickly("outages after 1M failures", || {
        recovery::outages(&owner.session, &[SLOT], (at - 20 * HOUR, at))
    })
    .await
    .unwrap();

    assert_eq!(history[0].1.len(), 20);
    assert_eq!(outages.len(), 1);
}

#[tokio::test]
async fn a_sweep_with_nothing_to_end_among_a_million_waiting_rows_is_quick() {
    let owner = empty().await;
    let at = owner.now().await;
    for (digit, table, columns, values) in [
        (7, "ready", "", ""),
        (8, "retry", ", due_at", ", now() + g * interval '1 ms'"),
        (
            9,
            "ready_ordered",
            ", order_key, order_seq",
            ", g % 1000, g",
        ),
    ] {
        // Ids of their own in each table.
        let sql = format!(
            "INSERT INTO {table} (slot, tenant_id, endpoint_id, id, event_id, deliver_before{columns})
             SELECT 1, {{tenant}}, 1, uuid_in(overlay({{id}}::text placing '{digit}' from 15)::cstring), {{id}}, CASE WHEN g % 10 = 0 THEN now() + interval '1 h' END{values}
             FROM generate_series(1, 1000000) g"
        );
        fill(&owner, &sql).await;
    }
    let before_all = Uuid::from_u128(1);
    let after_all = Uuid::max();

    let nothing = timed("expire nothing of 3M", BULK_BOUND, || {
        queue::expire(
            &owner.session,
            owner.fence(),
            ENDPOINT,
            (before_all, at),
            &[],
        )
    })
    .await;
    let some = timed("expire 3,000 of 3M", BULK_BOUND, || {
        queue::expire(
            &owner.session,
            owner.fence(),
            ENDPOINT,
            (after_all, at),
            &[],
        )
    })
    .await;

    assert_eq!(nothing.unwrap(), 0);
    assert_eq!(some.unwrap(), 3_000);
}
