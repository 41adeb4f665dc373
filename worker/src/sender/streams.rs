//! How many requests at once a receiver takes on one connection of HTTP/2.
//!
//! # Why
//! What a receiver does not take waits in a line inside the library, for a place that may come after its
//! deadline; over another connection it would have been answered. The library tells the number, but only to
//! the task that hands requests over, which sleeps when the receiver's settings come in.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

use futures_util::task::AtomicWaker;

/// Until the receiver has said how many it takes: the one that the connection was made for.
pub(super) const AT_FIRST: usize = 1;

/// See the module.
#[derive(Clone)]
pub(super) struct Streams(Arc<Told>);

struct Told {
    most: AtomicUsize,
    /// Of the task that asks the library.
    asker: AtomicWaker,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self(Arc::new(Told {
            most: AtomicUsize::new(AT_FIRST),
            asker: AtomicWaker::new(),
        }))
    }

    pub(super) fn most(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }

    /// To be called before the library is asked, by the task that asks it.
    pub(super) fn is_asked_for(&self, context: &Context<'_>) {
        if self.most() == AT_FIRST {
            self.0.asker.register(context.waker());
        }
    }

    pub(super) fn are(&self, most: usize) {
        self.0.most.store(most, Ordering::Relaxed);
    }

    /// What is read may have been the receiver's settings.
    fn may_have_changed(&self) {
        if self.most() == AT_FIRST {
            self.0.asker.wake();
        }
    }

    /// A task of the connection: one of them reads it.
    pub(super) async fn watching(self, task: impl Future<Output = ()>) {
        let mut task = pin!(task);
        std::future::poll_fn(|context| {
            let ended = task.as_mut().poll(context);
            self.may_have_changed();
            ended
        })
        .await;
    }
}
