//! What a receiver does on one connection, step by step, and who carries it out.
//!
//! A script knows no HTTP beyond where a request ends: every byte that it says is written down in the
//! catalogue, so that it can be wrong in every way.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::frames::{self, Frame};

/// Between two bytes of a receiver that drips or sips.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// The longest request that is waited for, in bytes.
const LONGEST: usize = 64 << 20;

/// How much a flood says at most, in bytes. Nobody is expected to take it.
const FLOOD: u64 = 10 << 30;

/// One step of a script. When the last one is done the connection is closed.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Reads a request's head; what it brings of the body as well.
    ReadHead,
    /// Reads a request to its end.
    ReadRequest,
    /// Reads a request of HTTP/2 to its end, and the preface before the first one.
    ReadStream,
    /// Reads what comes first, whatever it is.
    ReadAny,
    /// Reads one byte in every tick.
    Sip,
    /// Says these bytes.
    Say(Bytes),
    /// Says frames that depend on the number of the stream that was read last.
    SayOn(fn(u32) -> Vec<u8>),
    /// Says these bytes over and over, one in every tick.
    Drip(Bytes),
    /// Says these bytes over and over, as fast as they are taken.
    Flood(Bytes),
    /// Says these bytes below TLS, where a stranger on the way could.
    SayBelow(Bytes),
    /// Reads and forgets until the other side closes.
    Hold,
    /// Neither reads nor writes.
    Ignore,
    /// Closes its own direction and goes on.
    CloseWriting,
    /// Ends the connection by RST.
    Reset,
    /// Begins the script anew.
    Again,
}

/// What a script needs of a connection beside its bytes.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin {
    /// The TCP connection at the bottom.
    fn tcp(&mut self) -> &mut TcpStream;
}

impl Wire for TcpStream {
    fn tcp(&mut self) -> &mut TcpStream {
        self
    }
}

impl Wire for TlsStream<TcpStream> {
    fn tcp(&mut self) -> &mut TcpStream {
        self.get_mut().0
    }
}

/// A connection under a script.
pub(super) struct Player<W> {
    wire: W,
    unread: Vec<u8>,
    /// The number of the last stream of HTTP/2 that a request came on.
    stream: u32,
    greeted: bool,
}

/// Whether a script goes on after a step.
enum Next {
    Step,
    Begin,
    End,
}

impl<W: Wire> Player<W> {
    pub(super) fn new(wire: W) -> Self {
        Self {
            wire,
            // The first read takes all of a handshake: what is left unread would turn a close into a reset.
            unread: Vec::with_capacity(16 << 10),
            stream: 0,
            greeted: false,
        }
    }

    /// Plays a script to its end, or until the other side has had enough of it.
    ///
    /// # Errors
    /// The connection broke: nothing that the receiver cares about.
    pub(super) async fn play(mut self, script: &[Step]) -> io::Result<()> {
        let mut rest = script.iter();
        while let Some(step) = rest.next() {
            match self.step(step).await? {
                Next::Step => {}
                Next::Begin => rest = script.iter(),
                Next::End => break,
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> io::Result<Next> {
        match step {
            Step::ReadHead => return self.read_head().await.map(after_reading),
            Step::ReadRequest => return self.read_request().await.map(after_reading),
            Step::ReadStream => return self.read_stream().await.map(after_reading),
            Step::ReadAny => {
                self.read_more().await?;
            }
            Step::Sip => self.sip().await?,
            Step::Say(bytes) => self.say(bytes).await?,
            Step::SayOn(frames) => self.say(&frames(self.stream)).await?,
            Step::Drip(bytes) => self.drip(bytes).await?,
            Step::Flood(bytes) => self.flood(bytes).await?,
            Step::SayBelow(bytes) => self.wire.tcp().write_all(bytes).await?,
            Step::Hold => self.hold().await?,
            Step::Ignore => std::future::pending().await,
            Step::CloseWriting => self.wire.shutdown().await?,
            Step::Reset => {
                self.wire.tcp().set_zero_linger()?;
                return Ok(Next::End);
            }
            Step::Again => return Ok(Next::Begin),
        }
        Ok(Next::Step)
    }

    async fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.write_all(bytes).await?;
        self.wire.flush().await
    }

    async fn drip(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes.iter().cycle() {
            self.say(&[*byte]).await?;
            sleep(TICK).await;
        }
        Ok(())
    }

    async fn flood(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut said = 0;
        while said < FLOOD {
            self.wire.write_all(bytes).await?;
            said += bytes.len() as u64;
        }
        Ok(())
    }

    async fn sip(&mut self) -> io::Result<()> {
        while self.wire.read(&mut [0; 1]).await? > 0 {
            sleep(TICK).await;
        }
        Ok(())
    }

    async fn hold(&mut self) -> io::Result<()> {
        while self.wire.read(&mut [0; 4_096]).await? > 0 {}
        Ok(())
    }

    /// The length of a request's head; `None` at the end of the connection.
    async fn head(&mut self) -> io::Result<Option<usize>> {
        loop {
            let end = self.unread.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                return Ok(Some(end + 4));
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    async fn read_head(&mut self) -> io::Result<bool> {
        let found = self.head().await?.is_some();
        self.unread.clear();
        Ok(found)
    }

    async fn read_request(&mut self) -> io::Result<bool> {
        let Some(head) = self.head().await? else {
            return Ok(false);
        };
        let end = head + body_length(self.unread.get(..head).unwrap_or_default());
        while self.unread.len() < end {
            if !self.read_more().await? {
                return Ok(false);
            }
        }
        self.unread.drain(..end);
        Ok(true)
    }

    /// Reads frames up to the one that ends a request, and answers none of them.
    async fn read_stream(&mut self) -> io::Result<bool> {
        if !self.greeted {
            while self.unread.len() < frames::PREFACE.len() {
                if !self.read_more().await? {
                    return Ok(false);
                }
            }
            self.unread.drain(..frames::PREFACE.len());
            self.greeted = true;
        }
        loop {
            while let Some(frame) = Frame::take(&mut self.unread) {
                if frame.ends_request() {
                    self.stream = frame.stream;
                    return Ok(true);
                }
            }
            if !self.read_more().await? {
                return Ok(false);
            }
        }
    }

    async fn read_more(&mut self) -> io::Result<bool> {
        if self.unread.len() >= LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(self.wire.read_buf(&mut self.unread).await? > 0)
    }
}

const fn after_reading(found: bool) -> Next {
    if found { Next::Step } else { Next::End }
}

fn body_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}
