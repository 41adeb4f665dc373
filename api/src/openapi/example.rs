//! What examples show. Requests among them are sent by a test.

use serde_json::{Value, json};

pub(crate) const EVENT: &str = "evt_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const DELIVERY: &str = "dlv_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const ENDPOINT: &str = "ep_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const TENANT: &str = "tnt_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const ORGANIZATION: &str = "org_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const KEY: &str = "key_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const REMOVAL: &str = "rmv_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const AUDIT: &str = "aud_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const REPLAY: &str = "rpl_01kb9h2v3cfzqt9m6w8x5y7r2n";
pub(crate) const CREATED: &str = "2026-11-30T12:00:00.123Z";
pub(crate) const LATER: &str = "2026-11-30T12:05:00.123Z";

/// A page with one row, the last one.
pub(crate) fn list(row: Value) -> Value {
    json!({"data": [row], "next_cursor": null})
}

pub(crate) fn event() -> Value {
    json!({
        "id": EVENT, "external_id": null, "type": "order.created", "channels": ["eu"], "created_at": CREATED,
        "deliver_before": null, "payload_bytes": 26, "delivery_count": 1,
    })
}

pub(crate) fn published() -> Value {
    json!({
        "id": EVENT, "external_id": null, "type": "order.created", "created_at": CREATED, "delivery_count": 1,
        "deliveries": [{"id": DELIVERY, "endpoint_id": ENDPOINT, "status": "pending"}],
    })
}

/// [`published`], in a batch.
pub(crate) fn published_item() -> Value {
    with(published(), "status", json!(202))
}

pub(crate) fn event_type() -> Value {
    json!({
        "type": "order.created", "description": "A customer has ordered",
        "schema": {"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}},
        "created_at": CREATED, "updated_at": CREATED,
    })
}

pub(crate) fn delivery() -> Value {
    json!({
        "id": DELIVERY, "event_id": EVENT, "endpoint_id": ENDPOINT, "status": "failed", "created_at": CREATED,
        "attempt_count": 1, "max_attempts": 5, "next_attempt_at": LATER, "delivered_at": null, "ended_at": null,
        "waiting_for": "retry", "next_probe_at": null,
        "last_error": "transient", "last_status_code": 500, "last_response_ms": 12, "close_reason": null,
        "dead_letter_class": null, "dead_letter_reason": null, "replay_of": null, "replay_id": null,
    })
}

pub(crate) fn endpoint_stats() -> Value {
    json!({
        "endpoint_id": ENDPOINT, "p50_ms": 310.5, "p95_ms": 2_412.95, "p99_ms": 4_180.0, "sample_count": 5_210,
        "slow": true, "slow_since": CREATED, "degrading": false, "degrading_since": null, "since": CREATED, "until": LATER,
    })
}

pub(crate) fn dead_letter() -> Value {
    json!({
        "id": DELIVERY, "event_id": EVENT, "endpoint_id": ENDPOINT, "event_type": "order.created", "kind": "live",
        "class": "transient", "reason": "all its attempts are used", "fingerprint": "5f1c2a", "last_outcome": "transient",
        "last_status_code": 503, "attempt_count": 5, "created_at": CREATED, "dead_at": LATER, "replayed_as": null,
    })
}

pub(crate) fn replay() -> Value {
    json!({
        "id": REPLAY, "endpoint_id": ENDPOINT, "status": "running",
        "filter": {
            "status": ["dead_letter", "skipped"], "missing": false, "class": [], "event_type": null,
            "since": CREATED, "until": LATER, "id_count": 0,
        },
        "rate_per_second": 100.0, "total": 1_000, "total_is_lower_bound": true, "done": 420, "failed": 3, "skipped": 0,
        "not_replayable": [{"reason": "payload_expired", "count": 1, "event_ids": [EVENT]}],
        "created_at": CREATED, "finished_at": null,
    })
}

pub(crate) fn attempt() -> Value {
    json!({
        "number": 1, "started_at": CREATED, "outcome": "transient", "status_code": 500, "response_ms": 12,
        "timings_us": {"queue": 400, "dns": 900, "connect": 1200, "tls": null, "first_byte": 11000},
        "url": "https://receiver.example/hooks", "address": "203.0.113.7", "addresses_dialled": null,
        "error": null, "response": "oops", "response_truncated": false, "endpoint_version": 1, "applied": true,
        "final_status": null,
    })
}

/// [`attempt`], of a test.
pub(crate) fn test_sent() -> Value {
    let sent = with(attempt(), "event_id", json!(EVENT));
    with(sent, "delivery_id", json!(DELIVERY))
}

pub(crate) fn endpoint() -> Value {
    json!({
        "id": ENDPOINT, "url": "https://receiver.example/hooks", "description": "Orders of the shop",
        "event_types": ["order.*"], "channels": [], "enabled": true, "ordered": false, "metadata": {},
        "headers": {"x-shop": "***"}, "client_certificate": null, "timeout_ms": 15000, "max_attempts": 5,
        "backoff": {"base_seconds": 30, "max_seconds": 3600}, "max_in_flight": 10, "max_age_seconds": 432_000,
        "max_pending": 100_000, "rate_limit": {"per_second": 10.0, "burst": 20}, "retry_statuses": [],
        "on_dead_letter": "release", "replay_on_recovery": true, "disable_after_seconds": 432_000,
        "breaker": {"failures": 10, "cooldown_seconds": 300, "max_cooldown_seconds": 3600},
        "signature": "standard", "signing": ["v1"], "public_keys": [],
        "kind": "webhook", "method": "POST", "template": null, "on_missing_field": "fail", "redact": [], "trace_context": false,
        "secrets": [{"created_at": CREATED, "expires_at": null}], "disabled_reason": null,
        "created_at": CREATED, "updated_at": CREATED,
    })
}

/// [`endpoint`], just made.
pub(crate) fn created_endpoint() -> Value {
    let secret = json!("whsec_c2VjcmV0IHRoYXQgbm9ib2R5IGVsc2Uga25vd3M=");
    with(endpoint(), "secret", secret)
}

pub(crate) fn removal() -> Value {
    json!({
        "id": REMOVAL, "kind": "payload", "object_id": EVENT, "status": "running", "rows_done": 3, "created_at": CREATED,
        "finished_at": null,
    })
}

pub(crate) fn audit_entry() -> Value {
    json!({
        "id": AUDIT, "created_at": CREATED, "actor": {"type": "key", "key_id": KEY, "key_hint": "prk_a1B2c3"},
        "action": "endpoint.updated", "object": {"type": "endpoint", "id": ENDPOINT}, "changed": ["url"],
        "tenant_id": TENANT, "organization_id": null, "request_id": "3f6c2b1e",
    })
}

pub(crate) fn limits() -> Value {
    let set = json!({
        "rate_limit": {"per_second": 100, "burst": 200}, "max_endpoints": null, "max_event_types": null,
        "events_per_day": 1_000_000, "events_per_month": null, "max_tenants": null,
    });
    json!({
        "set": set, "effective": set,
        "usage": {
            "endpoints": 12, "event_types": 7, "events_today": 4_200, "events_this_month": 81_000, "tenants": null,
        },
    })
}

pub(crate) fn organization() -> Value {
    json!({"id": ORGANIZATION, "name": "Example Shops", "created_at": CREATED})
}

pub(crate) fn tenant() -> Value {
    json!({
        "id": TENANT, "organization_id": ORGANIZATION, "external_id": "shop-42", "name": "Shop 42",
        "created_at": CREATED,
    })
}

pub(crate) fn key() -> Value {
    json!({
        "id": KEY, "hint": "prk_a1B2c3", "name": "backend", "scopes": ["events:write"], "created_at": CREATED,
        "expires_at": null, "revoked_at": null, "last_used_at": null, "rate_limit": null,
    })
}

/// [`key`], just made.
pub(crate) fn created_key() -> Value {
    let text = json!("prk_a1B2c3AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    with(key(), "key", text)
}

/// An object with one field more.
pub(crate) fn with(mut object: Value, name: &str, value: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
    object
}
