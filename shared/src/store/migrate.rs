//! Brings a database to the schema of this program: forward only, embedded, one process at a time.
//!
//! Not a tool to go back: a schema that is newer than the program is refused, and a bad migration is
//! repaired by the next one. Every file of `migrations/` is a line of [`MIGRATIONS`].
//!
//! # Invariants
//! - A migration and its row in `schema_migrations` commit together: a process that is killed in the
//!   middle leaves nothing half applied. So nothing that refuses to run in a transaction (`CREATE
//!   INDEX CONCURRENTLY`) can be a migration.
//! - Two processes at once: the second waits, bounded, and then finds nothing to do. It asks for the
//!   lock again and again instead of queueing for it, because a statement that waits holds a snapshot.
//! - A migration waits for a lock at most [`LOCK_TIMEOUT`]: everybody who writes queues behind it.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::pool::within;
use super::{Database, Role, Session, StoreError, partitions};

/// One file of `migrations/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// The number its file name begins with; without gaps, from 1.
    pub version: i32,
    /// The rest of the file name.
    pub name: &'static str,
    /// What it runs, in one transaction.
    pub sql: &'static str,
}

macro_rules! migrations {
    ($(($version:literal, $name:literal, $file:literal)),* $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../../migrations/", $file)),
        }),*]
    };
}

/// All of them, oldest first.
pub const MIGRATIONS: &[Migration] = migrations![
    (1, "create_configuration", "0001_create_configuration.sql"),
    (
        2,
        "create_events_and_queues",
        "0002_create_events_and_queues.sql"
    ),
    (3, "create_ownership", "0003_create_ownership.sql"),
    (4, "index_full_endpoints", "0004_index_full_endpoints.sql"),
    (5, "mark_draining_workers", "0005_mark_draining_workers.sql"),
    (6, "add_delivery_policy", "0006_add_delivery_policy.sql"),
    (7, "add_dialled_addresses", "0007_add_dialled_addresses.sql"),
    (
        8,
        "add_client_certificate",
        "0008_add_client_certificate.sql"
    ),
    (9, "add_key_pairs", "0009_add_key_pairs.sql"),
    (10, "add_pauses", "0010_add_pauses.sql"),
    (11, "add_replays", "0011_add_replays.sql"),
    (12, "add_external_ids", "0012_add_external_ids.sql"),
    (13, "add_claims", "0013_add_claims.sql"),
    (14, "add_event_schemas", "0014_add_event_schemas.sql"),
    (
        15,
        "add_limits_and_audit_log",
        "0015_add_limits_and_audit_log.sql"
    ),
    (16, "complete_removals", "0016_complete_removals.sql"),
    (17, "index_kept_replies", "0017_index_kept_replies.sql"),
    (18, "add_endpoint_stats", "0018_add_endpoint_stats.sql"),
    (19, "add_trace_contexts", "0019_add_trace_contexts.sql"),
];

/// The schema that this program reads and writes.
pub const SCHEMA_VERSION: i32 = match MIGRATIONS.last() {
    Some(migration) => migration.version,
    None => 0,
};

/// How long a process waits for another one that is migrating.
pub const LOCK_WAIT: Duration = Duration::from_secs(60);
/// How often it asks meanwhile.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// How long it may take to see which migrations a database has.
const CHECK_BUDGET: Duration = Duration::from_secs(15);
/// The longest a migration waits for a table's lock. Longer stalls ingest, shorter never gets it.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a migration that did not get its locks is tried before giving up.
const TRIES: u32 = 10;
/// The pause between two tries: lets what queued behind us pass.
const PAUSE: Duration = Duration::from_secs(1);

/// "PostMigr": any number that nobody else in the database uses as an advisory lock.
const LOCK_KEY: i64 = 0x506f_7374_4d69_6772;

/// Takes or refuses the session's advisory lock at once.
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock($1)";
/// Gives it back.
const UNLOCK: &str = "SELECT pg_advisory_unlock($1)";
/// The table of what was applied; written under the lock only.
const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
  version    int4 PRIMARY KEY,
  name       text NOT NULL,
  checksum   bytea NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
)";
/// Whether this database was ever migrated.
const TABLE_EXISTS: &str = "SELECT to_regclass('schema_migrations') IS NOT NULL";
/// What was applied, oldest first.
const APPLIED: &str = "SELECT version, name, checksum FROM schema_migrations ORDER BY version";
/// In the transaction of the migration.
const INSERT: &str = "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("migrate.try_lock", TRY_LOCK),
    ("migrate.unlock", UNLOCK),
    ("migrate.table_exists", TABLE_EXISTS),
    ("migrate.applied", APPLIED),
    ("migrate.insert", INSERT),
];

/// A migration that was applied just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub version: i32,
    /// Its name.
    pub name: &'static str,
}

/// Why a database does not have the schema of this program.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database was migrated by a newer program.
    #[error(
        "the database has schema version {database}, this program knows only {program}: \
         install a newer version of Postrider, or use another database"
    )]
    Newer {
        /// The version found.
        database: i32,
        /// The version this program brings.
        program: i32,
    },
    /// Migrations are missing.
    #[error(
        "the database has schema version {database}, this program needs {program}: \
         run `postrider migrate`"
    )]
    Behind {
        /// The version found; 0 when the database was never migrated.
        database: i32,
        /// The version this program needs.
        program: i32,
    },
    /// An applied migration is not the one of this program.
    #[error(
        "migration {version} ({name}) differs from the one that was applied to this database: \
         it was changed after its release, or the database belongs to another program; \
         restore the file, and make a new migration for the change"
    )]
    Changed {
        /// Its number.
        version: i32,
        /// Its name in the database.
        name: String,
    },
    /// Somebody else holds the lock.
    #[error(
        "another process has been migrating this database for {0:?}: wait for it, then try again"
    )]
    Busy(Duration),
    /// A migration could not be applied; nothing of it was.
    #[error("migration {version} ({name}) was not applied: {cause}")]
    Failed {
        /// Its number.
        version: i32,
        /// Its name.
        name: &'static str,
        /// What the database said.
        cause: StoreError,
    },
    /// The database is away, or refuses us.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<tokio_postgres::Error> for MigrateError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Applies what is missing and makes the partitions of the coming days.
///
/// # Errors
/// See [`MigrateError`]; what was applied before the error stays.
pub async fn migrate(database: &Database) -> Result<Vec<Applied>, MigrateError> {
    // The lock is a session's: shared, it would be another's.
    database.refuse_shared_sessions().await?;
    let (session, applied) = migrate_to(database, MIGRATIONS, LOCK_WAIT).await?;
    let now = partitions::database_time(&session).await?;
    partitions::ensure(&session, now, partitions::DAYS_AHEAD).await?;
    session.query_one(UNLOCK, &[&LOCK_KEY]).await?;
    Ok(applied)
}

/// Applies what is missing of `migrations`, without partitions, waiting at most `lock_wait` for
/// another process. The session returned still holds the lock; dropping it gives the lock back.
///
/// # Errors
/// As [`migrate`].
pub async fn migrate_to(
    database: &Database,
    migrations: &[Migration],
    lock_wait: Duration,
) -> Result<(Session, Vec<Applied>), MigrateError> {
    let mut session = database.connect(Role::Maintenance).await?;
    lock(&session, lock_wait).await?;
    session.batch_execute(CREATE_TABLE).await?;
    let missing = missing(&session, migrations).await?;
    let mut applied = Vec::with_capacity(missing.len());
    for migration in missing {
        apply(&mut session, migration).await?;
        tracing::info!(
            migration.version = migration.version,
            migration.name = migration.name,
            "applied a migration"
        );
        applied.push(Applied {
            version: migration.version,
            name: migration.name,
        });
    }
    Ok((session, applied))
}

/// What `migrate` would apply.
///
/// # Errors
/// As [`check_version`], without [`MigrateError::Behind`].
pub async fn pending(database: &Database) -> Result<Vec<Migration>, MigrateError> {
    within(CHECK_BUDGET, async {
        let session = database.connect(Role::Maintenance).await?;
        Ok::<_, StoreError>(missing(&session, MIGRATIONS).await)
    })
    .await?
    .map(|missing| missing.into_iter().copied().collect())
}

/// For the start of a process: whether the database has exactly the schema of this program.
///
/// # Errors
/// [`MigrateError::Newer`], [`MigrateError::Behind`] or [`MigrateError::Changed`], each saying what
/// to do; [`MigrateError::Store`] when the database does not answer.
pub async fn check_version(database: &Database) -> Result<(), MigrateError> {
    match pending(database).await?.first() {
        None => Ok(()),
        Some(first) => Err(MigrateError::Behind {
            database: first.version - 1,
            program: SCHEMA_VERSION,
        }),
    }
}

/// SHA-256 of a migration's text, whatever line ends the checkout has.
#[must_use]
pub fn checksum(sql: &str) -> Vec<u8> {
    Sha256::digest(sql.replace("\r\n", "\n")).to_vec()
}

async fn lock(session: &Client, wait: Duration) -> Result<(), MigrateError> {
    let ask = async {
        let mut interval = tokio::time::interval(LOCK_POLL);
        loop {
            interval.tick().await;
            let row = session.query_one(TRY_LOCK, &[&LOCK_KEY]).await?;
            if row.get::<_, bool>(0) {
                return Ok(());
            }
        }
    };
    match tokio::time::timeout(wait, ask).await {
        Ok(result) => result,
        Err(_elapsed) => Err(MigrateError::Busy(wait)),
    }
}

/// Compares what was applied with what we have; the rest is what is missing.
async fn missing<'a>(
    session: &Client,
    migrations: &'a [Migration],
) -> Result<Vec<&'a Migration>, MigrateError> {
    let exists: bool = session.query_one(TABLE_EXISTS, &[]).await?.get(0);
    if !exists {
        return Ok(migrations.iter().collect());
    }
    let rows = session.query(APPLIED, &[]).await?;
    let program = migrations.last().map_or(0, |last| last.version);
    let newest: i32 = rows.last().map_or(0, |row| row.get(0));
    if newest > program {
        return Err(MigrateError::Newer {
            database: newest,
            program,
        });
    }
    // Versions have no gaps, so what was applied is the beginning of our list.
    let mut ours = migrations.iter();
    for row in &rows {
        let (version, name): (i32, String) = (row.get(0), row.get(1));
        let sum: Vec<u8> = row.get(2);
        match ours.next() {
            Some(own) if own.version == version && checksum(own.sql) == sum => {}
            Some(_) | None => return Err(MigrateError::Changed { version, name }),
        }
    }
    Ok(ours.collect())
}

async fn apply(session: &mut Session, migration: &Migration) -> Result<(), MigrateError> {
    let mut tries = 1;
    loop {
        let cause = match apply_once(session, migration).await {
            Ok(()) => return Ok(()),
            Err(cause) => StoreError::from(cause),
        };
        if tries == TRIES || !matches!(cause, StoreError::Contention(_)) {
            return Err(MigrateError::Failed {
                version: migration.version,
                name: migration.name,
                cause,
            });
        }
        tries += 1;
        tracing::warn!(
            migration.version = migration.version,
            error = %cause,
            "a migration did not get its locks; trying again"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

async fn apply_once(
    session: &mut Session,
    migration: &Migration,
) -> Result<(), tokio_postgres::Error> {
    let transaction = session.transaction().await?;
    let timeout = format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    transaction.batch_execute(&timeout).await?;
    transaction.batch_execute(migration.sql).await?;
    let sum = checksum(migration.sql);
    transaction
        .execute(INSERT, &[&migration.version, &migration.name, &sum])
        .await?;
    transaction.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_and_the_table_are_equal() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations");
        let mut files: Vec<(String, String)> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "sql"))
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        files.sort();

        let table: Vec<(String, String)> = MIGRATIONS
            .iter()
            .map(|m| (format!("{:04}_{}.sql", m.version, m.name), m.sql.to_owned()))
            .collect();

        assert_eq!(files, table);
    }

    #[test]
    fn versions_have_no_gaps() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(|m| m.version).collect();

        assert_eq!(versions, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn a_checksum_does_not_depend_on_line_ends() {
        assert_eq!(
            checksum("SELECT 1;\r\nSELECT 2;\r\n"),
            checksum("SELECT 1;\nSELECT 2;\n")
        );
        assert_ne!(checksum("SELECT 1;"), checksum("SELECT 2;"));
    }
}
