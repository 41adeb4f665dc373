//! The table of settings: the single source for `--help`, the environment, the TOML file, the check
//! for unknown names and the tables in README.md and docs/configuration.md.

use std::time::Duration;

/// What a value must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text that is not empty.
    Text,
    /// Where a server is; not empty.
    Url,
    /// A secret text of at least this many characters.
    Token(usize),
    /// 32 bytes in base64.
    Key,
    /// `address:port`; port 0 takes a free one.
    Addr,
    /// A length with its unit (`10s`, `5m`, `30d`), both limits included.
    Length(Duration, Duration),
    /// A whole number, both limits included.
    Count(u64, u64),
    /// A share from 0 to 1.
    Ratio,
    /// `true` or `false`.
    Bool,
    /// Networks separated by commas (`10.0.0.0/8,fd00::/8`); empty is none.
    Cidrs,
    /// At most [`MOST_DNS_SERVERS`] addresses separated by commas, each with its port or on port 53;
    /// empty is none.
    DnsServers,
    /// A file or folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A log filter (`info`, `warn,worker=debug`).
    Filter,
}

/// As many as a `resolv.conf` holds: the time of a look-up is shared among them.
pub const MOST_DNS_SERVERS: usize = 3;

/// How a secret is read from a file.
#[derive(Debug, Clone, Copy)]
pub struct FromFile {
    /// The environment variable that names the file.
    pub name: &'static str,
    /// The flag that names it, without its dashes.
    pub flag: &'static str,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The environment variable, and the name of the setting everywhere.
    pub name: &'static str,
    /// The flag without its dashes; the TOML key is the same with underscores.
    pub flag: &'static str,
    /// What it is when nobody sets it.
    pub default: Option<&'static str>,
    /// What to show where there is no plain default.
    pub default_text: &'static str,
    /// What a value must look like.
    pub kind: Kind,
    /// Present for a secret, which is never shown and can come from a file.
    pub secret: Option<FromFile>,
    /// What it does, in one sentence.
    pub help: &'static str,
}

impl Setting {
    /// The TOML key.
    #[must_use]
    pub fn key(&self) -> String {
        self.flag.replace('-', "_")
    }

    /// The flag that a command line has. For keys and tokens it names a file: command lines are
    /// visible to everyone on the machine. (A database URL may hold a password too, but often does
    /// not, and is what people expect to type.)
    #[must_use]
    pub const fn flag_offered(&self) -> &'static str {
        match (self.kind, self.secret) {
            (Kind::Token(_) | Kind::Key, Some(file)) => file.flag,
            _ => self.flag,
        }
    }

    /// The default as people read it.
    #[must_use]
    pub fn default_shown(&self) -> &'static str {
        match self.default {
            Some("") => "empty",
            Some(value) => value,
            None => self.default_text,
        }
    }

    const fn plain(name: &'static str, flag: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            flag,
            default: None,
            default_text: "none",
            kind,
            secret: None,
            help,
        }
    }

    const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    const fn shown(mut self, text: &'static str) -> Self {
        self.default_text = text;
        self
    }

    const fn secret(mut self, name: &'static str, flag: &'static str) -> Self {
        self.secret = Some(FromFile { name, flag });
        self
    }
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}

const RETENTION: Kind = Kind::Length(days(1), days(3_650));

/// Every setting there is.
pub const TABLE: &[Setting] = &[
    Setting::plain(
        "DATABASE_URL",
        "database-url",
        Kind::Url,
        "PostgreSQL 15 or newer, as a libpq URL; several hosts allowed, TLS by `sslmode`",
    )
    .shown("none (`dev`: a private PostgreSQL)")
    .secret("DATABASE_URL_FILE", "database-url-file"),
    Setting::plain(
        "POSTRIDER_API_ADDR",
        "api-addr",
        Kind::Addr,
        "where the API listens",
    )
    .default("127.0.0.1:8080"),
    Setting::plain(
        "POSTRIDER_METRICS_ADDR",
        "metrics-addr",
        Kind::Addr,
        "where `/metrics`, `/health/live` and `/health/ready` are",
    )
    .shown("api `127.0.0.1:9464`, worker `127.0.0.1:9465`"),
    Setting::plain(
        "POSTRIDER_ADMIN_TOKEN",
        "admin-token",
        Kind::Token(16),
        "the bearer token of `/v1/admin`, at least 16 characters",
    )
    .shown("none: admin API off")
    .secret("POSTRIDER_ADMIN_TOKEN_FILE", "admin-token-file"),
    Setting::plain(
        "POSTRIDER_MASTER_KEY",
        "master-key",
        Kind::Key,
        "32 bytes in base64 that encrypt endpoints' secrets at rest (`openssl rand -base64 32`)",
    )
    .shown("required outside `dev`")
    .secret("POSTRIDER_MASTER_KEY_FILE", "master-key-file"),
    Setting::plain(
        "POSTRIDER_MASTER_KEY_PREVIOUS",
        "master-key-previous",
        Kind::Key,
        "the master key before, while secrets are moved to the new one",
    )
    .secret(
        "POSTRIDER_MASTER_KEY_PREVIOUS_FILE",
        "master-key-previous-file",
    ),
    Setting::plain(
        "POSTRIDER_ALLOW_CIDRS",
        "allow-cidrs",
        Kind::Cidrs,
        "private networks that endpoints may use, separated by commas",
    )
    .default(""),
    Setting::plain(
        "POSTRIDER_DNS_SERVERS",
        "dns-servers",
        Kind::DnsServers,
        "up to three DNS servers that look up endpoints' names, separated by commas; empty: those of \
         `/etc/resolv.conf`",
    )
    .default(""),
    Setting::plain(
        "POSTRIDER_HTTPS_ONLY",
        "https-only",
        Kind::Bool,
        "refuse endpoints with plain `http://`",
    )
    .default("false"),
    Setting::plain(
        "POSTRIDER_MAX_PAYLOAD_BYTES",
        "max-payload-bytes",
        Kind::Count(1_024, 8 << 20),
        "largest payload of an event in bytes; above it the API answers 413",
    )
    .default("262144"),
    Setting::plain(
        "POSTRIDER_MAX_IN_FLIGHT",
        "max-in-flight",
        Kind::Count(1, 65_536),
        "requests under way at once in one worker",
    )
    .default("1024"),
    Setting::plain(
        "POSTRIDER_CONNECTIONS",
        "connections",
        Kind::Count(1, 1_000),
        "database connections in the pool of one process; its hot paths have their own beside it",
    )
    .default("8"),
    Setting::plain(
        "POSTRIDER_LEASE_TTL",
        "lease-ttl",
        Kind::Length(seconds(1), seconds(600)),
        "how long a dead worker keeps its slots",
    )
    .default("10s"),
    Setting::plain(
        "POSTRIDER_DRAIN_TIMEOUT",
        "drain-timeout",
        Kind::Length(seconds(1), seconds(3_600)),
        "how long a process that was told to stop may finish what it began",
    )
    .default("25s"),
    Setting::plain(
        "POSTRIDER_KILL_GRACE",
        "kill-grace",
        Kind::Length(seconds(1), seconds(7_200)),
        "how long the orchestrator waits between SIGTERM and SIGKILL; longer than the drain",
    )
    .default("30s"),
    Setting::plain(
        "POSTRIDER_RETENTION_EVENTS",
        "retention-events",
        RETENTION,
        "how long events are kept",
    )
    .default("30d"),
    Setting::plain(
        "POSTRIDER_RETENTION_ATTEMPTS",
        "retention-attempts",
        RETENTION,
        "how long attempts are kept",
    )
    .default("30d"),
    Setting::plain(
        "POSTRIDER_RETENTION_DEAD_LETTERS",
        "retention-dead-letters",
        RETENTION,
        "how long dead letters are kept, with their events",
    )
    .default("90d"),
    Setting::plain(
        "POSTRIDER_RETENTION_AUDIT_LOG",
        "retention-audit-log",
        RETENTION,
        "how long it is kept who changed what",
    )
    .default("365d"),
    Setting::plain(
        "POSTRIDER_KEY_RATE",
        "key-rate",
        Kind::Count(1, 1_000_000),
        "requests and events per second of each key in one API process, where nothing else is set for it",
    ),
    Setting::plain(
        "POSTRIDER_KEY_BURST",
        "key-burst",
        Kind::Count(1, 1_000_000),
        "how many of them at once after a quiet time",
    )
    .shown("twice the rate"),
    Setting::plain(
        "POSTRIDER_TENANT_ENDPOINTS",
        "tenant-endpoints",
        Kind::Count(1, 10_000),
        "endpoints of each tenant, where nothing else is set for it",
    )
    .shown("`10000`"),
    Setting::plain(
        "POSTRIDER_TENANT_EVENTS_PER_DAY",
        "tenant-events-per-day",
        Kind::Count(1, 4_000_000_000),
        "events of each tenant in a day of UTC, where nothing else is set for it",
    ),
    Setting::plain(
        "POSTRIDER_TENANT_EVENTS_PER_MONTH",
        "tenant-events-per-month",
        Kind::Count(1, 4_000_000_000),
        "events of each tenant in a calendar month of UTC, where nothing else is set for it",
    ),
    Setting::plain(
        "POSTRIDER_JOURNAL_DIR",
        "journal-dir",
        Kind::Path,
        "accept events on local disk while the database is away: a directory of this API process alone",
    ),
    Setting::plain(
        "POSTRIDER_JOURNAL_PERSISTENT",
        "journal-persistent",
        Kind::Bool,
        "you confirm that POSTRIDER_JOURNAL_DIR is still there when the process is started anew, wherever that is: \
         what was accepted there and is lost with it is lost",
    )
    .default("false"),
    Setting::plain(
        "POSTRIDER_JOURNAL_MAX_BYTES",
        "journal-max-bytes",
        Kind::Count(1 << 20, 1 << 40),
        "what the journal may take of the disk; above it events are refused with 503",
    )
    .default("1073741824"),
    Setting::plain(
        "POSTRIDER_PROXY_URL",
        "proxy-url",
        Kind::Text,
        "the only proxy ever used, `http://user:password@host:port`; it must allow CONNECT to the receivers' ports",
    )
    .secret("POSTRIDER_PROXY_URL_FILE", "proxy-url-file"),
    Setting::plain(
        "POSTRIDER_CA_FILE",
        "ca-file",
        Kind::Path,
        "certificate authorities to trust besides this machine's, a PEM file",
    ),
    Setting::plain(
        "POSTRIDER_URL",
        "url",
        Kind::Url,
        "the API that `postrider send` posts to",
    )
    .default("http://127.0.0.1:8080"),
    Setting::plain(
        "POSTRIDER_KEY",
        "key",
        Kind::Text,
        "the API key that `postrider send` posts with",
    )
    .secret("POSTRIDER_KEY_FILE", "key-file"),
    Setting::plain(
        "POSTRIDER_DATA_DIR",
        "data-dir",
        Kind::Path,
        "where `postrider dev` keeps its database and keys",
    )
    .default(".postrider"),
    Setting::plain(
        "POSTRIDER_CONFIG",
        "config",
        Kind::Path,
        "a TOML file with settings",
    ),
    Setting::plain(
        "RUST_LOG",
        "log",
        Kind::Filter,
        "what is logged: a level, or `module=level` separated by commas",
    )
    .default("info"),
    Setting::plain(
        "POSTRIDER_OTLP_ENDPOINT",
        "otlp-endpoint",
        Kind::Url,
        "the OpenTelemetry collector that spans are sent to (OTLP over HTTP), like `http://127.0.0.1:4318`",
    )
    .shown("none: no traces"),
    Setting::plain(
        "POSTRIDER_OTLP_SAMPLE_RATIO",
        "otlp-sample-ratio",
        Kind::Ratio,
        "the share of traces recorded, from 0 to 1, of those that no `traceparent` decides about",
    )
    .default("1"),
    Setting::plain(
        "POSTRIDER_LOG_FORMAT",
        "log-format",
        Kind::Choice(&["auto", "text", "json"]),
        "`text` or `json` on stderr; `auto` is text on a terminal",
    )
    .default("auto"),
];

/// What every program takes.
pub const COMMON: &[&str] = &["POSTRIDER_CONFIG", "RUST_LOG", "POSTRIDER_LOG_FORMAT"];

/// What the API takes besides.
pub const API: &[&str] = &[
    "DATABASE_URL",
    "POSTRIDER_API_ADDR",
    "POSTRIDER_METRICS_ADDR",
    "POSTRIDER_ADMIN_TOKEN",
    "POSTRIDER_MASTER_KEY",
    "POSTRIDER_MASTER_KEY_PREVIOUS",
    "POSTRIDER_ALLOW_CIDRS",
    "POSTRIDER_HTTPS_ONLY",
    "POSTRIDER_MAX_PAYLOAD_BYTES",
    "POSTRIDER_CONNECTIONS",
    "POSTRIDER_DRAIN_TIMEOUT",
    "POSTRIDER_KILL_GRACE",
    "POSTRIDER_RETENTION_EVENTS",
    "POSTRIDER_KEY_RATE",
    "POSTRIDER_KEY_BURST",
    "POSTRIDER_TENANT_ENDPOINTS",
    "POSTRIDER_TENANT_EVENTS_PER_DAY",
    "POSTRIDER_TENANT_EVENTS_PER_MONTH",
    "POSTRIDER_JOURNAL_DIR",
    "POSTRIDER_JOURNAL_PERSISTENT",
    "POSTRIDER_JOURNAL_MAX_BYTES",
    "POSTRIDER_OTLP_ENDPOINT",
    "POSTRIDER_OTLP_SAMPLE_RATIO",
];

/// What a worker takes besides.
pub const WORKER: &[&str] = &[
    "DATABASE_URL",
    "POSTRIDER_METRICS_ADDR",
    "POSTRIDER_MASTER_KEY",
    "POSTRIDER_MASTER_KEY_PREVIOUS",
    "POSTRIDER_ALLOW_CIDRS",
    "POSTRIDER_DNS_SERVERS",
    "POSTRIDER_HTTPS_ONLY",
    "POSTRIDER_CA_FILE",
    "POSTRIDER_PROXY_URL",
    "POSTRIDER_MAX_IN_FLIGHT",
    "POSTRIDER_LEASE_TTL",
    "POSTRIDER_DRAIN_TIMEOUT",
    "POSTRIDER_KILL_GRACE",
    "POSTRIDER_RETENTION_EVENTS",
    "POSTRIDER_RETENTION_ATTEMPTS",
    "POSTRIDER_RETENTION_DEAD_LETTERS",
    "POSTRIDER_RETENTION_AUDIT_LOG",
    "POSTRIDER_OTLP_ENDPOINT",
    "POSTRIDER_OTLP_SAMPLE_RATIO",
];

/// The setting of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name)
}
