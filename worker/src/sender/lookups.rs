//! One look-up per name at a time; who asks meanwhile waits for the same answer.
//!
//! Not a cache: an answer goes to those who waited for it and is forgotten.
//!
//! # Invariants
//! - O1 a look-up holds a thread of the system's resolver until it ends, for longer than anybody
//!   waits for it: without this, a few names whose servers are silent would take all threads by
//!   being asked for again and again, and with them every other name.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::runtime::supervisor::spawn_driver;
use tokio::sync::watch;

/// The name could not be looked up. Told from other errors by its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct LookupFailed(Arc<str>);

type Answer = Result<Arc<[IpAddr]>, LookupFailed>;
type Running = HashMap<String, watch::Receiver<Option<Answer>>>;

/// The look-ups that are under way.
#[derive(Clone, Default)]
pub(super) struct Lookups(Arc<Mutex<Running>>);

impl Lookups {
    /// The addresses of a name, from `look_up` or from the one that is under way.
    pub(super) async fn find<F>(&self, name: &str, look_up: impl FnOnce(String) -> F) -> Answer
    where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let mut answer = self.join_or_start(name, look_up);
        let given = answer
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|given| given.clone());
        given.unwrap_or_else(|| Err(LookupFailed("the look-up broke off".into())))
    }

    fn join_or_start<F>(
        &self,
        name: &str,
        look_up: impl FnOnce(String) -> F,
    ) -> watch::Receiver<Option<Answer>>
    where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let mut running = self.running();
        // One that still stands here though its sender is gone has panicked.
        if let Some(answer) = running
            .get(name)
            .filter(|answer| answer.has_changed().is_ok())
        {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        running.insert(name.to_owned(), answer.clone());
        let looking = look_up(name.to_owned());
        let (lookups, name) = (self.clone(), name.to_owned());
        // On its own, or the first who gives up would end it for all, and not the thread.
        spawn_driver(async move {
            let found = looking.await;
            lookups.running().remove(&name);
            let found = found
                .map(Arc::from)
                .map_err(|error| LookupFailed(error.to_string().into()));
            sender.send_replace(Some(found));
        });
        answer
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1));

    #[tokio::test]
    async fn o1_a_name_is_looked_up_once_for_all_who_wait() {
        let lookups = Lookups::default();
        let count = AtomicUsize::new(0);
        let (answer, given) = oneshot::channel();
        let mut given = Some(given);
        let mut ask = || {
            let given = given.take();
            lookups.find("a.example", |_| {
                count.fetch_add(1, Ordering::SeqCst);
                async { Ok(given.unwrap().await.unwrap()) }
            })
        };

        let first = ask();
        let second = ask();
        let third = ask();
        let answering = async { answer.send(vec![ONE]).unwrap() };
        let (first, second, third, ()) = tokio::join!(first, second, third, answering);

        for found in [first, second, third] {
            assert_eq!(*found.unwrap(), [ONE]);
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn o1_one_who_gives_up_leaves_the_look_up_to_the_next() {
        let lookups = Lookups::default();
        let gave_up = lookups.find("a.example", |_| pending());
        assert!(timeout(Duration::from_millis(10), gave_up).await.is_err());

        let second = lookups.find("a.example", |_| -> std::future::Ready<_> {
            panic!("a second look-up of a name that is being looked up")
        });
        assert!(timeout(Duration::from_millis(10), second).await.is_err());

        let other = lookups.find("b.example", |_| ready(Ok(vec![ONE]))).await;
        assert_eq!(*other.unwrap(), [ONE]);
    }

    #[tokio::test]
    async fn an_answer_is_not_kept() {
        let lookups = Lookups::default();
        let failed = lookups
            .find("a.example", |_| ready(Err(io::Error::other("no"))))
            .await;
        assert_eq!(failed, Err(LookupFailed("no".into())));

        let found = lookups.find("a.example", |_| ready(Ok(vec![ONE]))).await;
        assert_eq!(*found.unwrap(), [ONE]);
        assert!(lookups.running().is_empty());
    }

    #[tokio::test]
    async fn a_look_up_that_panics_fails_and_the_next_is_a_new_one() {
        let lookups = Lookups::default();
        let broken = lookups
            .find("a.example", |_| async { panic!("on purpose") })
            .await;
        assert!(broken.is_err());

        let found = lookups.find("a.example", |_| ready(Ok(vec![ONE]))).await;
        assert_eq!(*found.unwrap(), [ONE]);
    }
}
