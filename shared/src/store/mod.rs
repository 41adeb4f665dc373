//! The only place with SQL.
//!
//! Each statement is one `const` beside the one function that binds it, with a line that names the
//! index it uses and the lock it takes. "Now" is the database's clock, or a parameter.

pub mod error;
pub mod pool;

pub use error::StoreError;
pub use pool::{Database, Role, Session};
