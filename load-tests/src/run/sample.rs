//! What a process and the database hold at one instant: memory, files, threads, dead rows.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;
use tokio_postgres::Client;

/// Of one process, out of `/proc`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Holds {
    pub(super) rss_kb: u64,
    pub(super) files: u64,
    pub(super) threads: u64,
}

/// Of the tables that a delivery passes through and leaves.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Tables {
    /// By table: rows that VACUUM has not taken away yet, as the statistics say.
    pub(super) dead_rows: BTreeMap<String, i64>,
    /// By table, with its indexes.
    pub(super) bytes: BTreeMap<String, i64>,
    /// Of all the database.
    pub(super) database_bytes: i64,
}

/// `None`: it has ended.
pub(super) fn process(id: u32) -> Option<Holds> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    Some(Holds {
        files: u64::try_from(fs::read_dir(format!("/proc/{id}/fd")).ok()?.count()).ok()?,
        ..holds(&status)?
    })
}

fn holds(status: &str) -> Option<Holds> {
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Holds {
        rss_kb: number("VmRSS:")?,
        threads: number("Threads:")?,
        files: 0,
    })
}

pub(super) async fn tables(client: &Client) -> anyhow::Result<Tables> {
    const TABLES: &str = "SELECT relname::text, n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables \
         WHERE relname IN ('ready', 'retry', 'ready_ordered', 'endpoint_runtime', 'workers', 'slots', 'suspects', 'commands', 'leases')";
    const DATABASE: &str = "SELECT pg_database_size(current_database())";
    let mut tables = Tables {
        database_bytes: client.query_one(DATABASE, &[]).await?.get(0),
        ..Tables::default()
    };
    for row in client.query(TABLES, &[]).await? {
        let name: String = row.get(0);
        tables.dead_rows.insert(name.clone(), row.get(1));
        tables.bytes.insert(name, row.get(2));
    }
    Ok(tables)
}

/// The slope of a line through these points, by least squares; `None`: fewer than two places.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|it| it.0), mean(|it| it.1));
    let spread: f64 = points.iter().map(|it| (it.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|it| (it.0 - x) * (it.1 - y)).sum();
    (spread > 0.0).then(|| together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_memory_files_and_threads() {
        let before = process(std::process::id()).unwrap();
        let _more = fs::File::open("/proc/self/status").unwrap();

        let after = process(std::process::id()).unwrap();

        assert!(before.rss_kb > 1_000 && before.threads > 0, "{before:?}");
        assert!(after.files > 0);
        assert_eq!(process(u32::MAX), None);
    }

    #[test]
    fn a_line_has_its_slope_and_a_point_has_none() {
        let line: Vec<(f64, f64)> = (0..9)
            .map(|x| (f64::from(x), 7.0 - 0.5 * f64::from(x)))
            .collect();

        assert!((slope(&line).unwrap() + 0.5).abs() < 1e-9);
        assert_eq!(slope(&line[..1]), None);
        assert_eq!(slope(&[]), None);
    }
}
