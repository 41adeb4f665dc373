//! A network between a program and its server that does what a test tells it to.
//!
//! It never sends what a network would not: a connection that is frozen stays open on both sides and passes nothing,
//! as when a firewall forgets it or a cable is cut.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::either::Either;

/// What of each connection's first words is remembered, bytes.
const REMEMBERED: usize = 16 << 10;

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    /// Open, and nothing passes, however long.
    Frozen,
    Cut,
}

/// What becomes of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// They pass.
    Pass,
    /// They are taken, and nothing passes.
    Hang,
    /// They are closed at once.
    Refused,
}

/// Where the server is.
#[derive(Debug, Clone)]
enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
struct Link {
    fate: watch::Sender<Fate>,
    said: Arc<Mutex<Vec<u8>>>,
}

#[derive(Debug)]
struct State {
    target: Target,
    arrivals: Mutex<Arrivals>,
    delay: Mutex<Duration>,
    links: Mutex<Vec<Link>>,
    opened: AtomicUsize,
}

/// See the module. Everything is closed when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
    _serving: JoinSet<()>,
}

impl Proxy {
    /// In front of a server on TCP.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn before(server: SocketAddr) -> Self {
        Self::start(Target::Tcp(server)).await
    }

    /// In front of a PostgreSQL with its socket in this directory.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn before_socket(directory: &Path) -> Self {
        Self::start(Target::Unix(directory.join(".s.PGSQL.5432"))).await
    }

    #[expect(
        clippy::expect_used,
        reason = "a test cannot go on without its network"
    )]
    async fn start(target: Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            target,
            arrivals: Mutex::new(Arrivals::Pass),
            delay: Mutex::default(),
            links: Mutex::default(),
            opened: AtomicUsize::new(0),
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&state)));
        Self {
            addr,
            state,
            _serving: serving,
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections were made so far.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.state.opened.load(Ordering::Relaxed)
    }

    /// What becomes of new connections from now on.
    pub fn arrivals(&self, arrivals: Arrivals) {
        *lock(&self.state.arrivals) = arrivals;
    }

    /// How long each piece is held back from now on, both ways.
    pub fn delay(&self, delay: Duration) {
        *lock(&self.state.delay) = delay;
    }

    /// Freezes every connection that there is, for good.
    pub fn freeze(&self) {
        self.doom(Fate::Frozen, |_| true);
    }

    /// Freezes those whose client has said this; how many.
    pub fn freeze_those_that_said(&self, words: &str) -> usize {
        self.doom(Fate::Frozen, |said| {
            said.windows(words.len())
                .any(|part| part == words.as_bytes())
        })
    }

    /// Closes every connection that there is.
    pub fn cut(&self) {
        self.doom(Fate::Cut, |_| true);
    }

    fn doom(&self, fate: Fate, doomed: impl Fn(&[u8]) -> bool) -> usize {
        let mut links = lock(&self.state.links);
        links.retain(|link| !link.fate.is_closed());
        let mut count = 0;
        for link in links.iter().filter(|link| doomed(&lock(&link.said))) {
            link.fate.send_replace(fate);
            count += 1;
        }
        count
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut links = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        state.opened.fetch_add(1, Ordering::Relaxed);
        let arrivals = *lock(&state.arrivals);
        let fate = match arrivals {
            Arrivals::Pass => Fate::Passes,
            Arrivals::Hang => Fate::Frozen,
            Arrivals::Refused => continue,
        };
        let (fate, changes) = watch::channel(fate);
        let said = Arc::default();
        lock(&state.links).push(Link {
            fate,
            said: Arc::clone(&said),
        });
        let state = Arc::clone(&state);
        links.spawn(async move { drop(link(client, &state, changes, &said).await) });
        while links.try_join_next().is_some() {}
    }
}

async fn link(
    client: TcpStream,
    state: &State,
    mut fate: watch::Receiver<Fate>,
    said: &Mutex<Vec<u8>>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    fate.wait_for(|fate| *fate != Fate::Frozen)
        .await
        .map_err(io::Error::other)?;
    let server = match &state.target {
        Target::Tcp(addr) => Either::Left(TcpStream::connect(addr).await?),
        Target::Unix(path) => Either::Right(UnixStream::connect(path).await?),
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = tokio::io::split(server);
    let there = pump(from_client, to_server, state, fate.clone(), Some(said));
    let back = pump(from_server, to_client, state, fate.clone(), None);
    let later = fate.clone();
    let cut = async move { drop(fate.wait_for(|fate| *fate == Fate::Cut).await) };
    let ended = async {
        let ended = tokio::select! { ended = there => ended, ended = back => ended };
        // One side has closed, and the other one hears of it, unless nothing passes.
        passes(later).await;
        ended
    };
    tokio::select! { ended = ended => ended, () = cut => Ok(()) }
}

/// Returns as soon as something passes, or the connection is cut.
async fn passes(mut fate: watch::Receiver<Fate>) {
    drop(fate.wait_for(|fate| *fate != Fate::Frozen).await);
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    mut fate: watch::Receiver<Fate>,
    said: Option<&Mutex<Vec<u8>>>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        // What is frozen is not read either: the sender's own buffers fill.
        passes(fate.clone()).await;
        let count = tokio::select! {
            count = from.read(&mut buffer) => count?,
            changed = fate.changed() => match changed {
                Ok(()) => continue,
                Err(error) => return Err(io::Error::other(error)),
            },
        };
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        if let Some(said) = said {
            let mut said = lock(said);
            let room = REMEMBERED.saturating_sub(said.len());
            said.extend(bytes.iter().take(room));
        }
        let delay = *lock(&state.delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        passes(fate.clone()).await;
        to.write_all(bytes).await?;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
