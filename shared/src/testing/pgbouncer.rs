//! A PgBouncer in front of a test's server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::eventually;
use crate::embedded_postgres::{EmbeddedPostgres, SUPERUSER};

/// Where Debian puts it, which is not on everybody's path.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Killed when it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    addr: SocketAddr,
    process: Child,
}

impl PgBouncer {
    /// Starts one with these lines of configuration, as the server's user: it refuses to run as root. Each of its
    /// own sessions begins with `query`.
    ///
    /// # Panics
    /// When it is not installed, or does not listen.
    #[expect(clippy::expect_used, reason = "a test cannot go on without it")]
    pub async fn start(server: &EmbeddedPostgres, lines: &[&str], query: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("an address");
        drop(listener);
        let file = server
            .data_dir()
            .join(format!("pgbouncer-{}.ini", addr.port()));
        std::fs::write(&file, configuration(server, addr, lines, query))
            .expect("a writable directory");
        let process = server
            .command(program())
            .arg("--quiet")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer: apt-get install pgbouncer");
        let bouncer = Self { addr, process };
        eventually(Duration::from_secs(10), || async {
            tokio::net::TcpStream::connect(addr).await.ok()
        })
        .await;
        bouncer
    }

    /// A URL of the server's database by way of it.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "postgres://{SUPERUSER}@{}/{SUPERUSER}?sslmode=disable",
            self.addr
        )
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            tracing::debug!(%error, "a PgBouncer had ended already");
        }
    }
}

fn program() -> PathBuf {
    let debian = Path::new(PROGRAM);
    if debian.exists() {
        return debian.to_owned();
    }
    PathBuf::from("pgbouncer")
}

fn configuration(
    server: &EmbeddedPostgres,
    addr: SocketAddr,
    lines: &[&str],
    query: &str,
) -> String {
    let query = query.replace('\'', "''");
    format!(
        "[databases]\n* = host={socket} port=5432 user={SUPERUSER} connect_query='{query}'\n\n[pgbouncer]\nlisten_addr = {host}\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\n{more}\n",
        socket = server.socket_dir().display(),
        host = addr.ip(),
        port = addr.port(),
        more = lines.join("\n"),
    )
}
