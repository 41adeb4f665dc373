//! The document is complete, and its copy in the repository is it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::document;
use crate::routes::TABLE;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// The variable that makes the snapshot be written instead of compared.
const RENEW: &str = "POSTRIDER_RENEW_OPENAPI";

fn served() -> Value {
    serde_json::to_value(document()).unwrap()
}

/// Path, method and operation.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(METHODS.contains(&method.as_str()), "{path}: {method}");
            operations.push((path.clone(), method.to_uppercase(), operation.clone()));
        }
    }
    operations
}

#[test]
fn every_route_is_documented_and_nothing_else_is() {
    let routes: BTreeSet<(String, String)> = TABLE
        .iter()
        .flat_map(|(path, methods)| {
            methods
                .iter()
                .map(|method| ((*path).to_owned(), (*method).to_owned()))
        })
        .collect();
    let documented = operations(&served()).into_iter();
    let documented: BTreeSet<_> = documented.map(|(path, method, _)| (path, method)).collect();
    assert_eq!(documented, routes);
}

#[test]
fn every_operation_says_who_may_call_it_what_it_answers_and_shows_examples() {
    let mut ids = BTreeMap::new();
    let document = served();
    for (path, method, operation) in operations(&document) {
        let name = format!("{method} {path}");
        let id = operation["operationId"].as_str().unwrap().to_owned();
        assert_eq!(ids.insert(id, name.clone()), None, "{name}");
        assert!(operation["security"].is_array(), "{name}");
        assert_eq!(operation["tags"].as_array().unwrap().len(), 1, "{name}");
        assert!(operation["summary"].is_string(), "{name}");
        let responses = operation["responses"].as_object().unwrap();
        for status in ["500", "503"] {
            assert!(responses.contains_key(status), "{name}: {status}");
        }
        for (status, response) in responses {
            let response = match response["$ref"].as_str() {
                Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
                None => response,
            };
            assert!(
                response["headers"]["X-Request-Id"].is_object(),
                "{name}: {status}"
            );
            let Some(content) = response["content"].as_object() else {
                assert!(matches!(status.as_str(), "204" | "304"), "{name}: {status}");
                continue;
            };
            for body in content.values() {
                let shown = body.get("example").or(body.get("examples"));
                assert!(shown.is_some(), "{name}: no example for {status}");
            }
        }
        if let Some(content) = operation["requestBody"]["content"].as_object() {
            for body in content.values() {
                assert!(
                    body.get("example").is_some(),
                    "{name}: no example of a body"
                );
            }
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{name}: {parameter}");
        }
        for placeholder in path.split('{').skip(1) {
            let wanted = placeholder.split('}').next().unwrap();
            let parameters = operation["parameters"].as_array().unwrap();
            let found = parameters
                .iter()
                .any(|it| it["in"] == "path" && it["name"] == wanted && it["required"] == true);
            assert!(found, "{name}: `{wanted}` is not a parameter");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = served();
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn the_copy_in_the_repository_is_the_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let mut expected = serde_json::to_string_pretty(&document()).unwrap();
    expected.push('\n');
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/openapi.json is not the document of today. Renew it, and look at what changed:\n\
         {RENEW}=1 cargo test --package postrider-api --all-features --lib openapi"
    );
}
