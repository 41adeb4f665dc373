//! Connections: how a process reaches PostgreSQL, and with which session settings.
//!
//! Hot paths (ingest, record, lease, load, listen) own a [`Session`] each, so that none of them waits
//! for a reader; everything else shares a pool. Each process has its own budget of connections.
//!
//! # Invariants
//! - D2: `synchronous_commit = on` is set by us on every session, whatever the role or database says.
//! - Plans: workers and the API run with `enable_seqscan = off` (architecture §3): a plan cached while a queue
//!   table was empty, or made by statistics of that time, must not become a sequential scan of a million rows. Nor,
//!   for a list, a bitmap of a million rows that are sorted for its first fifty: `enable_bitmapscan` and
//!   `enable_incremental_sort` are off for the API.
//!   `enable_memoize = off` of workers: a load reads each event once, so a cache of them in the plan only copies
//!   payloads (0 hits measured).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tokio::sync::mpsc;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::StoreError;
pub use super::connect::CONNECT_TIMEOUT;
use super::connect::{self, Connector, Opened, milliseconds};
use crate::runtime::clock::boot_time;
use crate::runtime::jitter;

/// How long a pool whose database could not be reached does not try again: half of this to one and a half.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// After this long without a question a connection is checked before the next one.
pub const IDLE: Duration = Duration::from_secs(1);

/// What a connection is for: decides its session settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reads, configuration and ingest of the API: no sequential scans.
    Api,
    /// Hot statements of a worker: no sequential scans.
    Worker,
    /// Migrations, partitions, retention: long statements allowed, short waits for locks.
    Maintenance,
}

/// What every session asks of the server: to notice soon that we are gone, and to let go of what we held. One that a
/// stopped listener does not read from would otherwise keep its snapshot (F61).
macro_rules! common {
    ($own:literal) => {
        concat!(
            "-c synchronous_commit=on -c jit=off -c timezone=UTC -c tcp_keepalives_idle=10 \
             -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=15000 ",
            $own
        )
    };
}

impl Role {
    pub(super) const fn options(self) -> &'static str {
        match self {
            Self::Api => common!(
                "-c statement_timeout=10s -c lock_timeout=5s -c idle_in_transaction_session_timeout=5s \
                 -c enable_seqscan=off -c enable_bitmapscan=off -c enable_incremental_sort=off"
            ),
            Self::Worker => common!(
                "-c statement_timeout=10s -c lock_timeout=5s -c idle_in_transaction_session_timeout=5s \
                 -c enable_seqscan=off -c enable_memoize=off -c plan_cache_mode=force_generic_plan"
            ),
            Self::Maintenance => common!(
                "-c statement_timeout=10min -c lock_timeout=2s -c idle_in_transaction_session_timeout=60s"
            ),
        }
    }

    /// Those of its statements and their locks, as the server shows them.
    pub(super) const fn timeouts(self) -> (&'static str, &'static str) {
        match self {
            Self::Api | Self::Worker => ("10s", "5s"),
            Self::Maintenance => ("10min", "2s"),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Api => "postrider-api",
            Self::Worker => "postrider-worker",
            Self::Maintenance => "postrider-maintenance",
        }
    }

    /// How long an answer may be owed before the connection counts as lost: a little over `statement_timeout`, so
    /// that a server that lives has spoken before.
    pub(super) const fn silence(self) -> Duration {
        match self {
            Self::Api | Self::Worker => Duration::from_secs(12),
            Self::Maintenance => Duration::from_secs(605),
        }
    }
}

/// Where the database is and how to speak with it. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    connector: Connector,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration holds the password.
        out.debug_struct("Database")
            .field("hosts", &self.connector.config().get_hosts())
            .finish_non_exhaustive()
    }
}

impl Database {
    /// Reads a libpq URL or key-value string.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] when it cannot be read, or when TLS is asked for and the
    /// machine has no trusted certificates.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_default();
            StoreError::Configuration(format!(
                "DATABASE_URL is not a PostgreSQL URL ({error}: {cause}); \
                 expected postgres://user:password@host:5432/database"
            ))
        })?;
        let tls = MakeRustlsConnect::new(tls_config(config.get_ssl_mode())?);
        Ok(Self {
            connector: Connector::new(config, tls),
        })
    }

    /// Opens a connection of its own, driven by a task that ends with it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when no node answers and takes writes, each of its addresses within
    /// [`CONNECT_TIMEOUT`]; [`StoreError::Configuration`] when we are not let in.
    pub async fn connect(&self, role: Role) -> Result<Session, StoreError> {
        Ok(Session::new(self.connector.open(role, None).await?))
    }

    /// Like [`Database::connect`]; NOTIFY payloads arrive on the channel, which closes with the
    /// connection. When it is full, further ones are dropped: a hint is never the truth.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn connect_listening(
        &self,
        role: Role,
        capacity: usize,
    ) -> Result<(Session, mpsc::Receiver<Notification>), StoreError> {
        let (sender, receiver) = mpsc::channel(capacity);
        let opened = self.connector.open(role, Some(sender)).await?;
        Ok((Session::new(opened), receiver))
    }

    /// For the start of a process: whether the sessions of this database are ours alone.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] when a pooler shares them, else as [`Database::connect`].
    pub async fn refuse_shared_sessions(&self) -> Result<(), StoreError> {
        let one = self.connect(Role::Maintenance).await?;
        let other = self.connect(Role::Maintenance).await?;
        let looking = connect::sessions_are_shared(&one, &other);
        if within(CONNECT_TIMEOUT, looking).await? {
            return Err(connect::shared_sessions());
        }
        Ok(())
    }

    /// A pool of at most `size` connections; waiting for one is bounded by `wait`, and so is the making of one,
    /// by the time that its addresses have.
    ///
    /// # Errors
    /// [`StoreError::Other`] when the pool cannot be built.
    pub fn pool(&self, role: Role, size: usize, wait: Duration) -> Result<Pool, StoreError> {
        let connector = self.connector.clone();
        let manager = Manager {
            connector,
            role,
            not_before: AtomicU64::new(0),
        };
        Pool::builder(manager)
            .max_size(size)
            .wait_timeout(Some(wait))
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Other(error.to_string()))
    }
}

/// Connections that are shared one after the other.
pub type Pool = managed::Pool<Manager>;
/// One of them, until it is dropped.
pub type Pooled = managed::Object<Manager>;

/// Makes the connections of a pool.
pub struct Manager {
    connector: Connector,
    role: Role,
    /// While the database is away: the milliseconds of the boot clock before which nobody tries again, however many
    /// wait for a connection.
    not_before: AtomicU64,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Manager")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl managed::Manager for Manager {
    type Type = ClientWrapper;
    type Error = StoreError;

    async fn create(&self) -> Result<ClientWrapper, StoreError> {
        if milliseconds(boot_time().0) < self.not_before.load(Ordering::Relaxed) {
            let text = "it could not be reached a moment ago".to_owned();
            return Err(StoreError::Unavailable(text));
        }
        let opened = self.connector.open(self.role, None).await;
        let opened = opened.inspect_err(|_| {
            let pause = AFTER_FAILURE.mul_f64(0.5 + jitter::fraction());
            let again = milliseconds(boot_time().0.saturating_add(pause));
            self.not_before.store(again, Ordering::Relaxed);
        })?;
        Ok(ClientWrapper::new(opened.client, opened.driver))
    }

    /// A connection that was asked and is lost has closed itself ([`super::connect`]). One that was idle is asked
    /// first, so that no request finds out.
    async fn recycle(
        &self,
        client: &mut ClientWrapper,
        metrics: &Metrics,
    ) -> RecycleResult<StoreError> {
        let doubt = self.connector.doubt();
        let unused = metrics.last_used();
        if client.is_closed() || doubt.was_cast_within(unused) {
            return Err(RecycleError::message("the connection was lost"));
        }
        if unused > IDLE {
            let checked = connect::check_again(client).await;
            checked.inspect_err(|_| doubt.cast())?;
        }
        Ok(())
    }
}

/// One connection that its holder owns alone.
pub struct Session {
    client: Client,
    driver: tokio::task::JoinHandle<()>,
}

impl Session {
    fn new(opened: Opened) -> Self {
        let Opened { client, driver } = opened;
        Self { client, driver }
    }

    /// For who has not asked anything for longer than [`IDLE`]: whether the connection still passes something, and
    /// its node still takes writes. Until it is asked, a server does not say that it takes none any more.
    ///
    /// # Errors
    /// As [`Database::connect`]: make another one.
    pub async fn check(&self) -> Result<(), StoreError> {
        connect::check_again(&self.client).await
    }
}

impl std::ops::Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl std::ops::DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Bounds a database call; every call has a deadline.
///
/// # Errors
/// [`StoreError::Timeout`] past the budget, else the call's own error.
pub async fn within<T, E: Into<StoreError>>(
    budget: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(budget, call).await {
        Ok(result) => result.map_err(Into::into),
        Err(_elapsed) => Err(StoreError::Timeout(budget)),
    }
}

fn tls_config(mode: SslMode) -> Result<rustls::ClientConfig, StoreError> {
    let mut roots = rustls::RootCertStore::empty();
    if !matches!(mode, SslMode::Disable) {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() && matches!(mode, SslMode::Require) {
            return Err(StoreError::Configuration(
                "sslmode=require, but this machine trusts no certificates: \
                 install the package ca-certificates or set SSL_CERT_FILE"
                    .to_owned(),
            ));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Configuration(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
