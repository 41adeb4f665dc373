//! A DNS server on loopback that answers what a test tells it to, over real UDP and TCP sockets.
//!
//! It plays a resolver: aliases are followed here, and a name that nobody told it of does not exist.
//! What it answers can be changed while it runs. A query that is sent again (same name, type and id)
//! is answered as before and counted once.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record};
use tokio::io::{self, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use hickory_proto::rr::RecordType;

/// Longer answers are truncated over UDP, as servers do.
const UDP_ANSWER: usize = 1_232;
const MOST_ALIASES: usize = 10;
const OTHERWISE: Reply = Reply::NoSuchName(5);

/// What to answer.
#[derive(Debug, Clone)]
pub enum Reply {
    /// These addresses, each for its type of query, with this TTL in seconds. No data for a type
    /// that has none. More than some 2,000 fit into no message.
    Addresses(Vec<IpAddr>, u32),
    /// Another name, with this TTL in seconds, and what that name is.
    Alias(String, u32),
    /// NXDOMAIN, to be remembered for this many seconds.
    NoSuchName(u32),
    /// An empty answer, to be remembered for this many seconds.
    NoData(u32),
    /// SERVFAIL.
    ServerFailure,
    /// REFUSED.
    Refused,
    /// Nothing.
    Silence,
    /// Bytes that are no DNS message but carry the query's id.
    Garbage,
    /// Under another id than the query's.
    WrongId(Box<Self>),
    /// Over UDP an empty answer marked as truncated; in full over TCP.
    Truncated(Box<Self>),
    /// In full over UDP too, however long it is.
    OverLong(Box<Self>),
    /// As soon as the value is true.
    When(watch::Receiver<bool>, Box<Self>),
}

impl Reply {
    /// One address.
    #[must_use]
    pub fn address(address: impl Into<IpAddr>, ttl: u32) -> Self {
        Self::Addresses(vec![address.into()], ttl)
    }
}

/// See the module. Ends when it is dropped.
#[derive(Debug)]
pub struct DnsServer {
    addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    _serving: JoinSet<()>,
}

impl DnsServer {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When there is none.
    pub async fn start() -> Self {
        #[expect(clippy::expect_used, reason = "a test cannot go on without its server")]
        let (udp, tcp) = bind().await.expect("a free port for UDP and TCP");
        #[expect(clippy::expect_used, reason = "it is bound")]
        let addr = udp.local_addr().expect("an address");
        let zone = Arc::new(Mutex::new(Zone::default()));
        let mut serving = JoinSet::new();
        serving.spawn(serve_udp(Arc::new(udp), Arc::clone(&zone)));
        serving.spawn(serve_tcp(tcp, Arc::clone(&zone)));
        Self {
            addr,
            zone,
            _serving: serving,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers all queries of a name so from now on.
    pub fn answer(&self, name: &str, reply: Reply) {
        self.answer_in_turn(name, vec![reply]);
    }

    /// Answers the first query of each type of a name by the first reply, the second by the second,
    /// and so on; the last one stays.
    pub fn answer_in_turn(&self, name: &str, replies: Vec<Reply>) {
        let script = Script::new(replies);
        self.zone().scripts.insert((canonical(name), None), script);
    }

    /// Answers the queries of one type so, whatever is said of the name otherwise.
    pub fn answer_type(&self, name: &str, kind: RecordType, reply: Reply) {
        let script = Script::new(vec![reply]);
        self.zone()
            .scripts
            .insert((canonical(name), Some(kind)), script);
    }

    /// Answers all names that nothing else is said of so.
    pub fn answer_others(&self, reply: Reply) {
        self.zone().others = Some(reply);
    }

    /// Makes every name below `zone` that begins with an IPv4 address lead there:
    /// `127.0.0.1.rebind.test`.
    pub fn lead_where_names_say(&self, zone: &str) {
        self.zone().telling.push(format!(".{}", canonical(zone)));
    }

    /// The queries of a name so far.
    #[must_use]
    pub fn asked(&self, name: &str, kind: RecordType) -> usize {
        let zone = self.zone();
        let ids = zone.asked.get(&(canonical(name), kind));
        ids.map_or(0, HashSet::len)
    }

    /// Every name asked for so far.
    #[must_use]
    pub fn names(&self) -> HashSet<String> {
        let asked = &self.zone().asked;
        asked.keys().map(|(name, _)| name.clone()).collect()
    }

    /// The queries over TCP so far.
    #[must_use]
    pub fn asked_over_tcp(&self) -> usize {
        self.zone().over_tcp
    }

    fn zone(&self) -> MutexGuard<'_, Zone> {
        lock(&self.zone)
    }
}

/// What the server knows and what it was asked.
#[derive(Debug, Default)]
struct Zone {
    scripts: HashMap<(String, Option<RecordType>), Script>,
    telling: Vec<String>,
    others: Option<Reply>,
    asked: HashMap<(String, RecordType), HashSet<u16>>,
    over_tcp: usize,
}

/// The replies of a name in turn.
#[derive(Debug)]
struct Script {
    replies: Vec<Reply>,
    given: HashMap<RecordType, Vec<u16>>,
}

impl Script {
    fn new(replies: Vec<Reply>) -> Self {
        Self {
            replies,
            given: HashMap::new(),
        }
    }

    fn reply(&mut self, kind: RecordType, id: u16) -> Option<Reply> {
        let given = self.given.entry(kind).or_default();
        let turn = given.iter().position(|known| *known == id);
        let turn = turn.unwrap_or_else(|| {
            given.push(id);
            given.len() - 1
        });
        self.replies.get(turn).or(self.replies.last()).cloned()
    }
}

impl Zone {
    fn ask(&mut self, name: &str, kind: RecordType, id: u16) -> Reply {
        let key = (name.to_owned(), kind);
        self.asked.entry(key).or_default().insert(id);
        self.reply(name, kind, id)
    }

    fn reply(&mut self, name: &str, kind: RecordType, id: u16) -> Reply {
        for kind_of_script in [Some(kind), None] {
            let script = self.scripts.get_mut(&(name.to_owned(), kind_of_script));
            if let Some(reply) = script.and_then(|script| script.reply(kind, id)) {
                return reply;
            }
        }
        let told = self.telling.iter().find_map(|zone| {
            let address = name.strip_suffix(zone.as_str())?;
            Ipv4Addr::from_str(address).ok()
        });
        match (told, &self.others) {
            (Some(address), _) => Reply::address(address, 0),
            (None, Some(reply)) => reply.clone(),
            (None, None) => OTHERWISE,
        }
    }

    /// The records of an alias and of all that it leads to.
    fn follow(&mut self, query: &Query, id: u16, message: &mut Message, first: Reply) {
        let mut name = query.name().clone();
        let mut reply = first;
        for _ in 0..MOST_ALIASES {
            let Reply::Alias(to, ttl) = reply else { break };
            let to = parsed(&to);
            let alias = RData::CNAME(CNAME(to.clone()));
            message.add_answer(Record::from_rdata(name, ttl, alias));
            name = to;
            reply = self.reply(&text(&name), query.query_type(), id);
        }
        fill(message, &name, query.query_type(), reply);
    }
}

/// Puts into the message what the name is.
fn fill(message: &mut Message, name: &Name, kind: RecordType, reply: Reply) {
    let code = &mut message.metadata.response_code;
    match reply {
        Reply::Addresses(addresses, ttl) => {
            let of_kind = addresses
                .into_iter()
                .map(RData::from)
                .filter(|data| data.record_type() == kind);
            for data in of_kind {
                message.add_answer(Record::from_rdata(name.clone(), ttl, data));
            }
        }
        Reply::NoSuchName(ttl) => {
            *code = ResponseCode::NXDomain;
            message.add_authority(start_of_authority(ttl));
        }
        Reply::NoData(ttl) => {
            message.add_authority(start_of_authority(ttl));
        }
        Reply::Refused => *code = ResponseCode::Refused,
        Reply::ServerFailure
        | Reply::Alias(..)
        | Reply::Silence
        | Reply::Garbage
        | Reply::WrongId(_)
        | Reply::Truncated(_)
        | Reply::OverLong(_)
        | Reply::When(..) => *code = ResponseCode::ServFail,
    }
}

fn start_of_authority(ttl: u32) -> Record {
    let name = || parsed("test");
    let soa = SOA::new(name(), name(), 1, 3_600, 600, 86_400, ttl);
    Record::from_rdata(name(), ttl, RData::SOA(soa))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Udp,
    Tcp,
}

/// The bytes to answer with, if any.
async fn answer(zone: &Mutex<Zone>, query: &[u8], over: Over) -> Option<Vec<u8>> {
    let request = Message::from_vec(query).ok()?;
    let id = request.metadata.id;
    let query = request.queries.first()?;
    let mut reply = {
        let mut zone = lock(zone);
        zone.over_tcp += usize::from(over == Over::Tcp);
        zone.ask(&text(query.name()), query.query_type(), id)
    };
    let mut message = Message::response(id, OpCode::Query);
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    let mut longest = if over == Over::Udp {
        UDP_ANSWER
    } else {
        usize::MAX
    };
    let reply = loop {
        reply = match reply {
            Reply::Silence => return None,
            Reply::Garbage => return Some([&id.to_be_bytes()[..], &[0xff; 40]].concat()),
            Reply::WrongId(inner) => {
                message.metadata.id = id.wrapping_add(1);
                *inner
            }
            Reply::Truncated(inner) => {
                longest = if over == Over::Udp { 0 } else { longest };
                *inner
            }
            Reply::OverLong(inner) => {
                longest = usize::MAX;
                *inner
            }
            Reply::When(mut is_time, inner) => {
                is_time.wait_for(|is_time| *is_time).await.ok()?;
                *inner
            }
            plain @ (Reply::Addresses(..)
            | Reply::Alias(..)
            | Reply::NoSuchName(_)
            | Reply::NoData(_)
            | Reply::ServerFailure
            | Reply::Refused) => break plain,
        };
    };
    lock(zone).follow(query, id, &mut message, reply);
    let bytes = message.to_vec().ok()?;
    if bytes.len() > longest {
        return message.truncate().to_vec().ok();
    }
    Some(bytes)
}

/// The same free port for both.
async fn bind() -> io::Result<(UdpSocket, TcpListener)> {
    let mut last = None;
    for _ in 0..20 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        match TcpListener::bind(udp.local_addr()?).await {
            Ok(tcp) => return Ok((udp, tcp)),
            Err(taken) => last = Some(taken),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

async fn serve_udp(socket: Arc<UdpSocket>, zone: Arc<Mutex<Zone>>) {
    let mut answering = JoinSet::new();
    let mut buffer = [0; 4_096];
    loop {
        // An error here is about an answer that its asker no longer waited for.
        let Ok((length, asker)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let query = buffer.iter().take(length).copied().collect::<Vec<_>>();
        let (socket, zone) = (Arc::clone(&socket), Arc::clone(&zone));
        answering.spawn(async move {
            if let Some(bytes) = answer(&zone, &query, Over::Udp).await {
                drop(socket.send_to(&bytes, asker).await);
            }
        });
        while answering.try_join_next().is_some() {}
    }
}

async fn serve_tcp(listener: TcpListener, zone: Arc<Mutex<Zone>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let zone = Arc::clone(&zone);
        connections.spawn(async move { drop(converse(stream, &zone).await) });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(mut stream: TcpStream, zone: &Mutex<Zone>) -> io::Result<()> {
    loop {
        let mut query = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut query).await?;
        if let Some(bytes) = answer(zone, &query, Over::Tcp).await {
            let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
            stream.write_u16(length).await?;
            stream.write_all(&bytes).await?;
        }
    }
}

fn lock(zone: &Mutex<Zone>) -> MutexGuard<'_, Zone> {
    zone.lock().unwrap_or_else(PoisonError::into_inner)
}

fn canonical(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn text(name: &Name) -> String {
    canonical(&name.to_ascii())
}

#[expect(
    clippy::expect_used,
    reason = "a test's name that is none is a bug of the test"
)]
fn parsed(name: &str) -> Name {
    let mut name = Name::from_ascii(name).expect("a name");
    name.set_fqdn(true);
    name
}
