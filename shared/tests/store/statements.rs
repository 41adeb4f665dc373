//! Every statement of the store fits the schema.

use std::collections::BTreeSet;
use std::path::Path;

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

/// What people are told to ask, in the runbook and on a dashboard.
#[tokio::test]
async fn every_question_of_the_runbook_and_the_dashboards_can_be_asked() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let places = ["docs/runbook.md", "dashboards/source/endpoints.py"];

    for place in places {
        let text = std::fs::read_to_string(root.join(place)).unwrap();
        let questions: Vec<&str> = text
            .split("```sql")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .flat_map(|block| block.split(';'))
            .filter(|question| question.contains("SELECT"))
            .collect();
        assert!(questions.len() > 1, "{place} has no question");
        for question in questions {
            let answer = session.query(question, &[]).await;
            assert!(answer.is_ok(), "{place}: {question}: {answer:?}");
        }
    }
}

#[test]
fn statements_have_names_of_their_own() {
    let names: Vec<&str> = statements().map(|(name, _sql)| name).collect();

    let unique: BTreeSet<&str> = names.iter().copied().collect();

    assert_eq!(unique.len(), names.len());
}
