//! What the tests of several crates need: real databases, a DNS server, and waiting for a condition.
//!
//! Nothing here pretends: the databases are PostgreSQL's, on a cluster of the test process's own
//! that is removed when the process ends, however it ends.

mod cluster;
mod database;
pub mod dns;
mod pgbouncer;
pub mod proxy;

use std::panic::Location;
use std::time::Duration;

pub use cluster::TestCluster;
pub use database::TestDatabase;
pub use pgbouncer::PgBouncer;
pub use proxy::Proxy;

/// How often [`eventually`] looks.
const POLL: Duration = Duration::from_millis(10);

/// Asks until there is an answer: what a test does instead of sleeping.
///
/// # Panics
/// When there is none within the deadline; the message names the caller's line.
#[track_caller]
pub fn eventually<T, F, Fut>(deadline: Duration, mut probe: F) -> impl Future<Output = T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let caller = Location::caller();
    async move {
        let asking = async {
            loop {
                if let Some(answer) = probe().await {
                    return answer;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match tokio::time::timeout(deadline, asking).await {
            Ok(answer) => answer,
            #[expect(clippy::panic, reason = "a test that waited in vain has failed")]
            Err(_elapsed) => panic!("not within {deadline:?} at {caller}"),
        }
    }
}
