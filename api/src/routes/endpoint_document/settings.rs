//! The part of an endpoint's document that limits it: how often, how fast, how long, what then.
//! Stored in `endpoints.settings`; `null` and absent mean the default.

use serde_json::Value;
use shared::domain::endpoint::{
    Backoff, BreakerSettings, Doubling, EndpointSettings, OnDeadLetter, Preset, RateLimit,
};

use super::{Rules, postback, signature};
use crate::json::Fields;

const SLOWEST_RATE: f64 = 0.000_1;
const FASTEST_RATE: f64 = 10_000.0;
const LARGEST_BURST: u32 = 10_000;
const MOST_STATUSES: usize = 50;
const SOONEST_DISABLE: u32 = 3_600;
const LATEST_DISABLE: u32 = 30 * 86_400;

/// Names of backoffs.
const FAST: &str = "fast";
const STANDARD_WEBHOOKS: &str = "standard-webhooks";

pub(super) fn read(fields: &mut Fields, rules: &Rules<'_>) -> EndpointSettings {
    let default = EndpointSettings::default();
    let backoff = backoff(fields).unwrap_or(default.backoff);
    let (signature, signing) = signature::read(fields);
    let shape = postback::read(fields);
    EndpointSettings {
        timeout_ms: fields
            .number("timeout_ms", 100, rules.longest_timeout_ms)
            .unwrap_or(default.timeout_ms),
        max_attempts: small(fields, "max_attempts", 100)
            .unwrap_or_else(|| backoff.default_attempts()),
        backoff,
        max_in_flight: small(fields, "max_in_flight", 1_000).unwrap_or(default.max_in_flight),
        max_age_seconds: fields
            .number("max_age_seconds", 60, rules.longest_age_seconds)
            .unwrap_or(default.max_age_seconds),
        max_pending: fields
            .number("max_pending", 1, 1_000_000)
            .unwrap_or(default.max_pending),
        rate_limit: rate_limit(fields),
        retry_statuses: retry_statuses(fields),
        on_dead_letter: on_dead_letter(fields).unwrap_or_default(),
        replay_on_recovery: fields
            .bool("replay_on_recovery")
            .unwrap_or(default.replay_on_recovery),
        disable_after_seconds: disable_after(fields).unwrap_or(default.disable_after_seconds),
        breaker: breaker(fields).unwrap_or_default(),
        signature,
        signing,
        kind: shape.kind,
        method: shape.method,
        template: shape.template,
        on_missing_field: shape.on_missing_field,
        redact: shape.redact,
        trace_context: fields
            .bool("trace_context")
            .unwrap_or(default.trace_context),
    }
}

/// A whole number from 1 on.
fn small(fields: &mut Fields, name: &str, most: u16) -> Option<u16> {
    let number = fields.number(name, 1, most.into())?;
    Some(u16::try_from(number).unwrap_or(most))
}

fn backoff(fields: &mut Fields) -> Option<Backoff> {
    if fields.is_object("backoff") {
        return doubling(fields).map(Backoff::Doubling);
    }
    let value = fields.take("backoff")?;
    match value.as_str() {
        Some(FAST) => Some(Backoff::FAST),
        Some(STANDARD_WEBHOOKS) => Some(Backoff::Preset(Preset::StandardWebhooks)),
        Some(_) | None => {
            let detail = format!(
                "must be `{FAST}`, `{STANDARD_WEBHOOKS}` or an object with base_seconds and \
                 max_seconds"
            );
            fields.wrong("backoff", detail);
            None
        }
    }
}

fn doubling(fields: &mut Fields) -> Option<Doubling> {
    fields.nested("backoff", |inner| {
        let base_seconds = inner.number("base_seconds", 1, 3_600).unwrap_or(30);
        let max_seconds = inner
            .number("max_seconds", 1, 86_400)
            .unwrap_or(base_seconds.max(3_600));
        if max_seconds < base_seconds {
            let name = inner.blamed("max_seconds", "base_seconds");
            inner.wrong(name, "max_seconds must not be smaller than base_seconds");
        }
        Doubling {
            base_seconds,
            max_seconds,
        }
    })
}

fn rate_limit(fields: &mut Fields) -> Option<RateLimit> {
    fields
        .nested("rate_limit", |inner| {
            let per_second = inner.real("per_second", SLOWEST_RATE, FASTEST_RATE);
            if per_second.is_none() {
                inner.required("per_second");
            }
            let burst = inner.number("burst", 1, LARGEST_BURST);
            let per_second = per_second?;
            Some(RateLimit {
                per_second,
                burst: burst.unwrap_or_else(|| burst_of(per_second)),
            })
        })
        .flatten()
}

/// The burst that goes with a rate: what comes in a second, and at least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the rate is from 0.0001 to 10,000"
)]
fn burst_of(per_second: f64) -> u32 {
    per_second.ceil().max(1.0) as u32
}

fn retry_statuses(fields: &mut Fields) -> Vec<u16> {
    let Some(value) = fields.take("retry_statuses") else {
        return Vec::new();
    };
    let legal = |value: &Value| {
        let status = value.as_u64().and_then(|code| u16::try_from(code).ok())?;
        ((300..=599).contains(&status) && !matches!(status, 410 | 429)).then_some(status)
    };
    let statuses: Option<Vec<u16>> = value
        .as_array()
        .filter(|list| list.len() <= MOST_STATUSES)
        .and_then(|list| list.iter().map(legal).collect());
    let Some(mut statuses) = statuses else {
        let detail = format!(
            "must be a list of at most {MOST_STATUSES} statuses from 300 to 599, without 410 \
             (the endpoint is gone) and 429 (tried again anyway)"
        );
        fields.wrong("retry_statuses", detail);
        return Vec::new();
    };
    statuses.sort_unstable();
    statuses.dedup();
    statuses
}

fn on_dead_letter(fields: &mut Fields) -> Option<OnDeadLetter> {
    let name = fields.text("on_dead_letter")?;
    match name.as_str() {
        "release" => Some(OnDeadLetter::Release),
        "block" => Some(OnDeadLetter::Block),
        _ => {
            fields.wrong("on_dead_letter", "must be `release` or `block`");
            None
        }
    }
}

fn disable_after(fields: &mut Fields) -> Option<u32> {
    let seconds = fields.number("disable_after_seconds", 0, LATEST_DISABLE)?;
    if (1..SOONEST_DISABLE).contains(&seconds) {
        let detail = format!("must be 0 (never) or from {SOONEST_DISABLE} to {LATEST_DISABLE}");
        fields.wrong("disable_after_seconds", detail);
    }
    Some(seconds)
}

fn breaker(fields: &mut Fields) -> Option<BreakerSettings> {
    fields.nested("breaker", |inner| {
        let default = BreakerSettings::default();
        let failures = small(inner, "failures", 1_000).unwrap_or(default.failures);
        let cooldown_seconds = inner
            .number("cooldown_seconds", 1, 86_400)
            .unwrap_or(default.cooldown_seconds);
        let max_cooldown_seconds = inner
            .number("max_cooldown_seconds", 1, 86_400)
            .unwrap_or(default.max_cooldown_seconds.max(cooldown_seconds));
        if max_cooldown_seconds < cooldown_seconds {
            let name = inner.blamed("max_cooldown_seconds", "cooldown_seconds");
            inner.wrong(
                name,
                "max_cooldown_seconds must not be smaller than cooldown_seconds",
            );
        }
        BreakerSettings {
            failures,
            cooldown_seconds,
            max_cooldown_seconds,
        }
    })
}
