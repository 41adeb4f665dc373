//! How the scenario runner talks to a receiver in another process: `/control/…`, bodies in JSON.
//!
//! `secrets` takes the endpoints' secrets · `answers` changes how endpoints answer · `measure` begins
//! a window · `watch` begins to watch, `seen` tells what was seen · `counts` tells the books · `taken`
//! tells one number, cheaply · `events` tells the ids of all events, 16 bytes each · `order` tells
//! what came out of order · `endpoints` and `arrivals` tell what a range of endpoints was asked, and
//! when · `wire` tells how much was on the wire at once since it was last asked.

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// A status and why.
type Problem = (u16, String);

fn reply(state: &State, path: &str, body: &[u8]) -> Result<Vec<u8>, Problem> {
    match path {
        "answers" => {
            let changes: Vec<super::Change> = read(body)?;
            let mut endpoints = lock(&state.endpoints);
            changes.iter().for_each(|change| endpoints.change(change));
            Ok(Vec::new())
        }
        "secrets" => {
            let secrets: Vec<String> = read(body)?;
            *lock(&state.keys) = Keys::prepare(&secrets).map_err(|why| (400, why))?;
            Ok(Vec::new())
        }
        "measure" => {
            let window: Range<u64> = read(body)?;
            lock(&state.books).measure(window);
            Ok(Vec::new())
        }
        "watch" => {
            lock(&state.books).watch(read(body)?);
            Ok(Vec::new())
        }
        "seen" => write(&lock(&state.books).seen()),
        "counts" => write(&lock(&state.books).counts()),
        "order" => write(&lock(&state.books).order()),
        "endpoints" => write(&lock(&state.endpoints).counts(read(body)?)),
        "arrivals" => write(&lock(&state.endpoints).arrivals(read(body)?)),
        "wire" => write(&state.wire.look()),
        "taken" => Ok(lock(&state.books).taken().to_string().into_bytes()),
        "events" => {
            let books = lock(&state.books);
            Ok(books.events().flat_map(u128::to_be_bytes).collect())
        }
        _ => Err((404, format!("no such control: {path}"))),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| (400, error.to_string()))
}

fn write(value: &impl Serialize) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(value).map_err(|error| (500, error.to_string()))
}
