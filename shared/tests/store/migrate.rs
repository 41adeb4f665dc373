//! Migrations: together, interrupted, newer, changed.

use std::time::Duration;

use shared::store::migrate::{
    MIGRATIONS, MigrateError, Migration, SCHEMA_VERSION, check_version, migrate, migrate_to,
    pending,
};
use shared::store::partitions::{self, DAYS_AHEAD};
use shared::store::{Database, Role, Session};
use shared::testing::{TestDatabase, eventually};

use crate::world;

const DEADLINE: Duration = Duration::from_secs(20);

/// A schema without tables in the test's database, and a way in that sees only it.
async fn never_migrated(database: &TestDatabase) -> (Database, Session) {
    let session = database.session().await;
    session.batch_execute("CREATE SCHEMA bare").await.unwrap();
    let sign = if database.url().contains('?') {
        '&'
    } else {
        '?'
    };
    let url = format!("{}{sign}options=-csearch_path%3Dbare", database.url());
    let bare = Database::new(&url).unwrap();
    let session = bare.connect(Role::Maintenance).await.unwrap();
    (bare, session)
}

#[tokio::test]
async fn two_processes_at_once_apply_each_migration_once() {
    let database = TestDatabase::new().await;
    let (bare, session) = never_migrated(&database).await;

    let (one, other) = tokio::join!(migrate(&bare), migrate(&bare));

    let mut applied = [one.unwrap().len(), other.unwrap().len()];
    applied.sort_unstable();
    assert_eq!(applied, [0, MIGRATIONS.len()]);
    check_version(&bare).await.unwrap();
    let ahead = partitions::ahead(&session, world::now(&session).await).await;
    assert_eq!(ahead.unwrap(), i64::from(DAYS_AHEAD));
}

#[tokio::test]
async fn a_process_does_not_wait_for_ever_for_another_one() {
    let database = TestDatabase::new().await;
    let (bare, _session) = never_migrated(&database).await;
    let holder = migrate_to(&bare, &[], Duration::from_secs(1))
        .await
        .unwrap();

    let waiting = migrate_to(&bare, MIGRATIONS, Duration::from_millis(300)).await;

    assert!(matches!(waiting, Err(MigrateError::Busy(_))));
    drop(holder);
    migrate(&bare).await.unwrap();
}

#[tokio::test]
async fn a_database_that_was_never_migrated_is_behind_and_says_what_to_run() {
    let database = TestDatabase::new().await;
    let (bare, _session) = never_migrated(&database).await;

    let refused = check_version(&bare).await.unwrap_err();

    assert!(matches!(refused, MigrateError::Behind { database: 0, .. }));
    assert!(
        refused.to_string().contains("run `postrider migrate`"),
        "{refused}"
    );
    assert_eq!(pending(&bare).await.unwrap(), MIGRATIONS);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let newer = SCHEMA_VERSION + 1;
    let insert = "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, 'x', '')";
    session.execute(insert, &[&newer]).await.unwrap();

    let refusals = [
        check_version(&database.database()).await.unwrap_err(),
        pending(&database.database()).await.unwrap_err(),
        migrate(&database.database()).await.unwrap_err(),
    ];

    for refused in refusals {
        assert!(matches!(refused, MigrateError::Newer { .. }), "{refused}");
        assert!(
            refused.to_string().contains("install a newer version"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn a_migration_that_was_changed_after_it_was_applied_is_an_error() {
    let database = TestDatabase::new().await;
    let mut changed = MIGRATIONS.to_vec();
    let last = changed.last_mut().unwrap();
    last.sql = "SELECT 'something else'";

    let refused = migrate_to(&database.database(), &changed, DEADLINE)
        .await
        .err()
        .unwrap();

    assert!(
        matches!(
            refused,
            MigrateError::Changed {
                version: SCHEMA_VERSION,
                ..
            }
        ),
        "{refused}"
    );
}

#[tokio::test]
async fn a_migration_that_is_killed_in_the_middle_leaves_nothing_half_applied() {
    let database = TestDatabase::new().await;
    let (bare, session) = never_migrated(&database).await;
    let sql = |sql| {
        [Migration {
            version: 1,
            name: "half",
            sql,
        }]
    };
    let endless = sql("CREATE TABLE half (a int); SELECT pg_sleep(600); CREATE TABLE rest (a int)");
    let kill = async {
        let find = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event = 'PgSleep'";
        eventually(DEADLINE, || async {
            let killed = session.query_opt(find, &[]).await.unwrap();
            killed.map(|row| assert!(row.get::<_, bool>(0)))
        })
        .await;
    };

    let (killed, ()) = tokio::join!(migrate_to(&bare, &endless, DEADLINE), kill);

    assert!(matches!(
        killed,
        Err(MigrateError::Failed { version: 1, .. })
    ));
    let tables =
        "pg_class WHERE relnamespace = 'bare'::regnamespace AND relname IN ('half', 'rest')";
    assert_eq!(world::count(&session, tables).await, 0);
    assert_eq!(world::count(&session, "schema_migrations").await, 0);
    let repaired = sql("CREATE TABLE half (a int); CREATE TABLE rest (a int)");
    let (_session, applied) = migrate_to(&bare, &repaired, DEADLINE).await.unwrap();
    assert_eq!(applied.len(), 1);
    assert_eq!(world::count(&session, tables).await, 2);
}
