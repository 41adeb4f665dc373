//! A keep-alive HTTP/1.1 connection: one request at a time, bytes in, bytes out.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::http;

/// How long one exchange may take: above any deadline of the system under test.
const DEADLINE: Duration = Duration::from_secs(60);
/// What a connection's buffer holds at first, in bytes.
const BUFFER: usize = 4 * 1024;

/// A connection that may be used for the next request.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A response; borrows the connection that read it.
#[derive(Debug)]
pub struct Reply<'c> {
    pub status: u16,
    pub body: &'c [u8],
    /// Whether the connection may be used again.
    pub keep_alive: bool,
}

impl Connection {
    /// Connects. Errors: the address refuses.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            read: Vec::with_capacity(BUFFER),
        })
    }

    /// Whether the server has not closed it yet, as far as is known: what a client asks before it uses one again.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let unread = self.stream.try_read(&mut [0]);
        unread.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a whole request and reads the whole reply. Errors: the connection is of no use any more.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Reply<'_>> {
        let response = tokio::time::timeout(DEADLINE, self.send_and_read(request)).await;
        let response = response.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
        let body = self.read.get(response.body).unwrap_or_default();
        Ok(Reply {
            status: response.status,
            body,
            keep_alive: response.keep_alive,
        })
    }

    async fn send_and_read(&mut self, request: &[u8]) -> io::Result<http::Response> {
        self.read.clear();
        self.stream.write_all(request).await?;
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match http::response(&self.read) {
                Ok(Some(response)) => return Ok(response),
                Ok(None) => {}
                Err(malformed) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, malformed));
                }
            }
        }
    }
}

/// A whole request.
#[must_use]
pub fn request(method: &str, path: &str, bearer: Option<&str>, body: &[u8]) -> Vec<u8> {
    request_with((method, path), bearer, &[], body)
}

/// The same with more headers.
#[must_use]
pub fn request_with(
    (method, path): (&str, &str),
    bearer: Option<&str>,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let authorization = bearer
        .map(|key| format!("authorization: Bearer {key}\r\n"))
        .unwrap_or_default();
    let more: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: load\r\n{authorization}{more}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Asks once on a fresh connection. Errors: no connection, or a reply that is not 2xx.
pub async fn ask(addr: SocketAddr, request: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut connection = Connection::open(addr)
        .await
        .with_context(|| format!("at {addr}"))?;
    let reply = connection
        .exchange(request)
        .await
        .with_context(|| format!("at {addr}"))?;
    if !(200..300).contains(&reply.status) {
        let line = request
            .split(|byte| *byte == b'\r')
            .next()
            .unwrap_or_default();
        bail!(
            "{} {}: {}",
            String::from_utf8_lossy(line),
            reply.status,
            String::from_utf8_lossy(reply.body)
        );
    }
    Ok(reply.body.to_vec())
}

/// Asks once and reads the reply as JSON. Errors: as [`ask`], or a reply of another shape.
pub async fn ask_json<T: DeserializeOwned>(addr: SocketAddr, request: &[u8]) -> anyhow::Result<T> {
    let body = ask(addr, request).await?;
    serde_json::from_slice(&body)
        .with_context(|| format!("unexpected reply: {}", String::from_utf8_lossy(&body)))
}
