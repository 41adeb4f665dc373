//! How long claims take, by `pg_stat_statements`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Client;

use crate::payload::now_ns;
use crate::run::database::Postgres;
use crate::run::scripts::statements::queries_of;

/// How often the slowest is looked at. The slowest of each interval is what is ranked, so the p99 that is told
/// is one that no more than 1 % of the claims can have exceeded, if the intervals have about as many claims each.
const EVERY: Duration = Duration::from_millis(50);
/// At how many looks the statements' ids are looked for: reading all texts takes longer than counting.
const SEARCH_EVERY: usize = 20;
/// The statements that are claims.
const CLAIMS: [&str; 2] = ["queue::load_ready", "queue::load_retry"];

/// Watches them over a connection of its own.
pub(super) struct Claims {
    client: Client,
    queries: BTreeSet<i64>,
}

/// Claims of one window.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Claimed {
    pub(super) calls: i64,
    pub(super) rows: i64,
    pub(super) mean_ms: f64,
    /// Of the slowest in each twentieth of a second.
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

/// What was counted since the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    calls: i64,
    ms: f64,
    max_ms: f64,
    rows: i64,
}

impl Claims {
    pub(super) async fn new(postgres: &Postgres) -> anyhow::Result<Self> {
        Ok(Self {
            client: postgres.connect().await?,
            queries: BTreeSet::new(),
        })
    }

    /// From now to an instant of the boot clock, in nanoseconds.
    pub(super) async fn watch(&mut self, until_ns: u64) -> anyhow::Result<Claimed> {
        self.search().await?;
        self.look().await?;
        let mut looks = Vec::new();
        while now_ns() < until_ns {
            if looks.len() % SEARCH_EVERY == SEARCH_EVERY - 1 {
                self.search().await?;
            }
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            tokio::time::sleep(EVERY.min(left)).await;
            looks.push(self.look().await?);
        }
        Ok(Claimed::of(&looks))
    }

    /// A statement has an id when it has run.
    async fn search(&mut self) -> anyhow::Result<()> {
        if self.queries.len() < CLAIMS.len() {
            let found = queries_of(&self.client, &CLAIMS).await?;
            self.queries.extend(found);
        }
        Ok(())
    }

    /// Counts, and begins anew.
    async fn look(&self) -> anyhow::Result<Look> {
        let queries: Vec<i64> = self.queries.iter().copied().collect();
        const QUERY: &str = "SELECT coalesce(sum(calls), 0)::int8, coalesce(sum(total_exec_time), 0)::float8, \
             coalesce(max(max_exec_time), 0)::float8, coalesce(sum(rows), 0)::int8 \
             FROM pg_stat_statements(false) WHERE queryid = ANY($1)";
        const FORGET: &str = "SELECT pg_stat_statements_reset(0, 0, q) FROM unnest($1::int8[]) q";
        let row = self.client.query_one(QUERY, &[&queries]).await?;
        self.client.query(FORGET, &[&queries]).await?;
        Ok(Look {
            calls: row.get(0),
            ms: row.get(1),
            max_ms: row.get(2),
            rows: row.get(3),
        })
    }
}

impl Claimed {
    fn of(looks: &[Look]) -> Self {
        let calls: i64 = looks.iter().map(|it| it.calls).sum();
        let ms: f64 = looks.iter().map(|it| it.ms).sum();
        let mut slowest: Vec<f64> = looks
            .iter()
            .filter(|it| it.calls > 0)
            .map(|it| it.max_ms)
            .collect();
        slowest.sort_by(f64::total_cmp);
        // The nearest rank.
        let rank = (slowest.len() * 99).div_ceil(100).saturating_sub(1);
        let rounded = |it: f64| (it * 1e3).round() / 1e3;
        Self {
            calls,
            rows: looks.iter().map(|it| it.rows).sum(),
            mean_ms: rounded(ms / calls.max(1) as f64),
            p99_ms: rounded(slowest.get(rank).copied().unwrap_or_default()),
            max_ms: rounded(slowest.last().copied().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_each_interval_are_ranked_and_the_mean_is_of_all() {
        let look = |max_ms| Look {
            calls: 10,
            ms: 5.0,
            max_ms,
            rows: 30,
        };
        let mut looks: Vec<Look> = (1..=100).map(|it| look(f64::from(it))).collect();
        looks.push(Look::default());

        let claimed = Claimed::of(&looks);

        assert_eq!((claimed.calls, claimed.rows), (1_000, 3_000));
        assert_eq!(
            (claimed.mean_ms, claimed.p99_ms, claimed.max_ms),
            (0.5, 99.0, 100.0)
        );
        assert_eq!(Claimed::of(&[]).calls, 0);
    }
}
