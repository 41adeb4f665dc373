//! Load generator, receiver and scenarios: what measures Postrider.
//!
//! Both ends cost a few microseconds per request, because they share the machine's cores with the
//! system under test; their own CPU is reported beside it. `docs/performance.md` says how to run a
//! scenario and how to read its result.

pub mod client;
pub mod commands;
pub mod generator;
pub mod hostile;
pub mod http;
pub mod ids;
pub mod latency;
pub mod payload;
pub mod receiver;
pub mod run;
