use std::io::Write as _;

use super::*;

fn pairs(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn file(text: &str) -> tempfile_path::Temporary {
    tempfile_path::Temporary::new(text)
}

/// A file that goes away with the test; the crate `tempfile` is not a dependency of this feature.
mod tempfile_path {
    use super::*;

    pub(super) struct Temporary(pub(super) std::path::PathBuf);

    impl Temporary {
        pub(super) fn new(text: &str) -> Self {
            let name = format!("postrider-settings-{}", uuid::Uuid::new_v4());
            let path = std::env::temp_dir().join(name);
            let mut file = std::fs::File::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            Self(path)
        }

        pub(super) fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }
}

fn flag(name: &'static str, value: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([(name, value.to_owned())])
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() {
    let toml = file("lease_ttl = \"20s\"\napi_addr = \"127.0.0.1:1\"\nmax_in_flight = 7\n");
    let env = pairs(&[
        ("POSTRIDER_CONFIG", toml.path()),
        ("POSTRIDER_API_ADDR", "127.0.0.1:2"),
        ("POSTRIDER_LEASE_TTL", "30s"),
        ("PATH", "/bin"),
    ]);

    let settings = Settings::load(flag("POSTRIDER_LEASE_TTL", "40s"), env).unwrap();

    assert_eq!(
        settings.duration("POSTRIDER_LEASE_TTL"),
        Duration::from_secs(40)
    );
    assert_eq!(settings.addr("POSTRIDER_API_ADDR").port(), 2);
    assert_eq!(settings.count("POSTRIDER_MAX_IN_FLIGHT"), 7);
    assert_eq!(
        settings.duration("POSTRIDER_DRAIN_TIMEOUT"),
        Duration::from_secs(25)
    );
    assert_eq!(settings.source("POSTRIDER_MAX_IN_FLIGHT"), Source::File);
    assert_eq!(settings.get("POSTRIDER_METRICS_ADDR"), None);
}

#[test]
fn every_problem_is_reported_at_once_with_its_fix() {
    let toml = file("api_adr = \"127.0.0.1:1\"\nlease_ttl = 1.5\n");
    let env = pairs(&[
        ("POSTRIDER_CONFIG", toml.path()),
        ("POSTRIDER_LEASE_TTTL", "10s"),
        ("POSTRIDER_API_ADDR", "here"),
        ("POSTRIDER_DRAIN_TIMEOUT", "25"),
        ("POSTRIDER_MAX_IN_FLIGHT", "0"),
        ("POSTRIDER_HTTPS_ONLY", "maybe"),
        ("POSTRIDER_ALLOW_CIDRS", "10.0.0.0/33"),
        ("POSTRIDER_DNS_SERVERS", "10.0.0.2,dns.example"),
        ("POSTRIDER_MASTER_KEY", "c2hvcnQ="),
        ("POSTRIDER_ADMIN_TOKEN", "tiny"),
        ("POSTRIDER_LOG_FORMAT", "xml"),
        ("POSTRIDER_OTLP_SAMPLE_RATIO", "1.01"),
    ]);

    let errors = Settings::load(BTreeMap::new(), env).unwrap_err();

    let text = errors.to_string();
    for expected in [
        "api_adr: unknown key",
        "did you mean api_addr?",
        "POSTRIDER_LEASE_TTL: in ",
        "did you mean POSTRIDER_LEASE_TTL?",
        "POSTRIDER_API_ADDR: expected address:port",
        "POSTRIDER_DRAIN_TIMEOUT: expected a number with its unit",
        "POSTRIDER_MAX_IN_FLIGHT: expected a whole number from 1 to",
        "POSTRIDER_HTTPS_ONLY: expected true or false",
        "POSTRIDER_OTLP_SAMPLE_RATIO: expected a number from 0 to 1, found `1.01`",
        "POSTRIDER_ALLOW_CIDRS: expected networks",
        "POSTRIDER_DNS_SERVERS: expected addresses like 10.0.0.2,[fd00::2]:5353, found `dns.example`",
        "POSTRIDER_MASTER_KEY: expected 32 bytes in base64, found 5",
        "POSTRIDER_ADMIN_TOKEN: too short",
        "POSTRIDER_LOG_FORMAT: expected auto or text or json",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }
    assert_eq!(errors.0.len(), 13, "{text}");
}

#[test]
fn a_secret_comes_from_a_file_and_is_shown_nowhere() {
    let secret = "correct-horse-battery-staple";
    let holder = file(&format!("{secret}\n"));
    let env = pairs(&[
        ("POSTRIDER_ADMIN_TOKEN_FILE", holder.path()),
        ("DATABASE_URL", "postgres://u:hunter2@h/d"),
    ]);

    let settings = Settings::load(BTreeMap::new(), env).unwrap();

    assert_eq!(settings.get("POSTRIDER_ADMIN_TOKEN"), Some(secret));
    let shown = format!("{settings:?} {:?}", settings.shown());
    assert!(shown.contains("(set, hidden)"), "{shown}");
    assert!(
        !shown.contains(secret) && !shown.contains("hunter2"),
        "{shown}"
    );
}

#[test]
fn a_secret_set_twice_or_in_a_missing_file_is_an_error_that_does_not_repeat_it() {
    let twice = pairs(&[
        ("POSTRIDER_ADMIN_TOKEN", "correct-horse-battery"),
        ("POSTRIDER_ADMIN_TOKEN_FILE", "/does/not/exist"),
        ("POSTRIDER_MASTER_KEY_FILE", "/does/not/exist"),
        ("POSTRIDER_MASTER_KEY_PREVIOUS", "not-a-key-but-private"),
    ]);

    let text = Settings::load(BTreeMap::new(), twice)
        .unwrap_err()
        .to_string();

    assert!(
        text.contains("is set both directly and by POSTRIDER_ADMIN_TOKEN_FILE"),
        "{text}"
    );
    assert!(text.contains("/does/not/exist cannot be read"), "{text}");
    assert!(
        !text.contains("correct-horse") && !text.contains("private"),
        "{text}"
    );
}

#[test]
fn a_broken_file_is_named_with_its_line_and_not_quoted() {
    let toml = file("lease_ttl = \"10s\"\nadmin_token = \"hunter2-hunter2\n");
    let env = pairs(&[("POSTRIDER_CONFIG", toml.path())]);

    let text = Settings::load(BTreeMap::new(), env)
        .unwrap_err()
        .to_string();

    assert!(text.contains("line 2"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn every_default_fits_its_own_setting_and_names_are_unique() {
    let mut names = std::collections::BTreeSet::new();
    let mut keys = std::collections::BTreeSet::new();
    for setting in TABLE {
        assert!(
            names.insert(setting.name),
            "{} is there twice",
            setting.name
        );
        assert!(
            keys.insert(setting.key()),
            "{} is there twice",
            setting.flag
        );
        if let Some(default) = setting.default {
            check::check(setting, default).unwrap();
        }
    }
}

#[test]
fn a_missing_setting_says_how_to_set_it() {
    let text = Settings::default()
        .required("POSTRIDER_MASTER_KEY")
        .unwrap_err()
        .to_string();

    assert!(
        text.contains("set POSTRIDER_MASTER_KEY or POSTRIDER_MASTER_KEY_FILE"),
        "{text}"
    );
    assert!(text.contains("openssl rand -base64 32"), "{text}");
}

#[test]
fn arguments_give_back_what_was_typed_and_only_that() {
    let command = clap::Command::new("x").args(args(&[table::WORKER]));

    let matches = command
        .try_get_matches_from([
            "x",
            "--lease-ttl",
            "12s",
            "--https-only",
            "--master-key-file",
            "/k",
        ])
        .unwrap();

    let expected = BTreeMap::from([
        ("POSTRIDER_LEASE_TTL", "12s".to_owned()),
        ("POSTRIDER_HTTPS_ONLY", "true".to_owned()),
        ("POSTRIDER_MASTER_KEY_FILE", "/k".to_owned()),
    ]);
    assert_eq!(flags(&matches), expected);
}

#[test]
fn a_dns_server_without_a_port_is_on_port_53() {
    let load = |value| {
        let env = pairs(&[("POSTRIDER_DNS_SERVERS", value)]);
        Settings::load(BTreeMap::new(), env)
    };
    for (value, servers) in [
        ("", vec![]),
        ("10.0.0.2", vec!["10.0.0.2:53"]),
        (
            "127.0.0.1:5353, ::1,[::1]:54",
            vec!["127.0.0.1:5353", "[::1]:53", "[::1]:54"],
        ),
    ] {
        let servers: Vec<SocketAddr> = servers.iter().map(|it| it.parse().unwrap()).collect();
        let settings = load(value).unwrap();
        assert_eq!(settings.dns_servers("POSTRIDER_DNS_SERVERS"), servers);
    }
    for refused in [
        "1.1.1.1:0",
        "1.1.1.1;1.0.0.1",
        "1.1.1",
        "a,b",
        "::1,::2,::3,::4",
    ] {
        let text = load(refused).unwrap_err().to_string();
        assert!(text.contains("POSTRIDER_DNS_SERVERS: expected "), "{text}");
    }
}
