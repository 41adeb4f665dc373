//! `postrider-worker`: a worker and nothing else.

use std::process::ExitCode;

use shared::runtime::program::{Failure, Program, main as run};
use shared::store::failure::start_failure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let program = Program {
        name: "postrider-worker",
        about: "Owns a share of the endpoints and delivers to them.",
        version: env!("CARGO_PKG_VERSION"),
        settings: worker::config::SETTINGS,
    };
    run(&program, |settings, shutdown| async move {
        let config = worker::Config::from_settings(&settings)?;
        let running = worker::start(config, shutdown).await;
        let running = running.map_err(start_failure)?;
        running.finished().await.map_err(Failure::Failed)
    })
}
