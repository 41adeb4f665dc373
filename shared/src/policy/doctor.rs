//! What `postrider doctor` thinks of what it finds: how bad it is, and what to do.
//!
//! # Invariants
//! - D2, D8: each fact that would break them is *critical*.
//! - S2: findings hold counts, lengths, names of settings, tables and programs; no ids of tenants, no payloads.

mod database;
mod deliveries;
mod processes;

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;

pub use self::database::{Clock, Holder, Horizon, Partitions, Server, Table};
pub use self::deliveries::{Astray, DeadLetters, Newest, Waiting};
pub use self::processes::{Endpoints, Jobs, Pool, Workers};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Good,
    /// It could not be found out.
    Unknown,
    /// It will become a problem.
    Warning,
    /// Something is not delivered, may be lost, or will be soon.
    Critical,
}

impl State {
    /// For people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Critical => "CRITICAL",
        }
    }
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name: the same in every version, for scripts.
    pub check: &'static str,
    /// How bad it is.
    pub state: State,
    /// What was seen, in one line.
    pub found: String,
    /// What to do, unless it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    /// Nothing to do.
    #[must_use]
    pub fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            state: State::Good,
            found: found.into(),
            advice: None,
        }
    }

    /// It could not be found out, and why.
    #[must_use]
    pub fn unknown(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::bad(check, State::Unknown, found, advice)
    }

    /// As bad as a measure says; what to do is told unless it is good.
    #[must_use]
    pub fn measured(
        check: &'static str,
        state: State,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        if state == State::Good {
            return Self::good(check, found);
        }
        Self::bad(check, state, found, advice)
    }

    /// Something to do.
    #[must_use]
    pub fn bad(
        check: &'static str,
        state: State,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            check,
            state,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }
}

/// The state of a measure that may grow: good below `warning`, critical from `critical` on.
fn grown<T: PartialOrd>(measure: T, warning: T, critical: T) -> State {
    if measure >= critical {
        State::Critical
    } else if measure >= warning {
        State::Warning
    } else {
        State::Good
    }
}

/// A length for people, in the unit in which it is a small number.
fn shown(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0 => format!("{} ms", length.as_millis()),
        1..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
