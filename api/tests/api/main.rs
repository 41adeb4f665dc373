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
mod client_certificates;
mod degraded;
mod deliveries;
mod endpoint_headers;
mod endpoint_life;
mod endpoint_url;
mod endpoints;
mod health;
mod ingest;
mod keys;
mod limits;
mod lists;
mod ordered;
mod organization_lists;
mod proxy;
mod removals;
mod signatures;
mod ssrf;
