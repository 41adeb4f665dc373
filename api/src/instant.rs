//! Instants as clients see them: RFC 3339, UTC.

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// An instant in a reply.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-11-30T12:00:00.000001Z")]
pub(crate) struct Instant(pub(crate) OffsetDateTime);

impl From<OffsetDateTime> for Instant {
    fn from(at: OffsetDateTime) -> Self {
        Self(at)
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        // The years that RFC 3339 cannot write are refused where instants come in.
        out.serialize_str(&self.0.format(&Rfc3339).unwrap_or_default())
    }
}
