//! The look-ups of both address families at once, and what the two replies say together.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::timeout;

use super::LookupFailed;
use super::entry::{Found, NotFound, Reply};

/// How long one family waits for the other once it has addresses. Servers that drop questions for
/// AAAA exist, and should cost this much and not a whole look-up.
const GRACE: Duration = Duration::from_millis(500);

/// Addresses kept of each family: connecting tries no more, and an answer can hold thousands.
const MOST_OF_A_FAMILY: usize = 16;

/// Asks for both.
pub(super) async fn both(
    v4: impl Future<Output = Reply>,
    v6: impl Future<Output = Reply>,
) -> Reply {
    let (v4, v6) = match select(pin!(v4), pin!(v6)).await {
        Either::Left((v4, v6)) => {
            let v6 = other(&v4, v6).await;
            (v4, v6)
        }
        Either::Right((v6, v4)) => {
            let v4 = other(&v6, v4).await;
            (v4, v6)
        }
    };
    joined(v4, v6)
}

async fn other(first: &Reply, rest: impl Future<Output = Reply>) -> Reply {
    if first.is_err() {
        return rest.await;
    }
    let late = |_elapsed| Err(LookupFailed::TimedOut.into());
    timeout(GRACE, rest).await.unwrap_or_else(late)
}

/// What one family's look-up gave, from the addresses of an answer.
pub(super) fn family(addresses: impl Iterator<Item = IpAddr>, ttl: Duration) -> Reply {
    let mut kept = Vec::new();
    for address in addresses {
        if kept.len() < MOST_OF_A_FAMILY && !kept.contains(&address) {
            kept.push(address);
        }
    }
    if kept.is_empty() {
        return Err(NotFound {
            failure: LookupFailed::NoAddress,
            ttl: Some(ttl),
        });
    }
    Ok(Found {
        addresses: kept.into(),
        ttl,
    })
}

/// Addresses of one family are enough. Without any, a family that gave no answer leaves the name
/// open, and a name that has nothing for one family may still exist.
pub(super) fn joined(v4: Reply, v6: Reply) -> Reply {
    match (v4, v6) {
        (Ok(v4), Ok(v6)) => Ok(Found {
            addresses: v4.addresses.iter().chain(&*v6.addresses).copied().collect(),
            ttl: v4.ttl.min(v6.ttl),
        }),
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
        (Err(v4), Err(v6)) => match (v4.failure.is_answer(), v6.failure.is_answer()) {
            (false, _) => Err(v4),
            (true, false) => Err(v6),
            (true, true) => Err(NotFound {
                failure: if v4.failure == v6.failure {
                    v4.failure
                } else {
                    LookupFailed::NoAddress
                },
                ttl: v4.ttl.min(v6.ttl),
            }),
        },
    }
}
