//! What the API needs to know before it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shared::domain::limits::{KeyRate, Limits};
use shared::policy::address::AddressRules;
use shared::runtime::budgets;
use shared::runtime::settings::{ConfigErrors, Settings};
use shared::runtime::traces::TraceSettings;
use shared::sealing::MasterKeys;
use shared::store::Database;

use crate::auth::BELIEVED;

/// The settings that `postrider-api` takes as flags, besides the common ones.
pub const SETTINGS: &[&str] = shared::runtime::settings::table::API;

/// Where metrics and health are by default.
const METRICS_ADDR: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9464);

/// How long a request may wait for the database before it is answered with 503.
const DEADLINE: Duration = Duration::from_secs(10);

/// The settings of one API process.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the API listens; port 0 takes a free one.
    pub addr: SocketAddr,
    /// Where metrics and health are; port 0 takes a free one.
    pub metrics_addr: SocketAddr,
    pub(crate) database: Database,
    pub(crate) admin_token: Option<String>,
    pub(crate) master_keys: Arc<MasterKeys>,
    pub(crate) address_rules: AddressRules,
    pub(crate) https_only: bool,
    /// The largest payload of an event, in bytes.
    pub(crate) max_payload: usize,
    /// Connections for everything but ingest.
    pub(crate) connections: usize,
    /// How long requests under way may take to end after shutdown began.
    pub(crate) drain: Duration,
    /// How long events are kept.
    pub(crate) events_retention: Duration,
    /// The longest timeout that an endpoint may ask for.
    pub(crate) longest_timeout: Duration,
    /// How long a request may wait for its event to be durable.
    pub(crate) deadline: Duration,
    /// How long a key counts that the database could not be asked about.
    pub(crate) believed: Duration,
    /// Writers, each with a connection of its own.
    pub(crate) writers: usize,
    /// Requests that may wait to be written; `None`: the built-in limit.
    pub(crate) most_waiting: Option<usize>,
    /// What keys and tenants may where nothing is set for them.
    pub(crate) limits: Limits,
    /// Where spans go; none: nothing is traced.
    pub(crate) traces: Option<TraceSettings>,
    /// Where events go while the database is away; none: they are refused.
    pub(crate) journal: Option<JournalSettings>,
}

/// The journal of one API process.
#[derive(Debug, Clone)]
pub(crate) struct JournalSettings {
    /// Its own, and there again when the process is.
    pub(crate) directory: PathBuf,
    /// What it may take of the disk.
    pub(crate) most_bytes: u64,
}

impl Config {
    /// From the settings of the process.
    ///
    /// # Errors
    /// Every setting that is missing or wrong, with what to do about it.
    pub fn from_settings(settings: &Settings) -> Result<Self, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let database = database(settings)
            .map_err(|more| errors.0.extend(more.0))
            .ok();
        let master_keys = master_keys(settings)
            .map_err(|more| errors.0.extend(more.0))
            .ok();
        if let Err(more) = budgets::check(settings) {
            errors.0.extend(more.0);
        }
        let traces = TraceSettings::from_settings(settings)
            .map_err(|more| errors.0.extend(more.0))
            .ok();
        let journal = journal(settings)
            .map_err(|more| errors.0.extend(more.0))
            .ok();
        let (Some(database), Some(master_keys), Some(traces), Some(journal), true) =
            (database, master_keys, traces, journal, errors.0.is_empty())
        else {
            return Err(errors);
        };
        Ok(Self {
            addr: settings.addr("POSTRIDER_API_ADDR"),
            metrics_addr: settings.addr_or("POSTRIDER_METRICS_ADDR", METRICS_ADDR),
            database,
            admin_token: settings.get("POSTRIDER_ADMIN_TOKEN").map(str::to_owned),
            master_keys: Arc::new(master_keys),
            address_rules: AddressRules::new(settings.cidrs("POSTRIDER_ALLOW_CIDRS")),
            https_only: settings.bool("POSTRIDER_HTTPS_ONLY"),
            max_payload: settings.count("POSTRIDER_MAX_PAYLOAD_BYTES"),
            connections: settings.count("POSTRIDER_CONNECTIONS"),
            drain: settings.duration("POSTRIDER_DRAIN_TIMEOUT"),
            events_retention: settings.duration("POSTRIDER_RETENTION_EVENTS"),
            longest_timeout: budgets::longest_request(settings),
            deadline: DEADLINE,
            believed: BELIEVED,
            writers: WRITERS,
            most_waiting: None,
            limits: limits(settings),
            traces,
            journal,
        })
    }

    /// For tests: free ports, a fixed master key and admin token, everything on this machine
    /// allowed as an endpoint.
    #[must_use]
    pub fn for_testing(database: Database) -> Self {
        let local = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
        Self {
            addr: local,
            metrics_addr: local,
            database,
            admin_token: Some("admin-token-for-tests".to_owned()),
            master_keys: Arc::new(MasterKeys::new([7; 32], None)),
            address_rules: AddressRules::parse("127.0.0.0/8,::1/128").unwrap_or_default(),
            https_only: false,
            max_payload: 256 << 10,
            connections: 4,
            drain: Duration::from_secs(5),
            events_retention: Duration::from_secs(30 * 86_400),
            longest_timeout: Duration::from_secs(20),
            deadline: DEADLINE,
            believed: BELIEVED,
            writers: WRITERS,
            most_waiting: None,
            limits: Limits::default(),
            traces: None,
            journal: None,
        }
    }

    /// The same, with these limits where nothing is set for a key or tenant.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same, with room for so many waiting requests only.
    #[must_use]
    pub fn with_most_waiting(mut self, most: usize) -> Self {
        self.most_waiting = Some(most);
        self
    }

    /// The same, with keys that count for so long while the database cannot be asked.
    #[must_use]
    pub fn with_believed(mut self, believed: Duration) -> Self {
        self.believed = believed;
        self
    }

    /// The same, with requests that wait so long at most.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The same, with these networks opened instead of this machine.
    #[must_use]
    pub fn with_address_rules(mut self, rules: AddressRules) -> Self {
        self.address_rules = rules;
        self
    }

    /// The same, without endpoints at plain `http://`.
    #[must_use]
    pub fn with_https_only(mut self) -> Self {
        self.https_only = true;
        self
    }

    /// The same, without an admin API.
    #[must_use]
    pub fn without_admin(mut self) -> Self {
        self.admin_token = None;
        self
    }

    /// The same, with a journal of so many bytes at most.
    #[must_use]
    pub fn with_journal(mut self, directory: PathBuf, most_bytes: u64) -> Self {
        self.journal = Some(JournalSettings {
            directory,
            most_bytes,
        });
        self
    }

    /// The same, with so many writers.
    #[must_use]
    pub fn with_writers(mut self, writers: usize) -> Self {
        self.writers = writers.max(1);
        self
    }
}

fn database(settings: &Settings) -> Result<Database, ConfigErrors> {
    let url = settings.required("DATABASE_URL")?;
    Database::new(url).map_err(|error| ConfigErrors::one("DATABASE_URL", error.to_string()))
}

/// Where events go while the database is away, if anywhere.
fn journal(settings: &Settings) -> Result<Option<JournalSettings>, ConfigErrors> {
    let Some(directory) = settings.get("POSTRIDER_JOURNAL_DIR") else {
        return Ok(None);
    };
    if !settings.bool("POSTRIDER_JOURNAL_PERSISTENT") {
        let detail = "an event that is accepted there is lost with it: put it on a disk that outlives the process and its \
                      container, then set POSTRIDER_JOURNAL_PERSISTENT=true";
        return Err(ConfigErrors::one(
            "POSTRIDER_JOURNAL_DIR",
            detail.to_owned(),
        ));
    }
    let most: usize = settings.count("POSTRIDER_JOURNAL_MAX_BYTES");
    Ok(Some(JournalSettings {
        directory: directory.into(),
        most_bytes: u64::try_from(most).unwrap_or(u64::MAX),
    }))
}

fn limits(settings: &Settings) -> Limits {
    let count = |name| settings.get(name).and_then(|text| text.parse::<u32>().ok());
    Limits {
        rate_limit: count("POSTRIDER_KEY_RATE").map(|per_second| KeyRate {
            per_second,
            burst: count("POSTRIDER_KEY_BURST").unwrap_or(per_second.saturating_mul(2)),
        }),
        max_endpoints: count("POSTRIDER_TENANT_ENDPOINTS"),
        events_per_day: count("POSTRIDER_TENANT_EVENTS_PER_DAY"),
        events_per_month: count("POSTRIDER_TENANT_EVENTS_PER_MONTH"),
        ..Limits::default()
    }
}

fn master_keys(settings: &Settings) -> Result<MasterKeys, ConfigErrors> {
    let current = settings.required("POSTRIDER_MASTER_KEY")?;
    let previous = settings.get("POSTRIDER_MASTER_KEY_PREVIOUS");
    MasterKeys::from_base64(current, previous)
        .map_err(|detail| ConfigErrors::one("POSTRIDER_MASTER_KEY", detail))
}

/// While one commits, the other takes what comes: at 1,000 events a second that halved the median
/// latency, for a tenth more of PostgreSQL's time per event at saturation.
const WRITERS: usize = 2;
