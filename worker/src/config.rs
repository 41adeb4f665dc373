//! What a worker needs to be told, checked.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shared::policy::address::AddressRules;
use shared::runtime::settings::{ConfigErrors, Settings};
use shared::runtime::traces::TraceSettings;
use shared::sealing::MasterKeys;
use shared::store::retention::RetentionSettings;

use crate::sender::Proxy;

/// The settings that `postrider-worker` takes as flags, besides the common ones.
pub const SETTINGS: &[&str] = shared::runtime::settings::table::WORKER;

/// Where the metrics are if nobody says otherwise.
const METRICS_ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9465);

/// See the module.
#[derive(Debug, Clone)]
pub struct Config {
    /// libpq URL; holds a password.
    pub database_url: DatabaseUrl,
    /// Metrics and health.
    pub metrics_addr: SocketAddr,
    /// Opens secrets.
    pub keys: Arc<MasterKeys>,
    /// Where requests may go.
    pub rules: AddressRules,
    /// Certificate authorities to trust besides the machine's, PEM.
    pub ca_file: Option<PathBuf>,
    /// The only proxy ever used.
    pub proxy: Option<Proxy>,
    /// Who looks up endpoints' names; none: whom this machine asks.
    pub dns_servers: Vec<SocketAddr>,
    /// Whether endpoints with plain `http://` are refused.
    pub https_only: bool,
    /// How long a lease lasts.
    pub lease_ttl: Duration,
    /// How long requests may go on after SIGTERM.
    pub drain_timeout: Duration,
    /// Requests sent and not yet recorded.
    pub max_in_flight: usize,
    /// How long history is kept.
    pub retention: RetentionSettings,
    /// Where spans go; none: nothing is traced.
    pub traces: Option<TraceSettings>,
}

/// A URL that `Debug` does not show.
#[derive(Clone)]
pub struct DatabaseUrl(pub String);

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("DatabaseUrl(redacted)")
    }
}

impl Config {
    /// From settings that were loaded and checked one by one.
    ///
    /// # Errors
    /// Every setting that is missing or does not fit, with the fix.
    pub fn from_settings(settings: &Settings) -> Result<Self, ConfigErrors> {
        let (database_url, key) = required(settings)?;
        let previous = settings.get("POSTRIDER_MASTER_KEY_PREVIOUS");
        let keys = MasterKeys::from_base64(key, previous).map_err(|problem| {
            let mut errors = ConfigErrors::default();
            errors.add("POSTRIDER_MASTER_KEY", problem);
            errors
        })?;
        let proxy = settings.get("POSTRIDER_PROXY_URL").map(Proxy::parse);
        let proxy = proxy.transpose().map_err(|problem| {
            let mut errors = ConfigErrors::default();
            errors.add("POSTRIDER_PROXY_URL", problem);
            errors
        })?;
        Ok(Self {
            database_url: DatabaseUrl(database_url.to_owned()),
            metrics_addr: settings.addr_or("POSTRIDER_METRICS_ADDR", METRICS_ADDR),
            keys: Arc::new(keys),
            rules: AddressRules::new(settings.cidrs("POSTRIDER_ALLOW_CIDRS")),
            ca_file: settings.get("POSTRIDER_CA_FILE").map(PathBuf::from),
            proxy,
            dns_servers: settings.dns_servers("POSTRIDER_DNS_SERVERS"),
            https_only: settings.bool("POSTRIDER_HTTPS_ONLY"),
            lease_ttl: settings.duration("POSTRIDER_LEASE_TTL"),
            drain_timeout: settings.duration("POSTRIDER_DRAIN_TIMEOUT"),
            max_in_flight: settings.count("POSTRIDER_MAX_IN_FLIGHT"),
            retention: RetentionSettings {
                events: settings.duration("POSTRIDER_RETENTION_EVENTS"),
                attempts: settings.duration("POSTRIDER_RETENTION_ATTEMPTS"),
                dead_letters: settings.duration("POSTRIDER_RETENTION_DEAD_LETTERS"),
                audit_log: settings.duration("POSTRIDER_RETENTION_AUDIT_LOG"),
            },
            traces: TraceSettings::from_settings(settings)?,
        })
    }
}

/// The database and the master key; both problems at once.
fn required(settings: &Settings) -> Result<(&str, &str), ConfigErrors> {
    match (
        settings.required("DATABASE_URL"),
        settings.required("POSTRIDER_MASTER_KEY"),
    ) {
        (Ok(url), Ok(key)) => Ok((url, key)),
        (Err(mut errors), Err(more)) => {
            errors.0.extend(more.0);
            Err(errors)
        }
        (Err(errors), Ok(_)) | (Ok(_), Err(errors)) => Err(errors),
    }
}
