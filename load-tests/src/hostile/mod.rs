//! Receivers that misbehave at the byte level, and what the sender makes of each.
//!
//! [`catalogue`] is the table: a name, a script and the exact outcome. `load-tests hostile` plays all of
//! it and prints what came of it; `load-tests/tests/hostile.rs` asserts the same. Receivers and sender
//! are two processes, so that the memory that is measured is the sender's alone.

mod catalogue;
mod certificates;
mod frames;
mod memory;
mod names;
mod receiver;
mod receivers;
mod run;
mod script;

pub(crate) use receiver::serve;
pub(crate) use run::command;
pub use run::{HostileArguments, Report, Row, run};
