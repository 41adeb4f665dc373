//! `postrider-api`: the REST API and nothing else.

use std::process::ExitCode;

use shared::runtime::program::{Failure, Program, main as run};
use shared::store::failure::start_failure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let program = Program {
        name: "postrider-api",
        about: "Takes events and answers questions about them.",
        version: env!("CARGO_PKG_VERSION"),
        settings: api::SETTINGS,
    };
    run(&program, |settings, shutdown| async move {
        let config = api::Config::from_settings(&settings)?;
        let running = api::start(config, shutdown).await;
        let running = running.map_err(start_failure)?;
        running.finished().await.map_err(Failure::Failed)
    })
}
