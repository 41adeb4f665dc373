//! Tests that need a published program in Python: installed into `.venv` by `make test`.

use std::path::{Path, PathBuf};

/// The interpreter of `.venv`.
pub(crate) fn python() -> PathBuf {
    let program = api_tests().join("../../../.venv/bin/python");
    assert!(
        program.exists(),
        ".venv is missing: run `make test`, which installs what the tests need"
    );
    program
}

/// The folder of these tests.
pub(crate) fn api_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api")
}
