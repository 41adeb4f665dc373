//! The `postrider` program from outside: as a child process, with real databases and real HTTP.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed, and the line says where"
)]

mod admin;
mod dev;
mod doctor;
mod documents;
mod receivers;
mod running;
mod usage;
