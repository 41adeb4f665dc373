//! The worker: owns slots, schedules, sends, records.
//!
//! One delivery's journey through here: `listener` (a hint) or the scan → `scheduler` (whose turn) →
//! `loader` (the row, its event, its endpoint) → `admission` → `deliver` (one attempt, top to bottom) →
//! `recorder` (one statement per batch, fenced) → `scheduler` (the permit comes back).
//!
//! - [`startup`] wires and lists all tasks · [`lease`] and [`tenure`] whose slots are whose · [`engine`] the shell around
//!   the [`scheduler`], which is a plain state machine · [`commands`] what the API asks for ·
//!   [`suspects`] what was on the wire when a worker died · [`jobs`] maintenance, one worker at a time.

pub mod admission;
mod attempt_span;
pub mod commands;
pub mod config;
pub mod deliver;
pub mod endpoint_config;
pub mod engine;
pub mod job;
pub mod jobs;
pub mod lease;
pub mod lines;
pub mod listener;
pub mod loader;
mod metrics;
pub mod pulse;
pub mod recorder;
pub mod request_shape;
pub mod scheduler;
pub mod sender;
pub mod signing_keys;
pub mod startup;
pub mod suspects;
pub mod tenure;
pub mod transitions;

pub use config::Config;
pub use jobs::NAMES as JOBS;
pub use jobs::stats::run_once as run_stats_once;
pub use startup::{CONNECTIONS, Running, start};
