//! D8: every delivery that is not final has an owner or a due time, and a bounded life; none is nowhere.

use std::time::Duration;

use super::{Finding, State, grown, shown};

/// Deliveries in the queues that nobody would ever look at again, or not in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Astray {
    /// Deliveries in the queues.
    pub waiting: i64,
    /// Whose endpoint is not there, or has another slot: no loader finds them.
    pub unowned: i64,
    /// Whose endpoint was disabled or deleted ten minutes ago or more: they should be closed.
    pub unclosed: i64,
    /// Whose event is not there: there is nothing to send.
    pub bodyless: i64,
    /// Due later than any rule allows (D5).
    pub too_late: i64,
    /// A day older than their endpoint's `max_age_seconds`.
    pub too_old: i64,
    /// Parked, ten minutes or more after the last pause that could mean them ended.
    pub forgotten: i64,
    /// Not all were looked at: the time was over.
    pub cut: bool,
}

impl Astray {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            unowned: self.unowned + other.unowned,
            unclosed: self.unclosed + other.unclosed,
            bodyless: self.bodyless + other.bodyless,
            too_late: self.too_late + other.too_late,
            too_old: self.too_old + other.too_old,
            forgotten: self.forgotten + other.forgotten,
            cut: self.cut || other.cut,
        }
    }

    /// D8 of what waits.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "queues";
        let kinds = [
            (
                self.unowned,
                "of an endpoint that is not there or has another slot",
            ),
            (self.unclosed, "of a disabled endpoint and not closed"),
            (self.bodyless, "without their event"),
            (self.too_late, "due later than any rule allows"),
            (self.too_old, "older than they may become"),
            (self.forgotten, "parked without a pause"),
        ];
        let bad: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if !bad.is_empty() {
            let lost = self.unowned + self.bodyless + self.too_late;
            return Finding::bad(
                CHECK,
                if lost > 0 {
                    State::Critical
                } else {
                    State::Warning
                },
                format!("of {} waiting deliveries: {}", self.waiting, bad.join(", ")),
                "what is not closed, too old or parked waits for a worker or its job (findings `slots`, `jobs`). The rest \
                 cannot come about by our own statements: was the database restored or changed by hand? Ask for these \
                 events again (`POST /v1/endpoints/{id}/replay` with `missing`), and tell us",
            );
        }
        let found = format!("each of {} waiting deliveries has its place", self.waiting);
        if self.cut {
            return Finding::unknown(
                CHECK,
                format!("{found}; there was no time for the others"),
                "give it longer with --deadline",
            );
        }
        Finding::good(CHECK, found)
    }
}

/// The deliveries of the newest events: each must be somewhere (D1, D6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    /// Deliveries that were looked for.
    pub looked_for: i64,
    /// In no queue, not delivered, dead or closed.
    pub nowhere: i64,
    /// In more than one of these.
    pub twice: i64,
}

impl Newest {
    /// D1 and D6 of the newest events.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "newest_events";
        if self.nowhere == 0 && self.twice == 0 {
            return Finding::good(
                CHECK,
                format!(
                    "each of the newest {} deliveries is in one place",
                    self.looked_for
                ),
            );
        }
        Finding::bad(
            CHECK,
            State::Critical,
            format!(
                "of the newest {} deliveries {} are nowhere, {} in two places",
                self.looked_for, self.nowhere, self.twice
            ),
            "no statement of ours leaves that behind: was the database restored or changed by hand? Ask for these events \
             again (`POST /v1/endpoints/{id}/replay` with `missing`), and tell us",
        )
    }
}

/// Since when the oldest delivery waits that nothing holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting(pub Option<Duration>);

impl Waiting {
    /// As the alert `PostriderOldestPending`.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "oldest_pending";
        let Some(oldest) = self.0 else {
            return Finding::good(CHECK, "nothing waits that could go");
        };
        let found = format!("the oldest that could go waits for {}", shown(oldest));
        let state = grown(oldest, Duration::from_secs(300), Duration::from_secs(1_800));
        Finding::measured(
            CHECK,
            state,
            found,
            "docs/runbook.md, PostriderOldestPending: are workers running and ready, is one endpoint slower than its \
                 events, is the database slow?",
        )
    }
}

/// Dead letters of the last 24 hours that were not replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetters {
    /// Our own fault: a secret that cannot be opened, a payload, a panic.
    pub internal: i64,
    /// All.
    pub all: i64,
    /// How many are counted at most.
    pub most: i64,
}

impl DeadLetters {
    /// Only our own faults are for the operator.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "dead_letters";
        let more = if self.all >= self.most {
            " or more"
        } else {
            ""
        };
        let found = format!(
            "{}{more} in 24 hours that were not replayed, {} of them internal",
            self.all, self.internal
        );
        if self.internal == 0 {
            return Finding::good(CHECK, found);
        }
        Finding::bad(
            CHECK,
            State::Critical,
            found,
            "docs/runbook.md, PostriderInternalDeadLetters: `postrider master-key reseal --check` shows secrets that cannot \
             be opened; replay them when the cause is gone",
        )
    }
}
