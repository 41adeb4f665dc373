//! What happens when parts fail (architecture §8), shown on the real thing: `postrider api` and
//! `postrider worker` as processes that are killed, stopped and told to end, a PostgreSQL that crashes,
//! receivers that are slow or refuse. Every test ends with the same two questions: was everything
//! received that was acknowledged, and is every delivery in exactly one place?

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed, and the line says where"
)]

mod answers;
mod changes;
mod checker;
mod clock_steps;
mod connections;
mod crash;
mod database;
mod deploy;
mod doctor;
mod drain;
mod endpoint;
mod endpoint_life;
mod fail_points;
mod fields;
mod grace;
mod held_back;
mod join;
mod kill;
mod logs;
mod machine;
mod metrics;
mod notices;
mod observed;
mod ordered;
mod outage;
mod pause;
mod poster;
mod process;
mod receiver;
mod receiver_killed;
mod removals;
mod replays;
mod report;
mod secrets;
mod sender;
mod slow;
mod stored;
mod suspects;
mod test_send;
mod throttled;
mod traces;
mod unrecorded;
mod world;
