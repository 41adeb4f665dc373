//! `load-tests`: see the library's documentation, or `load-tests --help`.

use std::process::ExitCode;

use clap::Parser as _;
use load_tests::commands::Arguments;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match load_tests::commands::execute(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("load-tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}
