//! A request that is filled in and sent again and again.

use std::ops::Range;

use super::Target;
use crate::client::request;
use crate::payload::{self, KEY_DIGITS, Stamp};

/// A whole request with payloads to stamp.
#[derive(Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    payloads: Vec<Range<usize>>,
    /// Where the event names its ordering key.
    key: Option<Range<usize>>,
}

impl Template {
    /// `ordered`: the event has an ordering key. `batch`: so many events, where it is more than one.
    pub(super) fn new(
        target: &Target,
        payload_bytes: usize,
        (ordered, batch): (bool, usize),
    ) -> Self {
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
        let event = [before.as_bytes(), &payload, after.as_bytes()].concat();
        let (start, end) = if batch > 1 {
            (r#"{"events":["#, "]}")
        } else {
            ("", "")
        };
        let events = vec![&*event; batch.max(1)].join(&b',');
        let body = [start.as_bytes(), &events, end.as_bytes()].concat();
        let bytes = request("POST", &target.path, target.key.as_deref(), &body);
        let first = bytes.len() - body.len() + start.len() + before.len();
        let starts = (0..batch.max(1)).map(|n| first + n * (event.len() + 1));
        let key_end = first - r#"","payload":"#.len();
        Self {
            payloads: starts.map(|at| at..at + payload.len()).collect(),
            key: ordered.then_some(key_end.saturating_sub(KEY_DIGITS)..key_end),
            bytes,
        }
    }

    /// Writes the request into `into`, in place of what is there.
    pub(super) fn fill(&self, into: &mut Vec<u8>, stamp: Stamp) {
        into.clear();
        into.extend_from_slice(&self.bytes);
        for place in &self.payloads {
            if let Some(payload) = into.get_mut(place.clone()) {
                payload::write(payload, stamp);
            }
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
            Template::new(&target, 512, (ordered, 1)).fill(&mut bytes, stamp);

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
    #[test]
    fn a_batch_has_as_many_events_as_it_should_each_with_the_stamp() {
        let target = Target {
            path: "/v1/events/batch".to_owned(),
            key: None,
            event_type: Some("load.t1".to_owned()),
        };
        let stamp = Stamp {
            sent_ns: 42,
            key: 0,
            number: 3,
        };
        let mut bytes = Vec::new();

        Template::new(&target, 128, (false, 5)).fill(&mut bytes, stamp);

        let request = crate::http::request(&bytes).unwrap().unwrap();
        let body: serde_json::Value = serde_json::from_slice(request.body).unwrap();
        let events = body["events"].as_array().unwrap();
        assert_eq!(events.len(), 5);
        for event in events {
            assert_eq!(event["payload"]["sent_ns"], "00000000000000000042");
        }
    }
}
