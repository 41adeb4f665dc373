//! The schemas of event types, compiled, and the check of payloads against them.
//!
//! Exact, whichever process answers: an event says which version it was checked against, the writer
//! compares that with its configuration, and the inserting statement compares the configuration with
//! the committed one. An event that was not checked against the version that holds comes back and is
//! checked again.
//!
//! # Invariants
//! - Bounded: schemas by `policy::event_schema`, regular expressions (no backtracking) by
//!   [`PATTERN_BYTES`], compiled schemas by [`MOST_COST`], errors by [`MOST_ERRORS`].
//! - No network and no files: nothing is fetched for a schema.
//! - S2: an error names the place and the rule, never the value.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;
use shared::ids::TenantKey;
use shared::policy::event_schema::{Cost, cost};
use shared::store::event_types;

use crate::connections::Connections;
use crate::ingest::{NewEvent, Unchecked};
use crate::problem::{ApiError, FieldError, Kind};

/// What a compiled regular expression may take.
const PATTERN_BYTES: usize = 128 << 10;
/// What the compiled schemas may take together, by [`Compiled::cost`].
const MOST_COST: usize = 128 << 20;
/// The least that a compiled schema is counted for.
const LEAST_COST: usize = 64 << 10;
/// The most errors that a reply lists.
const MOST_ERRORS: usize = 20;
/// Weight times bytes up to which every error is looked for: beyond it, the first one.
const EVERY_ERROR: usize = 200_000;

/// A schema that is ready to check payloads.
#[derive(Debug)]
pub(crate) struct Compiled {
    validator: Validator,
    cost: Cost,
}

impl Compiled {
    /// Compiles a schema, or says where and why it is not taken.
    pub(crate) fn new(schema: &Value) -> Result<Self, FieldError> {
        let cost = cost(schema).map_err(|illegal| FieldError {
            pointer: illegal.pointer,
            detail: illegal.detail,
        })?;
        let patterns = PatternOptions::regex()
            .size_limit(PATTERN_BYTES)
            .dfa_size_limit(PATTERN_BYTES);
        let built = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(patterns)
            .offline()
            .build(schema);
        match built {
            Ok(validator) => Ok(Self { validator, cost }),
            Err(error) => Err(FieldError {
                pointer: error.instance_path().to_string(),
                detail: error.to_string().chars().take(300).collect(),
            }),
        }
    }

    /// What it may take of memory.
    const fn cost(&self) -> usize {
        LEAST_COST + 2 * self.cost.patterns * PATTERN_BYTES
    }

    /// What is wrong with a payload; pointers begin with `base`.
    pub(crate) fn check(&self, payload: &[u8], base: &str) -> Vec<FieldError> {
        let value: Value = match serde_json::from_slice(payload) {
            Ok(value) => value,
            // Such as a number that is too large for one, or half a surrogate.
            Err(error) => return vec![unreadable(&error, base)],
        };
        if self.validator.is_valid(&value) {
            return Vec::new();
        }
        let show = |error: &jsonschema::ValidationError<'_>| FieldError {
            pointer: format!("{base}{}", error.instance_path()),
            detail: error.masked_with("the value").to_string(),
        };
        if self.cost.weight.saturating_mul(payload.len()) <= EVERY_ERROR {
            let errors = self.validator.iter_errors(&value);
            return errors.take(MOST_ERRORS).map(|error| show(&error)).collect();
        }
        let first = self.validator.validate(&value);
        first.err().iter().map(show).collect()
    }
}

fn unreadable(error: &serde_json::Error, base: &str) -> FieldError {
    FieldError {
        pointer: base.to_owned(),
        detail: format!(
            "cannot be checked against the schema of its type: line {} column {} has no value that JSON \
             parsers agree on",
            error.line(),
            error.column()
        ),
    }
}

struct Entry {
    version: i64,
    compiled: Arc<Compiled>,
}

#[derive(Default)]
struct Entries {
    by_type: HashMap<(TenantKey, Box<str>), Entry>,
    cost: usize,
}

/// The compiled schemas of a process.
pub(crate) struct Schemas {
    connections: Connections,
    entries: RwLock<Entries>,
}

impl Schemas {
    pub(crate) fn new(connections: Connections) -> Self {
        Self {
            connections,
            entries: RwLock::default(),
        }
    }

    /// Checks an event against the schema that is known of its type, to spare it a round. One that
    /// does not fit is left to the writer: the schema may have changed.
    pub(crate) fn check_ahead(&self, event: &mut NewEvent) {
        let known = {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            if entries.by_type.is_empty() {
                return;
            }
            let entry = entries
                .by_type
                .get(&(event.tenant, event.event_type.clone()));
            entry.map(|entry| (entry.version, Arc::clone(&entry.compiled)))
        };
        if let Some((version, compiled)) = known
            && compiled.check(&event.payload, "").is_empty()
        {
            event.checked = Some(version);
        }
    }

    /// Checks an event that came back, against the schema that holds; errors point into `base`.
    pub(crate) async fn check(
        &self,
        unchecked: Unchecked,
        base: &str,
    ) -> Result<NewEvent, ApiError> {
        let Unchecked { mut event, version } = unchecked;
        let (configuration, current) = self.current(&event, version).await?;
        event.configuration = event.configuration.max(configuration);
        event.checked = None;
        if let Some((version, compiled)) = current {
            let errors = compiled.check(&event.payload, &format!("{base}/payload"));
            if !errors.is_empty() {
                return Err(ApiError::fields(errors));
            }
            event.checked = Some(version);
        }
        Ok(event)
    }

    /// The schema of an event's type: the known one, if the writer knows of no other. With the version
    /// of the configuration that it was read from, if it was read.
    async fn current(
        &self,
        event: &NewEvent,
        version: i64,
    ) -> Result<(i64, Option<(i64, Arc<Compiled>)>), ApiError> {
        let key = (event.tenant, event.event_type.clone());
        {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(entry) = entries.by_type.get(&key)
                && entry.version == version
            {
                return Ok((0, Some((version, Arc::clone(&entry.compiled)))));
            }
        }
        let read = async {
            let client = self.connections.get().await?;
            event_types::schema(&**client, event.tenant, &event.event_type).await
        };
        let found = self.connections.bounded(read).await?;
        let Some((version, text)) = found.schema else {
            self.put(key, None);
            return Ok((found.config_version, None));
        };
        let compiled = Arc::new(compiled(&text)?);
        self.put(key, Some((version, Arc::clone(&compiled))));
        Ok((found.config_version, Some((version, compiled))))
    }

    fn put(&self, key: (TenantKey, Box<str>), found: Option<(i64, Arc<Compiled>)>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = entries.by_type.remove(&key) {
            entries.cost -= old.compiled.cost();
        }
        if let Some((version, compiled)) = found {
            if entries.cost + compiled.cost() > MOST_COST {
                *entries = Entries::default();
            }
            entries.cost += compiled.cost();
            entries.by_type.insert(key, Entry { version, compiled });
        }
    }
}

/// A schema that was taken once.
fn compiled(text: &str) -> Result<Compiled, ApiError> {
    let schema = serde_json::from_str(text).ok();
    let compiled = schema.and_then(|schema| Compiled::new(&schema).ok());
    compiled.ok_or_else(|| {
        tracing::error!("a stored schema of an event type cannot be used");
        ApiError::new(Kind::Internal, "the cause is in the log of the server")
    })
}
