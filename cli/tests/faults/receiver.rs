//! The receivers of all endpoints of a test: one HTTP server that answers each path as it was told to,
//! and writes down every request with the instants of its arrival and its answer.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use load_tests::{http, ids};
use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::spawn_driver;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

/// How one request is answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    after: Option<Duration>,
    header: Cow<'static, str>,
    body: Arc<[u8]>,
}

impl Answer {
    /// At once.
    pub(crate) fn now(status: u16) -> Self {
        Self {
            status,
            after: Some(Duration::ZERO),
            header: Cow::Borrowed(""),
            body: Arc::default(),
        }
    }

    /// 200, so long after the request.
    pub(crate) fn late(after: Duration) -> Self {
        Self {
            status: 200,
            after: Some(after),
            header: Cow::Borrowed(""),
            body: Arc::default(),
        }
    }

    /// Never, while the connection stands.
    pub(crate) fn never() -> Self {
        Self {
            status: 200,
            after: None,
            header: Cow::Borrowed(""),
            body: Arc::default(),
        }
    }

    /// With another status.
    pub(crate) fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// With these bytes behind its head.
    pub(crate) fn body(self, body: impl Into<Arc<[u8]>>) -> Self {
        Self {
            body: body.into(),
            ..self
        }
    }

    /// With a header line of its own (`name: value`).
    pub(crate) fn with(self, header: &'static str) -> Self {
        Self {
            header: Cow::Borrowed(header),
            ..self
        }
    }
}

/// One request that carried a delivery.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) path: String,
    pub(crate) event: Uuid,
    pub(crate) delivery: Uuid,
    /// `Postrider-Attempt`.
    pub(crate) attempt: u16,
    /// What it is answered with.
    pub(crate) status: u16,
    pub(crate) at: BootTime,
    /// When its answer was sent, if it was.
    pub(crate) answered: Option<BootTime>,
    pub(crate) request: Raw,
}

/// A request as it came in.
#[derive(Clone)]
pub(crate) struct Raw(Arc<[u8]>);

impl Raw {
    /// Its method.
    pub(crate) fn method(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        text.split(' ').next().unwrap().to_owned()
    }

    /// The value of its first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut headers = self.headers().into_iter();
        let (_, value) = headers.find(|(found, _)| found.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// All of its headers, in their order.
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.0);
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        let headers = head.lines().filter_map(|line| line.split_once(": "));
        headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// What follows the head.
    pub(crate) fn body(&self) -> &[u8] {
        let end = self.0.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        &self.0[end.unwrap() + 4..]
    }
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes", self.0.len())
    }
}

#[derive(Debug, Default)]
struct Books {
    arrivals: Vec<Arrival>,
    /// The answers of a path to the first, second, … request of a delivery; the last one repeats.
    scripts: HashMap<String, Vec<Answer>>,
    /// Paths that take so many requests in each window of this length, and ask for the rest of it.
    windows: HashMap<String, Window>,
    /// Events that are answered 500 whatever the path says.
    refused: HashSet<Uuid>,
    requests_of: HashMap<Uuid, usize>,
}

#[derive(Debug)]
struct Window {
    length: Duration,
    allowed: usize,
    began: BootTime,
    taken: usize,
}

impl Window {
    /// What the next request is told: 200, or how long is left of the window.
    fn take(&mut self, now: BootTime) -> Result<(), Duration> {
        if now.since(self.began) >= self.length {
            (self.began, self.taken) = (now, 0);
        }
        if self.taken < self.allowed {
            self.taken += 1;
            return Ok(());
        }
        Err(self.length.saturating_sub(now.since(self.began)))
    }
}

impl Books {
    /// Where the request stands in the books, and its answer.
    fn enter(&mut self, request: &http::Request<'_>, raw: &[u8]) -> (usize, Answer) {
        let id = |text, prefix| Uuid::from_u128(ids::decode(text, prefix).unwrap());
        let delivery = id(request.delivery_id, b"dlv");
        let before = self.requests_of.entry(delivery).or_default();
        let event = id(request.webhook_id, b"evt");
        let script = self.scripts.get(request.path);
        let window = self.windows.get_mut(request.path);
        let answer = match (script, window) {
            _ if self.refused.contains(&event) => Answer::now(500),
            (Some(script), _) => script[(*before).min(script.len() - 1)].clone(),
            (None, Some(window)) => match window.take(boot_time()) {
                Ok(()) => Answer::now(200),
                // Whole seconds, as the header has them: never before the window's end.
                Err(left) => Answer {
                    header: format!("retry-after: {}", left.as_secs() + 1).into(),
                    ..Answer::now(429)
                },
            },
            (None, None) => Answer::now(200),
        };
        *before += 1;
        self.arrivals.push(Arrival {
            path: request.path.to_owned(),
            event,
            delivery,
            attempt: std::str::from_utf8(request.attempt)
                .unwrap()
                .parse()
                .unwrap(),
            status: answer.status,
            at: boot_time(),
            answered: None,
            request: Raw(raw.into()),
        });
        (self.arrivals.len() - 1, answer)
    }
}

/// A running receiver; ends when dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    addr: SocketAddr,
    books: Arc<Mutex<Books>>,
    stop: Option<DropGuard>,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let mut receiver = Self {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            books: Arc::default(),
            stop: None,
        };
        receiver.restart().await;
        receiver
    }

    /// As if its process had died: it listens no more, and answers nothing that it has. Returns these deliveries, with
    /// how often they have arrived.
    pub(crate) fn kill(&mut self) -> Vec<(Uuid, usize)> {
        self.stop = None;
        let books = self.books();
        let open = books.arrivals.iter().filter(|it| it.answered.is_none());
        let requests_of = |it: &Arrival| (it.delivery, books.requests_of[&it.delivery]);
        open.map(requests_of).collect()
    }

    /// Listens, where it did before.
    pub(crate) async fn restart(&mut self) {
        let listener = TcpListener::bind(self.addr).await.unwrap();
        self.addr = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let books = Arc::clone(&self.books);
        drop(spawn_driver(accept(listener, books, stop.clone())));
        self.stop = Some(stop.drop_guard());
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// How a path answers the first, second, … request of each delivery; the last answer repeats.
    /// A path that was told nothing answers 200 at once.
    pub(crate) fn answers(&self, path: &str, script: &[Answer]) {
        self.books()
            .scripts
            .insert(path.to_owned(), script.to_vec());
    }

    /// A path takes so many requests in each window of this length, and answers the others 429 with the
    /// rest of the window in `Retry-After`.
    pub(crate) fn allows(&self, path: &str, allowed: usize, length: Duration) {
        let window = Window {
            length,
            allowed,
            began: boot_time(),
            taken: 0,
        };
        self.books().windows.insert(path.to_owned(), window);
    }

    /// This event is answered 500, whatever its path says.
    pub(crate) fn refuses(&self, event: Uuid) {
        self.books().refused.insert(event);
    }

    /// How many requests arrived so far: a place in the books.
    pub(crate) fn count(&self) -> usize {
        self.books().arrivals.len()
    }

    /// Every request so far.
    pub(crate) fn all(&self) -> Vec<Arrival> {
        self.books().arrivals.clone()
    }

    /// The requests between two places in the books.
    pub(crate) fn between(&self, places: Range<usize>) -> Vec<Arrival> {
        self.books().arrivals[places].to_vec()
    }

    /// The requests of one path.
    pub(crate) fn at(&self, path: &str) -> Vec<Arrival> {
        let mut arrivals = self.all();
        arrivals.retain(|arrival| arrival.path == path);
        arrivals
    }

    /// How many requests of one path arrived so far.
    pub(crate) fn count_at(&self, path: &str) -> usize {
        let books = self.books();
        books.arrivals.iter().filter(|it| it.path == path).count()
    }

    /// How many requests are not answered yet, of those that `which` picks.
    pub(crate) fn open(&self, which: impl Fn(&Arrival) -> bool) -> usize {
        let books = self.books();
        books
            .arrivals
            .iter()
            .filter(|it| it.answered.is_none() && which(it))
            .count()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }
}

async fn accept(listener: TcpListener, books: Arc<Mutex<Books>>, stop: CancellationToken) {
    let listening = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (books, stop) = (Arc::clone(&books), stop.clone());
            drop(spawn_driver(async move {
                stop.run_until_cancelled(serve(stream, &books)).await;
            }));
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Answers the requests of one connection until the peer is gone.
async fn serve(mut stream: TcpStream, books: &Mutex<Books>) {
    let mut buffer = Vec::new();
    loop {
        let entered = match http::request(&buffer).unwrap() {
            Some(request) => {
                let length = request.length;
                let entered = books.lock().unwrap().enter(&request, &buffer[..length]);
                buffer.drain(..length);
                Some(entered)
            }
            None => None,
        };
        let Some((place, answer)) = entered else {
            match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => continue,
            }
        };
        let Some(after) = answer.after else {
            // Reads until the peer gives up.
            while stream
                .read_buf(&mut buffer)
                .await
                .is_ok_and(|length| length > 0)
            {}
            return;
        };
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let header = if answer.header.is_empty() {
            ""
        } else {
            &format!("{}\r\n", answer.header)
        };
        let head = format!(
            "HTTP/1.1 {} -\r\n{header}content-length: {}\r\n\r\n",
            answer.status,
            answer.body.len()
        );
        let whole = [head.as_bytes(), &answer.body].concat();
        books.lock().unwrap().arrivals[place].answered = Some(boot_time());
        if stream.write_all(&whole).await.is_err() {
            return;
        }
    }
}
