//! What a writer knows of the tenants it writes for: their endpoints, at a version, and the ids of
//! their event types.
//!
//! Not the truth: the inserting statement compares the version with the committed one, so an
//! outdated entry costs a round, never a wrong fan-out. Each writer has its own; nothing is locked.
//!
//! Bounded: above [`MOST_TARGETS`] endpoints and schemas or [`MOST_TYPES`] event types it starts anew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use shared::domain::endpoint::{wants_channels, wants_type};
use shared::ids::TenantKey;
use shared::store::StoreError;
use shared::store::ingest::{Configuration, Ingest, Target};

use super::NewEvent;

/// The most endpoints kept, over all tenants: about 100 MB at 500 bytes each.
const MOST_TARGETS: usize = 200_000;
/// The most event types kept, over all tenants.
const MOST_TYPES: usize = 200_000;
/// The most event types of a tenant whose matching endpoints are remembered.
const MOST_MATCHES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Configurations {
    tenants: HashMap<TenantKey, Known>,
    types: HashMap<TenantKey, HashMap<Box<str>, i32>>,
    target_count: usize,
    type_count: usize,
}

/// One tenant's endpoints at one version.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) version: i64,
    pub(super) targets: Vec<Target>,
    schemas: HashMap<Box<str>, i64>,
    /// By event type: positions of the endpoints whose patterns want it. A tenant with a thousand
    /// endpoints is matched once per type, not once per event.
    wanting: HashMap<Box<str>, Arc<[usize]>>,
}

impl Known {
    fn new(configuration: Configuration) -> Self {
        Self {
            version: configuration.version,
            targets: configuration.targets,
            schemas: configuration.schemas,
            wanting: HashMap::new(),
        }
    }

    /// The version of the schema that payloads of a type must fit, if there is one.
    pub(super) fn schema(&self, event_type: &str) -> Option<i64> {
        self.schemas.get(event_type).copied()
    }

    /// How much it takes of what may be kept.
    fn size(&self) -> usize {
        self.targets.len() + self.schemas.len()
    }

    /// The endpoints that want an event.
    pub(super) fn fan_out(&mut self, event: &NewEvent) -> Vec<&Target> {
        let wanting = self.wanting(&event.event_type);
        wanting
            .iter()
            .filter_map(|position| self.targets.get(*position))
            .filter(|target| wants_channels(&target.channels, &event.channels))
            .collect()
    }

    fn wanting(&mut self, event_type: &str) -> Arc<[usize]> {
        if let Some(known) = self.wanting.get(event_type) {
            return Arc::clone(known);
        }
        let positions: Arc<[usize]> = self
            .targets
            .iter()
            .enumerate()
            .filter(|(_, target)| wants_type(&target.event_types, event_type))
            .map(|(position, _)| position)
            .collect();
        if self.wanting.len() >= MOST_MATCHES {
            self.wanting.clear();
        }
        self.wanting
            .insert(event_type.into(), Arc::clone(&positions));
        positions
    }
}

impl Configurations {
    /// The tenant's endpoints, if loaded.
    pub(super) fn tenant(&mut self, tenant: TenantKey) -> Option<&mut Known> {
        self.tenants.get_mut(&tenant)
    }

    /// The id of an event type, if loaded.
    pub(super) fn type_id(&self, tenant: TenantKey, name: &str) -> Option<i32> {
        self.types.get(&tenant)?.get(name).copied()
    }

    /// Forgets a tenant's endpoints, which turned out to be outdated. Types never change.
    pub(super) fn forget(&mut self, tenant: TenantKey) {
        if let Some(known) = self.tenants.remove(&tenant) {
            self.target_count -= known.size();
        }
    }

    /// Forgets a tenant's endpoints if a newer version than this one's is known to be out.
    pub(super) fn forget_older(&mut self, tenant: TenantKey, version: i64) {
        if self
            .tenants
            .get(&tenant)
            .is_some_and(|known| known.version < version)
        {
            self.forget(tenant);
        }
    }

    /// Loads what events need and is not known, in at most three statements. What is unknown
    /// afterwards does not exist: a tenant, or a type beyond the tenant's limit.
    pub(super) async fn prepare<'a>(
        &mut self,
        ingest: &Ingest,
        events: impl Iterator<Item = &'a NewEvent>,
    ) -> Result<(), StoreError> {
        if self.target_count > MOST_TARGETS || self.type_count > MOST_TYPES {
            *self = Self::default();
        }
        let mut tenants = HashSet::new();
        let mut types = HashSet::new();
        for event in events {
            if !self.tenants.contains_key(&event.tenant) {
                tenants.insert(event.tenant.0);
            }
            if self.type_id(event.tenant, &event.event_type).is_none() {
                types.insert((event.tenant.0, &*event.event_type));
            }
        }
        if !tenants.is_empty() {
            let tenants: Vec<i32> = tenants.into_iter().collect();
            for (tenant, configuration) in ingest.load(&tenants).await? {
                let known = Known::new(configuration);
                self.target_count += known.size();
                self.tenants.insert(tenant, known);
            }
        }
        if !types.is_empty() {
            let (tenants, names): (Vec<i32>, Vec<&str>) = types.into_iter().unzip();
            for (tenant, name, id) in ingest.type_ids(&tenants, &names).await? {
                let types = self.types.entry(tenant).or_default();
                types.insert(name.into_boxed_str(), id);
                self.type_count += 1;
            }
        }
        Ok(())
    }
}
