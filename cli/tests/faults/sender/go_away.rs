//! F02: a receiver that recycles its HTTP/2 connections, as load balancers do with each deployment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use shared::runtime::spawn_driver;
use shared::testing::{TestDatabase, eventually};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::authority::Authority;
use super::idle::{delivered, nothing_is_charged};
use crate::process::PATIENCE;
use crate::world::World;

const EVENTS: usize = 300;
/// After how many requests a connection says that it takes no more, by turns.
const TURNS: [usize; 4] = [5, 1, 3, 0];

/// How often each event was taken.
type Taken = Arc<Mutex<HashMap<Vec<u8>, usize>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f02_a_receiver_that_recycles_its_connections_gets_every_event_and_costs_nobody() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let authority = Authority::new();
    let (_file, trusted) = authority.trusted();
    let _worker = world.worker_with(&[trusted]).await;
    let receiver = Recycling::start(authority.server_of_http2("127.0.0.1")).await;
    // If one attempt was charged for what is nobody's fault, its delivery would be dead.
    let settings = json!({ "url": receiver.url, "max_attempts": 1, "breaker": { "failures": 1 } });
    let endpoint = world.endpoint("recycled", settings).await;
    let poster = world.post(100, std::slice::from_ref(&endpoint));
    eventually(PATIENCE, || async {
        (poster.accepted() >= EVENTS).then_some(())
    })
    .await;

    let accepted = poster.stop().await.all_accepted();

    delivered(&world, accepted.len()).await;
    nothing_is_charged(&world, &endpoint).await;
    let maybe_sent = "SELECT count(*) FROM attempts WHERE error LIKE '%may have been received'";
    let maybe_sent = usize::try_from(world.count(maybe_sent).await).unwrap();
    let repeated = {
        let taken = receiver.taken.lock().unwrap();
        assert_eq!(taken.len(), accepted.len());
        taken.values().sum::<usize>() - taken.len()
    };
    let connections = receiver.connections.load(Ordering::Relaxed);
    // What says that it was not sent was not, but for what crossed a GOAWAY; it was the same event. There are as many
    // chances of that as connections, and on a busy machine one in twenty is one.
    let crossed = connections / 5;
    assert!(
        repeated <= maybe_sent + crossed,
        "{repeated} of {maybe_sent}"
    );
    let events = accepted.len();
    eprintln!("{events} events, {connections} connections, {maybe_sent} maybe sent");
    assert!(connections > EVENTS / 10, "{connections} connections");
}

/// A receiver that answers 200 and recycles connections.
struct Recycling {
    url: String,
    taken: Taken,
    connections: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Recycling {
    async fn start(tls: TlsAcceptor) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let (taken, connections) = (Taken::default(), Arc::new(AtomicUsize::new(0)));
        let stop = CancellationToken::new();
        let (books, count, stopped) = (Arc::clone(&taken), Arc::clone(&connections), stop.clone());
        drop(spawn_driver(async move {
            let accepting = async {
                while let Ok((stream, _)) = listener.accept().await {
                    let number = count.fetch_add(1, Ordering::Relaxed);
                    let most = TURNS[number % TURNS.len()];
                    // Ends with its peer.
                    drop(spawn_driver(serve(
                        stream,
                        tls.clone(),
                        most,
                        Arc::clone(&books),
                    )));
                }
            };
            stopped.run_until_cancelled(accepting).await;
        }));
        Self {
            url,
            taken,
            connections,
            _stop: stop.drop_guard(),
        }
    }
}

/// Serves a connection, and reads on when that is over until its peer has gone: whoever closes with
/// something unread resets the connection, and with it may take away its own last words.
async fn serve(stream: TcpStream, tls: TlsAcceptor, most: usize, taken: Taken) {
    let stream = stream.into_std().unwrap();
    let same = stream.try_clone().unwrap();
    recycle(TcpStream::from_std(stream).unwrap(), tls, most, taken).await;
    let mut same = TcpStream::from_std(same).unwrap();
    let mut unread = [0; 4_096];
    while same.read(&mut unread).await.is_ok_and(|read| read > 0) {}
}

/// Answers whatever it takes; after the GOAWAY that is what was on its way already.
async fn recycle(stream: TcpStream, tls: TlsAcceptor, most: usize, taken: Taken) {
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut count = 0;
    loop {
        if count == most {
            connection.graceful_shutdown();
        }
        let Some(Ok((request, mut respond))) = connection.accept().await else {
            return;
        };
        count += 1;
        let event = request.headers()["webhook-id"].as_bytes().to_vec();
        *taken.lock().unwrap().entry(event).or_default() += 1;
        // A plain 200.
        respond.send_response(Default::default(), true).unwrap();
    }
}
