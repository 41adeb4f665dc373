//! Fail points: named places where a test lets a process die.
//!
//! `FAIL_POINT=worker.answered:3` makes a process kill itself (SIGKILL) when it comes by
//! `fail_point!("worker.answered")` for the third time. Without the feature `fail-points`, which tests
//! alone have (`scripts/check-layers`), the macro is nothing and the variable is not read.
//!
//! # Why
//! Not the crate `fail`: none of its actions is a SIGKILL, and each of its points is a look-up under a lock.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

static ARMED: LazyLock<Option<FailPoint>> = LazyLock::new(|| {
    let setting = std::env::var("FAIL_POINT").ok()?;
    let (name, at) = setting.rsplit_once(':')?;
    Some(FailPoint {
        name: name.to_owned(),
        at: at.parse().ok()?,
        passed: AtomicU64::new(0),
    })
});

struct FailPoint {
    name: String,
    /// The passage that is the last.
    at: u64,
    passed: AtomicU64,
}

/// This process comes by a place of this name: what `fail_point!` calls.
pub fn pass(name: &str) {
    let Some(armed) = ARMED.as_ref().filter(|armed| armed.name == name) else {
        return;
    };
    if armed.passed.fetch_add(1, Ordering::Relaxed) + 1 == armed.at {
        tracing::warn!(name, "this process dies at a fail point");
        // It can only fail for a process that is not there.
        let _killed = kill_process(getpid(), Signal::KILL);
    }
}
