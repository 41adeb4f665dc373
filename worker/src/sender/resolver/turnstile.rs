//! How many look-ups are under way at once, and for how long: names with silent servers cannot keep
//! out the others.
//!
//! # Invariants
//! - O1 whoever waits for a turn waits for look-ups that end or step aside within [`QUICK`]. Even
//!   behind a thousand silent names that is little over a second.
//!
//! # Why
//! What takes longer has room of its own. Where none is left it gives its place to the next and asks
//! again later, which is cheap: a DNS server goes on looking and remembers what it found. So many
//! names with slow servers, as when a worker starts, get slower and do not fail.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::LookupFailed;
use super::entry::Reply;

const MOST_QUICK: usize = 192;
const MOST_SLOW: usize = 64;

/// Sockets that look-ups hold at the very most: one for each family, and slow ones two more for each,
/// on which their questions were repeated.
pub const MOST_LOOKUP_SOCKETS: usize = 2 * MOST_QUICK + 6 * MOST_SLOW;

/// What nearly all look-ups take less than.
const QUICK: Duration = Duration::from_millis(250);

/// See the module.
pub(super) struct Turnstile {
    quick: Semaphore,
    slow: Semaphore,
}

impl Default for Turnstile {
    fn default() -> Self {
        Self {
            quick: Semaphore::new(MOST_QUICK),
            slow: Semaphore::new(MOST_SLOW),
        }
    }
}

impl Turnstile {
    /// The look-ups that have a turn, quick and slow ones.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> (usize, usize) {
        (
            MOST_QUICK - self.quick.available_permits(),
            MOST_SLOW - self.slow.available_permits(),
        )
    }

    /// Lets a look-up have its turn. Ends within `budget`, waiting included.
    pub(super) async fn pass<F>(&self, budget: Duration, look_up: impl Fn() -> F) -> Reply
    where
        F: Future<Output = Reply>,
    {
        let deadline = Instant::now() + budget;
        let mut late = LookupFailed::Overloaded;
        while let Ok(Ok(turn)) = timeout_at(deadline, self.quick.acquire()).await {
            late = LookupFailed::TimedOut;
            let mut looking = pin!(look_up());
            if let Ok(reply) = timeout(QUICK, &mut looking).await {
                return reply;
            }
            if let Ok(_aside) = self.slow.try_acquire() {
                drop(turn);
                let ended = timeout_at(deadline, looking).await;
                return ended.unwrap_or_else(|_elapsed| Err(late.into()));
            }
        }
        Err(late.into())
    }
}
