//! History is made by SQL, between the points.

use shared::runtime::clock::wall_time;
use shared::store::partitions;
use tokio_postgres::Client;

use super::claims::Claims;
use super::{full_speed, measured, told};
use crate::run::stage::Stage;

/// Rows that are made in one transaction.
const AT_ONCE: i64 = 500_000;

pub(super) async fn play(
    stage: &mut Stage<'_>,
    claims: &mut Claims,
    rows: [i64; 3],
) -> anyhow::Result<()> {
    let client = stage.system.postgres.connect().await?;
    partitions::ensure(&client, wall_time(), 0).await?;
    client
        .batch_execute(include_str!("../telemetry/fill.sql"))
        .await?;
    client.batch_execute(include_str!("history.sql")).await?;
    let mut points = Vec::new();
    let mut made = 0;
    for rows in rows {
        made = fill(&client, made, rows).await?;
        let load = full_speed(stage, stage.world.in_turn());
        let point = measured(stage, claims, load).await?;
        points.push(told("history_rows", made, stage, &point));
    }
    stage.detail("points", points);
    Ok(())
}

/// Makes what is missing to `rows`.
async fn fill(client: &Client, made: i64, rows: i64) -> anyhow::Result<i64> {
    let mut next = made;
    while next < rows {
        let count = AT_ONCE.min(rows - next);
        client
            .batch_execute(&format!("CALL pg_temp.history({next}, {count})"))
            .await?;
        next += count;
        eprintln!("  {next} of {rows} rows of history");
    }
    // Neither autovacuum nor a checkpoint of these rows is to be measured.
    client.batch_execute("VACUUM (ANALYZE)").await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(rows)
}
