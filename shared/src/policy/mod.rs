//! Pure decisions: no clock, no randomness, no IO. Time and chance come in as arguments, facts go
//! in and consequences come out, so that every law is a property test.
//!
//! - [`classify`]: from what came of a request to an outcome.
//! - [`decide`]: from an outcome to what becomes of the delivery.
//! - [`backoff`], [`retry_after`]: when to try again.
//! - [`breaker`], [`outage`]: whether an endpoint is well, and what follows when it was not.
//! - [`bucket`], [`limit`]: how fast and how much at once an endpoint is sent to.
//! - [`notice`]: what a tenant is told, and how often.
//! - [`dead_letters`]: what they have in common, and what to do about it.
//! - [`percentiles`], [`slowness`]: how fast an endpoint answers, and when that is worth a word.
//! - [`replay`]: how fast old events are sent again.
//! - [`address`]: where requests may go.
//! - [`headers`]: what a tenant may add to a request.
//! - [`postback`], [`payload`]: requests made of a payload's fields.
//! - [`redaction`]: what of a payload people never see.
//! - [`signing`]: what a receiver checks.
//! - [`doctor`]: what is wrong with an installation, how bad it is, and what to do.
//! - [`event_schema`]: which schemas of payloads are taken.

pub mod address;
pub mod backoff;
pub mod breaker;
pub mod bucket;
pub mod classify;
pub mod dead_letters;
pub mod decide;
pub mod doctor;
pub mod event_schema;
pub mod headers;
mod instant;
pub mod limit;
pub mod notice;
pub mod outage;
pub mod payload;
pub mod percentiles;
pub mod postback;
pub mod redaction;
pub mod replay;
pub mod retry_after;
pub mod signing;
pub mod slowness;
