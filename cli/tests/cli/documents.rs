//! The tables of settings in the documents are those of the code.

use shared::runtime::settings::{TABLE, table};

const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->";

/// Fails unless the document has this table between its marks; writes it there when
/// `UPDATE_DOCUMENTS` is set.
#[track_caller]
fn has_table(name: &str, expected: &str) {
    let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE_DOCUMENTS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert!(
        found == expected,
        "{name} has another table than the code; UPDATE_DOCUMENTS=1 writes this one:\n{expected}"
    );
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

    has_table("README.md", &expected);
}

#[test]
fn the_reference_of_settings_is_the_table_in_the_code() {
    let used_by = |name: &str| {
        let common = table::COMMON.contains(&name).then_some("all");
        let api = table::API.contains(&name).then_some("api");
        let worker = table::WORKER.contains(&name).then_some("worker");
        let send = ["POSTRIDER_URL", "POSTRIDER_KEY"]
            .contains(&name)
            .then_some("send");
        let dev = (name == "POSTRIDER_DATA_DIR").then_some("dev");
        let all: Vec<&str> = [common, api, worker, send, dev]
            .into_iter()
            .flatten()
            .collect();
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
            setting.flag_offered(),
            setting.key(),
            code(setting.default_shown()),
            used_by(setting.name),
            setting.help
        ));
    }

    has_table("docs/configuration.md", &expected);
}
