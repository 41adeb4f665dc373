//! Pure decisions: no clock, no randomness, no IO. Time and chance come in as arguments, facts go
//! in and consequences come out, so that every law is a property test.
//!
//! - [`classify`]: from what came of a request to an outcome.
//! - [`decide`]: from an outcome to what becomes of the delivery.
//! - [`backoff`], [`retry_after`]: when to try again.
//! - [`address`]: where requests may go.
//! - [`signing`]: what a receiver checks.

pub mod address;
pub mod backoff;
pub mod classify;
pub mod decide;
pub mod retry_after;
pub mod signing;
