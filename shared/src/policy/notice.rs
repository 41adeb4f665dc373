//! What a tenant is told about its endpoints: how often at most, and in which words (contract §6).
//!
//! Not here: who is told, and that it is told once per window (`store::notices`).
//!
//! # Invariants
//! - S2: nothing of a payload, a secret, a response or a URL beyond its host is in a notice. The words are
//!   ours, from closed sets.

use std::time::Duration;

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::domain::attempt::Outcome;
use crate::domain::notice::NoticeKind;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// What is known when something is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// The outcome of the request that brought it about.
    pub outcome: Option<Outcome>,
    /// Since when the endpoint fails.
    pub failing_since: Option<OffsetDateTime>,
    /// When it is asked again.
    pub next_probe_at: Option<OffsetDateTime>,
}

/// One notice of a kind per endpoint in so long a time; what comes more often is counted.
///
/// Opened and closed must not be left out one by one, or the last word that a tenant heard would be
/// wrong: a breaker is open for five minutes at least, so none of them comes twice in five minutes
/// (unless the endpoint's own settings say so).
#[must_use]
pub const fn window(kind: NoticeKind) -> Duration {
    match kind {
        NoticeKind::EndpointOpened
        | NoticeKind::EndpointClosed
        | NoticeKind::EndpointDisabled
        | NoticeKind::DeliveryRecovered => Duration::from_secs(5 * 60),
        NoticeKind::EndpointMisconfigured | NoticeKind::DeliveryDeadLetter => HOUR,
        NoticeKind::EndpointSlow | NoticeKind::EndpointDisablingSoon => DAY,
        NoticeKind::ReplayFinished => MINUTE,
    }
}

/// The body of a notice as far as it follows from the facts; the endpoint is added where it is published.
#[must_use]
pub fn payload(kind: NoticeKind, facts: &Facts) -> Map<String, Value> {
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| {
        body.insert(name.to_owned(), value);
    };
    put("reason", reason(kind, facts.outcome).into());
    put("next", next(kind).into());
    put(
        "last_outcome",
        facts.outcome.map_or(Value::Null, |it| it.name().into()),
    );
    put("failing_since", instant(facts.failing_since));
    put("next_probe_at", instant(facts.next_probe_at));
    body
}

fn instant(at: Option<OffsetDateTime>) -> Value {
    at.and_then(|at| at.format(&Rfc3339).ok())
        .map_or(Value::Null, Value::from)
}

fn reason(kind: NoticeKind, outcome: Option<Outcome>) -> String {
    let what = match kind {
        NoticeKind::EndpointOpened => "The endpoint fails: sending to it is paused",
        NoticeKind::EndpointClosed => "The endpoint works again",
        NoticeKind::EndpointSlow => "The endpoint answers slowly",
        NoticeKind::EndpointDisablingSoon => {
            "The endpoint has failed without any success for half of the time after which it is disabled"
        }
        NoticeKind::EndpointDisabled => "The endpoint was disabled",
        NoticeKind::EndpointMisconfigured => "The endpoint refuses what is sent to it",
        NoticeKind::DeliveryDeadLetter => "A delivery to the endpoint is no longer tried",
        NoticeKind::DeliveryRecovered => "What could not be delivered in the outage was sent again",
        NoticeKind::ReplayFinished => "A replay has ended",
    };
    match outcome.and_then(cause) {
        Some(cause) if tells_of_failure(kind) => format!("{what}; the last request {cause}."),
        Some(_) | None => format!("{what}."),
    }
}

const fn tells_of_failure(kind: NoticeKind) -> bool {
    match kind {
        NoticeKind::EndpointOpened
        | NoticeKind::EndpointDisablingSoon
        | NoticeKind::EndpointDisabled
        | NoticeKind::EndpointMisconfigured
        | NoticeKind::DeliveryDeadLetter => true,
        NoticeKind::EndpointClosed
        | NoticeKind::EndpointSlow
        | NoticeKind::DeliveryRecovered
        | NoticeKind::ReplayFinished => false,
    }
}

const fn cause(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Delivered => None,
        Outcome::Transient => {
            Some("got no answer, or one that says that it may work later (a timeout, a 5xx)")
        }
        Outcome::Misconfigured => Some("was answered with 401, 403 or 404"),
        Outcome::Throttled => Some("was answered with 429"),
        Outcome::Permanent => Some("was refused for good (3xx, 4xx, 501, 505)"),
        Outcome::Gone => Some("was answered with 410 Gone"),
        Outcome::Internal => Some("could not be made, through a fault of ours"),
        Outcome::Refused => Some("was not made: the endpoint's address is not allowed"),
        Outcome::Expired => Some("was not made: the delivery had become too old"),
    }
}

const fn next(kind: NoticeKind) -> &'static str {
    match kind {
        NoticeKind::EndpointOpened => {
            "One request is made now and then to see whether it works again. Deliveries wait; what died in \
             the outage is sent again by itself when it is over, unless replay_on_recovery is off."
        }
        NoticeKind::EndpointClosed => {
            "Waiting deliveries are sent, slowly at first; then what died in the outage."
        }
        NoticeKind::EndpointSlow => "Its breaker opens after fewer failures until it is faster.",
        NoticeKind::EndpointDisablingSoon => {
            "If no request succeeds until the time is over, it is disabled: waiting and later deliveries \
             are kept as skipped, and not sent."
        }
        NoticeKind::EndpointDisabled => {
            "Waiting and later deliveries are kept as skipped. Enable it when it works: that sends nothing \
             by itself, and begins with a probe."
        }
        NoticeKind::EndpointMisconfigured => {
            "Check its URL, its credentials and what it accepts. Requests go on as for any failure."
        }
        NoticeKind::DeliveryDeadLetter => {
            "It is kept, and tells what went wrong. There may be more of them: at most one notice an hour."
        }
        NoticeKind::DeliveryRecovered => "Nothing needs to be done.",
        NoticeKind::ReplayFinished => "See the replay for what it brought.",
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn every_kind_says_what_happened_and_what_happens_next() {
        for kind in NoticeKind::ALL {
            for outcome in Outcome::ALL {
                let facts = Facts {
                    outcome: Some(*outcome),
                    ..Facts::default()
                };

                let body = payload(*kind, &facts);

                for field in ["reason", "next"] {
                    let text = body.get(field).and_then(Value::as_str).unwrap();
                    assert!(text.ends_with('.') && text.len() > 15, "{kind:?} {text}");
                }
            }
            assert!(window(*kind) >= MINUTE);
        }
    }

    #[test]
    fn facts_are_machine_readable_and_absent_ones_are_null() {
        let facts = Facts {
            outcome: Some(Outcome::Misconfigured),
            failing_since: Some(datetime!(2026-11-29 12:00 UTC)),
            next_probe_at: None,
        };

        let body = payload(NoticeKind::EndpointOpened, &facts);

        assert_eq!(body["last_outcome"], "misconfigured");
        assert_eq!(body["failing_since"], "2026-11-29T12:00:00Z");
        assert_eq!(body["next_probe_at"], Value::Null);
        let reason = body["reason"].as_str().unwrap();
        assert!(reason.contains("401, 403 or 404"), "{reason}");
    }
}
