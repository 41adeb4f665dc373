//! What the API and the worker of Postrider share.
//!
//! - [`ids`]: public ids (`evt_…`) and their UUIDv7s.
//! - [`domain`]: the types both sides speak in; no IO.
//! - [`policy`]: pure decisions; time and chance come in as arguments.
//! - `store` (feature): the only place with SQL.
//! - `client_certificate` (feature `store`): what endpoints with mutual TLS show.
//! - `sealed_parts` (feature `store`): how an endpoint's headers and client certificate lie there.
//! - `sealing` (feature `store`): what lies encrypted in the database.
//! - `runtime` (feature): settings, clocks, telemetry, supervised tasks.
//! - `fail-points` (feature): where tests let a process die ([`fail_point!`]).
//! - `embedded_postgres` (feature): a private PostgreSQL for `postrider dev` and for tests.
//! - `testing` (feature): what tests of several crates need.
//!
//! Without features nothing here depends on tokio, a database or HTTP; `scripts/check-layers` proves it.

pub mod domain;
pub mod ids;
pub mod policy;

#[cfg(feature = "store")]
pub mod client_certificate;
#[cfg(feature = "embedded-postgres")]
pub mod embedded_postgres;
#[cfg(feature = "runtime")]
pub mod runtime;
#[cfg(feature = "store")]
pub mod sealed_parts;
#[cfg(feature = "store")]
pub mod sealing;
#[cfg(feature = "store")]
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
