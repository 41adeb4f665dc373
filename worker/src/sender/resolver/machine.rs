//! What this machine knows of DNS: its hosts file and the servers that it asks. Read again when the
//! files change, as every program does that uses the system's own resolver.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hickory_resolver::Hosts;
use hickory_resolver::system_conf::parse_resolv_conf;
use shared::runtime::settings::table::MOST_DNS_SERVERS;

const DNS_PORT: u16 = 53;

/// Something made from a file, made anew when the file changed.
pub(super) struct Watched<T> {
    path: PathBuf,
    read: Box<dyn Fn(&Path) -> T + Send + Sync>,
    kept: Mutex<Option<(Stamp, Arc<T>)>>,
}

/// By what a change shows; `None` where there is no file.
type Stamp = Option<(SystemTime, u64)>;

impl<T> Watched<T> {
    pub(super) fn new(path: &Path, read: impl Fn(&Path) -> T + Send + Sync + 'static) -> Self {
        Self {
            path: path.to_owned(),
            read: Box::new(read),
            kept: Mutex::new(None),
        }
    }

    /// Asks the file system, which takes microseconds, for each look-up that nothing remembers.
    pub(super) fn current(&self) -> Arc<T> {
        let stamp = stamp(&self.path);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((as_of, value)) if *as_of == stamp => Arc::clone(value),
            Some(_) | None => {
                let value = Arc::new((self.read)(&self.path));
                *kept = Some((stamp, Arc::clone(&value)));
                value
            }
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}

/// The names of a hosts file; none where there is no file.
pub(super) fn hosts(path: &Path) -> Hosts {
    let mut hosts = Hosts::default();
    let read = File::open(path).and_then(|file| hosts.read_hosts_conf(file));
    if let Err(error) = read {
        tracing::debug!(path = %path.display(), %error, "no hosts file");
    }
    hosts
}

/// The servers of a `resolv.conf`. Without any it is this machine, as that file's manual says.
pub(super) fn servers(path: &Path) -> Vec<SocketAddr> {
    let read = fs::read(path).map_err(|error| error.to_string());
    let parsed = read.and_then(|text| parse_resolv_conf(text).map_err(|error| error.to_string()));
    match parsed {
        Ok((config, _options)) => config
            .name_servers()
            .iter()
            .take(MOST_DNS_SERVERS)
            .map(|server| SocketAddr::new(server.ip, DNS_PORT))
            .collect(),
        Err(error) => {
            tracing::warn!(
                path = %path.display(), %error,
                "this machine names no DNS server; asking the one on it, if there is one"
            );
            vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DNS_PORT)]
        }
    }
}
