//! The tenant REST API: who may call (`auth`), what they may say (`routes`), and how an event
//! becomes durable (`ingest`).
//!
//! One event's journey: `routes::events::publish` → `auth` (cached) → `routes::event_body` →
//! `ingest::Queue` → `ingest::writer` (one statement per batch, one commit) → 202; after the commit
//! `ingest::hints` tells the workers. While the database is away it goes to the [`journal`] instead, if there is one.
//!
//! Not here: sending. The API and the worker meet in the database only.

mod audit;
mod auth;
mod config;
mod connections;
mod health;
mod idempotency;
mod ingest;
mod instant;
pub mod journal;
mod json;
mod metrics;
mod openapi;
mod paging;
mod patience;
mod problem;
mod quotas;
mod request_id;
mod routes;
mod schemas;
mod startup;
mod trace_context;

pub use config::{Config, SETTINGS};
pub use startup::{Running, start};
