//! The API from outside: real HTTP, real PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests; a test that cannot go on must fail"
)]

mod app;
mod audit_log;
mod auth;
mod bad_input;
mod batch;
mod client;
mod client_certificates;
mod degraded;
mod deliveries;
mod docs;
mod endpoint_headers;
mod endpoint_life;
mod endpoint_url;
mod endpoints;
mod etags;
mod event_types;
mod fuzz;
mod health;
mod idempotent_posts;
mod ingest;
mod journal;
mod keys;
mod limits;
mod lists;
mod long_lists;
mod matrix;
mod once;
mod ordered;
mod organization_lists;
mod postbacks;
mod proxy;
mod python;
mod removals;
mod removed;
mod replays;
mod signatures;
mod silent;
mod ssrf;
mod stats;
mod waiting;
