//! The tables of settings in the documents are those of the code.

use shared::runtime::settings::{TABLE, table};

fn document(name: &str) -> String {
    let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// What stands between the marks.
fn settings_of(name: &str) -> String {
    let text = document(name);
    let (_, rest) = text.split_once("<!-- settings: begin -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- settings: end -->").unwrap();
    table.to_owned()
}

fn code(text: &str) -> String {
    if text.contains('`') || text.contains(' ') || text == "none" || text == "empty" {
        text.to_owned()
    } else {
        format!("`{text}`")
    }
}

#[test]
fn the_table_in_the_readme_is_the_table_in_the_code() {
    let mut expected = "| variable | default | what |\n|---|---|---|\n".to_owned();
    for setting in TABLE {
        expected.push_str(&format!(
            "| `{}` | {} | {} |\n",
            setting.name,
            code(setting.default_shown()),
            setting.help
        ));
    }

    let found = settings_of("README.md");

    assert!(found == expected, "README.md should have:\n{expected}");
}

#[test]
fn the_reference_of_settings_is_the_table_in_the_code() {
    let used_by = |name: &str| {
        let common = table::COMMON.contains(&name).then_some("all");
        let api = table::API.contains(&name).then_some("api");
        let worker = table::WORKER.contains(&name).then_some("worker");
        let all: Vec<&str> = [common, api, worker].into_iter().flatten().collect();
        if all.is_empty() {
            "—".to_owned()
        } else {
            all.join(", ")
        }
    };
    let mut expected =
        "| variable | flag | key in the file | default | used by | what |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for setting in TABLE {
        expected.push_str(&format!(
            "| `{}` | `--{}` | `{}` | {} | {} | {} |\n",
            setting.name,
            setting.flag,
            setting.key(),
            code(setting.default_shown()),
            used_by(setting.name),
            setting.help
        ));
    }

    let found = settings_of("docs/configuration.md");

    assert!(
        found == expected,
        "docs/configuration.md should have:\n{expected}"
    );
}
