//! What a process needs around the work: clocks, chance, settings, telemetry, tasks that are watched.

pub mod budgets;
pub mod clock;
#[cfg(feature = "fail-points")]
pub mod fail_points;
pub mod jitter;
pub mod open_files;
pub mod program;
pub mod settings;
pub mod shutdown;
pub mod supervisor;
pub mod telemetry;
pub mod traces;

/// A place where a test can let this process die; nothing without the feature `fail-points`.
#[cfg(feature = "fail-points")]
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {
        $crate::runtime::fail_points::pass($name)
    };
}

/// A place where a test can let this process die; nothing without the feature `fail-points`.
#[cfg(not(feature = "fail-points"))]
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {};
}

pub use supervisor::{Supervisor, spawn_driver};
