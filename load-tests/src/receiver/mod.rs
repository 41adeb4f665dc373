//! A receiver of webhooks that costs a few microseconds per request and keeps the books.
//!
//! HTTP/1.1 with keep-alive on one thread. `POST /e/<n>` is endpoint number n, which answers as it was
//! told ([`answers`]); `/control/…` is for the scenario runner ([`control`]); anything else is answered
//! and not counted, which is what the generator is calibrated against.

pub mod answers;
pub mod books;
mod control;
mod endpoints;
pub mod order;
pub mod verify;
pub mod watch;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::runtime::spawn_driver;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

pub use self::answers::Answers;
use self::books::{Books, Receipt, Signature};
pub use self::endpoints::{Arrival, Change, EndpointCounts, Numbers, random_half};
use self::endpoints::{Asked, Endpoints, Verdict};
use self::verify::Keys;
pub use self::verify::Verify;
pub use self::wire::OnTheWire;
use self::wire::{Carried, Wire};
use crate::http::{self, Request};
use crate::payload::Stamp;
use crate::{ids, payload};

/// What a connection's buffer holds at first, in bytes: several requests of 512 bytes.
const BUFFER: usize = 8 * 1024;

/// A running receiver. Dropping it ends its listening and its connections.
#[derive(Debug)]
pub struct Receiver {
    /// Where it listens.
    pub addr: SocketAddr,
    state: Arc<State>,
    _alive: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

/// What the connections share. The locks are never held across an await.
#[derive(Debug)]
struct State {
    verify: Verify,
    keys: Mutex<Keys>,
    endpoints: Mutex<Endpoints>,
    books: Mutex<Books>,
    wire: Wire,
}

impl Receiver {
    /// Listens on `addr` (port 0: any). Errors: the address cannot be bound.
    pub async fn start(addr: SocketAddr, answers: Answers, verify: Verify) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State {
            verify,
            keys: Mutex::default(),
            endpoints: Mutex::new(Endpoints::new(answers)),
            books: Mutex::default(),
            wire: Wire::default(),
        });
        let (alive, stopped) = oneshot::channel();
        let ended = spawn_driver(accept(listener, Arc::clone(&state), stopped));
        Ok(Self {
            addr,
            state,
            _alive: alive,
            ended,
        })
    }

    /// Serves until the process ends or listening fails for good.
    pub async fn serve(self) {
        let Self {
            _alive: alive,
            ended,
            ..
        } = self;
        if ended.await.is_err() {
            eprintln!("the receiver's accept loop ended");
        }
        drop(alive);
    }

    /// The books.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.state.books)
    }
}

/// Counts outlive a panic of one connection: they are plain numbers and never half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<State>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                // It may listen on every address, to have many; it is for this machine all the same.
                Ok((_stranger, peer)) if !peer.ip().is_loopback() => {}
                Ok((stream, _peer)) => {
                    lock(&state.books).connected();
                    connections.spawn(serve(stream, Arc::clone(&state)));
                }
                // Out of descriptors: the ones in use must end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_ended) = connections.join_next() => {}
            _ = &mut stopped => return,
        }
    }
}

/// Answers one connection until the peer closes it or talks something else.
async fn serve(mut stream: TcpStream, state: Arc<State>) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut read = Vec::with_capacity(BUFFER);
    let mut write = Vec::with_capacity(BUFFER);
    // The requests in the buffer whose heads were seen, in their order.
    let mut carried: Vec<Carried<'_>> = Vec::new();
    loop {
        match stream.read_buf(&mut read).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let mut used = 0;
        let mut answered = 0;
        let mut held = Vec::new();
        loop {
            let rest = read.get(used..).unwrap_or_default();
            match http::head(rest) {
                Ok(Some(request)) => {
                    if carried.len() == answered {
                        carried.push(state.wire.carry(&request));
                    }
                    if rest.len() < request.length {
                        break;
                    }
                    used += request.length;
                    answered += 1;
                    held.extend(answer(&state, &request, &mut write));
                }
                Ok(None) => break,
                Err(_malformed) => {
                    lock(&state.books).malformed();
                    return;
                }
            }
        }
        read.drain(..used);
        for held in held {
            if !hold_back(&mut stream, held).await {
                return;
            }
            if let Some((endpoint, stamp)) = held.ordered {
                lock(&state.books).answered(endpoint, stamp);
            }
        }
        if stream.write_all(&write).await.is_err() {
            return;
        }
        write.clear();
        carried.drain(..answered);
    }
}

/// An answer that is written later, or that the order book hears of when it is.
#[derive(Debug, Clone, Copy)]
struct Held {
    delay: Duration,
    hang: bool,
    hang_up: bool,
    /// Answered 2xx.
    ordered: Option<(usize, Stamp)>,
}

/// Waits as long as the answer asks for; false when the connection ended meanwhile or should.
async fn hold_back(stream: &mut TcpStream, held: Held) -> bool {
    if held.hang {
        let mut ignored = [0; 256];
        while stream
            .read(&mut ignored)
            .await
            .is_ok_and(|length| length > 0)
        {}
        return false;
    }
    if !held.delay.is_zero() {
        tokio::time::sleep(held.delay).await;
    }
    !held.hang_up
}

/// Answers one request into `write`; what has to happen before that is sent.
fn answer(state: &State, request: &Request<'_>, write: &mut Vec<u8>) -> Option<Held> {
    if let Some(number) = request.path.strip_prefix("/e/") {
        return deliver(state, request, number.parse().unwrap_or(usize::MAX), write);
    }
    match request.path.strip_prefix("/control/") {
        Some(path) => control::answer(state, path, request.body, write),
        None => write_head(write, 200, 0),
    }
    None
}

/// Takes one delivery in.
fn deliver(
    state: &State,
    request: &Request<'_>,
    endpoint: usize,
    write: &mut Vec<u8>,
) -> Option<Held> {
    let arrived_ns = payload::now_ns();
    let event = ids::decode(request.webhook_id, b"evt");
    let delivery = ids::decode(request.delivery_id, b"dlv");
    let (Some(event), Some(delivery)) = (event, delivery) else {
        lock(&state.books).malformed();
        write_head(write, 400, 0);
        return None;
    };
    let verdict = lock(&state.endpoints).arrive(
        endpoint,
        Asked {
            delivery,
            now_ns: arrived_ns,
            chance: chance(delivery ^ u128::from(arrived_ns)),
        },
    );
    let signature = match state.verify {
        Verify::All | Verify::Sample => lock(&state.keys).check(state.verify, endpoint, request),
        Verify::None => Signature::Unchecked,
    };
    let silent = verdict.hang || verdict.hang_up;
    let receipt = Receipt {
        event,
        delivery,
        endpoint,
        stamp: payload::stamp(request.body),
        arrived_ns,
        status: if silent { 0 } else { verdict.status },
    };
    lock(&state.books).enter(receipt, signature);
    write_verdict(write, verdict);
    let ordered = receipt.stamp.filter(|it| it.key > 0 && receipt.taken());
    let held = Held {
        delay: verdict.delay,
        hang: verdict.hang,
        hang_up: verdict.hang_up,
        ordered: ordered.map(|stamp| (endpoint, stamp)),
    };
    (silent || !held.delay.is_zero() || held.ordered.is_some()).then_some(held)
}

/// A number in 0..1 from `seed`, spread evenly.
fn chance(seed: u128) -> f64 {
    let folded = u64::try_from((seed ^ (seed >> 64)) & u128::from(u64::MAX)).unwrap_or(0);
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

fn write_verdict(write: &mut Vec<u8>, verdict: Verdict) {
    match verdict.retry_after {
        None => write_head(write, verdict.status, 0),
        Some(seconds) => {
            let status = verdict.status;
            let head = format!(
                "HTTP/1.1 {status} -\r\nretry-after: {seconds}\r\ncontent-length: 0\r\n\r\n"
            );
            write.extend_from_slice(head.as_bytes());
        }
    }
}

/// Writes a response head, for a body of `length` bytes.
fn write_head(write: &mut Vec<u8>, status: u16, length: usize) {
    if status == 200 && length == 0 {
        write.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        return;
    }
    let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {length}\r\n\r\n");
    write.extend_from_slice(head.as_bytes());
}

#[cfg(test)]
mod tests;
