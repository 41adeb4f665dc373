//! Places of this machine that lead nowhere.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};

/// A port that refuses whoever connects.
pub(crate) struct Closed {
    pub(crate) addr: SocketAddr,
    /// Bound, so that nobody comes to listen there.
    _held: TcpSocket,
}

impl Closed {
    pub(crate) fn new() -> Self {
        let held = TcpSocket::new_v4().unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = held.local_addr().unwrap();
        Self { addr, _held: held }
    }
}

/// A port whose queue is full: whoever connects is not answered.
pub(crate) struct Full {
    pub(crate) addr: SocketAddr,
    _queue: (TcpListener, Vec<TcpStream>),
}

impl Full {
    pub(crate) async fn at(addr: SocketAddr) -> Self {
        const MOST: usize = 16;
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(addr).unwrap();
        let listener = socket.listen(1).unwrap();
        let addr = listener.local_addr().unwrap();
        let filling = tokio::task::spawn_blocking(move || {
            let connect = |_| TcpStream::connect_timeout(&addr, Duration::from_millis(200)).ok();
            (0..MOST).map_while(connect).collect::<Vec<_>>()
        });
        let waiting = filling.await.unwrap();
        assert!(waiting.len() < MOST, "the queue takes all");
        Self {
            addr,
            _queue: (listener, waiting),
        }
    }
}
