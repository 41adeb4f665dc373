//! The API from outside: real HTTP, real PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests; a test that cannot go on must fail"
)]

mod app;
mod auth;
mod bad_input;
mod client;
mod client_certificates;
mod deliveries;
mod docs;
mod endpoint_headers;
mod endpoint_life;
mod endpoint_url;
mod endpoints;
mod etags;
mod fuzz;
mod health;
mod ingest;
mod lists;
mod matrix;
mod ordered;
mod proxy;
mod python;
mod signatures;
mod ssrf;
mod waiting;
