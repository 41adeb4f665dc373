//! The store against a real PostgreSQL. One binary, so that all tests share one cluster; a database
//! of its own for each.

#![cfg(feature = "testing")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and the line says where"
)]

mod backlog;
mod disable;
mod endpoint_runtime;
mod expire;
mod gauges;
mod ingest;
mod leases;
mod list_plans;
mod migrate;
mod notices;
mod ordered;
mod organization_lists;
mod owner;
mod partitions;
mod pauses;
mod plans;
mod policy_plans;
mod queue;
mod recovery;
mod removals;
mod replays;
mod retention;
mod sealed;
mod sessions;
mod slots;
mod statements;
mod traces;
mod world;
