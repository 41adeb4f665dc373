//! Lists that are longer than what one page looks at: a filtered page can be short, and the walk goes on.

use std::str::FromStr as _;

use serde_json::json;
use shared::ids::{DeliveryId, EventId};
use shared::store::Session;
use uuid::Uuid;

use crate::app::{Tenant, text, world};

/// Numbers decide: 3,000 deliveries of yesterday, 3,000 of a minute ago, and 3,000 newer ones that wait for their retry.
/// Most are to the busy endpoint ($1), some of yesterday to the silent one, one in a thousand to the rare one. One in
/// a hundred was delivered a day after it was made.
const FILL: &str = "
CREATE TABLE made AS
SELECT n, x.at, CASE WHEN n % 1000 = 7 THEN 3 WHEN n <= 800 AND n % 2 = 0 THEN 2 ELSE 1 END AS place,
       CASE WHEN n > 6000 THEN 4 WHEN n = 500 THEN 6 WHEN n % 4 = 0 THEN 7 WHEN n % 4 = 1 THEN 5 ELSE 3 END AS status,
       n % 1500 = 7 AS rare, load(0, x.at) AS event_id, load(1, x.at) AS id
FROM generate_series(1, 9000) n
CROSS JOIN LATERAL (
  SELECT now() - CASE WHEN n <= 3000 THEN interval '1 day' ELSE interval '1 min' END + n * interval '1 ms' AS at) x;
INSERT INTO event_types (tenant_id, name) SELECT id, unnest(ARRAY['common', 'rare']) FROM tenants;
INSERT INTO events (id, tenant_id, type_id, payload, channels, fan_endpoint, fan_delivery)
SELECT m.event_id, e.tenant_id, y.id, '1', CASE WHEN m.n = 100 THEN ARRAY['vip'] END, ARRAY[e.id], ARRAY[m.id]
FROM made m JOIN places e ON e.place = m.place
JOIN event_types y ON y.name = CASE WHEN m.rare THEN 'rare' ELSE 'common' END;
INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, status, final_status, applied)
SELECT e.tenant_id, m.id, 1, 1, CASE WHEN m.n % 100 = 2 THEN now() ELSE m.at END, e.id, m.event_id, 1, 1, CASE m.status WHEN 3 THEN 1 ELSE 2 END,
       CASE m.status WHEN 3 THEN 200 ELSE 503 END, CASE WHEN m.status <> 4 THEN m.status END, true
FROM made m JOIN places e ON e.place = m.place WHERE m.status IN (3, 4, 5);
INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
SELECT e.tenant_id, m.id, e.id, m.event_id, 1, 1, 0, m.id FROM made m JOIN places e ON e.place = m.place WHERE m.status = 5;
INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
SELECT e.tenant_id, m.id, e.id, m.event_id, m.status, 2 FROM made m JOIN places e ON e.place = m.place WHERE m.status IN (6, 7);
INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, attempts_made, due_at)
SELECT e.slot, e.tenant_id, e.id, m.id, m.event_id, 1, now() + interval '1 h' FROM made m JOIN places e ON e.place = m.place WHERE m.status = 4";

/// Makes the endpoints, in the order of their places, and fills.
async fn fill(session: &Session, tenant: &Tenant<'_>) -> Vec<String> {
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        let none = json!({ "event_types": ["not.published"] });
        endpoints.push(text(&tenant.endpoint(none).await["id"]));
    }
    session
        .batch_execute(
            "CREATE TABLE places AS SELECT row_number() OVER (ORDER BY id) AS place, id, tenant_id, slot FROM endpoints;
             CREATE FUNCTION load(kind int, at timestamptz) RETURNS uuid LANGUAGE sql AS $$
               SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::int8), 12, '0') || '70008000' || lpad(to_hex(kind), 12, '0'))::uuid $$",
        )
        .await
        .unwrap();
    session.batch_execute(FILL).await.unwrap();
    endpoints
}

async fn expected(session: &Session, which: &str) -> Vec<String> {
    let sql = format!("SELECT id FROM made WHERE {which} ORDER BY id DESC");
    let rows = session.query(&sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| DeliveryId(row.get(0)).to_string())
        .collect()
}

/// All ids of a list, and how many pages were short although there was another one. `between` happens after each page.
async fn walk(
    tenant: &Tenant<'_>,
    path: &str,
    mut between: impl AsyncFnMut(usize),
) -> (Vec<String>, usize) {
    const LIMIT: usize = 100;
    let joint = if path.contains('?') { '&' } else { '?' };
    let first = format!("{path}{joint}limit={LIMIT}");
    let (mut ids, mut short, mut next) = (Vec::new(), 0, first.clone());
    for pages in 1.. {
        let page = tenant.get(&next).await.expect(200);
        let rows = page["data"].as_array().unwrap();
        ids.extend(rows.iter().map(|row| text(&row["id"])));
        between(pages).await;
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        short += usize::from(rows.len() < LIMIT);
        next = format!("{first}&cursor={cursor}");
    }
    (ids, short)
}

#[tokio::test]
async fn a_walk_finds_the_few_that_fit_among_many_and_goes_on_after_a_page_that_was_cut_off() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    let endpoints = fill(&session, &tenant).await;
    let [busy, silent, rare] = &*endpoints else {
        panic!("three endpoints");
    };
    let deliveries = |filter: &str| format!("/v1/deliveries?{filter}");
    for (path, which, cut_off) in [
        ("/v1/deliveries".to_owned(), "true", false),
        (deliveries("status=delivered"), "status = 3", true),
        (deliveries("status=cancelled"), "status = 6", false),
        (deliveries("status=failed"), "status = 4", false),
        (deliveries("event_type=rare"), "rare", true),
        (
            deliveries("event_type=rare&status=delivered"),
            "rare AND status = 3",
            true,
        ),
        (deliveries("event_type=nobody.has"), "false", true),
        (
            deliveries(&format!("endpoint_id={busy}")),
            "place = 1",
            false,
        ),
        (
            deliveries(&format!("endpoint_id={silent}")),
            "place = 2",
            false,
        ),
        (
            deliveries(&format!("endpoint_id={rare}")),
            "place = 3",
            false,
        ),
        (
            deliveries(&format!("endpoint_id={busy}&status=delivered")),
            "place = 1 AND status = 3",
            true,
        ),
        (
            deliveries(&format!("endpoint_id={silent}&status=delivered")),
            "place = 2 AND status = 3",
            false,
        ),
        (
            deliveries(&format!("endpoint_id={silent}&status=skipped")),
            "place = 2 AND status = 7",
            false,
        ),
        (
            deliveries(&format!("endpoint_id={rare}&status=failed")),
            "place = 3 AND status = 4",
            false,
        ),
        (
            deliveries(&format!("endpoint_id={busy}&event_type=rare")),
            "place = 1 AND rare",
            true,
        ),
        (
            "/v1/dead-letters?event_type=rare".to_owned(),
            "rare AND status = 5",
            false,
        ),
    ] {
        let (found, short) = walk(&tenant, &path, async |_| ()).await;

        assert_eq!(found, expected(&session, which).await, "{path}");
        assert!(short > 0 || !cut_off, "{path}: every page was full");
    }
}

#[tokio::test]
async fn a_filtered_walk_sees_what_existed_throughout_once_while_rows_come_move_and_go() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    let endpoints = fill(&session, &tenant).await;
    let path = format!("/v1/deliveries?endpoint_id={}", endpoints[0]);
    let mut before = expected(&session, "place = 1 AND NOT (status = 7 AND n <= 3000)").await;

    let (found, _) = walk(&tenant, &path, async |pages| {
        // One is delivered that was not seen yet, or was; events come; and a day of history is forgotten.
        let moved = format!("SELECT id FROM made WHERE n = 9001 - {pages} * 97 AND status = 4");
        let record = format!(
            "WITH gone AS (DELETE FROM retry WHERE id = ({moved}) RETURNING tenant_id, id, endpoint_id, event_id)
             INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, status, final_status, applied)
             SELECT tenant_id, id, 2, 1, now(), endpoint_id, event_id, 1, 1, 1, 200, 3, true FROM gone"
        );
        session.batch_execute(&record).await.unwrap();
        tenant.publishes("not.published", &json!(pages)).await;
        if pages == 40 {
            let forget = "DELETE FROM closed WHERE id IN (SELECT id FROM made WHERE n <= 3000)";
            session.batch_execute(forget).await.unwrap();
        }
    })
    .await;

    let mut newest_first = found.clone();
    newest_first.sort_unstable_by_key(|id| std::cmp::Reverse(DeliveryId::from_str(id).unwrap().0));
    newest_first.dedup();
    assert_eq!(found, newest_first, "in order, none twice");
    before.retain(|id| !found.contains(id));
    assert_eq!(before, Vec::<String>::new(), "none missing");
}

#[tokio::test]
async fn a_page_of_a_channel_a_rare_action_or_unused_types_can_be_empty_and_is_not_the_last() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    fill(&session, &tenant).await;
    session
        .batch_execute(
            "INSERT INTO audit_log (id, tenant_id, actor, action, object_type, changed)
             SELECT load(2, now() - interval '1 h' + n * interval '1 s'), t.id, 2, CASE WHEN n = 1 THEN 'rare' ELSE 'common' END, 'endpoint', '{}'
             FROM tenants t, generate_series(1, 3000) n;
             INSERT INTO event_types (tenant_id, name, declared_at)
             SELECT id, 'unused.n' || n, CASE WHEN n = 1 THEN now() END FROM tenants, generate_series(1, 700) n",
        )
        .await
        .unwrap();
    let event: Uuid = session
        .query_one("SELECT event_id FROM made WHERE n = 100", &[])
        .await
        .unwrap()
        .get(0);

    let (events, short) = walk(&tenant, "/v1/events?channel=vip", async |_| ()).await;
    assert_eq!(
        (events, short > 0),
        (vec![EventId(event).to_string()], true)
    );

    let (audit, short) = walk(&tenant, "/v1/audit-log?action=rare", async |_| ()).await;
    assert_eq!((audit.len(), short > 0), (1, true));

    let mut names = Vec::new();
    let mut next = "/v1/event-types?limit=100".to_owned();
    let mut short = 0;
    loop {
        let page = tenant.get(&next).await.expect(200);
        let rows = page["data"].as_array().unwrap();
        names.extend(rows.iter().map(|row| text(&row["type"])));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        short += usize::from(rows.len() < 100);
        next = format!("/v1/event-types?limit=100&cursor={cursor}");
    }
    assert!(short > 0);
    for name in ["unused.n1", "common", "rare"] {
        assert_eq!(names.iter().filter(|it| *it == name).count(), 1, "{name}");
    }
    assert!(!names.contains(&"unused.n2".to_owned()));
}
