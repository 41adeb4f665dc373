//! Help that teaches, exit codes, and mistakes that are named with their fix.

use std::process::Stdio;

use shared::runtime::settings::{TABLE, table};

use crate::running::{postrider, run};

const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
/// Nothing listens on port 1.
const NOBODY: &str = "postgres://postrider@127.0.0.1:1/postrider";

#[test]
fn every_command_explains_itself() {
    for command in [
        vec!["dev"],
        vec!["api"],
        vec!["worker"],
        vec!["migrate"],
        vec!["config", "check"],
        vec!["config", "show"],
        vec!["organization", "create"],
        vec!["organization", "list"],
        vec!["tenant", "create"],
        vec!["tenant", "list"],
        vec!["key", "create"],
        vec!["key", "list"],
        vec!["key", "revoke"],
        vec!["send"],
        vec!["listen"],
        vec!["verify"],
    ] {
        let mut args = command.clone();
        args.push("--help");

        let help = run(&mut postrider(&args)).ended_with(0);

        assert!(help.stdout.contains("Usage: postrider"), "{help:?}");
        assert!(help.stderr.is_empty(), "{help:?}");
        assert!(
            help.stdout.contains("RUST_LOG"),
            "{command:?}: {}",
            help.stdout
        );
    }
}

#[test]
fn names_and_lifetimes_that_cannot_be_are_wrong_usage() {
    let tenant = "tnt_00000000000000000000000000";
    let long = "x".repeat(257);
    let key = |length| {
        let flags = ["--name", "k", "--expires-in", length];
        [&["key", "create", "--tenant", tenant], &flags[..]].concat()
    };
    for (args, named) in [
        (key("0s"), "--expires-in"),
        (key("999999999d"), "--expires-in"),
        (vec!["tenant", "create", "--name", ""], "--name"),
        (vec!["tenant", "create", "--name", "a\nb"], "--name"),
        (vec!["organization", "create", "--name", &long], "--name"),
        (
            vec!["key", "create", "--tenant", tenant, "--name", " "],
            "--name",
        ),
    ] {
        let said = run(postrider(&args).env("DATABASE_URL", NOBODY)).ended_with(2);

        assert!(said.stderr.contains(named), "{args:?}: {said:?}");
    }
}

#[test]
fn help_gives_each_setting_its_default_and_its_variable() {
    for (program, names) in [("api", table::API), ("worker", table::WORKER)] {
        let help = run(&mut postrider(&[program, "--help"])).ended_with(0);
        let text = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");

        for name in names {
            let setting = TABLE.iter().find(|setting| setting.name == *name).unwrap();
            let flag = format!("--{}", setting.flag_offered());
            assert!(text.contains(&flag), "{name} in {text}");
            assert!(text.contains(&format!("[env: {name}")), "{name} in {text}");
            let default = setting.default_shown().replace('`', "");
            assert!(
                text.contains(&format!("[default: {default}]")),
                "{name} in {text}"
            );
        }
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        vec![],
        vec!["deliver"],
        vec!["send"],
        vec!["send", "--type", "a.b", "--key", "prk_x", "{not json"],
        vec!["listen", "--status", "42"],
        vec!["listen", "--secret", "not-a-secret"],
        vec!["key", "create", "--name", "x"],
        vec![
            "key",
            "create",
            "--name",
            "x",
            "--tenant",
            "org_01j00000000000000000000000",
        ],
        vec!["verify"],
        vec!["worker", "--lease-ttl", "soon"],
        vec!["worker", "--lease-ttl", "3s"],
        vec!["migrate"],
    ] {
        let said = run(&mut postrider(&args)).ended_with(2);

        assert!(said.stdout.is_empty(), "{args:?}: {said:?}");
        assert!(!said.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn an_unknown_setting_is_refused_with_the_name_that_was_meant() {
    let mut command = postrider(&["config", "show"]);
    command
        .env("POSTRIDER_LEASE_TTTL", "10s")
        .env("POSTRIDER_DRAIN_TIMEOUT", "10");

    let said = run(&mut command).ended_with(2);

    assert!(
        said.stderr.contains("did you mean POSTRIDER_LEASE_TTL?"),
        "{said:?}"
    );
    assert!(
        said.stderr
            .contains("POSTRIDER_DRAIN_TIMEOUT: expected a number with its unit"),
        "{said:?}"
    );
}

#[test]
fn servers_say_what_they_cannot_start_without() {
    for program in ["api", "worker"] {
        let nothing = run(&mut postrider(&[program])).ended_with(2);
        assert!(
            nothing.stderr.contains("DATABASE_URL: is required"),
            "{nothing:?}"
        );

        let mut command = postrider(&[program, "--database-url", NOBODY]);
        let no_key = run(&mut command).ended_with(2);
        assert!(
            no_key.stderr.contains("POSTRIDER_MASTER_KEY: is required"),
            "{no_key:?}"
        );
        assert!(
            no_key.stderr.contains("openssl rand -base64 32"),
            "{no_key:?}"
        );

        let short = run(command.env("POSTRIDER_MASTER_KEY", "c2hvcnQ=")).ended_with(2);
        assert!(
            short
                .stderr
                .contains("expected 32 bytes in base64, found 5"),
            "{short:?}"
        );
        assert!(
            !short.stderr.contains("c2hvcnQ"),
            "a secret was repeated: {short:?}"
        );

        let unreachable = run(command.env("POSTRIDER_MASTER_KEY", KEY)).ended_with(1);
        assert!(
            unreachable.stderr.contains("the database is unavailable"),
            "{unreachable:?}"
        );
        assert!(
            unreachable.stderr.contains("DATABASE_URL"),
            "{unreachable:?}"
        );
        assert!(!unreachable.stderr.contains("panicked"), "{unreachable:?}");
    }
}

#[test]
fn a_database_that_cannot_be_reached_is_named_with_what_to_check() {
    let unreachable = run(&mut postrider(&["migrate", "--database-url", NOBODY])).ended_with(1);
    assert!(
        unreachable.stderr.contains("the database is unavailable"),
        "{unreachable:?}"
    );
    assert!(
        unreachable
            .stderr
            .contains("is PostgreSQL running where DATABASE_URL points"),
        "{unreachable:?}"
    );

    let no_url = "mysql://root:hunter2@localhost/x";
    let wrong = run(&mut postrider(&[
        "tenant",
        "list",
        "--database-url",
        no_url,
    ]))
    .ended_with(2);
    assert!(wrong.stderr.contains("expected postgres://"), "{wrong:?}");
    assert!(
        !wrong.stderr.contains("hunter2"),
        "a password was repeated: {wrong:?}"
    );
}

#[test]
fn a_worker_that_trusts_nobody_or_a_bundle_of_nothing_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let authority = rcgen::generate_simple_self_signed(["authority.test".to_owned()]).unwrap();
    let good = write("good.pem", &authority.cert.pem());
    let empty = write("empty.pem", "");
    let broken = write(
        "broken.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let missing = folder.path().join("missing.pem");
    let worker = |bundle: Option<&std::path::Path>| {
        let mut command = postrider(&["worker"]);
        command
            .env("DATABASE_URL", NOBODY)
            .env("POSTRIDER_MASTER_KEY", KEY)
            .env("POSTRIDER_METRICS_ADDR", "127.0.0.1:0")
            .env("SSL_CERT_FILE", &empty)
            .env("SSL_CERT_DIR", folder.path().join("none"));
        if let Some(bundle) = bundle {
            command.env("POSTRIDER_CA_FILE", bundle);
        }
        run(&mut command).ended_with(1)
    };

    let nobody = worker(None);
    assert!(nobody.stderr.contains("ca-certificates"), "{nobody:?}");
    assert!(nobody.stderr.contains("POSTRIDER_CA_FILE"), "{nobody:?}");
    for (bundle, problem) in [
        (&empty, "holds no certificate"),
        (&broken, "cannot be used"),
        (&missing, "cannot be read"),
    ] {
        let said = worker(Some(bundle));
        let names = said.stderr.contains("POSTRIDER_CA_FILE") && said.stderr.contains(problem);
        assert!(names, "{bundle:?}: {said:?}");
    }
    // It goes on to what it needs next.
    let trusting = worker(Some(&good));
    assert!(
        trusting.stderr.contains("the database is unavailable"),
        "{trusting:?}"
    );
}

#[test]
fn sending_to_nobody_says_how_to_start_somebody() {
    let args = [
        "send",
        "--url",
        "http://127.0.0.1:1",
        "--key",
        "prk_x",
        "--type",
        "a.b",
        "{}",
    ];

    let said = run(&mut postrider(&args)).ended_with(1);

    assert!(
        said.stderr.contains("no API answers at http://127.0.0.1:1"),
        "{said:?}"
    );
    assert!(said.stderr.contains("postrider dev"), "{said:?}");

    let without_key = run(&mut postrider(&["send", "--type", "a.b", "{}"])).ended_with(2);
    assert!(
        without_key.stderr.contains("POSTRIDER_KEY"),
        "{without_key:?}"
    );
}

#[test]
fn the_configuration_is_shown_without_secrets_and_checked_with_its_sums() {
    let mut command = postrider(&["config", "show", "--output", "json"]);
    command
        .env("POSTRIDER_MASTER_KEY", KEY)
        .env("POSTRIDER_LEASE_TTL", "12s");
    let shown = run(&mut command).ended_with(0);
    let rows = shown.json();
    let row = |name: &str| {
        let rows = rows.as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row("POSTRIDER_LEASE_TTL")["value"], "12s");
    assert_eq!(row("POSTRIDER_LEASE_TTL")["source"], "environment");
    assert_eq!(row("POSTRIDER_MASTER_KEY")["value"], "(set, hidden)");
    assert!(!shown.stdout.contains(KEY), "{shown:?}");

    let incomplete = run(&mut postrider(&["config", "check"])).ended_with(2);
    assert!(
        incomplete
            .stderr
            .contains("POSTRIDER_MASTER_KEY: is required"),
        "{incomplete:?}"
    );

    let mut command = postrider(&["config", "check"]);
    command
        .env("POSTRIDER_MASTER_KEY", KEY)
        .env("DATABASE_URL", NOBODY);
    let checked = run(&mut command).ended_with(0);
    assert!(
        checked.stdout.contains("three renewals of the lease"),
        "{checked:?}"
    );
    assert!(checked.stdout.contains("16m 15s"), "{checked:?}");

    // What a server would refuse when it starts.
    for (name, value, problem, code) in [
        ("POSTRIDER_PROXY_URL", "socks5://x", "http://", 2),
        ("POSTRIDER_CA_FILE", "/nonexistent", "cannot be read", 1),
        ("DATABASE_URL", "mysql://x", "expected postgres://", 2),
    ] {
        let mut command = postrider(&["config", "check"]);
        command
            .env("POSTRIDER_MASTER_KEY", KEY)
            .env("DATABASE_URL", NOBODY)
            .env(name, value);
        let refused = run(&mut command).ended_with(code);
        let named = refused.stderr.contains(name) && refused.stderr.contains(problem);
        assert!(named, "{name}: {refused:?}");
    }

    let tight = run(command.env("POSTRIDER_DRAIN_TIMEOUT", "19s")).ended_with(2);
    assert!(
        tight
            .stderr
            .contains("(19s) must be shorter than the drain (19s)"),
        "{tight:?}"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut command = postrider(&["config", "show"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());

    let output = child.wait_with_output().unwrap();

    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!stderr.contains("panicked"), "{stderr}");
}
