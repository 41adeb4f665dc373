//! Between an API and its database: swallows acknowledgements.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shared::runtime::spawn_driver;
use shared::store::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

/// A proxy for PostgreSQL's protocol over Unix sockets.
pub(crate) struct Proxy {
    pub(crate) database: Database,
    /// How many more acknowledgements of a writer to swallow.
    cuts: Arc<AtomicUsize>,
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
        // Ends with the test's runtime.
        drop(spawn_driver(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                drop(spawn_driver(carry(client, server, Arc::clone(&shared))));
            }
        }));
        Self {
            database: Database::new(&url.replace(&host, &here)).unwrap(),
            cuts,
            _directory: directory,
        }
    }

    /// From now on, swallows the next acknowledgements of batches, and cuts those connections.
    pub(crate) fn swallow(&self, acknowledgements: usize) {
        self.cuts.store(acknowledgements, Ordering::SeqCst);
    }

    /// How many it still has to swallow.
    pub(crate) fn left(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

async fn carry(client: UnixStream, server: UnixStream, cuts: Arc<AtomicUsize>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let asked = Arc::new(AtomicBool::new(false));
    // Dropping the halves of the other direction closes both sockets.
    tokio::select! {
        () = requests(from_client, to_server, Arc::clone(&asked)) => {}
        () = replies(from_server, to_client, asked, cuts) => {}
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
    cuts: Arc<AtomicUsize>,
) {
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
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
