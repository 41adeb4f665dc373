//! The `postrider` program: everything on one machine (`dev`), the servers (`api`, `worker`), the
//! database (`migrate`, `master-key`, `stats`, `doctor`), its first rows (`organization`, `tenant`, `key`), and a user's tools
//! (`send`, `listen`, `verify`, `config`).

mod cli;
mod client;
mod config;
mod dev;
mod doctor;
mod journal;
mod key;
mod listen;
mod master_key;
mod migrate;
mod organization;
mod output;
mod pause;
mod receiver;
mod send;
mod serve;
mod signature;
mod stats;
mod store;
mod tenant;
mod verify;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
