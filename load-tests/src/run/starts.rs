//! When requests started, which R1 is about, out of when they arrived and what was recorded of them.
//!
//! Of a recorded attempt the worker says when it started, in database time. The receiver knows that
//! it came, and when; what lies between is the way there, which can never be shorter than the
//! shortest one that was seen. So the two clocks are set to each other by that one, and a request that
//! nobody recorded (its worker was killed) counts as started that long before it arrived.

use std::collections::HashMap;

use crate::receiver::Arrival;

/// When the requests of each endpoint started.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Starts {
    /// Ascending, nanoseconds of the receiver's clock, the shortest way added.
    pub(super) by_endpoint: Vec<Vec<u64>>,
    /// The longest way less the shortest, in nanoseconds.
    pub(super) jitter_ns: u64,
    /// Requests that nobody recorded.
    pub(super) unrecorded: u64,
}

/// `recorded`: the starts of each delivery's attempts, in order, in nanoseconds of another clock.
pub(super) fn align(arrivals: &[Vec<Arrival>], recorded: &HashMap<u64, Vec<i64>>) -> Starts {
    let matched: Vec<Vec<(u64, Option<i64>)>> =
        arrivals.iter().map(|it| matches(it, recorded)).collect();
    let way = |(at_ns, start): &(u64, Option<i64>)| {
        let at_ns = i64::try_from(*at_ns).ok()?;
        Some(at_ns.saturating_sub((*start)?))
    };
    let ways = || matched.iter().flatten().filter_map(way);
    let (shortest, longest) = (ways().min().unwrap_or(0), ways().max().unwrap_or(0));
    let start = |(at_ns, start): &(u64, Option<i64>)| {
        let start = start.and_then(|it| u64::try_from(it.saturating_add(shortest)).ok());
        start.unwrap_or(*at_ns)
    };
    let unrecorded = matched.iter().flatten().filter(|(_, it)| it.is_none());
    let unrecorded = u64::try_from(unrecorded.count()).unwrap_or(u64::MAX);
    let by_endpoint = matched.iter().map(|requests| {
        let mut starts: Vec<u64> = requests.iter().map(start).collect();
        starts.sort_unstable();
        starts
    });
    Starts {
        by_endpoint: by_endpoint.collect(),
        jitter_ns: longest.abs_diff(shortest),
        unrecorded,
    }
}

/// Each arrival with its recorded start. Which of a delivery's arrivals was not recorded cannot be
/// told when some were: then all of them count as not recorded.
fn matches(arrivals: &[Arrival], recorded: &HashMap<u64, Vec<i64>>) -> Vec<(u64, Option<i64>)> {
    let mut came: HashMap<u64, usize> = HashMap::new();
    for arrival in arrivals {
        *came.entry(arrival.delivery).or_default() += 1;
    }
    let mut seen: HashMap<u64, usize> = HashMap::new();
    let start = |arrival: &Arrival| {
        let number = seen.entry(arrival.delivery).or_default();
        let this = *number;
        *number += 1;
        let starts = recorded.get(&arrival.delivery)?;
        let all = came.get(&arrival.delivery) == Some(&starts.len());
        starts.get(this).copied().filter(|_| all)
    };
    let starts: Vec<Option<i64>> = arrivals.iter().map(start).collect();
    let at_ns = arrivals.iter().map(|arrival| arrival.at_ns);
    at_ns.zip(starts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(delivery: u64, at_ns: u64) -> Arrival {
        Arrival {
            at_ns,
            status: 200,
            delivery,
        }
    }

    #[test]
    fn a_request_started_when_its_worker_says_and_the_way_explains_the_rest() {
        let arrivals = [
            vec![arrival(1, 1_000), arrival(2, 1_250)],
            vec![arrival(3, 2_000)],
        ];
        // The other clock is 500,000 ahead; the ways are 100, 300 and 150 long.
        let recorded = HashMap::from([(1, vec![500_900]), (2, vec![500_950]), (3, vec![501_850])]);

        let starts = align(&arrivals, &recorded);

        assert_eq!(starts.by_endpoint, [vec![1_000, 1_050], vec![1_950]]);
        assert_eq!((starts.jitter_ns, starts.unrecorded), (200, 0));
    }

    #[test]
    fn retries_are_matched_in_order_and_what_nobody_recorded_starts_when_it_arrives() {
        let arrivals = [vec![
            arrival(1, 1_000),
            arrival(2, 1_500),
            arrival(1, 2_000),
            arrival(3, 2_500),
            arrival(3, 3_000),
        ]];
        let recorded = HashMap::from([(1, vec![900, 1_900]), (3, vec![2_900])]);

        let starts = align(&arrivals, &recorded);

        assert_eq!(
            starts.by_endpoint,
            [vec![1_000, 1_500, 2_000, 2_500, 3_000]]
        );
        assert_eq!((starts.jitter_ns, starts.unrecorded), (0, 3));
    }
}
