//! What a process needs around the work: clocks, chance, settings, telemetry, tasks that are watched.

pub mod clock;
pub mod supervisor;

pub use supervisor::{Supervisor, spawn_driver};
