//! What a process needs around the work: clocks, chance, settings, telemetry, tasks that are watched.

pub mod budgets;
pub mod clock;
pub mod jitter;
pub mod open_files;
pub mod program;
pub mod settings;
pub mod shutdown;
pub mod supervisor;
pub mod telemetry;
pub mod traces;

pub use supervisor::{Supervisor, spawn_driver};
