//! The audit log's words: who changed what of the configuration.

use uuid::Uuid;

use super::coded;

coded! {
    /// Who made a change.
    ActorKind, "actor" {
        /// A request with an API key.
        Key = 1 "key",
        /// A request with the admin token.
        Admin = 2 "admin",
        /// `postrider`, straight in the database.
        CommandLine = 3 "command_line",
    }
}

/// Who made a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// A key: its public id and its first characters.
    Key(Uuid, String),
    /// The admin token.
    Admin,
    /// The command line.
    CommandLine,
}

impl Actor {
    /// What kind.
    #[must_use]
    pub const fn kind(&self) -> ActorKind {
        match self {
            Self::Key(..) => ActorKind::Key,
            Self::Admin => ActorKind::Admin,
            Self::CommandLine => ActorKind::CommandLine,
        }
    }
}

/// What a change was made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// `endpoint`, `key`, `tenant`, …: the word that the API has for it, without spaces.
    pub kind: &'static str,
    /// Its public id, if it has one.
    pub id: Option<Uuid>,
}

impl Object {
    /// Something with a public id.
    #[must_use]
    pub const fn new(kind: &'static str, id: Uuid) -> Self {
        Self { kind, id: Some(id) }
    }
}
