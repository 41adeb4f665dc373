//! What can go wrong between us and the database, in classes that have a reaction each.

use tokio_postgres::error::SqlState;

/// A database call that did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, restarting, read-only or out of connections: wait and try again.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The call took longer than its budget; whether it took effect is unknown.
    #[error("the database did not answer within {0:?}")]
    Timeout(std::time::Duration),
    /// Another transaction was in the way (deadlock, lock timeout): try again.
    #[error("another transaction is in the way: {0}")]
    Contention(String),
    /// A uniqueness or check constraint, by its name.
    #[error("the constraint {0} is violated")]
    Conflict(String),
    /// The data of a statement cannot be stored (SQLSTATE classes 22, 23 and 54): bisect the batch.
    #[error("the database refuses the data: {0}")]
    BadData(String),
    /// This incarnation or epoch no longer owns what it writes to (D3).
    #[error("no longer the owner")]
    NotOwner,
    /// A stored value that this program cannot read.
    #[error("cannot read a stored value: {0}")]
    Decode(String),
    /// Settings that cannot work: fix the configuration.
    #[error("{0}")]
    Configuration(String),
    /// Anything else: a bug of ours, or a schema that does not fit.
    #[error("the database refuses a statement: {0}")]
    Other(String),
}

impl StoreError {
    /// Whether the same call may work in a moment.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Timeout(_) | Self::Contention(_) => true,
            Self::Conflict(_)
            | Self::BadData(_)
            | Self::NotOwner
            | Self::Decode(_)
            | Self::Configuration(_)
            | Self::Other(_) => false,
        }
    }

    /// The name for metrics and logs.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Timeout(_) => "timeout",
            Self::Contention(_) => "contention",
            Self::Conflict(_) => "conflict",
            Self::BadData(_) => "bad_data",
            Self::NotOwner => "not_owner",
            Self::Decode(_) => "decode",
            Self::Configuration(_) => "configuration",
            Self::Other(_) => "other",
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    /// By SQLSTATE, never by text. The text of a database error can carry a row's values, so only
    /// the message of classes without user data is kept.
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return if error.is_closed() || std::error::Error::source(&error).is_some() {
                Self::from_source(&error)
            } else {
                Self::Unavailable(error.to_string())
            };
        };
        let state = db.code();
        let class = state.code().get(..2).unwrap_or_default();
        match (state, class) {
            (s, _) if *s == SqlState::READ_ONLY_SQL_TRANSACTION => {
                Self::Unavailable("this node is read-only (25006)".to_owned())
            }
            (s, _) if *s == SqlState::QUERY_CANCELED => {
                Self::Contention(format!("canceled ({})", s.code()))
            }
            (s, _) if *s == SqlState::LOCK_NOT_AVAILABLE => {
                Self::Contention("lock timeout (55P03)".to_owned())
            }
            (_, "40") => Self::Contention(format!("{} ({})", db.message(), state.code())),
            (s, "23") if db.constraint().is_some() && *s != SqlState::CHECK_VIOLATION => {
                Self::Conflict(db.constraint().unwrap_or_default().to_owned())
            }
            (_, "22" | "23" | "54") => Self::BadData(format!("SQLSTATE {}", state.code())),
            // XX: the server cannot do its own work, as on a full disk ("could not write init file"). No
            // statement of ours makes it say so.
            (_, "08" | "53" | "57" | "58" | "XX") => {
                Self::Unavailable(format!("{} ({})", db.message(), state.code()))
            }
            (_, "28" | "3D") => Self::Configuration(format!(
                "{} ({}): check DATABASE_URL",
                db.message(),
                state.code()
            )),
            _ => Self::Other(format!("{} ({})", db.message(), state.code())),
        }
    }
}

impl StoreError {
    fn from_source(error: &tokio_postgres::Error) -> Self {
        let source = std::error::Error::source(error);
        match source {
            Some(cause)
                if cause.downcast_ref::<std::io::Error>().is_some() || error.is_closed() =>
            {
                Self::Unavailable(format!("{error}: {cause}"))
            }
            Some(cause) => {
                let text = format!("{error}: {cause}");
                if text.starts_with("error connecting") || text.starts_with("error communicating") {
                    Self::Unavailable(text)
                } else {
                    Self::Decode(text)
                }
            }
            None => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<deadpool::managed::PoolError<Self>> for StoreError {
    fn from(error: deadpool::managed::PoolError<Self>) -> Self {
        use deadpool::managed::PoolError;
        match error {
            PoolError::Backend(error) => error,
            PoolError::Timeout(_) => {
                Self::Unavailable("no free connection within the pool's wait budget".to_owned())
            }
            PoolError::Closed => Self::Unavailable("the pool is closed".to_owned()),
            PoolError::NoRuntimeSpecified => Self::Other("the pool has no runtime".to_owned()),
            PoolError::PostCreateHook(error) => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<crate::domain::UnknownCode> for StoreError {
    fn from(error: crate::domain::UnknownCode) -> Self {
        Self::Decode(error.to_string())
    }
}
