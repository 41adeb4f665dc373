//! What is counted: failures in a row, and how long to wait for the next probe.

use std::time::Duration;

use super::{At, BREAKER_COOLDOWN, LONGEST_COOLDOWN, THRESHOLD};

/// From the start of the first failure to the opening, at least.
const SPAN: Duration = Duration::from_secs(2);

/// Until the next probe. Enabling begins with one now; whether a cooldown that had grown is forgotten by it, the
/// table does not say: at least, and at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Waits {
    pub(super) least: Wait,
    pub(super) most: Wait,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    pub(super) cooldown: Duration,
    pub(super) until: At,
}

impl Waits {
    pub(super) fn opened(now: At) -> Self {
        let wait = Wait {
            cooldown: BREAKER_COOLDOWN,
            until: now + BREAKER_COOLDOWN,
        };
        Self {
            least: wait,
            most: wait,
        }
    }

    pub(super) fn failed(self, now: At) -> Self {
        let longer = |wait: Wait| {
            let cooldown = (2 * wait.cooldown).min(LONGEST_COOLDOWN);
            Wait {
                cooldown,
                until: now + cooldown,
            }
        };
        Self {
            least: longer(self.least),
            most: longer(self.most),
        }
    }

    pub(super) fn enabled(before: Option<Self>, now: At) -> Self {
        let cooldown = BREAKER_COOLDOWN;
        let most = before.map_or(cooldown, |it| it.most.cooldown);
        Self {
            least: Wait {
                cooldown,
                until: now,
            },
            most: Wait {
                cooldown: most,
                until: now,
            },
        }
    }
}

/// Failures in a row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    failures: u16,
    first: Option<At>,
}

impl Run {
    pub(super) fn add(&mut self, started: At) {
        self.failures += 1;
        self.first = Some(self.first.map_or(started, |at| at.min(started)));
    }

    pub(super) fn is_enough(&self, now: At) -> bool {
        let long = self.first.is_some_and(|first| now >= first + SPAN);
        self.failures >= THRESHOLD && long
    }
}
