//! Partitions are made ahead, once, and nobody waits for it.

use std::time::Duration;

use shared::store::partitions::{DAYS_AHEAD, Parent, ahead, ensure, list};
use shared::testing::TestDatabase;
use tokio::time::Instant;

use crate::world;

#[tokio::test]
async fn partitions_reach_from_yesterday_to_the_days_ahead_and_are_made_once() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let now = world::now(&session).await;

    let again = ensure(&session, now, DAYS_AHEAD).await.unwrap();

    assert!(again.is_empty(), "the migration made them: {again:?}");
    assert_eq!(ahead(&session, now).await.unwrap(), i64::from(DAYS_AHEAD));
    for parent in Parent::ALL {
        let days: Vec<_> = list(&session)
            .await
            .unwrap()
            .into_iter()
            .filter(|partition| partition.parent == parent)
            .collect();
        let yesterday = now - time::Duration::DAY;
        assert!(days.first().unwrap().begins_at() <= yesterday);
        assert!(days.first().unwrap().ends_at() > yesterday);
        assert_eq!(days.len(), usize::from(DAYS_AHEAD) + 2);
    }
}

#[tokio::test]
async fn a_gap_is_seen_and_filled() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let now = world::now(&session).await;
    let missing = list(&session)
        .await
        .unwrap()
        .into_iter()
        .find(|p| p.parent == Parent::Attempts && p.begins_at() > now + time::Duration::DAY)
        .unwrap();
    let drop = format!("DROP TABLE {}", missing.name());
    session.batch_execute(&drop).await.unwrap();
    assert_eq!(ahead(&session, now).await.unwrap(), 1);

    let made = ensure(&session, now, DAYS_AHEAD).await.unwrap();

    assert_eq!(made, [missing.name()]);
    assert_eq!(ahead(&session, now).await.unwrap(), i64::from(DAYS_AHEAD));
}

#[tokio::test]
async fn a_table_that_was_left_without_its_parent_is_attached() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let now = world::now(&session).await;
    let last = list(&session).await.unwrap().pop().unwrap();
    let (parent, name) = (last.parent.table(), last.name());
    let detach = format!("ALTER TABLE {parent} DETACH PARTITION {name}");
    session.batch_execute(&detach).await.unwrap();
    assert_eq!(
        ahead(&session, now).await.unwrap(),
        i64::from(DAYS_AHEAD) - 1
    );

    ensure(&session, now, DAYS_AHEAD).await.unwrap();

    assert_eq!(ahead(&session, now).await.unwrap(), i64::from(DAYS_AHEAD));
}

#[tokio::test]
async fn two_at_once_make_each_partition_once() {
    let database = TestDatabase::new().await;
    let (one, other) = (database.session().await, database.session().await);
    let now = world::now(&one).await;

    let (first, second) = tokio::join!(ensure(&one, now, 20), ensure(&other, now, 20));

    first.unwrap();
    second.unwrap();
    assert_eq!(ahead(&one, now).await.unwrap(), 20);
}

#[tokio::test]
async fn neither_a_long_reader_nor_ingest_waits_for_new_partitions() {
    let database = TestDatabase::new().await;
    let (mut reader, writer) = (database.session().await, database.session().await);
    let maintenance = database.session().await;
    let now = world::now(&writer).await;
    let reading = reader.transaction().await.unwrap();
    reading
        .query("SELECT FROM events, closed, attempts", &[])
        .await
        .unwrap();
    world::event(&writer, now).await;

    let making = async {
        let made = ensure(&maintenance, now, 40).await;
        made.unwrap().len()
    };
    let inserting = async {
        let mut slowest = Duration::ZERO;
        loop {
            let before = Instant::now();
            world::event(&writer, now).await;
            slowest = slowest.max(before.elapsed());
            tokio::task::yield_now().await;
            if ahead(&writer, now).await.unwrap() == 40 {
                return slowest;
            }
        }
    };
    let (made, slowest) = tokio::join!(making, inserting);

    assert_eq!(made, 3 * 32);
    assert!(
        slowest < Duration::from_millis(1_500),
        "an insert took {slowest:?}"
    );
    reading
        .query("SELECT FROM events LIMIT 1", &[])
        .await
        .unwrap();
}
