//! A private PostgreSQL: finds the installed programs, makes a cluster, starts, watches and stops it.
//!
//! For `postrider dev` (kept between runs, durable) and for tests (thrown away, not durable). It is
//! not for production: there `DATABASE_URL` names a database that someone looks after.
//!
//! - The server listens on a Unix socket in a directory that only its user may enter, and nowhere
//!   else: no port that another user of the machine could reach, so no password to guard either.
//! - It never outlives us for long. A small shell holds the other end of a pipe from this process
//!   and stops the server when the pipe closes, however we ended (`server.sh`). It runs in a process
//!   group of its own, so that a terminal's Ctrl-C reaches us alone and we stop things in order.
//! - What a killed run left behind is cleared before a start: a half-made cluster, a stale
//!   `postmaster.pid`, a server that nobody watches any more (`leftovers`).
//! - PostgreSQL refuses to run as root: then it runs as the owner of the existing cluster, else as
//!   `postgres`, else as `nobody`, in a place that this user can reach (`place`).

mod binaries;
mod leftovers;
mod place;
mod replica;
mod server;

use std::path::{Path, PathBuf};

use place::Place;
use server::Server;

/// The role that owns everything in the cluster, and the database that `initdb` is followed by.
pub const SUPERUSER: &str = "postrider";

/// The oldest major version of PostgreSQL that everything here works with.
pub const OLDEST_MAJOR: u32 = 15;

/// What kind of cluster to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the cluster lives, kept between runs. `None`: a new directory below the system's
    /// temporary one, removed when the server stops, however this process ends.
    pub data_dir: Option<PathBuf>,
    /// Whether a commit survives a power cut (`fsync`, `synchronous_commit`). Off only for tests.
    pub durable: bool,
    /// Server settings on top of ours, as in `postgresql.conf`.
    pub settings: Vec<(String, String)>,
}

impl Options {
    /// A durable cluster, kept in this directory.
    #[must_use]
    pub fn kept(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: Some(data_dir.into()),
            durable: true,
            settings: Vec::new(),
        }
    }

    /// A fast cluster for tests, removed at the end.
    #[must_use]
    pub const fn throw_away() -> Self {
        Self {
            data_dir: None,
            durable: false,
            settings: Vec::new(),
        }
    }
}

/// Why there is no embedded PostgreSQL. Every text says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// No usable installation.
    #[error(
        "no PostgreSQL {OLDEST_MAJOR} or newer found (looked in {searched}); install it: \
         apt-get install postgresql, or set DATABASE_URL to a database that runs elsewhere"
    )]
    NotFound {
        /// The directories looked in.
        searched: String,
    },
    /// The cluster was made by a version that is not installed.
    #[error(
        "the cluster in {dir} was made by PostgreSQL {made_by}, which is not installed; install it \
         (apt-get install postgresql-{made_by}), or remove the directory to start afresh"
    )]
    OtherVersion {
        /// The cluster's directory.
        dir: PathBuf,
        /// Its major version.
        made_by: u32,
    },
    /// Another process of ours uses the directory.
    #[error(
        "{dir} is in use by process {pid}; stop that one first, or use another directory \
         (one database server per directory)"
    )]
    InUse {
        /// The cluster's directory.
        dir: PathBuf,
        /// The process that holds it.
        pid: String,
    },
    /// The directory belongs to another user.
    #[error("{dir} belongs to user id {owner}; run as that user, or remove the directory")]
    Foreign {
        /// The cluster's directory.
        dir: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// A program of PostgreSQL failed; the end of what it printed is kept.
    #[error("{program} failed; the last it said:\n{output}")]
    Program {
        /// Which program.
        program: &'static str,
        /// The end of its output.
        output: String,
    },
    /// A server that an earlier run left behind does not end.
    #[error("processes {pids} still run in {dir} and do not stop; end them by hand")]
    Stuck {
        /// The cluster's directory.
        dir: PathBuf,
        /// Their ids.
        pids: String,
    },
    /// The file system said no.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// Attaches what was being done to an IO error.
fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> EmbeddedError + use<> {
    let path = path.to_owned();
    move |source| EmbeddedError::Io {
        action,
        path,
        source,
    }
}

/// How to end the server, in the words of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended, everything is written: the next start needs no recovery.
    Fast,
    /// Everything is dropped where it stands (SIGQUIT): the next start recovers from the WAL.
    Immediate,
    /// The first process is killed (SIGKILL), as by the kernel when memory is short.
    Kill,
}

/// A PostgreSQL server of our own. Dropping it stops the server in the background.
#[derive(Debug)]
pub struct EmbeddedPostgres {
    options: Options,
    place: Place,
    server: Option<Server>,
}

impl EmbeddedPostgres {
    /// Finds PostgreSQL, makes the cluster if there is none, and starts it. Takes about a second the
    /// first time, a tenth of one later; recovery after a crash comes on top.
    ///
    /// # Errors
    /// See [`EmbeddedError`]; nothing is left running.
    pub async fn start(options: Options) -> Result<Self, EmbeddedError> {
        let place = Place::prepare(options.data_dir.as_deref())?;
        let unwanted = place.remove.clone();
        let started = Self::start_in(place, options).await;
        if started.is_err()
            && let Some(dir) = unwanted
            && let Err(error) = std::fs::remove_dir_all(&dir)
        {
            // The server's shell may have been quicker.
            tracing::debug!(%error, dir = %dir.display(), "a directory was not removed");
        }
        started
    }

    async fn start_in(place: Place, options: Options) -> Result<Self, EmbeddedError> {
        leftovers::clear(&place).await?;
        let made_by = place.made_by()?;
        let found = binaries::find(made_by, &place).await?;
        let place = place.with_binaries(found);
        if made_by.is_none() {
            server::initialize(&place, options.durable).await?;
        }
        let server = Server::launch(&place, &options).await?;
        Ok(Self {
            options,
            place,
            server: Some(server),
        })
    }

    /// A command that runs as the server's user, in the cluster's directory.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> std::process::Command {
        self.place.command(program.as_ref())
    }

    /// A URL for this process and for `psql` in another terminal of the same user.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        // The socket's path is made of characters that need no escapes (`place`).
        format!(
            "postgres:///{database}?host={}&port={}&user={SUPERUSER}&sslmode=disable",
            self.place.socket.display(),
            server::PORT,
        )
    }

    /// Where the cluster really is: another place than asked for when the unprivileged user that
    /// PostgreSQL runs as under root cannot reach that one.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.place.base
    }

    /// The directory of the server's Unix socket.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.place.socket
    }

    /// The server's log.
    #[must_use]
    pub fn log_file(&self) -> &Path {
        &self.place.log
    }

    /// The first process of the server, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        server::postmaster_pid(&self.place)
    }

    /// Waits until the server is gone although nobody asked it to stop, and says why: the end of
    /// its log.
    pub async fn unexpected_end(&mut self) -> String {
        match &mut self.server {
            Some(server) => {
                server.ended().await;
                server.log_tail()
            }
            None => "the server was stopped".to_owned(),
        }
    }

    /// Stops the server in order; a throw-away cluster is removed.
    ///
    /// # Errors
    /// [`EmbeddedError::Stuck`] when it did not even end by SIGKILL.
    pub async fn stop(mut self) -> Result<(), EmbeddedError> {
        match self.server.take() {
            Some(server) => server.stop(&self.place, Shutdown::Fast).await,
            None => Ok(()),
        }
    }

    /// Ends the server but keeps the cluster, for [`EmbeddedPostgres::resume`].
    ///
    /// # Errors
    /// As [`EmbeddedPostgres::stop`].
    pub async fn halt(&mut self, how: Shutdown) -> Result<(), EmbeddedError> {
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        self.place.keep()?;
        server.stop(&self.place, how).await?;
        leftovers::clear(&self.place).await
    }

    /// Starts the server again after [`EmbeddedPostgres::halt`], under the same URL.
    ///
    /// # Errors
    /// As [`EmbeddedPostgres::start`].
    pub async fn resume(&mut self) -> Result<(), EmbeddedError> {
        if self.server.is_none() {
            leftovers::clear(&self.place).await?;
            self.server = Some(Server::launch(&self.place, &self.options).await?);
        }
        Ok(())
    }
}
