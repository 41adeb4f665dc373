//! A request that is filled in and sent again and again.

use std::ops::Range;

use super::Target;
use crate::client::request;
use crate::payload::{self, KEY_DIGITS, Stamp};

/// A whole request with a payload to stamp.
#[derive(Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    payload: Range<usize>,
    /// Where the event names its ordering key.
    key: Option<Range<usize>>,
}

impl Template {
    /// `ordered`: the event has an ordering key.
    pub(super) fn new(target: &Target, payload_bytes: usize, ordered: bool) -> Self {
        let payload = payload::blank(payload_bytes);
        let key = if ordered {
            format!(r#""ordering_key":"{}","#, "0".repeat(KEY_DIGITS))
        } else {
            String::new()
        };
        let (before, after) = match &target.event_type {
            Some(event_type) => (format!(r#"{{"type":"{event_type}",{key}"payload":"#), "}"),
            None => (String::new(), ""),
        };
        let body = [before.as_bytes(), &payload, after.as_bytes()].concat();
        let bytes = request("POST", &target.path, target.key.as_deref(), &body);
        let payload_at = bytes.len() - after.len() - payload.len();
        let key_end = payload_at - r#"","payload":"#.len();
        Self {
            bytes,
            payload: payload_at..payload_at + payload.len(),
            key: ordered.then_some(key_end.saturating_sub(KEY_DIGITS)..key_end),
        }
    }

    /// Writes the request into `into`, in place of what is there.
    pub(super) fn fill(&self, into: &mut Vec<u8>, stamp: Stamp) {
        into.clear();
        into.extend_from_slice(&self.bytes);
        if let Some(payload) = into.get_mut(self.payload.clone()) {
            payload::write(payload, stamp);
        }
        if let Some(digits) = self.key.clone().and_then(|key| into.get_mut(key)) {
            payload::write_number(digits, u64::from(stamp.key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_the_payload_with_its_stamp_as_an_event() {
        let target = Target {
            path: "/v1/events".to_owned(),
            key: Some("prk_x".to_owned()),
            event_type: Some("load.t1".to_owned()),
        };
        let stamp = Stamp {
            sent_ns: 42,
            key: 7,
            number: 3,
        };

        for ordered in [false, true] {
            let mut bytes = b"what was there before".to_vec();
            Template::new(&target, 512, ordered).fill(&mut bytes, stamp);

            let request = crate::http::request(&bytes).unwrap().unwrap();
            assert_eq!(request.length, bytes.len());
            assert_eq!((request.method, request.path), ("POST", "/v1/events"));
            let event: serde_json::Value = serde_json::from_slice(request.body).unwrap();
            assert_eq!(event["type"], "load.t1");
            let key = ordered.then_some("0000000007");
            assert_eq!(event.get("ordering_key").and_then(|key| key.as_str()), key);
            let payload = &request.body[request.body.len() - 513..request.body.len() - 1];
            assert_eq!(payload::stamp(payload), Some(stamp));
            assert_eq!(event["payload"]["number"], "00000000000000000003");
        }
    }
}
