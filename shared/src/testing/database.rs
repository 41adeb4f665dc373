//! A migrated database for one test, copied from a template that is migrated once per process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::eventually;
use crate::embedded_postgres::{EmbeddedPostgres, Options, SUPERUSER};
use crate::store::migrate::migrate;
use crate::store::{Database, Role, Session, StoreError};

const TEMPLATE: &str = "template_migrated";
/// Databases waiting to be dropped; what is more stays until the process ends.
const MOST_UNNEEDED: usize = 1_000;

static SERVER: OnceCell<Server> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The cluster that the tests of this process share. A `static`, so never dropped: it ends when the
/// process does, because its standard input closes.
struct Server {
    postgres: EmbeddedPostgres,
    /// Databases that are no longer needed, dropped on a thread of their own: a test's runtime is
    /// gone by the time that its values are.
    unneeded: mpsc::SyncSender<String>,
}

/// A database of a test's own: migrated, empty, dropped at the end.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    url: String,
    database: Database,
    unneeded: mpsc::SyncSender<String>,
}

impl TestDatabase {
    /// Copies the template; the first call of a process starts a cluster and migrates it (about a
    /// second), each later one takes some tens of milliseconds.
    ///
    /// # Panics
    /// When there is no PostgreSQL, with what to do about it; a test cannot go on without.
    #[expect(clippy::panic, reason = "a test cannot go on without its database")]
    pub async fn new() -> Self {
        match Self::create().await {
            Ok(database) => database,
            Err(error) => panic!("no database for this test: {error:#}"),
        }
    }

    async fn create() -> Result<Self, Box<dyn std::error::Error>> {
        let server = SERVER.get_or_try_init(start).await?;
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let admin = connect(&server.postgres.url("postgres")).await?;
        admin
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}"))
            .await?;
        let url = server.postgres.url(&name);
        Ok(Self {
            database: Database::new(&url)?,
            url,
            name,
            unneeded: server.unneeded.clone(),
        })
    }

    /// For programs that are given a `DATABASE_URL`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// For code in this process.
    #[must_use]
    pub fn database(&self) -> Database {
        self.database.clone()
    }

    /// A connection for the test's own questions, apart from those of the code under test.
    ///
    /// # Panics
    /// When the database does not answer.
    #[expect(clippy::panic, reason = "a test cannot go on without its database")]
    pub async fn session(&self) -> Session {
        match self.database.connect(Role::Maintenance).await {
            Ok(session) => session,
            Err(error) => panic!("the test's database does not answer: {error}"),
        }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self
            .unneeded
            .try_send(std::mem::take(&mut self.name))
            .is_err()
        {
            tracing::debug!("a test's database stays until its process ends");
        }
    }
}

async fn start() -> Result<Server, Box<dyn std::error::Error>> {
    let postgres = EmbeddedPostgres::start(Options::throw_away()).await?;
    let admin = connect(&postgres.url("postgres")).await?;
    admin
        .batch_execute(&format!("CREATE DATABASE {TEMPLATE}"))
        .await?;
    migrate(&Database::new(&postgres.url(TEMPLATE))?).await?;
    seal(&admin).await?;
    let (unneeded, names) = mpsc::sync_channel(MOST_UNNEEDED);
    let url = postgres.url(SUPERUSER);
    std::thread::Builder::new()
        .name("drop test databases".to_owned())
        .spawn(move || drop_databases(&url, &names))?;
    Ok(Server { postgres, unneeded })
}

/// A template can be copied only while nobody is connected to it, and a closed connection takes a
/// moment to be gone.
async fn seal(admin: &Session) -> Result<(), StoreError> {
    admin
        .batch_execute(&format!(
            "ALTER DATABASE {TEMPLATE} WITH ALLOW_CONNECTIONS false"
        ))
        .await?;
    eventually(Duration::from_secs(10), || async {
        let query = "SELECT FROM pg_stat_activity WHERE datname = $1";
        match admin.query(query, &[&TEMPLATE]).await {
            Ok(rows) => rows.is_empty().then_some(Ok(())),
            Err(error) => Some(Err(error.into())),
        }
    })
    .await
}

async fn connect(url: &str) -> Result<Session, StoreError> {
    Database::new(url)?.connect(Role::Maintenance).await
}

fn drop_databases(url: &str, names: &mpsc::Receiver<String>) {
    let dropping = || -> Result<(), Box<dyn std::error::Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let session = runtime.block_on(connect(url))?;
        for name in names {
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            runtime.block_on(session.batch_execute(&drop))?;
        }
        Ok(())
    };
    if let Err(error) = dropping() {
        tracing::debug!(%error, "the databases of this process's tests stay until it ends");
    }
}
