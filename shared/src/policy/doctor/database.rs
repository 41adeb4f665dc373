//! PostgreSQL: what makes a 202 durable, whose clock stamps, what keeps VACUUM from cleaning.

use std::time::Duration;

use super::{Finding, State, grown, shown};

/// The oldest server that the product is tested with.
const OLDEST_VERSION: i32 = 150_000;
/// Transaction ids (of 2³¹) after which a server stops taking writes are used up from here on, see PostgreSQL's
/// documentation, "Preventing Transaction ID Wraparound Failures".
const OLD_IDS: i64 = 1_200_000_000;
const TOO_OLD_IDS: i64 = 1_900_000_000;
/// How far clocks may be apart: ids are stamped with the database's time as each process estimates it, so this is about
/// log lines and signatures' timestamps, which receivers refuse from five minutes on.
const OFF: Duration = Duration::from_secs(1);
/// The API is not ready from here on.
const TOO_FAR_OFF: Duration = Duration::from_secs(5);
/// A round trip to the database; each commit waits for one.
const FAR: Duration = Duration::from_millis(20);
/// The alert `PostriderDatabaseHorizon` is at ten minutes.
const OLD_HORIZON: Duration = Duration::from_secs(60);
const TOO_OLD_HORIZON: Duration = Duration::from_secs(600);
/// The queues are vacuumed every 20,000 dead rows; ten times that is a VACUUM that does not come, or cannot clean.
const DEAD_ROWS: i64 = 200_000;
const TOO_MANY_DEAD_ROWS: i64 = 2_000_000;
/// Days for which partitions are made ahead by the job.
const DAYS_MADE: i64 = 7;
/// Below this many days ahead somebody has to look now.
const FEWEST_DAYS: i64 = 3;

/// The server and how we reach it.
#[derive(Debug, Clone)]
pub struct Server {
    /// `server_version_num`.
    pub version: i32,
    /// Settings that must be `on`, with their values.
    pub switches: Vec<(String, String)>,
    /// `max_connections` less what is reserved for superusers.
    pub most_connections: i64,
    /// Sessions of clients.
    pub connections: i64,
    /// Sessions of ours.
    pub ours: i64,
    /// Sessions of this database that wait for a lock, and for how long the first does.
    pub waiting_for_lock: (i64, Duration),
    /// The longest that a session of ours stands idle in a transaction.
    pub idle_in_transaction: Duration,
    /// Streaming replicas: synchronous, and all.
    pub replicas: (i64, i64),
    /// The age of the oldest transaction id of this database.
    pub oldest_id_age: i64,
}

impl Server {
    /// Everything about the server.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        vec![
            self.version(),
            self.durability(),
            self.connections(),
            self.locks(),
            self.transaction_ids(),
        ]
    }

    fn version(&self) -> Finding {
        const CHECK: &str = "server_version";
        let found = format!("PostgreSQL {}", self.version / 10_000);
        if self.version < OLDEST_VERSION {
            let advice = "upgrade to PostgreSQL 15 or newer: nothing older is tested";
            return Finding::bad(CHECK, State::Critical, found, advice);
        }
        Finding::good(CHECK, found)
    }

    /// D2: a 202 is on the disk.
    fn durability(&self) -> Finding {
        const CHECK: &str = "durability";
        let off = self.switches.iter().filter(|(_, value)| value != "on");
        let off: Vec<String> = off
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        if off.is_empty() {
            let names: Vec<&str> = self
                .switches
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            let replicas = match self.replicas {
                (_, 0) => "no replica".to_owned(),
                (0, all) => format!(
                    "{all} replicas, none synchronous: promoting one loses what it has not got yet"
                ),
                (synchronous, all) => format!("{synchronous} of {all} replicas synchronous"),
            };
            return Finding::good(CHECK, format!("{} are on; {replicas}", names.join(", ")));
        }
        let advice = "set them to on: until then an accepted event can be lost in a crash. synchronous_commit is set by \
                      Postrider on each connection; where it is not on here, something between (a pooler) drops it";
        Finding::bad(CHECK, State::Critical, off.join(", "), advice)
    }

    fn connections(&self) -> Finding {
        const CHECK: &str = "connections";
        let found = format!(
            "{} of {} connections in use, {} of them ours",
            self.connections, self.most_connections, self.ours
        );
        // In hundredths of what there is.
        let used = self.connections * 100 / self.most_connections.max(1);
        let state = grown(used, 80, 95);
        Finding::measured(
            CHECK,
            state,
            found,
            "raise max_connections, or give processes fewer (POSTRIDER_CONNECTIONS): a process that starts needs some \
                 at once",
        )
    }

    fn locks(&self) -> Finding {
        const CHECK: &str = "locks";
        let (waiting, longest) = self.waiting_for_lock;
        let idle = self.idle_in_transaction;
        let found = format!(
            "{waiting} sessions wait for a lock, the first for {}; ours idle in a transaction for {} at most",
            shown(longest),
            shown(idle)
        );
        let state = grown(
            longest.max(idle),
            Duration::from_secs(1),
            Duration::from_secs(10),
        );
        Finding::measured(
            CHECK,
            state,
            found,
            "find who blocks: SELECT pid, pg_blocking_pids(pid), application_name, state FROM pg_stat_activity WHERE \
                 wait_event_type = 'Lock'; end it with pg_terminate_backend if it is not ours",
        )
    }

    fn transaction_ids(&self) -> Finding {
        const CHECK: &str = "transaction_ids";
        let found = format!("the oldest transaction id is {} old", self.oldest_id_age);
        let state = grown(self.oldest_id_age, OLD_IDS, TOO_OLD_IDS);
        Finding::measured(
            CHECK,
            state,
            found,
            "VACUUM does not come through: see the finding `horizon`, then run `vacuumdb --freeze` on this database \
                 before it stops taking writes at 2,147,483,648",
        )
    }
}

/// This machine's clock against the database's.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// The database's time less ours, in microseconds.
    pub offset_micros: i64,
    /// How long the question took; half of it is the uncertainty.
    pub round_trip: Duration,
}

impl Clock {
    /// Whose clock is off, and how far the database is.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "clock";
        let off = Duration::from_micros(self.offset_micros.unsigned_abs());
        // What the round trip cannot tell apart is no offset.
        let certain = off.saturating_sub(self.round_trip / 2);
        let direction = if self.offset_micros < 0 {
            "ahead of"
        } else {
            "behind"
        };
        let found = format!(
            "this machine is {} {direction} the database; a round trip takes {}",
            shown(off),
            shown(self.round_trip)
        );
        let state = grown(certain, OFF, TOO_FAR_OFF);
        if state == State::Good && self.round_trip >= FAR {
            let advice = "the database is far away: run API and workers near it, every commit waits for a round trip";
            return Finding::bad(CHECK, State::Warning, found, advice);
        }
        Finding::measured(
            CHECK,
            state,
            found,
            "set both clocks by NTP (`timedatectl`): from 5 s on the API is not ready, and receivers refuse signatures \
             whose timestamp is minutes off",
        )
    }
}

/// Somebody who keeps VACUUM from cleaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// What it is: a session, a prepared transaction, a replication slot.
    pub kind: String,
    /// The session's process id, the transaction's or slot's name, and the program's name.
    pub who: String,
    /// How long it has been open; a slot has no age.
    pub open: Option<Duration>,
}

/// How far back the database looks.
#[derive(Debug, Clone)]
pub struct Horizon {
    /// How long the oldest transaction has been open.
    pub open: Duration,
    /// The oldest few who hold it.
    pub holders: Vec<Holder>,
}

impl Horizon {
    /// Whether deleted rows can be cleaned (field report F60).
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "horizon";
        let state = grown(self.open, OLD_HORIZON, TOO_OLD_HORIZON);
        let mut found = format!("the oldest snapshot is {} old", shown(self.open));
        if state == State::Good {
            return Finding::good(CHECK, found);
        }
        for holder in &self.holders {
            let open = holder
                .open
                .map_or_else(String::new, |open| format!(", {}", shown(open)));
            found.push_str(&format!("; {} {}{open}", holder.kind, holder.who));
        }
        Finding::bad(
            CHECK,
            state,
            found,
            "end it: SELECT pg_terminate_backend(PID), ROLLBACK PREPARED, or pg_drop_replication_slot; run long reports on \
             a replica without hot_standby_feedback. Until then every deleted row stays and the queues grow slow",
        )
    }
}

/// What a table carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Rows, as the statistics estimate them.
    pub live: i64,
    /// Rows that VACUUM has yet to remove.
    pub dead: i64,
}

impl Table {
    /// Dead rows of the tables that live by deletion.
    #[must_use]
    pub fn finding(tables: &[Self]) -> Finding {
        const CHECK: &str = "dead_rows";
        let worst = tables.iter().max_by_key(|table| table.dead);
        let Some(worst) = worst else {
            return Finding::unknown(
                CHECK,
                "the statistics know no queue",
                "set track_counts = on: autovacuum needs it too",
            );
        };
        let all: i64 = tables.iter().map(|table| table.dead).sum();
        let found = format!(
            "{all} dead rows in the queues, most in {}: {} beside {} live ones",
            worst.name, worst.dead, worst.live
        );
        let state = grown(worst.dead, DEAD_ROWS, TOO_MANY_DEAD_ROWS);
        Finding::measured(
            CHECK,
            state,
            found,
            format!(
                "see the finding `horizon`; if it is good, autovacuum is off or too slow: VACUUM {}; and look at \
                     autovacuum_max_workers",
                worst.name
            ),
        )
    }
}

/// The daily partitions.
#[derive(Debug, Clone, Copy)]
pub struct Partitions {
    /// Whole days after today that have all of theirs; −1 when today has not.
    pub ahead: i64,
    /// Half detached ones.
    pub detaching: usize,
}

impl Partitions {
    /// How long ingest goes on without the job.
    #[must_use]
    pub fn finding(&self) -> Finding {
        const CHECK: &str = "partitions";
        let found = format!(
            "made {} days ahead, {} half detached",
            self.ahead, self.detaching
        );
        let job = "the job `maintenance` makes them every ten minutes and finishes what was interrupted: start a worker and \
                   look for its warnings; `postrider migrate` makes them as well";
        let state = if self.ahead < FEWEST_DAYS {
            State::Critical
        } else if self.ahead < DAYS_MADE || self.detaching > 0 {
            State::Warning
        } else {
            return Finding::good(CHECK, found);
        };
        Finding::bad(CHECK, state, found, job)
    }
}
