//! A receiver of webhooks that costs a few microseconds per request and keeps the books.
//!
//! HTTP/1.1 with keep-alive on one thread. `POST /e/<n>` is endpoint number n; `/control/…` is for
//! the scenario runner ([`control`]); anything else is answered and not counted, which is what the
//! generator is calibrated against.

pub mod books;
mod control;
pub mod verify;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::runtime::spawn_driver;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use self::books::{Books, Receipt, Signature};
use self::verify::Keys;
pub use self::verify::Verify;
use crate::http::{self, Request};
use crate::{ids, payload};

/// What a connection's buffer holds at first, in bytes: several requests of 512 bytes.
const BUFFER: usize = 8 * 1024;

/// How deliveries are answered.
#[derive(Debug, Clone, Copy)]
pub struct Answers {
    pub status: u16,
    /// The share of deliveries, 0 to 1, that is answered `fail_status` instead.
    pub fail: f64,
    pub fail_status: u16,
    /// How long each answer is held back.
    pub delay: Duration,
    /// Read and never answer.
    pub hang: bool,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            status: 200,
            fail: 0.0,
            fail_status: 503,
            delay: Duration::ZERO,
            hang: false,
        }
    }
}

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
    answers: Answers,
    verify: Verify,
    keys: Mutex<Keys>,
    books: Mutex<Books>,
}

impl Receiver {
    /// Listens on `addr` (port 0: any). Errors: the address cannot be bound.
    pub async fn start(addr: SocketAddr, answers: Answers, verify: Verify) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State {
            answers,
            verify,
            keys: Mutex::default(),
            books: Mutex::default(),
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
    loop {
        match stream.read_buf(&mut read).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let mut used = 0;
        let mut deliveries = false;
        loop {
            match http::request(read.get(used..).unwrap_or_default()) {
                Ok(Some(request)) => {
                    used += request.length;
                    deliveries |= answer(&state, &request, &mut write);
                }
                Ok(None) => break,
                Err(_malformed) => {
                    lock(&state.books).malformed();
                    return;
                }
            }
        }
        read.drain(..used);
        if deliveries && !hold_back(&mut stream, state.answers).await {
            return;
        }
        if stream.write_all(&write).await.is_err() {
            return;
        }
        write.clear();
    }
}

/// Waits as long as the answers ask for; false when the connection ended meanwhile.
async fn hold_back(stream: &mut TcpStream, answers: Answers) -> bool {
    if answers.hang {
        let mut ignored = [0; 256];
        while stream
            .read(&mut ignored)
            .await
            .is_ok_and(|length| length > 0)
        {}
        return false;
    }
    if !answers.delay.is_zero() {
        tokio::time::sleep(answers.delay).await;
    }
    true
}

/// Answers one request into `write`; whether it was a delivery.
fn answer(state: &State, request: &Request<'_>, write: &mut Vec<u8>) -> bool {
    if let Some(number) = request.path.strip_prefix("/e/") {
        let status = deliver(state, request, number.parse().unwrap_or(usize::MAX));
        write_head(write, status, 0);
        return true;
    }
    match request.path.strip_prefix("/control/") {
        Some(path) => control::answer(state, path, request.body, write),
        None => write_head(write, 200, 0),
    }
    false
}

/// Takes one delivery in; the status to answer.
fn deliver(state: &State, request: &Request<'_>, endpoint: usize) -> u16 {
    let arrived_ns = payload::now_ns();
    let answers = state.answers;
    let event = ids::decode(request.webhook_id, b"evt");
    let delivery = ids::decode(request.delivery_id, b"dlv");
    let (Some(event), Some(delivery)) = (event, delivery) else {
        lock(&state.books).malformed();
        return 400;
    };
    let status = if chance(delivery ^ u128::from(arrived_ns)) < answers.fail {
        answers.fail_status
    } else {
        answers.status
    };
    let signature = match state.verify {
        Verify::All | Verify::Sample => lock(&state.keys).check(state.verify, endpoint, request),
        Verify::None => Signature::Unchecked,
    };
    let taken = (200..300).contains(&status) && !answers.hang;
    let sent_ns = payload::stamp(request.body);
    lock(&state.books).enter(
        Receipt {
            event,
            delivery,
            sent_ns,
            arrived_ns,
            taken,
        },
        signature,
    );
    status
}

/// A number in 0..1 from `seed`, spread evenly.
fn chance(seed: u128) -> f64 {
    let folded = u64::try_from((seed ^ (seed >> 64)) & u128::from(u64::MAX)).unwrap_or(0);
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
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
