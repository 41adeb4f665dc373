//! A second server that follows the first, and how they change places. For tests.

use std::fs::File;

use super::place::Place;
use super::server::{self, Server};
use super::{EmbeddedError, EmbeddedPostgres, Options, SUPERUSER, Shutdown, io_error, leftovers};

impl EmbeddedPostgres {
    /// Makes and starts a streaming replica of this server; it is known to it by this name, as in
    /// `synchronous_standby_names`.
    ///
    /// # Errors
    /// As [`EmbeddedPostgres::start`].
    pub async fn replica(&self, name: &str) -> Result<Self, EmbeddedError> {
        let mut options = Options {
            data_dir: None,
            ..self.options.clone()
        };
        options
            .settings
            .push(("cluster_name".to_owned(), name.to_owned()));
        // Or a promotion may wait for 5 s until it is noticed that the primary is gone.
        let retry = ("wal_retrieve_retry_interval".to_owned(), "100ms".to_owned());
        options.settings.push(retry);
        let place = Place::prepare(None)?.with_binaries_of(&self.place);
        let mut copy = place.command(&place.program("pg_basebackup"));
        copy.arg("--host").arg(&self.place.socket);
        copy.args(["--port", &server::PORT.to_string(), "--username", SUPERUSER]);
        copy.args(["--write-recovery-conf", "--wal-method=stream"]);
        copy.args(["--checkpoint=fast", "--no-sync"]);
        copy.arg("--pgdata").arg(&place.data);
        let started = async {
            server::run("pg_basebackup", copy, "").await?;
            Server::launch(&place, &options).await
        };
        match started.await {
            Ok(server) => Ok(Self {
                options,
                place,
                server: Some(server),
            }),
            Err(error) => {
                drop(std::fs::remove_dir_all(&place.base));
                Err(error)
            }
        }
    }

    /// Makes a replica a server that takes writes; returns when it does.
    ///
    /// # Errors
    /// [`EmbeddedError::Program`] when it does not.
    pub async fn promote(&self) -> Result<(), EmbeddedError> {
        let mut promote = self.place.command(&self.place.program("pg_ctl"));
        promote
            .args(["promote", "--wait", "--pgdata"])
            .arg(&self.place.data);
        server::run("pg_ctl promote", promote, "").await
    }

    /// Stops the server in order and starts it again as a standby that follows nobody: it can be read, and takes no
    /// writes.
    ///
    /// # Errors
    /// As [`EmbeddedPostgres::resume`].
    pub async fn demote(&mut self) -> Result<(), EmbeddedError> {
        self.halt(Shutdown::Fast).await?;
        let signal = self.place.data.join("standby.signal");
        File::create(&signal).map_err(io_error("make", &signal))?;
        leftovers::clear(&self.place).await?;
        self.resume().await
    }
}
