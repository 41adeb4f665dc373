//! How much is on the wire at once: the bodies of deliveries that have begun to come in and are not
//! answered yet.
//!
//! A sender holds the payload of a request for as long, so this is what its bound on bytes in flight
//! looks like from outside: never more than the sender holds, and less only by what has not arrived.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::http::Request;

/// What is on the wire, and the most of it at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnTheWire {
    /// Of bodies.
    pub bytes: u64,
    pub requests: u64,
    pub most_bytes: u64,
    pub most_requests: u64,
}

/// The count that all connections share. Its lock is never held across an await.
#[derive(Debug, Default)]
pub(super) struct Wire(Mutex<OnTheWire>);

/// A request that is on the wire until this is dropped, whatever ends it.
#[derive(Debug)]
pub(super) struct Carried<'w> {
    wire: &'w Wire,
    bytes: u64,
    requests: u64,
}

impl Wire {
    /// A request has begun to come in. The runner's own questions do not count.
    pub(super) fn carry(&self, request: &Request<'_>) -> Carried<'_> {
        let (bytes, requests) = if request.path.starts_with("/e/") {
            (u64::try_from(request.body_length).unwrap_or(u64::MAX), 1)
        } else {
            (0, 0)
        };
        let mut now = self.lock();
        now.bytes += bytes;
        now.requests += requests;
        now.most_bytes = now.most_bytes.max(now.bytes);
        now.most_requests = now.most_requests.max(now.requests);
        Carried {
            wire: self,
            bytes,
            requests,
        }
    }

    /// What there is and was; the most begins anew with what there is.
    pub(super) fn look(&self) -> OnTheWire {
        let mut now = self.lock();
        let seen = *now;
        now.most_bytes = now.bytes;
        now.most_requests = now.requests;
        seen
    }

    fn lock(&self) -> MutexGuard<'_, OnTheWire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        let mut now = self.wire.lock();
        now.bytes -= self.bytes;
        now.requests -= self.requests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(body_length: usize) -> Request<'static> {
        Request {
            path: "/e/3",
            body_length,
            ..Request::default()
        }
    }

    #[test]
    fn the_most_at_once_is_kept_until_it_was_told() {
        let wire = Wire::default();

        let first = wire.carry(&delivery(100));
        let second = wire.carry(&delivery(1_000));
        drop(first);
        let _question = wire.carry(&Request {
            path: "/control/wire",
            ..delivery(7)
        });

        let seen = wire.look();
        assert_eq!((seen.bytes, seen.requests), (1_000, 1));
        assert_eq!((seen.most_bytes, seen.most_requests), (1_100, 2));
        drop(second);
        assert_eq!(wire.look().most_bytes, 1_000, "since it was told");
        assert_eq!(wire.look(), OnTheWire::default());
    }
}
