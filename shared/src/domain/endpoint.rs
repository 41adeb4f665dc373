//! An endpoint: where to, what it wants, and within which limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::coded;
use super::postback::{EndpointKind, OnMissingField, RequestMethod};
use super::signature::{SignatureStyle, Signing};

coded! {
    /// Whether an endpoint takes deliveries.
    EndpointState, "endpoint state" {
        /// Takes deliveries.
        Enabled = 1 "enabled",
        /// New and pending deliveries become `skipped`.
        Disabled = 2 "disabled",
        /// Pending deliveries become `cancelled`; the row stays for its history.
        Deleted = 3 "deleted",
    }
}

/// The delays between the attempts of a delivery: `{"base_seconds": 30, "max_seconds": 3600}` or the
/// name of a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Backoff {
    /// A bound that doubles.
    Doubling(Doubling),
    /// A schedule with a name.
    Preset(Preset),
}

/// Full jitter: the delay before attempt n + 1 is uniform in 0 .. min(base · 2^n, max).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doubling {
    /// Seconds, doubled with every attempt made.
    pub base_seconds: u32,
    /// Seconds, the most the bound grows to.
    pub max_seconds: u32,
}

/// A schedule that is not computed from two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The schedule that the Standard Webhooks specification suggests: 10 attempts in three days.
    StandardWebhooks,
}

impl Backoff {
    /// The default, which is called `fast`: five attempts in a quarter of an hour.
    pub const FAST: Self = Self::doubling(30, 3_600);

    /// A bound that doubles from twice `base_seconds` on, up to `max_seconds`.
    #[must_use]
    pub const fn doubling(base_seconds: u32, max_seconds: u32) -> Self {
        Self::Doubling(Doubling {
            base_seconds,
            max_seconds,
        })
    }

    /// How many attempts go with it, unless the endpoint says otherwise.
    #[must_use]
    pub const fn default_attempts(&self) -> u16 {
        match self {
            Self::Doubling(_) => 5,
            Self::Preset(Preset::StandardWebhooks) => 10,
        }
    }
}

/// How fast an endpoint may be sent to: a token bucket (R1).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Requests per second in the long run; fractions are fine (10 a minute: 0.1666).
    pub per_second: f64,
    /// Requests at once after a quiet time; at least 1.
    pub burst: u32,
}

/// When an endpoint's breaker opens, and how long it stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerSettings {
    /// Consecutive failures that open it.
    pub failures: u16,
    /// Seconds from the opening to the first probe; doubled with each probe that fails.
    pub cooldown_seconds: u32,
    /// Seconds, the longest wait between probes.
    pub max_cooldown_seconds: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 10,
            cooldown_seconds: 300,
            max_cooldown_seconds: 3_600,
        }
    }
}

impl BreakerSettings {
    /// From the opening to the first probe.
    #[must_use]
    pub fn cooldown(&self) -> Duration {
        Duration::from_secs(u64::from(self.cooldown_seconds))
    }

    /// The longest wait between probes.
    #[must_use]
    pub fn max_cooldown(&self) -> Duration {
        Duration::from_secs(u64::from(self.max_cooldown_seconds))
    }
}

/// What a dead letter of an ordered endpoint does to those behind it with the same ordering key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeadLetter {
    /// The next one goes.
    #[default]
    Release,
    /// They wait until it was replayed.
    Block,
}

/// The limits of an endpoint, as stored in `endpoints.settings`. An absent key is the default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointSettings {
    /// Milliseconds for a whole attempt, DNS to last byte.
    pub timeout_ms: u32,
    /// How many attempts may be charged to a delivery (D4).
    pub max_attempts: u16,
    /// The delays between them.
    pub backoff: Backoff,
    /// The most requests at the endpoint at once.
    pub max_in_flight: u16,
    /// Seconds from creation after which a delivery becomes a dead letter of class `expired`.
    pub max_age_seconds: u32,
    /// The most deliveries waiting; the overflow becomes `skipped`.
    pub max_pending: u32,
    /// None: as fast as it answers.
    pub rate_limit: Option<RateLimit>,
    /// Statuses that are tried again although they would not be otherwise; never 2xx, 410 or 429.
    pub retry_statuses: Vec<u16>,
    /// For ordered endpoints.
    pub on_dead_letter: OnDeadLetter,
    /// Dead letters of an outage are replayed by themselves when it ends.
    pub replay_on_recovery: bool,
    /// Seconds of failing without any success after which the endpoint is disabled; 0: never.
    pub disable_after_seconds: u32,
    /// Its circuit breaker.
    pub breaker: BreakerSettings,
    /// How its requests are signed. The default is not stored, so that a program of before, which runs
    /// beside this one during an upgrade, can read what it knows.
    #[serde(skip_serializing_if = "is_default")]
    pub signature: SignatureStyle,
    /// With which schemes, where the style has several. Stored as `signature` is.
    #[serde(skip_serializing_if = "is_default")]
    pub signing: Signing,
    /// What its requests carry. This and what follows is stored as `signature` is: an older program sends
    /// no postback as if it were a webhook, because it cannot read these.
    #[serde(skip_serializing_if = "is_default")]
    pub kind: EndpointKind,
    /// With which method.
    #[serde(skip_serializing_if = "is_default")]
    pub method: RequestMethod,
    /// Of a postback's form, or of a query behind its URL's own.
    #[serde(skip_serializing_if = "is_default")]
    pub template: Option<String>,
    /// For postbacks.
    #[serde(skip_serializing_if = "is_default")]
    pub on_missing_field: OnMissingField,
    /// Paths of the payload's fields that nobody is shown.
    #[serde(skip_serializing_if = "is_default")]
    pub redact: Vec<String>,
    /// Its requests carry a `traceparent`, where there is a trace.
    #[serde(skip_serializing_if = "is_default")]
    pub trace_context: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            timeout_ms: 15_000,
            max_attempts: Backoff::FAST.default_attempts(),
            backoff: Backoff::FAST,
            max_in_flight: 10,
            max_age_seconds: 5 * 86_400,
            max_pending: 100_000,
            rate_limit: None,
            retry_statuses: Vec::new(),
            on_dead_letter: OnDeadLetter::Release,
            replay_on_recovery: true,
            disable_after_seconds: 5 * 86_400,
            breaker: BreakerSettings::default(),
            signature: SignatureStyle::Standard,
            signing: Signing::V1,
            kind: EndpointKind::Webhook,
            method: RequestMethod::Post,
            template: None,
            on_missing_field: OnMissingField::Fail,
            redact: Vec::new(),
            trace_context: false,
        }
    }
}

impl EndpointSettings {
    /// The deadline of one attempt.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.timeout_ms))
    }

    /// Whether requests are signed with the secret.
    #[must_use]
    pub const fn signs_with_secret(&self) -> bool {
        match self.signature {
            SignatureStyle::Standard => self.signing.has_v1(),
            SignatureStyle::Stripe => true,
            SignatureStyle::None => false,
        }
    }

    /// Whether requests are signed with the key pair.
    #[must_use]
    pub const fn signs_with_key_pair(&self) -> bool {
        match self.signature {
            SignatureStyle::Standard => self.signing.has_v1a(),
            SignatureStyle::Stripe | SignatureStyle::None => false,
        }
    }

    /// How long a delivery may live.
    #[must_use]
    pub fn max_age(&self) -> Duration {
        Duration::from_secs(u64::from(self.max_age_seconds))
    }

    /// How long it may fail without any success before it is disabled; zero: for ever.
    #[must_use]
    pub fn disable_after(&self) -> Duration {
        Duration::from_secs(u64::from(self.disable_after_seconds))
    }
}

/// Whether a text may be one of an endpoint's `event_types`: a type, or a prefix like `order.*`.
#[must_use]
pub fn is_type_pattern(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let stem = text.strip_suffix(".*").unwrap_or(text);
    !stem.is_empty() && text.len() <= 128 && stem.bytes().all(legal)
}

/// Whether an endpoint with these patterns wants an event of this type.
///
/// `order.*` matches `order.a` and `order.a.b`, not `order`. No pattern at all means every type
/// except the reserved `postrider.*`, which only a pattern that names it matches.
#[must_use]
pub fn wants_type(patterns: &[String], event_type: &str) -> bool {
    if patterns.is_empty() {
        return !event_type.starts_with("postrider.");
    }
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(stem) => event_type.len() > stem.len() && event_type.starts_with(stem),
            None => pattern == event_type,
        })
}

/// Whether an endpoint on these channels wants an event on those. An endpoint without channels
/// wants all; an endpoint with channels wants events that share at least one.
#[must_use]
pub fn wants_channels(endpoint: &[String], event: &[String]) -> bool {
    endpoint.is_empty() || endpoint.iter().any(|channel| event.contains(channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_the_contract_says() {
        let cases: &[(&[&str], &str, bool)] = &[
            (&[], "order.created", true),
            (&[], "postrider.endpoint.opened", false),
            (&["order.*"], "order.a", true),
            (&["order.*"], "order.a.b", true),
            (&["order.*"], "order", false),
            (&["order.*"], "order.", false),
            (&["order.*"], "orders.a", false),
            (&["order.created"], "order.created", true),
            (&["order.created"], "order.created.x", false),
            (&["a", "postrider.*"], "postrider.endpoint.opened", true),
        ];
        for (patterns, event_type, expected) in cases {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            assert_eq!(
                wants_type(&patterns, event_type),
                *expected,
                "{patterns:?} {event_type}"
            );
        }
    }

    #[test]
    fn a_signature_as_it_always_was_is_not_stored() {
        let stored = |settings: &EndpointSettings| serde_json::to_value(settings).unwrap();
        let default = stored(&EndpointSettings::default());
        for later in [
            "signature",
            "signing",
            "kind",
            "method",
            "template",
            "on_missing_field",
            "redact",
            "trace_context",
        ] {
            assert!(default.get(later).is_none(), "{later}");
        }

        let settings = EndpointSettings {
            signature: SignatureStyle::Stripe,
            signing: Signing::Both,
            ..EndpointSettings::default()
        };
        let value = stored(&settings);
        assert_eq!(value["signature"], "stripe");
        assert_eq!(
            serde_json::from_value::<EndpointSettings>(value).unwrap(),
            settings
        );
    }

    #[test]
    fn channels_narrow_only_endpoints_that_have_some() {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(wants_channels(&[], &[]));
        assert!(wants_channels(&[], &list(&["eu"])));
        assert!(wants_channels(&list(&["eu", "us"]), &list(&["us"])));
        assert!(!wants_channels(&list(&["eu"]), &[]));
        assert!(!wants_channels(&list(&["eu"]), &list(&["us"])));
    }

    #[test]
    fn a_backoff_is_stored_as_two_numbers_or_a_name() {
        let cases = [
            (Backoff::FAST, r#"{"base_seconds":30,"max_seconds":3600}"#),
            (
                Backoff::Preset(Preset::StandardWebhooks),
                r#""standard-webhooks""#,
            ),
        ];
        for (backoff, text) in cases {
            assert_eq!(serde_json::to_string(&backoff).unwrap(), text);
            assert_eq!(serde_json::from_str::<Backoff>(text).unwrap(), backoff);
        }
        for text in [
            r#""slow""#,
            "{}",
            r#"{"base_seconds":1,"max_seconds":1,"x":1}"#,
        ] {
            assert!(serde_json::from_str::<Backoff>(text).is_err(), "{text}");
        }
    }
}
