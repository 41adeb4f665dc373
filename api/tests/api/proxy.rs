//! Between an API and its database: swallows acknowledgements, and falls silent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shared::runtime::spawn_driver;
use shared::store::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The end of `ReadyForQuery`, outside a transaction: a connection is there.
const READY: &[u8] = b"Z\0\0\0\x05I";

/// A proxy for PostgreSQL's protocol over Unix sockets.
pub(crate) struct Proxy {
    pub(crate) database: Database,
    /// How many more acknowledgements of a writer to swallow.
    cuts: Arc<AtomicUsize>,
    silent: watch::Sender<bool>,
    _directory: tempfile::TempDir,
}

impl Proxy {
    /// In front of the server of a test database's URL.
    pub(crate) fn start(url: &str) -> Self {
        let parsed = url::Url::parse(url).unwrap();
        let parameter = |name: &str| {
            let mut pairs = parsed.query_pairs();
            pairs.find(|(key, _)| key == name).unwrap().1.into_owned()
        };
        let (host, port) = (parameter("host"), parameter("port"));
        let socket = format!(".s.PGSQL.{port}");
        let server = PathBuf::from(&host).join(&socket);
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(&socket)).unwrap();
        let here = directory.path().display().to_string();
        let cuts = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&cuts);
        let (silent, hushed) = watch::channel(false);
        // Ends with the test's runtime.
        drop(spawn_driver(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                drop(spawn_driver(carry(
                    client,
                    server,
                    Arc::clone(&shared),
                    hushed.clone(),
                )));
            }
        }));
        Self {
            database: Database::new(&url.replace(&host, &here)).unwrap(),
            cuts,
            silent,
            _directory: directory,
        }
    }

    /// From now on, swallows the next acknowledgements of batches, and cuts those connections.
    pub(crate) fn swallow(&self, acknowledgements: usize) {
        self.cuts.store(acknowledgements, Ordering::SeqCst);
    }

    /// From now on connections are taken, and no statement is answered; until it speaks again.
    pub(crate) fn be_silent(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// How many it still has to swallow.
    pub(crate) fn left(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

async fn carry(
    client: UnixStream,
    server: UnixStream,
    cuts: Arc<AtomicUsize>,
    silent: watch::Receiver<bool>,
) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let asked = Arc::new(AtomicBool::new(false));
    // Dropping the halves of the other direction closes both sockets.
    tokio::select! {
        () = requests(from_client, to_server, Arc::clone(&asked)) => {}
        () = replies(from_server, to_client, asked, (cuts, silent)) => {}
    }
}

/// Notes when a writer's connection (one that prepared the insert) has a statement executed.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: Arc<AtomicBool>) {
    let mut is_writer = false;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let chunk = &buffer[..length];
        is_writer |= chunk.windows(18).any(|text| text == b"INSERT INTO events");
        // Bind, or the BEGIN before it.
        if is_writer && matches!(chunk[0], b'B' | b'Q') {
            asked.store(true, Ordering::SeqCst);
        }
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    asked: Arc<AtomicBool>,
    (cuts, mut silent): (Arc<AtomicUsize>, watch::Receiver<bool>),
) {
    let mut is_ready = false;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if asked.swap(false, Ordering::SeqCst)
            && cuts
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
        {
            return;
        }
        if is_ready && silent.wait_for(|silent| !*silent).await.is_err() {
            return;
        }
        is_ready |= buffer[..length].ends_with(READY);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
