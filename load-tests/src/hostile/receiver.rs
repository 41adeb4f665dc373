//! The receivers of the catalogue, each on a port of its own, in a process of their own.
//!
//! Says on stdout where they are, and after each line on stdin how many connections each has had;
//! ends with its stdin.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::runtime::{open_files, spawn_driver};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::catalogue::{Behaviour, Wire, catalogue, elsewhere};
use super::certificates::{Authority, Shown};
use super::script::Player;
use crate::commands::say;

/// Connections of one receiver that nobody has taken up yet.
const BACKLOG: u32 = 1_024;
/// After a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Where the receivers are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Places {
    /// The port of each behaviour.
    pub(super) ports: BTreeMap<String, u16>,
    /// Where redirects lead.
    pub(super) elsewhere: u16,
    /// The authority behind their certificates, PEM.
    pub(super) authority: String,
}

/// How many connections each receiver has had.
pub(super) type Counts = BTreeMap<String, usize>;

/// Serves the whole catalogue until stdin ends.
pub(crate) async fn serve() -> anyhow::Result<bool> {
    // Fifty of each behaviour, and what their sender keeps for a while.
    let _most = open_files::raise();
    let authority = Authority::new()?;
    let mut ports = BTreeMap::new();
    let mut counters = BTreeMap::new();
    let mut place = |behaviour: Behaviour| -> anyhow::Result<u16> {
        let name = behaviour.name.to_owned();
        let count = Arc::new(AtomicUsize::new(0));
        let port = start(behaviour, &authority, Arc::clone(&count))?;
        ports.insert(name.clone(), port);
        counters.insert(name, count);
        Ok(port)
    };
    let elsewhere = place(elsewhere())?;
    for behaviour in catalogue(elsewhere) {
        place(behaviour)?;
    }
    let places = Places {
        ports,
        elsewhere,
        authority: authority.pem(),
    };
    say(&serde_json::to_string(&places)?)?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        let counts: Counts = counters
            .iter()
            .map(|(name, count)| (name.clone(), count.load(Ordering::SeqCst)))
            .collect();
        say(&serde_json::to_string(&counts)?)?;
    }
    Ok(true)
}

fn start(
    behaviour: Behaviour,
    authority: &Authority,
    count: Arc<AtomicUsize>,
) -> anyhow::Result<u16> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let port = socket.local_addr()?.port();
    let acceptor = match behaviour.wire {
        Wire::Nobody => {
            // Held, so that nobody else comes to listen there.
            spawn_driver(async move {
                std::future::pending::<()>().await;
                drop(socket);
            });
            return Ok(port);
        }
        Wire::Plain | Wire::PlainForTls => None,
        Wire::Tls(shown) => Some(authority.acceptor(shown, b"http/1.1")?),
        Wire::Http2 => Some(authority.acceptor(Shown::Good, b"h2")?),
    };
    let listener = socket.listen(BACKLOG)?;
    spawn_driver(accept(listener, Arc::new(behaviour), acceptor, count));
    Ok(port)
}

async fn accept(
    listener: TcpListener,
    behaviour: Arc<Behaviour>,
    acceptor: Option<TlsAcceptor>,
    count: Arc<AtomicUsize>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                count.fetch_add(1, Ordering::SeqCst);
                spawn_driver(play(stream, Arc::clone(&behaviour), acceptor.clone()));
            }
            // A peer that has gone already, or no file for a moment: it is still there for the next.
            Err(error) => {
                eprintln!("a receiver could not accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn play(stream: TcpStream, behaviour: Arc<Behaviour>, acceptor: Option<TlsAcceptor>) {
    // How the other side takes it is what the sender's process finds out.
    let _ended = match acceptor {
        None => Player::new(stream).play(&behaviour.script).await,
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => Player::new(stream).play(&behaviour.script).await,
            Err(refused) => Err(refused),
        },
    };
}
