//! Every statement of the store fits the schema.

use std::collections::BTreeSet;

use shared::store::statements;
use shared::testing::TestDatabase;

#[tokio::test]
async fn every_statement_prepares_against_the_migrated_schema() {
    let database = TestDatabase::new().await;
    let session = database.session().await;

    let mut refused = Vec::new();
    for (name, sql) in statements() {
        if let Err(error) = session.prepare(sql).await {
            let cause = error
                .as_db_error()
                .map_or(error.to_string(), ToString::to_string);
            refused.push(format!("{name}: {cause}"));
        }
    }

    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn statements_have_names_of_their_own() {
    let names: Vec<&str> = statements().map(|(name, _sql)| name).collect();

    let unique: BTreeSet<&str> = names.iter().copied().collect();

    assert_eq!(unique.len(), names.len());
}
