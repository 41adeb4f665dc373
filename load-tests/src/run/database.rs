//! The database of a scenario: an embedded PostgreSQL that forgets nothing, and its counters.

use std::collections::{BTreeMap, HashMap};

use anyhow::Context as _;
use shared::embedded_postgres::{EmbeddedPostgres, Options};
use shared::runtime::spawn_driver;
use shared::store::Database;
use shared::store::migrate::migrate;
use tokio_postgres::{Client, NoTls};

use crate::ids::Id;
use crate::receiver::random_half;

/// The database's name in its cluster.
const NAME: &str = "postrider_load";

/// What `docs/performance.md` tells an operator to set on such a machine, and what is not durable
/// is not among it: `fsync`, `full_page_writes` and `synchronous_commit` stay on.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
    ("wal_compression", "lz4"),
    // PostgreSQL's own; the embedded server's default is shorter.
    ("autovacuum_naptime", "1min"),
];

/// A running cluster with a migrated database.
pub(super) struct Postgres {
    server: EmbeddedPostgres,
    pub(super) url: String,
    pub(super) postmaster: u32,
    /// Whether the statements are counted.
    statements: bool,
    /// For the counters.
    client: Client,
}

/// What the counters say at one instant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counters {
    wal_bytes: i64,
    commits: i64,
}

impl Postgres {
    pub(super) async fn start(more: &[String], statements: bool) -> anyhow::Result<Self> {
        let mut settings: Vec<(String, String)> = SETTINGS
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        if statements {
            settings.push((
                "shared_preload_libraries".to_owned(),
                "pg_stat_statements".to_owned(),
            ));
        }
        for setting in more {
            let (name, value) = setting.split_once('=').with_context(|| setting.clone())?;
            settings.push((name.to_owned(), value.to_owned()));
        }
        let options = Options {
            data_dir: None,
            durable: true,
            settings,
        };
        let server = EmbeddedPostgres::start(options).await?;
        let maintenance = connect(&server.url("postgres")).await?;
        maintenance
            .batch_execute(&format!("CREATE DATABASE {NAME}"))
            .await?;
        let url = server.url(NAME);
        migrate(&Database::new(&url)?).await?;
        let postmaster = server.pid().context("PostgreSQL has no process id")?;
        let client = connect(&url).await?;
        if statements {
            client
                .batch_execute("CREATE EXTENSION pg_stat_statements")
                .await?;
        }
        Ok(Self {
            statements,
            server,
            url,
            postmaster,
            client,
        })
    }

    /// A connection for what a script asks of the database by itself.
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Bytes of WAL and commits since the cluster was made.
    pub(super) async fn counters(&self) -> anyhow::Result<Counters> {
        const QUERY: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8, \
             (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())";
        let row = self.client.query_one(QUERY, &[]).await?;
        Ok(Counters {
            wal_bytes: row.get(0),
            commits: row.get(1),
        })
    }

    /// Writes what the statements cost so far to stderr, if they are counted.
    pub(super) async fn show_statements(&self) -> anyhow::Result<()> {
        const QUERY: &str = "SELECT format('%8s calls %8s ms  %9s ms each %8s rows each %8s B WAL each  %s', calls, \
             round(total_exec_time), round(mean_exec_time::numeric, 3), round(rows::numeric / calls, 1), \
             round(wal_bytes / calls), left(regexp_replace(query, '\\s+', ' ', 'g'), 110)) \
             FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 14";
        if self.statements {
            for row in self.client.query(QUERY, &[]).await? {
                eprintln!("{}", row.get::<_, &str>(0));
            }
        }
        Ok(())
    }

    /// Its time, as the API takes it.
    pub(super) async fn now(&self) -> anyhow::Result<String> {
        const QUERY: &str = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
        Ok(self.client.query_one(QUERY, &[]).await?.get(0))
    }

    /// Deliveries that are not final.
    pub(super) async fn live(&self) -> anyhow::Result<i64> {
        const QUERY: &str = "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM retry) \
             + (SELECT count(*) FROM ready_ordered)";
        Ok(self.client.query_one(QUERY, &[]).await?.get(0))
    }

    /// Events of which a delivery is live, dead or closed.
    pub(super) async fn kept(&self) -> anyhow::Result<Vec<Id>> {
        const QUERY: &str = "SELECT event_id FROM ready UNION SELECT event_id FROM retry \
             UNION SELECT event_id FROM ready_ordered UNION SELECT event_id FROM dead_letters \
             UNION SELECT event_id FROM closed";
        let rows = self.client.query(QUERY, &[]).await?;
        let id = |row: &tokio_postgres::Row| row.get::<_, uuid::Uuid>(0).as_u128();
        Ok(rows.iter().map(id).collect())
    }

    /// Dead letters, and deliveries that were skipped or cancelled.
    pub(super) async fn ended_undelivered(&self) -> anyhow::Result<(i64, i64)> {
        const QUERY: &str =
            "SELECT (SELECT count(*) FROM dead_letters), (SELECT count(*) FROM closed)";
        let row = self.client.query_one(QUERY, &[]).await?;
        Ok((row.get(0), row.get(1)))
    }

    /// The process ids of living workers with the number of endpoints that each owns, most first.
    pub(super) async fn owners(&self) -> anyhow::Result<Vec<(u32, i64)>> {
        // A worker's name ends with its process id.
        const QUERY: &str = "SELECT w.name, count(*) FROM endpoints e JOIN slots s ON s.slot = e.slot \
             JOIN workers w ON w.id = s.owner GROUP BY w.id, w.name ORDER BY count(*) DESC";
        let rows = self.client.query(QUERY, &[]).await?;
        let owner = |row: &tokio_postgres::Row| {
            let id = row.get::<_, &str>(0).rsplit(' ').next()?.parse().ok()?;
            Some((id, row.get(1)))
        };
        Ok(rows.iter().filter_map(owner).collect())
    }

    /// The numbers of the endpoints that the worker with this process id owns.
    pub(super) async fn owned_by(&self, worker: u32) -> anyhow::Result<Vec<usize>> {
        const QUERY: &str = "SELECT substring(e.url from '/e/([0-9]+)$')::int8 FROM endpoints e \
             JOIN slots s ON s.slot = e.slot JOIN workers w ON w.id = s.owner WHERE w.name LIKE '% ' || $1 ORDER BY 1";
        let rows = self.client.query(QUERY, &[&worker.to_string()]).await?;
        let number = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i64>(0)).ok();
        Ok(rows.iter().filter_map(number).collect())
    }

    /// A connection of its own, for a session that is held, or a look beside other questions.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.url).await
    }

    /// Another database in this cluster; its URL.
    pub(super) async fn create_database(&self, name: &str) -> anyhow::Result<String> {
        let create = format!("CREATE DATABASE {name}");
        self.client.batch_execute(&create).await?;
        Ok(self.server.url(name))
    }

    /// When the recorded attempts of each delivery started, in order; nanoseconds of database time.
    pub(super) async fn starts(&self) -> anyhow::Result<HashMap<u64, Vec<i64>>> {
        const QUERY: &str = "SELECT delivery_id, (extract(epoch FROM started_at) * 1e6)::int8 * 1000 \
             FROM attempts ORDER BY started_at";
        let mut starts: HashMap<u64, Vec<i64>> = HashMap::new();
        for row in self.client.query(QUERY, &[]).await? {
            let delivery = row.get::<_, uuid::Uuid>(0).as_u128();
            starts
                .entry(random_half(delivery))
                .or_default()
                .push(row.get(1));
        }
        Ok(starts)
    }

    /// Endpoints whose breaker is not closed.
    pub(super) async fn breakers_open(&self) -> anyhow::Result<i64> {
        const QUERY: &str = "SELECT count(*) FROM endpoint_runtime WHERE breaker <> 0";
        Ok(self.client.query_one(QUERY, &[]).await?.get(0))
    }

    /// Makes the probe of every open breaker due. Its owner reads it when it takes the slot over.
    pub(super) async fn make_probes_due(&self) -> anyhow::Result<()> {
        const STATEMENT: &str = "UPDATE endpoint_runtime SET next_probe_at = now() - interval '1 s' \
             WHERE breaker <> 0";
        self.client.execute(STATEMENT, &[]).await?;
        Ok(())
    }

    /// The backends of the system under test, by the name of their program.
    pub(super) async fn backends(&self) -> anyhow::Result<BTreeMap<u32, String>> {
        const QUERY: &str = "SELECT pid, coalesce(nullif(application_name, ''), 'client') \
             FROM pg_stat_activity WHERE backend_type = 'client backend'";
        let rows = self.client.query(QUERY, &[]).await?;
        let name = |row: &tokio_postgres::Row| {
            let id = u32::try_from(row.get::<_, i32>(0)).ok()?;
            Some((id, format!("backends of {}", row.get::<_, &str>(1))))
        };
        Ok(rows.iter().filter_map(name).collect())
    }
}

impl Counters {
    /// Bytes of WAL and commits per delivery since `before`.
    pub(super) fn per_delivery(self, before: Self, deliveries: u64) -> (f64, f64) {
        let each = |count: i64| count as f64 / (deliveries.max(1)) as f64;
        (
            each(self.wal_bytes - before.wal_bytes),
            each(self.commits - before.commits),
        )
    }
}

impl Postgres {
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        // Before the server ends it, which would be an error.
        drop(self.client);
        Ok(self.server.stop().await?)
    }
}

pub(super) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    spawn_driver(async move {
        if let Err(error) = connection.await {
            eprintln!("the counters' connection to the database ended: {error}");
        }
    });
    Ok(client)
}
