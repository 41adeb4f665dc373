//! An endpoint of a test.

/// An endpoint that takes the events of one type, its own.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// `ep_…`
    pub(crate) id: String,
    /// `whsec_…`
    pub(crate) secret: String,
    /// The key inside the database.
    pub(crate) key: i64,
    /// Its share.
    pub(crate) slot: i16,
    /// Its path at the receiver.
    pub(crate) path: String,
    /// The type of its events.
    pub(crate) event_type: String,
}
