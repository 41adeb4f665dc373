//! How a connection comes about, and what is true of every one of them, in the pool or on its own.
//!
//! # Invariants
//! - It ends when the server owes an answer and is silent ([`watched`]), whoever asked: no call hangs.
//! - It is to a node that takes writes, and ends when that node stops taking them. A node that became read-only may
//!   be an old primary: what is read there has been overtaken elsewhere, and would be sent twice.
//! - Its session has the settings that we asked for (D2: `synchronous_commit`), or it is refused.
//! - Every address gets its own time: one that takes connections and says nothing does not hide the next one.

mod watched;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Notification, SimpleQueryMessage, SimpleQueryRow,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::either::Either;

use self::watched::Watched;
use super::pool::within;
use super::{Role, StoreError};
use crate::runtime::clock::boot_time;

/// How long one address may take, from the first packet to ready.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one that was idle may take to say that all is well.
const CHECK_BUDGET: Duration = Duration::from_secs(2);
/// How long a packet may stay without any sign that it arrived.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);
/// How long a connection is idle before its other end is probed, and then how often and how many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
const DEFAULT_PORT: u16 = 5432;

/// Whether writes are taken, and settings of ours that nobody else makes.
const STATE: &str = "SELECT current_setting('transaction_read_only'), current_setting('synchronous_commit'), \
                     current_setting('statement_timeout'), current_setting('lock_timeout')";
const POOLER: &str = "a connection pooler stands between us and PostgreSQL that does not keep a session's settings, \
                      or shares its sessions (PgBouncer in transaction mode). Postrider needs sessions of its own, \
                      and few of them: let DATABASE_URL name PostgreSQL itself";

type Wire = Watched<Either<TcpStream, UnixStream>>;

/// An open connection, driven by a task that ends with it.
pub(super) struct Opened {
    pub(super) client: Client,
    pub(super) driver: JoinHandle<()>,
}

impl Opened {
    fn checked(self, state: Result<(), StoreError>) -> Result<Self, StoreError> {
        if state.is_err() {
            self.driver.abort();
        }
        state.map(|()| self)
    }
}

/// Where the database is. Cheap to clone; what one clone learns of its nodes the others know.
#[derive(Clone)]
pub(super) struct Connector {
    config: Arc<Config>,
    tls: MakeRustlsConnect,
    /// The node to try first: the last that was good.
    preferred: Arc<AtomicUsize>,
    doubt: Doubt,
}

/// When a connection was found lost, in the milliseconds of the boot clock: those that were idle then are most likely
/// lost as well, and are not tried one by one.
#[derive(Debug, Clone, Default)]
pub(super) struct Doubt(Arc<AtomicU64>);

impl Doubt {
    /// A connection was lost.
    pub(super) fn cast(&self) {
        self.0.store(milliseconds(boot_time().0), Ordering::Relaxed);
    }

    /// Whether one was lost since so long ago.
    pub(super) fn was_cast_within(&self, length: Duration) -> bool {
        let now = milliseconds(boot_time().0);
        now.saturating_sub(self.0.load(Ordering::Relaxed)) < milliseconds(length)
    }
}

pub(super) fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// One of the hosts of `DATABASE_URL`.
struct Node {
    host: Host,
    /// For the certificate.
    name: String,
    port: u16,
}

/// One address of a node.
#[derive(Debug)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Connector {
    pub(super) fn new(config: Config, tls: MakeRustlsConnect) -> Self {
        Self {
            config: Arc::new(config),
            tls,
            preferred: Arc::default(),
            doubt: Doubt::default(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) const fn doubt(&self) -> &Doubt {
        &self.doubt
    }

    /// Opens a connection to the first node that takes writes, beginning with the one that did last.
    pub(super) async fn open(
        &self,
        role: Role,
        notifications: Option<mpsc::Sender<Notification>>,
    ) -> Result<Opened, StoreError> {
        let nodes = nodes(&self.config)?;
        let mut failed = None;
        let first = self.preferred.load(Ordering::Relaxed);
        for turn in 0..nodes.len() {
            let place = first.wrapping_add(turn) % nodes.len();
            let Some(node) = nodes.get(place) else {
                continue;
            };
            // Whoever gives up in the middle of this one leaves the next to the others.
            self.preferred.store(place + 1, Ordering::Relaxed);
            match Box::pin(self.open_node(node, role, notifications.clone())).await {
                Ok(opened) => {
                    self.preferred.store(place, Ordering::Relaxed);
                    return Ok(opened);
                }
                // What needs a person is not hidden by what passes.
                Err(error) if failed.as_ref().is_none_or(StoreError::is_transient) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| StoreError::Configuration(no_host())))
    }

    async fn open_node(
        &self,
        node: &Node,
        role: Role,
        notifications: Option<mpsc::Sender<Notification>>,
    ) -> Result<Opened, StoreError> {
        let mut failed = StoreError::Unavailable("its name has no address".to_owned());
        for address in within(CONNECT_TIMEOUT, addresses(node)).await? {
            let opening = self.open_address(&address, node, role, notifications.clone());
            match within(CONNECT_TIMEOUT, opening).await {
                Ok(opened) => return Ok(opened),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn open_address(
        &self,
        address: &Address,
        node: &Node,
        role: Role,
        notifications: Option<mpsc::Sender<Notification>>,
    ) -> Result<Opened, StoreError> {
        let mut config = (*self.config).clone();
        let own = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{own} {}", role.options()));
        config.application_name(role.name());
        let wire = Watched::new(dial(address).await.map_err(unreachable)?, role.silence());
        let mut make_tls = self.tls.clone();
        let tls = MakeTlsConnect::<Wire>::make_tls_connect(&mut make_tls, &node.name)
            .map_err(|error| StoreError::Configuration(error.to_string()))?;
        // Boxed: it is large, and rare; whoever waits for a connection would carry it.
        let connecting = Box::pin(config.connect_raw(wire, Watching(tls))).await;
        let (client, connection) = connecting.map_err(refused)?;
        let driver =
            crate::runtime::spawn_driver(drive(connection, notifications, self.doubt.clone()));
        let opened = Opened { client, driver };
        let state = check(&opened.client, role).await;
        opened.checked(state)
    }
}

/// Ends with the connection, or when its node takes no more writes: the server says so by itself (since version 14).
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    notifications: Option<mpsc::Sender<Notification>>,
    doubt: Doubt,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let message = std::future::poll_fn(|context| {
            let polled = connection.poll_message(context);
            if polled.is_pending() && is_read_only(&connection) {
                return Poll::Ready(None);
            }
            polled.map(Some)
        });
        match message.await {
            None => {
                doubt.cast();
                tracing::warn!("the database's node became read-only; leaving it");
                return;
            }
            Some(Some(Ok(AsyncMessage::Notification(notification)))) => {
                let sent = notifications.as_ref().map(|to| to.try_send(notification));
                if sent.is_some_and(|sent| sent.is_err()) {
                    tracing::trace!("a hint was dropped; the scan finds its work");
                }
            }
            Some(Some(Ok(AsyncMessage::Notice(notice)))) => {
                tracing::debug!(notice = notice.message(), "the database gave a notice");
            }
            Some(Some(Ok(_))) => {}
            Some(Some(Err(error))) => {
                doubt.cast();
                tracing::debug!(%error, "a database connection ended");
                return;
            }
            Some(None) => return,
        }
    }
}

fn is_read_only<S, T>(connection: &Connection<S, T>) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    ["in_hot_standby", "default_transaction_read_only"]
        .iter()
        .any(|name| connection.parameter(name) == Some("on"))
}

/// Whether a connection that was idle still passes something, and its node takes writes. Not whether it has the
/// settings that it was opened with: whoever holds a session makes settings of its own.
pub(super) async fn check_again(client: &Client) -> Result<(), StoreError> {
    let messages = within(CHECK_BUDGET, client.simple_query(STATE)).await?;
    let read_only = messages.iter().find_map(row).and_then(|row| row.get(0));
    if read_only == Some("off") {
        return Ok(());
    }
    Err(read_only_node())
}

fn read_only_node() -> StoreError {
    StoreError::Unavailable("it is read-only".to_owned())
}

/// Whether the node takes writes, and the session is as we asked for it.
async fn check(client: &Client, role: Role) -> Result<(), StoreError> {
    let messages = client.simple_query(STATE).await?;
    let row = messages.iter().find_map(row);
    let found: Vec<_> = (0..4)
        .map(|column| row.and_then(|row| row.get(column)).unwrap_or_default())
        .collect();
    let (statement_timeout, lock_timeout) = role.timeouts();
    match found.as_slice() {
        ["on", ..] => Err(read_only_node()),
        [_, "on", statements, locks]
            if *statements == statement_timeout && *locks == lock_timeout =>
        {
            Ok(())
        }
        _ => Err(StoreError::Configuration(POOLER.to_owned())),
    }
}

/// What it means when a server does not let us in.
fn refused(error: tokio_postgres::Error) -> StoreError {
    let refusal = error.as_db_error();
    match refusal.filter(|refusal| *refusal.code() == SqlState::PROTOCOL_VIOLATION) {
        Some(refusal) => {
            StoreError::Configuration(format!("{POOLER} (it said: {})", refusal.message()))
        }
        None => error.into(),
    }
}

fn unreachable(error: std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("error connecting to server: {error}"))
}

/// Whether two sessions share one of the server's, as behind a pooler in transaction mode: then what one of them
/// sets, locks or listens to is another's.
pub(super) async fn sessions_are_shared(one: &Client, other: &Client) -> Result<bool, StoreError> {
    /// A pooler with many of them may give one its own by chance.
    const LOOKS: usize = 3;
    let own = process(one).await?;
    for _ in 0..LOOKS {
        // A transaction stays where it began; outside of one, each statement may go anywhere.
        other.batch_execute("BEGIN").await?;
        let shared = process(other).await? == own || process(one).await? != own;
        other.batch_execute("ROLLBACK").await?;
        if shared {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn shared_sessions() -> StoreError {
    StoreError::Configuration(POOLER.to_owned())
}

/// The server's process that answers. Not prepared: a pooler may know nothing of prepared statements.
async fn process(client: &Client) -> Result<Option<String>, StoreError> {
    let messages = client.simple_query("SELECT pg_backend_pid()").await?;
    let row = messages.iter().find_map(row);
    Ok(row.and_then(|row| row.get(0)).map(str::to_owned))
}

fn row(message: &SimpleQueryMessage) -> Option<&SimpleQueryRow> {
    if let SimpleQueryMessage::Row(row) = message {
        return Some(row);
    }
    None
}

fn no_host() -> String {
    "DATABASE_URL names no host".to_owned()
}

/// The hosts of a URL. `hostaddr` says where a host is, and its name is for the certificate then.
fn nodes(config: &Config) -> Result<Vec<Node>, StoreError> {
    let (hosts, addresses, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let count = hosts.len().max(addresses.len());
    let fits = |many: usize| many == count || many == 0;
    if !fits(hosts.len()) || !fits(addresses.len()) || !(fits(ports.len()) || ports.len() == 1) {
        let text = "DATABASE_URL names different numbers of hosts, addresses and ports";
        return Err(StoreError::Configuration(text.to_owned()));
    }
    let node = |place: usize| {
        let name = match hosts.get(place) {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(_)) | None => String::new(),
        };
        let address = addresses.get(place).map(|it| Host::Tcp(it.to_string()));
        Some(Node {
            host: address.or_else(|| hosts.get(place).cloned())?,
            name,
            port: ports
                .get(place)
                .or(ports.first())
                .copied()
                .unwrap_or(DEFAULT_PORT),
        })
    };
    let nodes: Vec<_> = (0..count).filter_map(node).collect();
    if nodes.is_empty() {
        return Err(StoreError::Configuration(no_host()));
    }
    Ok(nodes)
}

async fn addresses(node: &Node) -> Result<Vec<Address>, StoreError> {
    match &node.host {
        Host::Unix(directory) => {
            let socket = format!(".s.PGSQL.{}", node.port);
            Ok(vec![Address::Unix(directory.join(socket))])
        }
        Host::Tcp(name) => {
            let found = tokio::net::lookup_host((name.as_str(), node.port)).await;
            Ok(found.map_err(unreachable)?.map(Address::Tcp).collect())
        }
    }
}

async fn dial(address: &Address) -> std::io::Result<Either<TcpStream, UnixStream>> {
    match address {
        Address::Unix(path) => Ok(Either::Right(UnixStream::connect(path).await?)),
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            prepare(&SockRef::from(&stream))?;
            Ok(Either::Left(stream))
        }
    }
}

/// Lets the kernel give up a connection whose other end is gone: with what was sent, and without.
fn prepare(socket: &SockRef<'_>) -> std::io::Result<()> {
    let (idle, interval, tries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(tries))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

/// Watches above TLS, where messages can be told apart.
struct Watching<C>(C);

impl<C> TlsConnect<Wire> for Watching<C>
where
    C: TlsConnect<Wire>,
    C::Future: Send + 'static,
{
    type Stream = Watched<C::Stream>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Stream, C::Error>>;

    fn connect(self, stream: Wire) -> Self::Future {
        let silence = stream.silence();
        let connecting = self.0.connect(stream.unwatched());
        Box::pin(async move { Ok(Watched::new(connecting.await?, silence)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_is_told_when_to_give_up() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let socket = SockRef::from(&stream);

        prepare(&socket).unwrap();

        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE.0);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE.1);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE.2);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
    }

    #[test]
    fn hosts_are_read_as_libpq_reads_them() {
        let read = |url: &str| {
            let nodes = nodes(&url.parse().unwrap()).map_err(|error| error.to_string());
            let show = |node: &Node| format!("{:?} {} {}", node.host, node.name, node.port);
            nodes.map(|nodes| nodes.iter().map(show).collect::<Vec<_>>())
        };
        for (url, expected) in [
            ("postgres://db/x", vec!["Tcp(\"db\") db 5432"]),
            (
                "postgres://a:1,b:2/x",
                vec!["Tcp(\"a\") a 1", "Tcp(\"b\") b 2"],
            ),
            ("host=a,b port=7", vec!["Tcp(\"a\") a 7", "Tcp(\"b\") b 7"]),
            (
                "postgres:///x?host=/run/pg&port=9",
                vec!["Unix(\"/run/pg\")  9"],
            ),
            ("host=a hostaddr=10.0.0.1", vec!["Tcp(\"10.0.0.1\") a 5432"]),
            ("hostaddr=10.0.0.1", vec!["Tcp(\"10.0.0.1\")  5432"]),
        ] {
            assert_eq!(read(url).unwrap(), expected, "{url}");
        }
        for url in [
            "host=a,b,c port=1,2",
            "host=a,b hostaddr=10.0.0.1",
            "user=x",
        ] {
            assert!(read(url).unwrap_err().contains("DATABASE_URL"), "{url}");
        }
    }
}
