//! The slots this worker owns, when each is scanned next, and which are on their way to another owner.

use std::time::Duration;

use shared::ids::{EndpointKey, Epoch, Slot, TenantKey};
use shared::runtime::clock::BootTime;
use time::OffsetDateTime;

use super::Map;
use crate::admission::{Position, TakeOver};

/// Slots in one scan statement.
const SCAN_BATCH: usize = 64;
/// A slot is scanned this often when scanning is cheap …
const SCAN_PERIOD: Duration = Duration::from_secs(1);
/// … and never so often that scanning takes more than 2 % of the time of one connection.
const SCAN_SHARE: u32 = 50;
/// … but this often in any case: one scan that was slow because the database stood still says nothing
/// about the next, and what came in behind a cursor waits for it.
const LONGEST_SCAN_PERIOD: Duration = Duration::from_secs(10);
/// A rebalancing moves at most an eighth of all slots at a time.
pub(super) const MOST_MOVED: usize = 32;

/// How long to wait before asking again what could not be answered about a doubtful slot.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

/// A slot that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub slot: Slot,
    /// How.
    pub how: TakeOver,
}

/// A slot that is handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// Which.
    pub slot: Slot,
    /// Under which epoch it was owned.
    pub epoch: Epoch,
    /// What the next owner has to know of its endpoints.
    pub endpoints: Vec<HandedOver>,
    /// An outage may have begun there that is stored nowhere: the next owner looks as after a crash.
    pub doubtful: bool,
}

/// What the next owner has to know of an endpoint beside what is stored on transitions (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedOver {
    /// Which.
    pub endpoint: EndpointKey,
    /// Whose.
    pub tenant: TenantKey,
    /// The position of its bucket, unless that is full, and the version of the endpoint that it was counted
    /// under.
    pub bucket: Option<Position>,
    /// Until when it is to be left alone.
    pub parked_until: Option<OffsetDateTime>,
}

#[derive(Debug)]
struct Owned {
    taken: TakeOver,
    /// Its last owner died: when to ask next whether that left an outage unseen.
    doubtful: Option<BootTime>,
    handed_over: Vec<HandedOver>,
    /// See [`Leaving::doubtful`].
    leaves_doubt: bool,
    scan_at: BootTime,
    in_flight: usize,
    releasing: bool,
    release_sent: bool,
}

#[derive(Debug, Default)]
pub(super) struct OwnedSlots {
    slots: Map<Slot, Owned>,
    scan_out: bool,
    /// Asked for while a scan was out: that one may have looked before what it is asked for.
    scan_again: bool,
    doubt_out: bool,
}

impl OwnedSlots {
    pub(super) fn acquire(&mut self, slot: Slot, taken: TakeOver, now: BootTime) {
        let owned = Owned {
            taken,
            doubtful: (!taken.clean).then_some(now),
            handed_over: Vec::new(),
            leaves_doubt: false,
            scan_at: now,
            in_flight: 0,
            releasing: false,
            release_sent: false,
        };
        self.slots.insert(slot, owned);
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.scan_out = false;
        self.doubt_out = false;
    }

    /// How a slot of ours was taken.
    pub(super) fn taken(&self, slot: Slot) -> Option<TakeOver> {
        self.slots.get(&slot).map(|owned| owned.taken)
    }

    /// Keeps what the next owner of a leaving slot has to know.
    pub(super) fn hand_over(&mut self, slot: Slot, endpoint: HandedOver) {
        if let Some(owned) = self.slots.get_mut(&slot) {
            owned.handed_over.push(endpoint);
        }
    }

    /// A delivery of a leaving slot died, and nobody here knows its endpoint any more.
    pub(super) fn leave_doubt(&mut self, slot: Slot, epoch: Epoch) {
        if let Some(owned) = self.owned(slot, epoch) {
            owned.leaves_doubt = true;
        }
    }

    /// Slots that were taken from a dead owner and not looked into; at most one question is out.
    pub(super) fn next_doubtful(&mut self, now: BootTime) -> Vec<(Slot, Epoch)> {
        if self.doubt_out {
            return Vec::new();
        }
        let due = |owned: &Owned| !owned.releasing && owned.doubtful.is_some_and(|at| at <= now);
        let mut due: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, owned)| due(owned))
            .map(|(slot, owned)| (*slot, owned.taken.epoch))
            .collect();
        due.sort_unstable();
        self.doubt_out = !due.is_empty();
        due
    }

    /// Slots were looked into, or could not be.
    pub(super) fn looked_into(&mut self, slots: &[(Slot, Epoch)], answered: bool, now: BootTime) {
        self.doubt_out = false;
        for (slot, epoch) in slots {
            if let Some(owned) = self.owned(*slot, *epoch) {
                owned.doubtful = (!answered).then(|| now.after(DOUBT_PAUSE));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The epoch under which work on this slot may start; `None` if it is not ours or is leaving.
    pub(super) fn working(&self, slot: Slot) -> Option<Epoch> {
        self.slots
            .get(&slot)
            .filter(|owned| !owned.releasing)
            .map(|owned| owned.taken.epoch)
    }

    /// A slot that is still owned under this epoch.
    fn owned(&mut self, slot: Slot, epoch: Epoch) -> Option<&mut Owned> {
        let owned = self.slots.get_mut(&slot);
        owned.filter(|owned| owned.taken.epoch == epoch)
    }

    pub(super) fn works(&self, slot: Slot, epoch: Epoch) -> bool {
        self.working(slot) == Some(epoch)
    }

    pub(super) fn started(&mut self, slot: Slot) {
        if let Some(owned) = self.slots.get_mut(&slot) {
            owned.in_flight += 1;
        }
    }

    pub(super) fn ended(&mut self, slot: Slot, epoch: Epoch) {
        if let Some(owned) = self.owned(slot, epoch) {
            owned.in_flight = owned.in_flight.saturating_sub(1);
        }
    }

    /// Chooses slots to give up, idle ones first.
    pub(super) fn choose_leaving(&mut self, count: usize) -> Vec<Slot> {
        let already = self.slots.values().filter(|owned| owned.releasing).count();
        let mut candidates: Vec<_> = self
            .slots
            .iter_mut()
            .filter(|(_, owned)| !owned.releasing)
            .map(|(slot, owned)| (owned.in_flight, *slot, owned))
            .collect();
        candidates.sort_unstable_by_key(|(in_flight, slot, _)| (*in_flight, *slot));
        let leaving = candidates.into_iter().take(count.saturating_sub(already));
        leaving
            .map(|(_, slot, owned)| {
                owned.releasing = true;
                slot
            })
            .collect()
    }

    /// Leaving slots with nothing on the wire, each named once.
    pub(super) fn ready_to_release(&mut self) -> Vec<Leaving> {
        let idle = |owned: &Owned| owned.releasing && !owned.release_sent && owned.in_flight == 0;
        self.slots
            .iter_mut()
            .filter(|(_, owned)| idle(owned))
            .map(|(slot, owned)| {
                owned.release_sent = true;
                Leaving {
                    slot: *slot,
                    epoch: owned.taken.epoch,
                    endpoints: std::mem::take(&mut owned.handed_over),
                    doubtful: owned.leaves_doubt || owned.doubtful.is_some(),
                }
            })
            .collect()
    }

    /// Whether it was ours under this epoch until now.
    pub(super) fn released(&mut self, slot: Slot, epoch: Epoch) -> bool {
        let ours = self
            .slots
            .get(&slot)
            .is_some_and(|owned| owned.taken.epoch == epoch);
        if ours {
            self.slots.remove(&slot);
        }
        ours
    }

    /// Slots whose scan is due; at most one scan is under way.
    pub(super) fn next_scan(&mut self, now: BootTime) -> Vec<(Slot, Epoch)> {
        if self.scan_out {
            return Vec::new();
        }
        let mut due: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, owned)| !owned.releasing && owned.scan_at <= now)
            .map(|(slot, owned)| (owned.scan_at, *slot, owned.taken.epoch))
            .collect();
        due.sort_unstable();
        due.truncate(SCAN_BATCH);
        self.scan_out = !due.is_empty();
        due.into_iter()
            .map(|(_, slot, epoch)| (slot, epoch))
            .collect()
    }

    /// A scan ended; the next one of these slots comes after a pause that grows with its cost.
    pub(super) fn scanned(&mut self, slots: &[(Slot, Epoch)], took: Duration, now: BootTime) {
        self.scan_out = false;
        let again = std::mem::take(&mut self.scan_again);
        let rounds =
            u32::try_from(self.slots.len().div_ceil(slots.len().max(1))).unwrap_or(u32::MAX);
        let period = SCAN_PERIOD.max(took.saturating_mul(SCAN_SHARE).saturating_mul(rounds));
        for (slot, epoch) in slots {
            if let Some(owned) = self.owned(*slot, *epoch) {
                let pause = if again {
                    Duration::ZERO
                } else {
                    period.min(LONGEST_SCAN_PERIOD)
                };
                owned.scan_at = now.after(pause);
            }
        }
    }

    /// Every slot is due for a scan now: hints may have been lost.
    pub(super) fn scan_all(&mut self, now: BootTime) {
        self.scan_again = self.scan_out;
        for owned in self.slots.values_mut() {
            owned.scan_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootTime = BootTime(Duration::from_secs(100));

    fn owning(count: i16) -> OwnedSlots {
        let mut slots = OwnedSlots::default();
        for slot in 0..count {
            let taken = TakeOver {
                epoch: Epoch(1),
                clean: true,
                emptied_at: None,
            };
            slots.acquire(Slot(slot), taken, START);
        }
        slots
    }

    #[test]
    fn a_slot_is_scanned_when_taken_and_then_each_second_one_scan_at_a_time() {
        let mut slots = owning(1);
        let first = slots.next_scan(START);
        assert_eq!(first, [(Slot(0), Epoch(1))]);
        assert_eq!(slots.next_scan(START), [], "one is under way");

        slots.scanned(&first, Duration::from_millis(1), START);

        assert_eq!(slots.next_scan(START.after(Duration::from_millis(999))), []);
        assert_eq!(slots.next_scan(START.after(SCAN_PERIOD)), first);
    }

    #[test]
    fn a_dear_scan_comes_less_often_and_no_scan_is_put_off_for_long() {
        let cases = [(100, 5), (150, 7), (8_000, 10)];
        for (took, seconds) in cases {
            let mut slots = owning(1);
            let scan = slots.next_scan(START);
            slots.scanned(&scan, Duration::from_millis(took), START);

            assert_eq!(
                slots.next_scan(START.after(Duration::from_secs(seconds - 1))),
                []
            );
            let later = START.after(Duration::from_secs(seconds + 1));
            assert_eq!(slots.next_scan(later), scan, "{took} ms");
        }
    }

    #[test]
    fn a_scan_asked_for_while_one_is_out_follows_at_once() {
        let mut slots = owning(1);
        let scan = slots.next_scan(START);
        slots.scan_all(START);

        slots.scanned(&scan, Duration::from_millis(900), START);

        assert_eq!(slots.next_scan(START), scan);
    }

    #[test]
    fn a_rebalancing_counts_what_is_already_on_its_way() {
        let mut slots = owning(8);
        slots.started(Slot(0));

        assert_eq!(slots.choose_leaving(3), [Slot(1), Slot(2), Slot(3)]);
        assert_eq!(slots.choose_leaving(4), [Slot(4)]);
        assert_eq!(slots.choose_leaving(usize::MAX).len(), 4);
    }
}
