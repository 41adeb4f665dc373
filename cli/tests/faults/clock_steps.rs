//! The clock of a machine is set: an hour ahead, an hour behind, while API and worker are at work. (libfaketime; what
//! measures lengths goes on as it does on a machine whose clock is set.)

use std::fs;
use std::path::Path;
use std::time::Duration;

use load_tests::client;
use serde_json::json;
use shared::ids::created_at;
use shared::runtime::clock::{boot_time, wall_time};
use shared::testing::{TestDatabase, eventually};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, Setting, World};

const HOUR: i64 = 3_600;
/// The most that anything may be off that must not follow the clock.
const MOST_OFF: i64 = 300;

/// D5: leases, ids and due times follow the database's clock, which nobody sets; the signature's timestamp is the
/// machine's, as receivers compare it with theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_clock_is_set_nothing_is_lost_late_or_sent_in_a_storm() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("offset");
    set(&file, 0);
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut endpoints = world.an_endpoint_in_each_slot().await;
    // Some fail twice: their retries are due by the database's clock.
    let ladder = json!({ "backoff": { "base_seconds": 1, "max_seconds": 2 } });
    for endpoint in endpoints.iter_mut().step_by(4) {
        let path = format!("/v1/endpoints/{}", endpoint.id);
        world.ask("PATCH", &path, &ladder).await;
        let script = [Answer::now(503), Answer::now(503), Answer::now(200)];
        world.receiver.answers(&endpoint.path, &script);
    }
    let faked = faked(&file);
    let worker = world.worker_with(&faked).await;
    let (_api, addr) = world.another_api(&faked).await;
    let poster = world.post_to(&[addr], short_or_long(50, 200), &endpoints);
    let mut report = Report::of("clock: set an hour ahead, an hour back, on API and worker");
    for _ in 0..short_or_long(1, 5) {
        for offset in [HOUR, -HOUR, 0] {
            set(&file, offset);
            let (stepped, at) = (boot_time(), wall_time());
            // The next event of this API is stamped as it should be, and sent with the time that this machine has.
            let arrival = eventually(PATIENCE, || async {
                let all = world.receiver.all();
                all.into_iter().find(|it| {
                    it.at > stepped
                        && (sent_at(&it.request) - at).whole_seconds().abs_diff(offset) < 60
                })
            });
            let arrival = arrival.await;
            report.recovered(boot_time().since(stepped));
            for id in [arrival.event, arrival.delivery] {
                let off = (created_at(id) - at).whole_seconds();
                assert!(off.abs() < MOST_OFF, "an id is {off} s off");
            }
            let change = json!({ "description": format!("{offset}") }).to_string();
            let path = format!("/v1/endpoints/{}", endpoints[0].id);
            let change = client::request("PATCH", &path, Some(&world.key), change.as_bytes());
            client::ask(addr, &change).await.unwrap();
            let accepted = poster.accepted();
            eventually(PATIENCE, || async {
                (poster.accepted() > accepted + endpoints.len()).then_some(())
            })
            .await;
        }
    }
    let posted = poster.stop().await;
    posted.nothing_refused();
    world.finished(&posted.accepted).await;
    // The same life, whose lease never ran out.
    assert_eq!(world.slots_of(worker.incarnation).await.len(), 256);
    let waited = longest_wait(&world);
    assert!(
        waited < Duration::from_secs(30),
        "a retry came {waited:?} after its attempt"
    );
    let stamped = "SELECT count(*) FROM attempts WHERE abs(extract(epoch FROM started_at - clock_timestamp())) > 600";
    assert_eq!(
        world.count(stamped).await,
        0,
        "attempts that began at another time"
    );
    changes_are_told_in_time(&world).await;
    report.note("recovered: requests bear the new time; ids, due times and leases never did");
    report.close(&world, &posted, &AtRisk::default()).await;
}

/// What was changed at the API whose clock was set stands in the audit log when it was.
async fn changes_are_told_in_time(world: &World) {
    let ids = "SELECT id FROM audit_log";
    for row in world.sql().await.query(ids, &[]).await.unwrap() {
        let off = (created_at(row.get(0)) - wall_time()).whole_seconds();
        assert!(off.abs() < 2 * MOST_OFF, "a change is told {off} s off");
    }
}

/// Says how far ahead the clock of the processes is that read this file.
fn set(file: &Path, offset: i64) {
    // In one step: it is read at every look at the clock.
    let new = file.with_extension("new");
    fs::write(&new, format!("{offset:+}")).unwrap();
    fs::rename(new, file).unwrap();
}

/// What makes a process take its clock from this file: the wall clock alone.
fn faked(file: &Path) -> Vec<Setting> {
    let library = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .map(|machine| format!("/usr/lib/{machine}/faketime/libfaketimeMT.so.1"))
        .into_iter()
        .find(|path| Path::new(path).exists());
    let Some(library) = library else {
        panic!("no libfaketime: `scripts/bootstrap test` installs it");
    };
    vec![
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// When the sender said that it sent a request.
fn sent_at(request: &crate::receiver::Raw) -> OffsetDateTime {
    let text = request.header("x-delivery-timestamp").unwrap();
    OffsetDateTime::parse(&text, &Rfc3339).unwrap()
}

/// The longest time from one attempt of a delivery to the next.
fn longest_wait(world: &World) -> Duration {
    let mut last = std::collections::HashMap::new();
    let mut longest = Duration::ZERO;
    for arrival in world.receiver.all() {
        if let Some(before) = last.insert(arrival.delivery, arrival.at) {
            longest = longest.max(arrival.at.since(before));
        }
    }
    longest
}
