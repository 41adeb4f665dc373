//! Ids: UUIDv7 inside, TypeIDs (`evt_01j…`) outside.
//!
//! Event and delivery ids are made by the server from *database* time, never by a client, so that a
//! row is always inside a partition and nobody can probe another tenant's ids. `created_at` of an
//! event or delivery is the time in its id.
//!
//! Source: TypeID specification 0.3 (prefix, `_`, 26 characters of base 32).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use type_safe_id::{DynamicType, TypeSafeId};
use uuid::Uuid;

/// Why a text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {kind} id: expected `{prefix}_` followed by 26 characters")]
pub struct InvalidId {
    kind: &'static str,
    prefix: &'static str,
}

macro_rules! public_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The prefix before the underscore.
            pub const PREFIX: &'static str = $prefix;
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                let kind = DynamicType::new($prefix).map_err(|_invalid_prefix| fmt::Error)?;
                TypeSafeId::from_type_and_uuid(kind, self.0).fmt(out)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, out)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let invalid = InvalidId { kind: $kind, prefix: $prefix };
                match text.parse::<TypeSafeId<DynamicType>>() {
                    Ok(id) if id.type_prefix() == $prefix => Ok(Self(id.uuid())),
                    Ok(_) | Err(_) => Err(invalid),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(input)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

public_id!(
    /// What a tenant published.
    EventId, "evt", "event"
);
public_id!(
    /// One event to one endpoint.
    DeliveryId, "dlv", "delivery"
);
public_id!(
    /// Where to.
    EndpointId, "ep", "endpoint"
);
public_id!(
    /// One receiver side.
    TenantId, "tnt", "tenant"
);
public_id!(
    /// A SaaS company.
    OrganizationId, "org", "organization"
);
public_id!(
    /// An API key.
    KeyId, "key", "key"
);
public_id!(
    /// What was asked to be sent again.
    ReplayId, "rpl", "replay"
);

public_id!(
    /// A change of the configuration, in the audit log.
    AuditId, "aud", "audit log entry"
);
public_id!(
    /// Something that is removed in the background.
    RemovalId, "rmv", "removal"
);

/// The key of a tenant inside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(pub i32);

/// The key of an endpoint inside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey(pub i64);

/// The key of a replay inside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplayKey(pub i32);

/// A share of the endpoints, 0–255: owned by one worker at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub i16);

/// How many slots there are. Stored with every endpoint; changing it would be a migration.
pub const SLOT_COUNT: i16 = 256;

/// The number of take-overs of a slot: together with the owner it fences stale workers (D3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// One life of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub Uuid);

/// The instant in a UUIDv7, to the millisecond; the Unix epoch for any other UUID.
#[must_use]
pub fn created_at(id: Uuid) -> OffsetDateTime {
    let bytes = id.as_u128() >> 80;
    let milliseconds = i128::try_from(bytes).unwrap_or(0);
    OffsetDateTime::from_unix_timestamp_nanos(milliseconds * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The smallest UUIDv7-ordered value of an instant: `id >= lower_bound(t)` means created at or after `t`.
#[must_use]
pub fn lower_bound(at: OffsetDateTime) -> Uuid {
    let milliseconds = at.unix_timestamp_nanos().max(0) / 1_000_000;
    Uuid::from_u128(u128::try_from(milliseconds).unwrap_or(0) << 80)
}

/// A new UUIDv7 of an instant, with 74 random bits.
#[must_use]
pub fn new_v7(at: OffsetDateTime) -> Uuid {
    let random = Uuid::new_v4().as_u128();
    let milliseconds = u128::try_from(at.unix_timestamp_nanos().max(0) / 1_000_000).unwrap_or(0);
    let version = 0x7_u128 << 76;
    let variant = 0x2_u128 << 62;
    let a = random & (0xfff << 64);
    let b = random & ((1 << 62) - 1);
    Uuid::from_u128((milliseconds << 80) | version | a | variant | b)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn an_id_survives_its_text_form_and_refuses_another_prefix() {
        let id = EventId(new_v7(datetime!(2026-11-29 12:00 UTC)));

        let text = id.to_string();

        assert_eq!(text.len(), 30);
        assert!(text.starts_with("evt_"), "{text}");
        assert_eq!(text.parse::<EventId>(), Ok(id));
        assert!(text.parse::<DeliveryId>().is_err());
        assert!("evt_".parse::<EventId>().is_err());
        assert!("".parse::<EventId>().is_err());
    }

    #[test]
    fn the_time_of_an_id_is_the_time_it_was_made_from() {
        let at = datetime!(2026-11-29 12:34:56.789 UTC);

        let id = new_v7(at);

        assert_eq!(created_at(id), at);
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        assert!(lower_bound(at) <= id);
        assert!(id < lower_bound(at + time::Duration::milliseconds(1)));
    }
}
