//! The statistics job: percentiles of a day for each endpoint with traffic, every minute; who is slow, every
//! quarter of an hour.
//!
//! Most endpoints have few samples: PostgreSQL sorts them. Of those with many, the counts of closed minutes are
//! kept in memory ([`Kept`]): a step reads the last minutes only, adds what came and takes out what left the window.
//! What is kept is read again from the attempts after a restart, so that a restart loses no sample.
//!
//! # Invariants
//! - What is stored is what `percentile_cont` over the window's attempts gives, to the last digit.
//! - Bounded: pairs in memory ([`MOST_PAIRS`]; who finds no room is sorted by PostgreSQL), endpoints per statement.
//!   Steps take at most a tenth of the time ([`SHARE`]): with more endpoints than that allows they come less often.
//! - Attempts may be recorded late: the last [`OPEN_MINUTES`] are counted again in each step, after a pause those of
//!   the pause too, and of one endpoint per step it is checked whether all are counted.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use shared::domain::notice::NoticeKind;
use shared::ids::EndpointKey;
use shared::policy::notice;
use shared::policy::percentiles::Rolling;
use shared::policy::slowness::{self, JUDGED_EVERY, WINDOW, judge};
use shared::runtime::clock::boot_time;
use shared::store::leases::Lease;
use shared::store::notices::{self, Notice};
use shared::store::stats::{self, Computed, Judged, Span, Tests, ToJudge, Whose};
use shared::store::{Role, Session, StoreError, notify, partitions};
use time::OffsetDateTime;

use super::Job;

/// How often the percentiles are computed.
const EVERY: Duration = Duration::from_secs(60);
/// A step of so long is followed by a pause of this many times its length.
const SHARE: u32 = 9;
/// Endpoints in one statement.
const BATCH: usize = 200;
/// More samples than this are not sorted by PostgreSQL each time: 3 ms at the most for one endpoint.
const MOST_SORTED: u64 = 10_000;
/// Pairs of milliseconds and counts in memory, eight bytes each.
const MOST_PAIRS: usize = 16 << 20;
/// Minutes that are counted again: an attempt is recorded when it ends, after its deadline at the latest, and a
/// recorder that is slow for longer is not ready any more.
const OPEN_MINUTES: i64 = 5;
/// Of a long window so much is read in one statement.
const STRETCH_MINUTES: i64 = 120;
/// Percentiles are computed again after this long although no attempt came: samples leave the window.
const STALE_AFTER: Duration = JUDGED_EVERY;
/// How long percentiles of full hours are kept: a day to compare with, and a day more for the eye.
const HOURS_KEPT: Duration = Duration::from_secs(49 * 3_600);
/// Endpoints judged in one statement.
const JUDGED_AT_ONCE: i64 = 2_000;

/// See the module.
#[derive(Default)]
pub(super) struct Stats {
    kept: HashMap<EndpointKey, Kept>,
    pairs: usize,
    /// The end of the last step's window.
    computed_to: Option<OffsetDateTime>,
    judged_at: Option<OffsetDateTime>,
    hour: Option<OffsetDateTime>,
    /// Who was checked last.
    checked: Option<EndpointKey>,
}

/// An endpoint with many samples.
struct Kept {
    rolling: Rolling,
    /// Minutes before this one are counted.
    counted_to: i64,
}

impl Job for Stats {
    const NAME: &'static str = "stats";
    const ROLE: Role = Role::Worker;

    async fn step(&mut self, session: &mut Session, lease: &Lease) -> Result<Duration, StoreError> {
        let before = boot_time();
        let now = partitions::database_time(session).await?;
        let step = Step {
            lease: Some(lease),
            now,
        };
        self.compute(session, &step).await?;
        self.keep_hour(session, &step).await?;
        if self.judged_at.is_none_or(|at| now - at >= JUDGED_EVERY) {
            judge_all(session, &step).await?;
            self.judged_at = Some(now);
        }
        Ok(EVERY.max(boot_time().since(before) * SHARE))
    }
}

/// Computes and judges once, as the job does, whoever leads it (`postrider stats run --once`). Returns of how many
/// endpoints.
///
/// # Errors
/// Any [`StoreError`].
pub async fn run_once(session: &mut Session) -> Result<usize, StoreError> {
    let now = partitions::database_time(session).await?;
    let step = Step { lease: None, now };
    let mut stats = Stats::default();
    let computed = stats.compute(session, &step).await?;
    stats.keep_hour(session, &step).await?;
    judge_all(session, &step).await?;
    Ok(computed)
}

struct Step<'a> {
    lease: Option<&'a Lease>,
    now: OffsetDateTime,
}

impl Step<'_> {
    /// The window, which begins at a full minute.
    fn window(&self) -> Span {
        (instant(minute(self.now) - minutes(WINDOW)), self.now)
    }
}

impl Stats {
    /// Percentiles of all endpoints that need them; of how many.
    async fn compute(
        &mut self,
        session: &mut Session,
        step: &Step<'_>,
    ) -> Result<usize, StoreError> {
        let window = step.window();
        let last = self.computed_to.map_or(window.0, |to| to.max(window.0));
        // Attempts that started before the last step and were recorded after it.
        let since = instant(minute(last) - OPEN_MINUTES).max(window.0);
        let mut due: Vec<Whose> = stats::active(session, (since, step.now)).await?;
        let active: BTreeSet<EndpointKey> = due.iter().map(|(key, _)| *key).collect();
        let stale = stats::stale(session, step.now - STALE_AFTER).await?;
        due.extend(stale.into_iter().filter(|(key, _)| !active.contains(key)));
        let tests = stats::tests(session, window.0).await?;
        self.make_room(window);
        for batch in due.chunks(BATCH) {
            let computed = self.compute_batch(session, step, batch, &tests).await?;
            stats::put(session, step.lease, window, &computed).await?;
        }
        self.check_one(session, window, &tests).await?;
        self.computed_to = Some(step.now);
        Ok(due.len())
    }

    /// Takes out what left the window, and endpoints of which nothing is in it.
    fn make_room(&mut self, (since, _until): Span) {
        let first = minute(since);
        for kept in self.kept.values_mut() {
            kept.rolling.forget_before(first);
        }
        self.kept.retain(|_, kept| kept.rolling.samples() > 0);
        self.pairs = self.kept.values().map(|kept| kept.rolling.pairs()).sum();
    }

    async fn compute_batch(
        &mut self,
        session: &Session,
        step: &Step<'_>,
        batch: &[Whose],
        tests: &Tests,
    ) -> Result<Vec<(Whose, Computed)>, StoreError> {
        let mut results = HashMap::with_capacity(batch.len());
        let few = batch.iter().map(|(key, _)| *key);
        let few: Vec<EndpointKey> = few.filter(|key| !self.kept.contains_key(key)).collect();
        let (tested, others): (Vec<_>, Vec<_>) =
            few.into_iter().partition(|key| tests.contains_key(key));
        let found = stats::percentiles(session, &others, step.window(), MOST_SORTED, &[]).await?;
        results.extend(found);
        for key in tested {
            let but = tests_of(tests, key);
            let found =
                stats::percentiles(session, &[key], step.window(), MOST_SORTED, but).await?;
            results.extend(found);
        }
        let mut computed = Vec::with_capacity(batch.len());
        for whose in batch {
            let result = match results.get(&whose.0).copied().flatten() {
                Some(sorted) => sorted,
                None => self.many(session, step, whose.0, tests).await?,
            };
            computed.push((*whose, result));
        }
        Ok(computed)
    }

    /// An endpoint with many samples.
    async fn many(
        &mut self,
        session: &Session,
        step: &Step<'_>,
        endpoint: EndpointKey,
        tests: &Tests,
    ) -> Result<Computed, StoreError> {
        let window = step.window();
        let mut kept = self.kept.remove(&endpoint).unwrap_or_else(|| Kept {
            rolling: Rolling::default(),
            counted_to: minute(window.0),
        });
        let before = kept.rolling.pairs();
        kept.count(session, endpoint, window, tests).await?;
        let computed = Computed {
            samples: kept.rolling.samples(),
            percentiles: kept.rolling.percentiles(),
        };
        let pairs = self.pairs.saturating_sub(before) + kept.rolling.pairs();
        let worth_it = kept.rolling.samples() > MOST_SORTED / 2;
        if worth_it && pairs <= MOST_PAIRS {
            self.pairs = pairs;
            self.kept.insert(endpoint, kept);
        } else {
            self.pairs = self.pairs.saturating_sub(before);
        }
        Ok(computed)
    }

    /// Looks whether all attempts of one endpoint are counted, another one each time; if not, it is counted anew.
    async fn check_one(
        &mut self,
        session: &Session,
        window: Span,
        tests: &Tests,
    ) -> Result<(), StoreError> {
        let mut keys: Vec<EndpointKey> = self.kept.keys().copied().collect();
        keys.sort_unstable();
        let next = keys.iter().find(|key| Some(**key) > self.checked);
        let Some(key) = next.or_else(|| keys.first()).copied() else {
            return Ok(());
        };
        self.checked = Some(key);
        if tests.contains_key(&key) {
            return Ok(());
        }
        // Closed minutes only: attempts of the open ones come all the time.
        let closed = minute(window.1) - OPEN_MINUTES;
        let Some(kept) = self.kept.get_mut(&key) else {
            return Ok(());
        };
        let there = stats::samples(session, key, (window.0, instant(closed))).await?;
        if kept.rolling.samples_before(closed) != there {
            tracing::warn!(
                endpoint.key = key.0,
                "attempts were recorded late: the endpoint's samples are counted anew"
            );
            self.pairs -= kept.rolling.pairs();
            self.kept.remove(&key);
        }
        Ok(())
    }

    /// At the first step of an hour, keeps the percentiles as they are.
    async fn keep_hour(
        &mut self,
        session: &mut Session,
        step: &Step<'_>,
    ) -> Result<(), StoreError> {
        let hour = full_hour(step.now);
        if self.hour == Some(hour) {
            return Ok(());
        }
        stats::keep_hour(session, step.lease, hour, hour - HOURS_KEPT).await?;
        self.hour = Some(hour);
        Ok(())
    }
}

impl Kept {
    /// Counts what is not counted yet, and the open minutes again.
    async fn count(
        &mut self,
        session: &Session,
        endpoint: EndpointKey,
        (since, until): Span,
        tests: &Tests,
    ) -> Result<(), StoreError> {
        let first = (self.counted_to - OPEN_MINUTES).max(minute(since));
        let end = minute(until) + 1;
        self.rolling.forget_before(minute(since));
        self.rolling.forget_from(first);
        let mut from = first;
        while from < end {
            let to = (from + STRETCH_MINUTES).min(end);
            let span = (instant(from), instant(to).min(until));
            let but = tests_of(tests, endpoint);
            for (number, counts) in stats::minutes(session, endpoint, span, but).await? {
                self.rolling.replace(number, counts);
            }
            from = to;
        }
        self.counted_to = minute(until);
        Ok(())
    }
}

fn tests_of(tests: &Tests, endpoint: EndpointKey) -> &[uuid::Uuid] {
    tests.get(&endpoint).map_or(&[], Vec::as_slice)
}

/// Judges all endpoints, tells tenants of those that became slow, and then stores it: who is told twice is counted
/// only, who is not told is not flagged and judged again.
async fn judge_all(session: &mut Session, step: &Step<'_>) -> Result<(), StoreError> {
    let hour = full_hour(step.now) - WINDOW;
    let mut after = EndpointKey(i64::MIN);
    loop {
        let found = stats::to_judge(session, after, hour, JUDGED_AT_ONCE).await?;
        let Some(last) = found.last() else {
            return Ok(());
        };
        after = last.whose.0;
        let judged: Vec<Judged> = found.into_iter().filter_map(changed).collect();
        if judged.is_empty() {
            continue;
        }
        for judged in judged
            .iter()
            .filter(|it| it.slow && it.of.slow_since.is_none())
        {
            tell(session, judged, step.now).await?;
        }
        if stats::flag(session, step.lease, step.now, &judged).await? {
            notify::commands(&**session).await;
        }
    }
}

/// How an endpoint is judged, if that is not how it was.
fn changed(of: ToJudge) -> Option<Judged> {
    let verdict = of
        .today
        .map(|today| judge(today, of.before))
        .unwrap_or_default();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`as` saturates, and no request takes 24 days"
    )]
    let p95 = of.today.map_or(0, |today| today.p95_ms.ceil() as i32);
    let judged = Judged {
        of,
        slow: verdict.slow,
        degrading: verdict.degrading,
        lowered: verdict.very_slow.then_some(p95),
    };
    let same = judged.slow == of.slow_since.is_some()
        && judged.degrading == of.degrading_since.is_some()
        && judged.lowered.is_some() == of.lowered;
    (!same).then_some(judged)
}

async fn tell(
    session: &mut Session,
    judged: &Judged,
    now: OffsetDateTime,
) -> Result<(), StoreError> {
    let kind = NoticeKind::EndpointSlow;
    let (endpoint, tenant) = judged.of.whose;
    let mut payload = notice::payload(kind, &notice::Facts::default());
    if let Some(today) = judged.of.today {
        payload.insert("p95_ms".to_owned(), today.p95_ms.into());
        payload.insert("samples".to_owned(), today.samples.into());
    }
    let notice = Notice {
        endpoint,
        tenant,
        kind,
        window: notice::window(kind),
        since: now - WINDOW,
        payload,
    };
    notices::publish(session, &notice).await?;
    tracing::info!(
        endpoint.key = endpoint.0,
        "an endpoint is slow: its 95th percentile is above {} ms",
        slowness::SLOW_MS
    );
    Ok(())
}

/// Minutes since 1970.
fn minute(at: OffsetDateTime) -> i64 {
    at.unix_timestamp().div_euclid(60)
}

fn minutes(length: Duration) -> i64 {
    i64::try_from(length.as_secs() / 60).unwrap_or(i64::MAX)
}

/// The beginning of a minute.
fn instant(minute: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(minute.saturating_mul(60))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn full_hour(at: OffsetDateTime) -> OffsetDateTime {
    instant(minute(at).div_euclid(60) * 60)
}
