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
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tokio::sync::mpsc;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::StoreError;

/// How long a new connection may take, from the first packet to ready.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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

impl Role {
    const fn options(self) -> &'static str {
        match self {
            Self::Api => {
                "-c synchronous_commit=on -c jit=off -c timezone=UTC -c statement_timeout=10s \
                 -c lock_timeout=5s -c idle_in_transaction_session_timeout=5s \
                 -c enable_seqscan=off -c enable_bitmapscan=off -c enable_incremental_sort=off"
            }
            Self::Worker => {
                "-c synchronous_commit=on -c jit=off -c timezone=UTC -c statement_timeout=10s \
                 -c lock_timeout=5s -c idle_in_transaction_session_timeout=5s \
                 -c enable_seqscan=off -c enable_memoize=off -c plan_cache_mode=force_generic_plan"
            }
            Self::Maintenance => {
                "-c synchronous_commit=on -c jit=off -c timezone=UTC -c statement_timeout=10min \
                 -c lock_timeout=2s -c idle_in_transaction_session_timeout=60s"
            }
        }
    }
}

/// Where the database is and how to speak with it. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    config: Arc<Config>,
    tls: MakeRustlsConnect,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration holds the password.
        out.debug_struct("Database")
            .field("hosts", &self.config.get_hosts())
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
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_default();
            StoreError::Configuration(format!(
                "DATABASE_URL is not a PostgreSQL URL ({error}: {cause}); \
                 expected postgres://user:password@host:5432/database"
            ))
        })?;
        config.connect_timeout(CONNECT_TIMEOUT);
        config.tcp_user_timeout(Duration::from_secs(15));
        config.keepalives(true);
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
        config.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        let tls = MakeRustlsConnect::new(tls_config(config.get_ssl_mode())?);
        Ok(Self {
            config: Arc::new(config),
            tls,
        })
    }

    fn config(&self, role: Role) -> Config {
        let mut config = (*self.config).clone();
        let own = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{own} {}", role.options()));
        config.application_name(match role {
            Role::Api => "postrider-api",
            Role::Worker => "postrider-worker",
            Role::Maintenance => "postrider-maintenance",
        });
        config
    }

    /// Opens a connection of its own, driven by a task that ends with it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when nobody answers within [`CONNECT_TIMEOUT`].
    pub async fn connect(&self, role: Role) -> Result<Session, StoreError> {
        let (session, notifications) = self.connect_listening(role, 1).await?;
        drop(notifications);
        Ok(session)
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
        let config = self.config(role);
        let connecting = config.connect(self.tls.clone());
        let (client, mut connection) = tokio::time::timeout(CONNECT_TIMEOUT * 2, connecting)
            .await
            .map_err(|_elapsed| StoreError::Timeout(CONNECT_TIMEOUT * 2))??;
        let (sender, receiver) = mpsc::channel(capacity);
        let driver = async move {
            loop {
                match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        if sender.try_send(notification).is_err() {
                            tracing::trace!("a hint was dropped; the scan finds its work");
                        }
                    }
                    Some(Ok(AsyncMessage::Notice(notice))) => {
                        tracing::debug!(notice = notice.message(), "the database gave a notice");
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::debug!(%error, "a database connection ended");
                        return;
                    }
                    None => return,
                }
            }
        };
        let driver = crate::runtime::spawn_driver(driver);
        Ok((Session { client, driver }, receiver))
    }

    /// A pool of at most `size` connections; waiting for one is bounded by `wait`.
    ///
    /// # Errors
    /// [`StoreError::Other`] when the pool cannot be built.
    pub fn pool(&self, role: Role, size: usize, wait: Duration) -> Result<Pool, StoreError> {
        let manager = Manager::from_config(
            self.config(role),
            self.tls.clone(),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        Pool::builder(manager)
            .max_size(size)
            .wait_timeout(Some(wait))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Other(error.to_string()))
    }
}

/// One connection that its holder owns alone.
pub struct Session {
    client: Client,
    driver: tokio::task::JoinHandle<()>,
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
