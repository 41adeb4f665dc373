//! Where a cluster lives and as whom its server runs.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::binaries::Binaries;
use super::{EmbeddedError, io_error, leftovers};

/// Below this are clusters that root asked for in a directory which the server's user cannot reach.
const ROOTS_CLUSTERS: &str = "/var/lib/postrider";
/// What the names of throw-away clusters begin with.
pub(super) const THROW_AWAY_PREFIX: &str = "postrider-cluster-";
/// `sockaddr_un` holds 108 bytes with the final zero.
const LONGEST_SOCKET_PATH: usize = 107;
const SOCKET_NAME: &str = "/.s.PGSQL.65535";

/// An unprivileged user to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
}

/// The directories of one cluster, locked for this process.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) base: PathBuf,
    pub(super) data: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) log: PathBuf,
    /// What the server's shell removes when the server has ended.
    pub(super) remove: Option<PathBuf>,
    pub(super) lz4: bool,
    binaries: PathBuf,
    user: Option<User>,
    _lock: File,
}

impl Place {
    /// Makes the directories and takes the lock.
    pub(super) fn prepare(asked: Option<&Path>) -> Result<Self, EmbeddedError> {
        let mut user = rustix::process::geteuid().is_root().then(unprivileged_user);
        let base = match asked {
            Some(dir) => kept_base(dir, user.as_ref())?,
            None => throw_away_base(user.as_ref())?,
        };
        if let Ok(existing) = base.metadata() {
            user = owner_of(&base, &existing, user)?;
        }
        make_private(&base, user.as_ref())?;
        let lock = lock(&base)?;
        let (socket, mut remove) = socket_dir(&base)?;
        if asked.is_none() {
            remove = Some(base.clone());
        }
        Ok(Self {
            data: base.join("data"),
            socket,
            log: base.join("postgres.log"),
            remove,
            lz4: false,
            binaries: PathBuf::new(),
            user,
            base,
            _lock: lock,
        })
    }

    pub(super) fn with_binaries(mut self, found: Binaries) -> Self {
        self.binaries = found.dir;
        self.lz4 = found.lz4;
        self
    }

    /// The same programs as another cluster.
    pub(super) fn with_binaries_of(mut self, other: &Self) -> Self {
        self.binaries.clone_from(&other.binaries);
        self.lz4 = other.lz4;
        self
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }

    /// A command that runs as the server's user, in a directory and an environment that suit it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.base).env("LC_ALL", "C");
        command.env("TZ", "UTC");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    pub(super) fn half_made(&self) -> PathBuf {
        self.base.join("data.tmp")
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.data.join("postmaster.pid")
    }

    /// The major version that made the cluster; `None`: there is none yet.
    pub(super) fn made_by(&self) -> Result<Option<u32>, EmbeddedError> {
        let file = self.data.join("PG_VERSION");
        match std::fs::read_to_string(&file) {
            Ok(text) => text.trim().parse().map(Some).map_err(|error| {
                io_error("read", &file)(std::io::Error::new(std::io::ErrorKind::InvalidData, error))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", &file)(error)),
        }
    }

    /// Sockets of a killed server, with their lock files, would make the next one hesitate.
    pub(super) fn renew_socket_dir(&self) -> Result<(), EmbeddedError> {
        if self.socket.exists() {
            std::fs::remove_dir_all(&self.socket).map_err(io_error("remove", &self.socket))?;
        }
        make_private(&self.socket, self.user.as_ref())
    }

    /// Tells the server's shell that the server is only stopped for a while.
    pub(super) fn keep(&self) -> Result<(), EmbeddedError> {
        let mark = self.keep_mark();
        File::create(&mark).map_err(io_error("make", &mark))?;
        Ok(())
    }

    pub(super) fn unkeep(&self) {
        if let Err(error) = std::fs::remove_file(self.keep_mark())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "the embedded PostgreSQL will not be removed at the end");
        }
    }

    fn keep_mark(&self) -> PathBuf {
        self.remove.as_ref().unwrap_or(&self.base).join("keep")
    }

    /// Whether the server's user can reach what is in this directory.
    pub(super) fn may_enter(&self, dir: &Path) -> bool {
        may_enter(dir, self.user.as_ref())
    }
}

fn kept_base(dir: &Path, user: Option<&User>) -> Result<PathBuf, EmbeddedError> {
    let dir = std::path::absolute(dir).map_err(io_error("find", dir))?;
    let parent = dir.parent().unwrap_or(&dir);
    std::fs::create_dir_all(parent).map_err(io_error("make", parent))?;
    let parent = parent.canonicalize().map_err(io_error("find", parent))?;
    let dir = parent.join(dir.file_name().unwrap_or_default());
    if may_enter(&parent, user) {
        return Ok(dir);
    }
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let name: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    std::fs::create_dir_all(ROOTS_CLUSTERS).map_err(io_error("make", ROOTS_CLUSTERS.as_ref()))?;
    let moved = Path::new(ROOTS_CLUSTERS).join(name);
    tracing::info!(
        asked = %dir.display(),
        used = %moved.display(),
        "PostgreSQL does not run as root, and its user cannot reach the directory; using another"
    );
    Ok(moved)
}

fn throw_away_base(user: Option<&User>) -> Result<PathBuf, EmbeddedError> {
    let mut root = std::env::temp_dir();
    if !may_enter(&root, user) {
        root = PathBuf::from("/tmp");
    }
    leftovers::sweep(&root);
    let dir = tempfile::Builder::new()
        .prefix(THROW_AWAY_PREFIX)
        .tempdir_in(&root)
        .map_err(io_error("make a directory in", &root))?;
    Ok(dir.keep())
}

/// The socket's directory: in the base if its path is short and plain enough, else a temporary one
/// (returned a second time, to be removed at the end).
fn socket_dir(base: &Path) -> Result<(PathBuf, Option<PathBuf>), EmbeddedError> {
    let own = base.join("socket");
    let text = own.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.len() + SOCKET_NAME.len() <= LONGEST_SOCKET_PATH && text.chars().all(plain) {
        return Ok((own, None));
    }
    let root = Path::new("/tmp");
    let dir = tempfile::Builder::new()
        .prefix("postrider-socket-")
        .tempdir_in(root)
        .map_err(io_error("make a directory in", root))?
        .keep();
    Ok((dir.clone(), Some(dir)))
}

/// Root serves a cluster as its owner; anyone else serves only their own.
fn owner_of(
    dir: &Path,
    existing: &std::fs::Metadata,
    user: Option<User>,
) -> Result<Option<User>, EmbeddedError> {
    let owner = User {
        uid: existing.uid(),
        gid: existing.gid(),
    };
    match user {
        Some(_) if owner.uid != 0 => Ok(Some(owner)),
        Some(_) => Ok(user),
        None if owner.uid == rustix::process::geteuid().as_raw() => Ok(None),
        None => Err(EmbeddedError::Foreign {
            dir: dir.to_owned(),
            owner: owner.uid,
        }),
    }
}

/// A directory that only the server's user (and root) can look into.
fn make_private(dir: &Path, user: Option<&User>) -> Result<(), EmbeddedError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(io_error("make", dir)(error));
        }
        Ok(()) | Err(_) => {}
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))
        .map_err(io_error("protect", dir))?;
    match user {
        Some(user) => {
            chown(dir, Some(user.uid), Some(user.gid)).map_err(io_error("give away", dir))
        }
        None => Ok(()),
    }
}

/// One process per cluster. The lock ends with the process, however that ends; the file stays.
fn lock(base: &Path) -> Result<File, EmbeddedError> {
    let path = base.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).map_err(io_error("write", &path))?;
            write!(file, "{}", std::process::id()).map_err(io_error("write", &path))?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)
                .map_err(io_error("read", &path))?;
            Err(EmbeddedError::InUse {
                dir: base.to_owned(),
                pid,
            })
        }
        Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
    }
}

/// `postgres` if the machine has that user, else `nobody`.
fn unprivileged_user() -> User {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| account(&accounts, name))
        .unwrap_or(User {
            uid: 65_534,
            gid: 65_534,
        })
}

fn account(accounts: &str, name: &str) -> Option<User> {
    let mut fields = accounts
        .lines()
        .map(|line| line.split(':'))
        .find(|fields| fields.clone().next() == Some(name))?;
    let uid = fields.nth(2)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(User { uid, gid })
}

/// Whether every directory on the way, this one included, lets the user through.
fn may_enter(dir: &Path, user: Option<&User>) -> bool {
    let Some(user) = user else { return true };
    dir.ancestors().all(|dir| {
        dir.metadata().is_ok_and(|found| {
            let mode = found.mode();
            let bit = if found.uid() == user.uid {
                0o100
            } else if found.gid() == user.gid {
                0o010
            } else {
                0o001
            };
            mode & bit != 0
        })
    })
}
