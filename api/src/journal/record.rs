//! One event as bytes: a head in JSON, which people can read when they must, and the payload as it came in (P1).

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shared::domain::idempotency::IdempotencyKey;
use shared::domain::trace::TraceContext;
use shared::ids::TenantKey;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::ingest::NewEvent;

/// What is kept of an event besides its payload.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    id: Uuid,
    tenant: i32,
    #[serde(rename = "type")]
    event_type: Box<str>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    channels: Vec<String>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    deliver_before: Option<OffsetDateTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    external_id: Option<Box<str>>,
    /// Keys as they are stored, with the fingerprint of what was sent under each in base64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// Why it was refused, among the refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// An event's bytes, with why it was refused, if it was.
///
/// # Errors
/// When it has no id.
pub(super) fn encode(event: &NewEvent, refused: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let key = |key: &IdempotencyKey| (key.stored.clone(), STANDARD_NO_PAD.encode(key.fingerprint));
    let head = Head {
        id: event.id.context("an event of the journal has an id")?,
        tenant: event.tenant.0,
        event_type: event.event_type.clone(),
        channels: event.channels.clone(),
        deliver_before: event.deliver_before,
        external_id: event.external_id.clone(),
        keys: event.idempotency.iter().map(key).collect(),
        trace: event.trace.map(|trace| trace.to_string()),
        refused: refused.map(str::to_owned),
    };
    let head = serde_json::to_vec(&head)?;
    let mut bytes = Vec::with_capacity(4 + head.len() + event.payload.len());
    bytes.extend(u32::try_from(head.len())?.to_le_bytes());
    bytes.extend(head);
    bytes.extend_from_slice(&event.payload);
    Ok(bytes)
}

/// The event of these bytes; its payload is a part of them.
///
/// # Errors
/// When they are no event's: an older program's, or damaged in spite of their checksum.
pub(super) fn decode(bytes: &Bytes) -> anyhow::Result<NewEvent> {
    let (length, rest) = bytes.split_first_chunk().context("too short")?;
    let length = usize::try_from(u32::from_le_bytes(*length))?;
    let Some((head, payload)) = rest.split_at_checked(length) else {
        bail!("its head is longer than itself");
    };
    let head: Head = serde_json::from_slice(head)?;
    let mut idempotency = Vec::with_capacity(head.keys.len());
    for (stored, fingerprint) in head.keys {
        let fingerprint = STANDARD_NO_PAD.decode(fingerprint)?;
        let fingerprint = fingerprint
            .try_into()
            .ok()
            .context("a fingerprint of another length")?;
        idempotency.push(IdempotencyKey {
            stored,
            fingerprint,
        });
    }
    Ok(NewEvent {
        tenant: TenantKey(head.tenant),
        event_type: head.event_type,
        payload: bytes.slice_ref(payload),
        channels: head.channels,
        deliver_before: head.deliver_before,
        order_key: None,
        external_id: head.external_id,
        idempotency,
        trace: head
            .trace
            .and_then(|trace| TraceContext::parse(trace.as_bytes())),
        checked: None,
        configuration: 0,
        id: Some(head.id),
        from_journal: true,
    })
}
