//! Our own processes: who owns what, and whether anybody waits for a connection.

use std::time::Duration;

use super::{Finding, State, grown, shown};

/// Workers and slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// Alive by their lease.
    pub alive: i64,
    /// Of these, giving up their slots.
    pub draining: i64,
    /// Past their lease and not declared dead.
    pub expired: i64,
    /// What is left of the shortest lease of the living.
    pub shortest_lease: Option<Duration>,
    /// Slots without a living owner.
    pub free_slots: i64,
    /// Slots of the busiest worker, and how many each would have if they were spread evenly.
    pub most_slots: (i64, i64),
}

/// A worker renews every 2 s; one that stands below this was late twice.
const SHORT_LEASE: Duration = Duration::from_secs(3);

impl Workers {
    /// Ownership and lease health.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        vec![self.slots(), self.leases()]
    }

    fn slots(&self) -> Finding {
        const CHECK: &str = "slots";
        let found = format!(
            "{} workers ({} draining), {} of 256 slots without one",
            self.alive, self.draining, self.free_slots
        );
        if self.alive == 0 {
            let advice = "start a worker (`postrider worker`): what is accepted waits";
            return Finding::bad(CHECK, State::Critical, found, advice);
        }
        if self.free_slots > 0 {
            return Finding::bad(
                CHECK,
                State::Critical,
                found,
                "workers take free slots within seconds: run this again; if they stay free, look for warnings in the \
                 workers' logs (docs/runbook.md, PostriderWorkersMissing)",
            );
        }
        let (most, even) = self.most_slots;
        if most > even + 8 {
            return Finding::bad(
                CHECK,
                State::Warning,
                format!("{found}; one worker has {most} slots, even would be {even}"),
                "slots move within seconds after a worker starts or ends: run this again; if it stays, look at that worker",
            );
        }
        Finding::good(CHECK, found)
    }

    fn leases(&self) -> Finding {
        const CHECK: &str = "leases";
        let left = self.shortest_lease.map_or_else(|| "none".to_owned(), shown);
        let found = format!(
            "the shortest has {left} left, {} are past their end",
            self.expired
        );
        if self.expired > 0 {
            return Finding::bad(
                CHECK,
                State::Warning,
                found,
                "a worker was killed or stands still; another one declares it dead within seconds and takes its slots. If \
                 none does, start one",
            );
        }
        if self.shortest_lease.is_some_and(|left| left < SHORT_LEASE) {
            return Finding::bad(
                CHECK,
                State::Warning,
                found,
                "renewals are late: is that worker's machine out of CPU, or its way to the database slow? Run this again; a \
                 larger POSTRIDER_LEASE_TTL buys time",
            );
        }
        Finding::good(CHECK, found)
    }
}

/// Jobs that run in one process at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jobs {
    /// Those that a living worker leads.
    pub led: Vec<String>,
    /// Those that nobody leads.
    pub idle: Vec<String>,
}

impl Jobs {
    /// Whether every job has a leader.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "jobs";
        if self.idle.is_empty() {
            return Finding::good(
                CHECK,
                format!("{} jobs, each led by one worker", self.led.len()),
            );
        }
        Finding::bad(
            CHECK,
            State::Warning,
            format!("nobody leads {}", self.idle.join(", ")),
            "a worker takes them over within seconds: run this again; if they stay, look for the job's name in the workers' \
             logs",
        )
    }
}

/// Endpoints whose own settings no longer fit into the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// Enabled ones.
    pub enabled: i64,
    /// `timeout_ms` above the longest request that the drain allows.
    pub slow: i64,
    /// `max_age_seconds` and two days above the events' retention.
    pub lasting: i64,
}

impl Endpoints {
    /// Budgets that live in the database: the rest were added up when the settings were read.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "endpoint_budgets";
        if self.slow == 0 && self.lasting == 0 {
            let found = format!(
                "the times of {} enabled endpoints fit into the settings",
                self.enabled
            );
            return Finding::good(CHECK, found);
        }
        Finding::bad(
            CHECK,
            State::Warning,
            format!(
                "{} endpoints have a longer timeout_ms than the drain leaves, {} a longer max_age_seconds than events are kept",
                self.slow, self.lasting
            ),
            "they were stored under other settings: raise POSTRIDER_DRAIN_TIMEOUT and POSTRIDER_RETENTION_EVENTS, or PATCH \
             the endpoints",
        )
    }
}

/// The pool of an API process, as its `/metrics` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Where it was asked.
    pub addr: String,
    /// Requests that wait for a connection.
    pub waiting: u64,
    /// Connections in use, and at most.
    pub in_use: (u64, u64),
}

impl Pool {
    /// Whether requests wait for connections (field report F75).
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "pool";
        let (in_use, most) = self.in_use;
        let found = format!(
            "{}: {in_use} of {most} connections in use, {} requests wait for one",
            self.addr, self.waiting
        );
        let state = grown(self.waiting, 1, most.max(1) * 4);
        Finding::measured(
            CHECK,
            state,
            found,
            "reads are slower than they come: look for slow statements (pg_stat_statements) and locks; raise \
                 POSTRIDER_CONNECTIONS if the database has room, or start another API",
        )
    }
}
