//! What the reply to an accepted event says, found without parsing JSON.

use crate::ids::{self, Id, SUFFIX_LENGTH};

/// The id of the event in the body of a 202.
pub(super) fn event_id(body: &[u8]) -> Option<Id> {
    let at = find(body, b"\"evt_")? + 1;
    ids::decode(body.get(at..at + b"evt_".len() + SUFFIX_LENGTH)?, b"evt")
}

/// How many deliveries the event has, in the body of a 202.
pub(super) fn delivery_count(body: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"\"delivery_count\":";
    let digits = body.get(find(body, NAME)? + NAME.len()..)?;
    let length = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(digits.get(..length)?)
        .ok()?
        .parse()
        .ok()
}

/// The id of each event that a batch's reply says was accepted, and how many deliveries it has.
pub(super) fn batch(body: &[u8]) -> impl Iterator<Item = (Id, u64)> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let at = find(rest, b"\"evt_")?;
        let here = rest.get(at..)?;
        let found = (event_id(here)?, delivery_count(here)?);
        rest = here.get(1..)?;
        Some(found)
    })
}

/// Whether a body is the reply to a batch.
pub(super) fn is_batch(body: &[u8]) -> bool {
    body.starts_with(br#"{"data":["#)
}

fn find(body: &[u8], wanted: &[u8]) -> Option<usize> {
    body.windows(wanted.len())
        .position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use shared::ids::{DeliveryId, EventId, new_v7};
    use shared::runtime::clock::wall_time;

    use super::*;

    #[test]
    fn the_reply_of_the_contract_gives_its_id_and_count() {
        let (event, delivery) = (new_v7(wall_time()), new_v7(wall_time()));
        let body = format!(
            r#"{{"id":"{}","external_id":null,"type":"a","delivery_count":12,"deliveries":[{{"id":"{}"}}]}}"#,
            EventId(event),
            DeliveryId(delivery)
        );

        assert_eq!(event_id(body.as_bytes()), Some(event.as_u128()));
        assert_eq!(delivery_count(body.as_bytes()), Some(12));
    }

    #[test]
    fn the_reply_to_a_batch_gives_the_accepted_ones() {
        let (one, two) = (new_v7(wall_time()), new_v7(wall_time()));
        let body = format!(
            r#"{{"data":[{{"status":202,"id":"{}","delivery_count":1,"deliveries":[]}},{{"status":422,"problem":{{}}}},{{"status":202,"id":"{}","delivery_count":2}}]}}"#,
            EventId(one),
            EventId(two)
        );

        assert!(is_batch(body.as_bytes()));
        let found: Vec<_> = batch(body.as_bytes()).collect();
        assert_eq!(found, [(one.as_u128(), 1), (two.as_u128(), 2)]);
    }

    #[test]
    fn another_reply_gives_nothing() {
        for body in ["", "{}", r#"{"id":"evt_1"#, r#"{"delivery_count":null}"#] {
            assert_eq!(event_id(body.as_bytes()), None, "{body}");
            assert_eq!(delivery_count(body.as_bytes()), None, "{body}");
        }
    }
}
