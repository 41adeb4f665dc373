//! F35: database and processes in a zone whose clocks change within the day. Days and waits are as long as
//! ever, and instants are UTC.

use serde_json::{Value, json};
use shared::ids::lower_bound;
use shared::runtime::clock::wall_time;
use shared::store::partitions::{self, DAYS_AHEAD, Parent, Partition};
use shared::testing::{TestDatabase, eventually};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime, UtcOffset};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f35_when_clocks_change_days_and_waits_are_as_long_as_ever() {
    let database = TestDatabase::new().await;
    let zone = zone_that_changes_at(wall_time() + Duration::hours(12));
    in_zone(&database, &zone).await;
    let zone = [("TZ", zone)];
    let world = World::start_with(database.url(), database.database(), &zone, &[]).await;
    let _worker = world.worker().await;

    let endpoint = world.endpoint("later", json!({})).await;
    let a_day = Answer::now(503).with("retry-after: 86400");
    world.receiver.answers(&endpoint.path, &[a_day]);
    world.publish(&endpoint).await;
    let waiting = "SELECT count(*) FROM retry";
    eventually(PATIENCE, || async {
        (world.count(waiting).await == 1).then_some(())
    })
    .await;

    let due = "SELECT due_at FROM retry";
    let due: OffsetDateTime = world.sql().await.query_one(due, &[]).await.unwrap().get(0);
    let arrival = world.receiver.at(&endpoint.path).pop().unwrap();
    let sent = arrival.request.header("x-delivery-timestamp").unwrap();
    let wait = due - utc(&sent);
    // The one is this machine's clock, the other what the worker takes for the database's.
    let off = (wait - Duration::hours(24)).abs();
    assert!(off < Duration::minutes(5), "{wait}");
    let shown = world.ask("GET", "/v1/deliveries", &Value::Null).await;
    let next = shown["data"][0]["next_attempt_at"].as_str().unwrap();
    assert_eq!(utc(next), due);

    let sql = world.sql().await;
    let all = eventually(PATIENCE, || async {
        let all = partitions::list(&sql).await.unwrap();
        let ahead = partitions::ahead(&sql, wall_time()).await.unwrap();
        (ahead >= i64::from(DAYS_AHEAD)).then_some(all)
    })
    .await;
    sql.batch_execute("SET timezone = 'UTC'").await.unwrap();
    let bounds = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = $1";
    for partition in all {
        let row = sql.query_one(bounds, &[&partition.name()]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), whole_day(&partition));
    }
}

/// The bounds of a partition, as PostgreSQL tells them in UTC.
fn whole_day(partition: &Partition) -> String {
    let bound = |at: OffsetDateTime| match partition.parent {
        Parent::Events | Parent::Closed => lower_bound(at).to_string(),
        Parent::Attempts => format!("{} 00:00:00+00", at.date()),
    };
    let (from, to) = (bound(partition.begins_at()), bound(partition.ends_at()));
    assert_eq!(partition.ends_at() - partition.begins_at(), Duration::DAY);
    format!("FOR VALUES FROM ('{from}') TO ('{to}')")
}

/// A zone as POSIX writes it, three hours behind UTC, whose clocks go forward an hour in the hour of this
/// instant, and back five days later. Days are counted from 0, the 29th of February with the others.
fn zone_that_changes_at(at: OffsetDateTime) -> String {
    let local = at.to_offset(UtcOffset::from_hms(-3, 0, 0).unwrap());
    let day = |at: OffsetDateTime| at.ordinal() - 1;
    let (forward, back) = (day(local), day(local + Duration::days(5)));
    format!("AAA3BBB,{forward}/{},{back}/12", local.hour())
}

/// Puts the database into this zone, and takes away the partitions that were made ahead in another.
async fn in_zone(database: &TestDatabase, zone: &str) {
    let session = database.session().await;
    let set = format!(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), '{zone}'); END $$"
    );
    session.batch_execute(&set).await.unwrap();
    // The zone is one, and a day of it is an hour short.
    let here = format!("SET timezone = '{zone}'");
    session.batch_execute(&here).await.unwrap();
    let day = "SELECT extract(epoch FROM now() + interval '1 day' - now())::int8";
    let day: i64 = session.query_one(day, &[]).await.unwrap().get(0);
    assert_eq!(day, 23 * 3_600, "{zone}");
    // If midnight is near, today's and the next one's are needed at once.
    for partition in partitions::list(&session).await.unwrap() {
        if partition.begins_at() > wall_time() + Duration::hours(1) {
            let drop = format!("DROP TABLE {}", partition.name());
            session.batch_execute(&drop).await.unwrap();
        }
    }
}

fn utc(text: &str) -> OffsetDateTime {
    assert!(text.ends_with('Z'), "{text}");
    OffsetDateTime::parse(text, &Rfc3339).unwrap()
}
