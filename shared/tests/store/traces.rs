//! The trace context of an event: kept by both inserting statements, brought back by every loading one.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::domain::order::OrderKey;
use shared::domain::trace::TraceContext;
use shared::ids::{EndpointKey, Slot, TenantKey, new_v7};
use shared::runtime::clock::wall_time;
use shared::store::Session;
use shared::store::ingest::{Batch, DeliveryRow, EventRow, Ingest};
use shared::store::queue::{self, LineWant, Row, Statements, Want};
use shared::testing::TestDatabase;
use uuid::Uuid;

const SLOT: Slot = Slot(1);
const ENDPOINT: EndpointKey = EndpointKey(1);
/// The contexts of events.
type Known = BTreeMap<Uuid, Option<TraceContext>>;

const HEADER: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async fn number(session: &Session, sql: &str) -> i32 {
    session.query_one(sql, &[]).await.unwrap().get(0)
}

/// One event with this context and one without, by the plain statement or that for keys.
async fn insert(
    ingest: &Ingest,
    (tenant, type_id): (i32, i32),
    trace: TraceContext,
    keyed: bool,
) -> Known {
    let mut known = Known::new();
    let mut batch = if keyed {
        Batch::keyed()
    } else {
        Batch::default()
    };
    for (key, trace) in [(1, Some(trace)), (2, None)] {
        let event = EventRow {
            id: new_v7(wall_time()),
            tenant: TenantKey(tenant),
            type_id,
            deliver_before: None,
            channels: None,
            payload: b"1",
            trace,
            config_version: 1,
            order_key: keyed.then_some(OrderKey(key)),
            external_id: None,
            idempotency: &[],
        };
        known.insert(event.id, trace);
        let delivery = DeliveryRow {
            id: new_v7(wall_time()),
            endpoint: ENDPOINT,
            slot: SLOT,
            closed: None,
            ordered: keyed,
        };
        batch.push(event, std::iter::once(delivery));
    }
    let inserted = if keyed {
        ingest.insert_keyed(&batch, wall_time()).await.unwrap()
    } else {
        ingest.insert(&batch).await.unwrap()
    };
    assert_eq!((inserted.stale, inserted.repeated), (vec![], vec![]));
    known
}

/// What the rows that may go now say.
async fn loaded(session: &Session, sql: &Statements) -> Known {
    let now = wall_time() + Duration::from_secs(1);
    let want = Want {
        slot: SLOT,
        endpoint: ENDPOINT,
        cursor: Uuid::nil(),
        ready_limit: 10,
        retry_limit: 10,
    };
    let in_line = LineWant {
        slot: SLOT,
        endpoint: ENDPOINT,
        block: false,
        keys: Vec::new(),
        due_limit: 0,
        after: OrderKey::START,
        limit: 10,
        most_keys: 10,
    };
    let (ready, retry) = queue::load(session, sql, &[want], now).await.unwrap();
    let lines = queue::load_lines(session, sql, &[in_line], now)
        .await
        .unwrap();
    let heads = lines.heads.into_iter().map(|head| head.row);
    let rows: Vec<Row> = ready.into_iter().chain(retry).chain(heads).collect();
    assert!(rows.iter().all(|row| row.event.is_some()));
    rows.iter().map(|row| (row.event_id, row.trace)).collect()
}

#[tokio::test]
async fn a_trace_context_comes_back_with_every_row_of_its_event() {
    let test = TestDatabase::new().await;
    let session = test.session().await;
    let tenant =
        "INSERT INTO tenants (public_id, name) VALUES (gen_random_uuid(), 'acme') RETURNING id";
    let tenant = number(&session, tenant).await;
    let type_id =
        "INSERT INTO event_types (tenant_id, name) SELECT id, 'a' FROM tenants RETURNING id";
    let type_id = number(&session, type_id).await;
    let ingest = Ingest::open(&test.database()).await.unwrap();
    let sql = Statements::prepare(&session).await.unwrap();
    let trace = TraceContext::parse(HEADER).unwrap();

    let mut expected = insert(&ingest, (tenant, type_id), trace, false).await;
    expected.extend(insert(&ingest, (tenant, type_id), trace, true).await);

    assert_eq!(expected.len(), 4);
    assert_eq!(loaded(&session, &sql).await, expected);
    let smaller = "SELECT count(*)::int4 FROM events WHERE octet_length(trace_context) = 25";
    assert_eq!(
        number(&session, smaller).await,
        2,
        "and nothing for the others"
    );

    // As a retry, and of an event that is kept beyond its partition.
    let later = "
        INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, due_at)
          SELECT slot, tenant_id, endpoint_id, id, event_id, now() FROM ready;
        DELETE FROM ready;
        INSERT INTO events_kept SELECT * FROM events;
        DELETE FROM events";
    session.batch_execute(later).await.unwrap();
    assert_eq!(loaded(&session, &sql).await, expected);
}
