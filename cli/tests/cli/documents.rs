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

/// What docs/logs.md says is logged, word for word.
#[test]
fn every_message_of_the_guide_to_the_logs_is_in_the_code() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut code = String::new();
    let mut folders: Vec<_> = ["api/src", "worker/src", "shared/src"]
        .map(|folder| root.join(folder))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                code.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let guide = std::fs::read_to_string(root.join("docs/logs.md")).unwrap();
    let mut messages = 0;
    for row in guide.lines().filter(|line| line.starts_with('|')) {
        for quoted in row.split('`').skip(1).step_by(2) {
            // Messages are sentences; the rest is names of fields and commands.
            if ["a ", "an ", "this ", "the ", "outcomes "]
                .iter()
                .any(|it| quoted.starts_with(it))
            {
                assert!(
                    code.contains(&format!("\"{quoted}")),
                    "nothing logs: {quoted}"
                );
                messages += 1;
            }
        }
    }
    assert!(messages >= 12, "{messages}");
}
