//! What receivers put into `Retry-After`.

use std::time::Duration;

use proptest::prelude::*;
use shared::policy::retry_after::{MAX_RETRY_AFTER, parse};
use time::OffsetDateTime;

use crate::{config, percent_taken};

/// Seconds of the years 1 to 9999.
const ALL_TIME: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;

fn instant() -> impl Strategy<Value = OffsetDateTime> {
    prop_oneof![4 => 1_700_000_000_i64..1_900_000_000, 1 => ALL_TIME]
        .prop_map(|seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap())
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9 ,.+-]{0,30}",
        "[0-9]{1,400}(\\.[0-9]{0,400})?",
        "[ \t]{0,2}[0-9]{1,6}(, ?[0-9]{1,6}){0,3}",
        "(Mon|Sun|Xxx)?,? ?[0-9]{1,3} (Nov|Dec|Foo) [0-9]{1,5} [0-9:]{0,9} ?(GMT|UTC)?",
        "[0-9]{1,3} ?(s|ms|seconds|minutes)",
    ]
}

proptest! {
    #![proptest_config(config())]

    /// D5
    #[test]
    fn d5_whatever_a_receiver_says_it_asks_for_a_day_at_most_and_never_for_no_time(
        text in any_text(),
        now in instant(),
    ) {
        if let Some(wait) = parse(&text, now) {
            prop_assert!(wait > Duration::ZERO && wait <= MAX_RETRY_AFTER);
            prop_assert_eq!(parse(&format!(" {text}\t"), now), Some(wait));
        }
    }

    /// D5
    #[test]
    fn d5_seconds_are_waited_as_asked_up_to_a_day(seconds in any::<u64>(), now in instant()) {
        let wait = parse(&seconds.to_string(), now).unwrap_or_default();
        prop_assert_eq!(wait, Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    }

    /// D5
    #[test]
    fn d5_a_date_is_waited_for_up_to_a_day_and_a_past_one_not_at_all(
        now in 0_i64..253_402_300_800,
        ahead in prop_oneof![-1_000_i64..200_000, any::<i32>().prop_map(i64::from)],
    ) {
        let at = u64::try_from(now.saturating_add(ahead)).unwrap_or(0).min(253_402_300_799);
        let date = httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_secs(at));
        let wait = parse(&date, OffsetDateTime::from_unix_timestamp(now).unwrap());
        let ahead = Duration::from_secs(at.saturating_sub(u64::try_from(now).unwrap()));
        prop_assert_eq!(wait.unwrap_or_default(), ahead.min(MAX_RETRY_AFTER), "{}", date);
    }
}

#[test]
fn a_fifth_of_the_texts_are_understood() {
    let texts = (any_text(), instant());
    let percent = percent_taken(&texts, |(text, now)| parse(&text, now).is_some());
    assert!((20..80).contains(&percent), "{percent} %");
}
