//! F79: a pooler that shares sessions is refused when a program starts, in words that say what to do.

use shared::embedded_postgres::{EmbeddedPostgres, Options};
use shared::store::{Database, StoreError};
use shared::testing::{PgBouncer, eventually};

use crate::process::{PATIENCE, Process};

const TRANSACTIONS: &str = "pool_mode = transaction";
/// The usual advice on the net against "unsupported startup parameter".
const IGNORED: &str = "ignore_startup_parameters = options,extra_float_digits";

/// In the way that it is set up by default, and in the one in which it takes the parameter and drops it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f79_programs_do_not_start_behind_a_pooler_that_shares_or_changes_sessions() {
    let server = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();
    for lines in [
        [TRANSACTIONS, ""],
        [TRANSACTIONS, IGNORED],
        ["pool_mode = session", IGNORED],
    ] {
        let bouncer = PgBouncer::start(&server, &lines, "SELECT 1").await;
        let settings = [
            ("DATABASE_URL", bouncer.url()),
            (
                "POSTRIDER_MASTER_KEY",
                "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=".to_owned(),
            ),
            ("POSTRIDER_API_ADDR", "127.0.0.1:0".to_owned()),
            ("POSTRIDER_METRICS_ADDR", "127.0.0.1:0".to_owned()),
        ];
        for command in ["migrate", "api", "worker"] {
            let mut process = Process::start(command, &settings);

            let status = process.ends().await;

            // It is written before the end, and read after it.
            let reading = eventually(PATIENCE, || async {
                Some(process.log()).filter(|log| log.contains("error: "))
            });
            let said = reading.await;
            assert_eq!(status.code(), Some(2), "{command}, {lines:?}: {said}");
            assert!(
                said.contains("PgBouncer")
                    && said.contains("let DATABASE_URL name PostgreSQL itself"),
                "{command}, {lines:?}: {said}"
            );
        }
    }
}

/// A pooler that keeps the settings and shares the sessions all the same is found by what it does.
#[tokio::test]
async fn f79_sessions_that_are_shared_are_found_and_those_that_are_not_are_taken() {
    let server = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();
    let kept =
        "SET synchronous_commit = on; SET statement_timeout = '10min'; SET lock_timeout = '2s'";
    for (mode, shared) in [(TRANSACTIONS, true), ("pool_mode = session", false)] {
        for size in ["default_pool_size = 1", "default_pool_size = 8"] {
            if !shared && size.ends_with('1') {
                continue;
            }
            // Discarded sessions would lose what the pooler set.
            let reset = "server_reset_query =";
            let lines = [IGNORED, mode, size, reset];
            let bouncer = PgBouncer::start(&server, &lines, kept).await;

            let found = Database::new(&bouncer.url())
                .unwrap()
                .refuse_shared_sessions()
                .await;

            match found {
                Err(StoreError::Configuration(_)) => assert!(shared, "{mode}, {size}"),
                other => assert!(!shared && other.is_ok(), "{mode}, {size}: {other:?}"),
            }
        }
    }
}
