//! Sessions: when one is still good, and what an error of the server means.

use shared::store::ingest::Ingest;
use shared::store::{Role, StoreError};
use shared::testing::TestDatabase;

/// Its `statement_timeout` is another than the one it was opened with: no pooler took that away.
#[tokio::test]
async fn a_session_with_settings_of_its_own_is_still_good() {
    let database = TestDatabase::new().await;
    let ingest = Ingest::open(&database.database()).await.unwrap();

    ingest.check().await.unwrap();

    let session = database.database().connect(Role::Api).await.unwrap();
    let own = "SET statement_timeout = '7s'; SET synchronous_commit = off";
    session.batch_execute(own).await.unwrap();
    session.check().await.unwrap();
    session
        .batch_execute("SET default_transaction_read_only = on")
        .await
        .unwrap();
    let error = session.check().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
}

/// As on a full disk: it goes away, and is nobody's statement's fault.
#[tokio::test]
async fn what_the_server_cannot_do_itself_may_work_in_a_moment() {
    let database = TestDatabase::new().await;
    let session = database.database().connect(Role::Api).await.unwrap();
    for (state, transient) in [
        ("XX000", true),
        ("53100", true),
        ("58030", true),
        ("57P01", true),
        ("42P01", false),
        ("22003", false),
    ] {
        let raise = format!("DO $$ BEGIN RAISE 'x' USING ERRCODE = '{state}'; END $$");
        let error = StoreError::from(session.batch_execute(&raise).await.unwrap_err());
        assert_eq!(error.is_transient(), transient, "{state}: {error}");
    }
}
