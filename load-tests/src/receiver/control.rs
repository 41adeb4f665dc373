//! How the scenario runner talks to a receiver in another process: `/control/…`, bodies in JSON.
//!
//! `secrets` takes the endpoints' secrets · `measure` begins a window · `counts` tells the books ·
//! `taken` tells one number, cheaply · `events` tells the ids of all events, 16 bytes each.

use std::ops::Range;

use super::verify::Keys;
use super::{State, lock, write_head};

/// Answers `/control/<path>` into `write`.
pub(super) fn answer(state: &State, path: &str, body: &[u8], write: &mut Vec<u8>) {
    match reply(state, path, body) {
        Ok(bytes) => {
            write_head(write, 200, bytes.len());
            write.extend_from_slice(&bytes);
        }
        Err((status, why)) => {
            write_head(write, status, why.len());
            write.extend_from_slice(why.as_bytes());
        }
    }
}

fn reply(state: &State, path: &str, body: &[u8]) -> Result<Vec<u8>, (u16, String)> {
    let bad = |error: serde_json::Error| (400, error.to_string());
    match path {
        "secrets" => {
            let secrets: Vec<String> = serde_json::from_slice(body).map_err(bad)?;
            *lock(&state.keys) = Keys::prepare(&secrets).map_err(|why| (400, why))?;
            Ok(Vec::new())
        }
        "measure" => {
            let window: Range<u64> = serde_json::from_slice(body).map_err(bad)?;
            lock(&state.books).measure(window);
            Ok(Vec::new())
        }
        "counts" => serde_json::to_vec(&lock(&state.books).counts()).map_err(bad),
        "taken" => Ok(lock(&state.books).taken().to_string().into_bytes()),
        "events" => {
            let books = lock(&state.books);
            Ok(books.events().flat_map(u128::to_be_bytes).collect())
        }
        _ => Err((404, format!("no such control: {path}"))),
    }
}
