//! What a bounded look at a list found.

use uuid::Uuid;

/// Some rows, newest first, and where to go on.
#[derive(Debug, Clone)]
pub struct Found<T, Id = Uuid> {
    /// As many as were asked for, or fewer.
    pub rows: Vec<T>,
    /// Nothing below this id was looked at, although fewer were found than were asked for.
    pub seen_to: Option<Id>,
}

impl<T, Id> Default for Found<T, Id> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            seen_to: None,
        }
    }
}
