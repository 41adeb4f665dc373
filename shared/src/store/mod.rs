//! The only place with SQL.
//!
//! Each statement is one `const` beside the one function that binds it, with a line that names the
//! index it uses and the lock it takes. "Now" is the database's clock, or a parameter.
//!
//! tokio-postgres checks nothing at compile time, so every module lists its statements as
//! `pub const STATEMENTS: &[(&str, &str)]` (`"module.statement"`, the SQL), [`statements`] chains
//! the lists, and a test prepares each one against the migrated schema (`tests/store/statements.rs`).
//! A new module adds its list there. Utility statements that cannot be prepared (DDL) stay out.

pub mod aliases;
pub mod attempts;
pub mod audit_log;
pub mod backlog;
pub mod commands;
mod connect;
pub mod dead_letters;
pub mod deliveries;
pub mod doctor;
pub mod endpoint_configs;
pub mod endpoint_health;
pub mod endpoint_runtime;
pub mod endpoint_secrets;
pub mod endpoints;
pub mod error;
pub mod event_types;
pub mod events;
pub mod failure;
pub mod found;
pub mod gauges;
pub mod health;
pub mod ingest;
pub mod keys;
pub mod leases;
pub mod limits;
pub mod migrate;
pub mod new_id;
pub mod notices;
pub mod notify;
pub mod oldest;
pub mod organization_lists;
pub mod partitions;
pub mod pauses;
pub mod pipeline;
pub mod pool;
pub mod queue;
pub mod reader;
pub mod recovery;
pub mod removals;
pub mod replays;
pub mod replies;
pub mod retention;
pub mod sealed;
pub mod slots;
pub mod stats;
pub mod tenants;
pub mod test_sends;

pub use error::StoreError;
pub use found::Found;
pub use pool::{Database, Pool, Pooled, Role, Session};
pub use reader::Reader;
pub use tokio_postgres::Transaction;

use deadpool_postgres::ClientWrapper;

/// One snapshot for several statements that read: a delivery that moves meanwhile is found where it was. They walk
/// indexes in their order rather than sort, by plans for any values, which the connection keeps ([`Reader`]).
///
/// # Errors
/// Any [`StoreError`].
pub async fn snapshot(
    client: &mut ClientWrapper,
) -> Result<deadpool_postgres::Transaction<'_>, StoreError> {
    const PLANS: &str =
        "SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_sort = off";
    let reading = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true);
    let snapshot = reading.start().await?;
    snapshot.batch_execute(PLANS).await?;
    Ok(snapshot)
}

/// Every statement of the store, by name.
pub fn statements() -> impl Iterator<Item = (&'static str, &'static str)> {
    [
        slots::STATEMENTS,
        queue::STATEMENTS,
        endpoint_configs::STATEMENTS,
        endpoint_health::STATEMENTS,
        endpoint_runtime::STATEMENTS,
        endpoint_secrets::STATEMENTS,
        recovery::STATEMENTS,
        replays::STATEMENTS,
        replays::again::STATEMENTS,
        replays::walk::STATEMENTS,
        replays::work::STATEMENTS,
        replies::STATEMENTS,
        commands::STATEMENTS,
        aliases::STATEMENTS,
        attempts::STATEMENTS,
        dead_letters::STATEMENTS,
        audit_log::STATEMENTS,
        deliveries::STATEMENTS,
        deliveries::page::STATEMENTS,
        doctor::STATEMENTS,
        endpoints::STATEMENTS,
        event_types::STATEMENTS,
        events::STATEMENTS,
        health::STATEMENTS,
        ingest::STATEMENTS,
        keys::STATEMENTS,
        notices::STATEMENTS,
        notify::STATEMENTS,
        tenants::STATEMENTS,
        test_sends::STATEMENTS,
        migrate::STATEMENTS,
        new_id::STATEMENTS,
        organization_lists::STATEMENTS,
        partitions::STATEMENTS,
        pauses::STATEMENTS,
        leases::STATEMENTS,
        limits::STATEMENTS,
        removals::STATEMENTS,
        retention::STATEMENTS,
        sealed::STATEMENTS,
        backlog::STATEMENTS,
        gauges::STATEMENTS,
        oldest::STATEMENTS,
        pipeline::STATEMENTS,
        stats::STATEMENTS,
        stats::judging::STATEMENTS,
        stats::reading::STATEMENTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}
