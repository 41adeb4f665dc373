//! A whole PostgreSQL server of a test's own, to be crashed and started again.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::embedded_postgres::{EmbeddedError, EmbeddedPostgres, Options, SUPERUSER, Shutdown};
use crate::store::Database;
use crate::store::migrate::migrate;

/// A migrated database on a server that only this test uses; removed at the end. Commits survive
/// its crashes: what they lose is what a real server would lose, unless the machine itself dies.
#[derive(Debug)]
pub struct TestCluster {
    postgres: EmbeddedPostgres,
    url: String,
    database: Database,
}

impl TestCluster {
    /// Makes, starts and migrates a server: about two seconds.
    ///
    /// # Panics
    /// When there is no PostgreSQL, with what to do about it.
    #[expect(clippy::panic, reason = "a test cannot go on without its database")]
    pub async fn new() -> Self {
        match Self::create(Options::throw_away(), None).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("no database server for this test: {error:#}"),
        }
    }

    /// The same with settings of the server's, and in this directory if it is not to be anywhere.
    ///
    /// # Panics
    /// As [`TestCluster::new`].
    #[expect(clippy::panic, reason = "a test cannot go on without its database")]
    pub async fn with(settings: &[(&str, &str)], data_dir: Option<PathBuf>) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let options = Options {
            data_dir,
            settings: settings.iter().map(own).collect(),
            ..Options::throw_away()
        };
        match Self::create(options, None).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("no database server for this test: {error:#}"),
        }
    }

    /// One that listens on this address of 127.0.0.1 and nowhere else, for who has to come by TCP. Whoever is on
    /// this machine may come in.
    ///
    /// # Panics
    /// As [`TestCluster::new`].
    #[expect(clippy::panic, reason = "a test cannot go on without its database")]
    pub async fn on(addr: SocketAddr) -> Self {
        let made = async {
            let rules = tempfile::NamedTempFile::new()?;
            let trust = "local all all trust\nhost all all 127.0.0.1/32 trust\n";
            std::fs::write(rules.path(), trust)?;
            std::fs::set_permissions(rules.path(), std::fs::Permissions::from_mode(0o644))?;
            let own = |name: &str, value: String| (name.to_owned(), value);
            let options = Options {
                settings: vec![
                    own("listen_addresses", addr.ip().to_string()),
                    own("port", addr.port().to_string()),
                    own("hba_file", rules.path().display().to_string()),
                ],
                ..Options::throw_away()
            };
            let url = format!("postgres://{SUPERUSER}@{addr}/{SUPERUSER}?sslmode=disable");
            // The server reads its rules when it starts.
            Self::create(options, Some(url)).await
        };
        match made.await {
            Ok(cluster) => cluster,
            Err(error) => panic!("no database server for this test: {error:#}"),
        }
    }

    async fn create(
        options: Options,
        url: Option<String>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let postgres = EmbeddedPostgres::start(options).await?;
        let url = url.unwrap_or_else(|| postgres.url(SUPERUSER));
        let database = Database::new(&url)?;
        migrate(&database).await?;
        Ok(Self {
            postgres,
            url,
            database,
        })
    }

    /// For programs that are given a `DATABASE_URL`; the same across restarts.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// For code in this process.
    #[must_use]
    pub fn database(&self) -> Database {
        self.database.clone()
    }

    /// The server itself.
    #[must_use]
    pub const fn server(&self) -> &EmbeddedPostgres {
        &self.postgres
    }

    /// The same, to change it.
    #[must_use]
    pub const fn server_mut(&mut self) -> &mut EmbeddedPostgres {
        &mut self.postgres
    }

    /// Ends the server in the middle of everything (SIGQUIT, "immediate") and starts it again under
    /// the same URL; returns when it has recovered.
    ///
    /// # Errors
    /// When it does not come up again.
    pub async fn crash_and_restart(&mut self) -> Result<(), EmbeddedError> {
        self.postgres.halt(Shutdown::Immediate).await?;
        self.postgres.resume().await
    }

    /// Kills the server's first process (SIGKILL) and starts it again, as
    /// [`TestCluster::crash_and_restart`].
    ///
    /// # Errors
    /// When it does not come up again.
    pub async fn kill_and_restart(&mut self) -> Result<(), EmbeddedError> {
        self.postgres.halt(Shutdown::Kill).await?;
        self.postgres.resume().await
    }

    /// Stops the server in order; it stays away until [`TestCluster::start`].
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(&mut self) -> Result<(), EmbeddedError> {
        self.postgres.halt(Shutdown::Fast).await
    }

    /// Starts the server again.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(&mut self) -> Result<(), EmbeddedError> {
        self.postgres.resume().await
    }
}
