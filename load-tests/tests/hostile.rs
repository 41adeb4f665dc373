//! Every behaviour of the hostile receivers has exactly the outcome that the catalogue says, and the
//! sender's memory stays flat through all of them, 50 at a time.

use std::path::PathBuf;

use load_tests::hostile::{HostileArguments, run};

#[tokio::test]
async fn s1_p1_every_hostile_receiver_has_the_outcome_of_the_catalogue() {
    let arguments = HostileArguments {
        parallel: 50,
        only: None,
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_load-tests"))),
    };

    let report = run(&arguments).await.unwrap();

    assert!(report.is_good(), "{}", report.table());
    assert!(report.rows.len() >= 60, "{} behaviours", report.rows.len());
}
