//! What must hold, and what is said when it does not.

use std::fmt;

/// What a run can violate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// D3 a stale owner or epoch changes nothing.
    Fence,
    /// D4 `attempts_charged ≤ max_attempts`.
    Attempts,
    /// D5 `now ≤ next_attempt_at ≤ now + 24 h`.
    Due,
    /// D6 a final state is final, and a delivery is in exactly one place.
    Final,
    /// D8 nothing is lost, and nothing waits for ever once faults stop.
    Lost,
    /// A healthy worker sends nothing twice.
    Repeated,
    /// O1 the permits of an endpoint and of a worker.
    Permits,
    /// Nothing starts under a lease that may have run out.
    Lease,
    /// Suspects go alone, and not a fourth time.
    Suspects,
    /// What was accepted for an enabled endpoint is not closed because it had been disabled before.
    Closed,
    /// R1 in any window of t seconds at most rate · t + burst requests.
    Rate,
    /// B1 one probe at a time, and nothing else while a breaker is open.
    Probe,
    /// What died in an outage lives again when it is over, once.
    Replay,
    /// Receivers are well, and a breaker stays open or a recovery does not end.
    Wedged,
    /// The rows of a key go one after the other, in the order in which they were accepted.
    Order,
    /// The code under test panicked.
    Panic,
}

/// One of them, broken.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}: {}", self.invariant, self.text)
    }
}

/// A part of the system made worse on purpose, to see that the model notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// Records are not fenced at all.
    NoFence,
    /// The epoch is read from the snapshot of the record's start, nothing is locked.
    SnapshotFence,
    /// A load is answered from the snapshot of the load before, whose tombstones are gone.
    StaleLoads,
    /// Declaring dead, taking over and reading are one statement: one snapshot, which is older than the
    /// records that it waited for.
    TakeOverSnapshot,
    /// A record that was submitted again counts again.
    RecordsRepeat,
    /// The scheduler believes in a lease that never ends.
    EndlessLease,
    /// Declaring dead does not wait for records under way.
    DeathDoesNotWait,
    /// A take-over looks up new owners in an old snapshot.
    BlindTakeOver,
    /// What the database says is owned is not compared with what is believed.
    NoComparison,
    /// Closing does not ask whether the endpoint is enabled again.
    BlindClosing,
    /// A row that waits for its retry lets those behind it go.
    NotHeads,
    /// A bucket is full after its owner died.
    FullAfterCrash,
    /// The positions of buckets are not stored when a slot is handed over.
    NoHandOver,
    /// A probe does not keep the next one from going.
    TwoProbes,
    /// Nobody looks for outages that a dead owner left.
    OutagesForgotten,
    /// What was replayed by itself and died again is replayed by itself again.
    ReplaysOfReplays,
    /// Every take-over seems to be from an owner that handed over.
    AlwaysClean,
}
