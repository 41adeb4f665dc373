//! Secrets that change while deliveries go: nothing is sent unsigned, nothing is lost, and a secret that was
//! revoked signs nothing two seconds later.

use std::time::Duration;

use serde_json::{Value, json};
use shared::policy::signing::{PublicKey, Secret, Signed, verify_ed25519, verify_standard};
use shared::runtime::clock::{BootTime, boot_time};
use shared::testing::{TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Arrival;
use crate::world::{AtRisk, World};

const IN_FORCE: Duration = Duration::from_secs(2);
/// How many requests show that something holds.
const ENOUGH: usize = 20;

/// What a receiver knows after one rotation.
struct Known {
    secret: Secret,
    public_key: PublicKey,
    replied: BootTime,
}

async fn rotate(world: &World, endpoint: &Endpoint, overlap_seconds: u32) -> Known {
    let path = format!("/v1/endpoints/{}/secret/rotate", endpoint.id);
    let body = json!({ "overlap_seconds": overlap_seconds });
    let reply = world.ask("POST", &path, &body).await;
    Known {
        secret: Secret::parse(reply["secret"].as_str().unwrap()).unwrap(),
        public_key: PublicKey::parse(reply["public_key"].as_str().unwrap()).unwrap(),
        replied: boot_time(),
    }
}

impl Known {
    /// Whether both of its keys signed a request; they always sign together.
    fn signed(&self, arrival: &Arrival) -> bool {
        let header = |name| arrival.request.header(name).unwrap();
        let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
        let signatures = header("webhook-signature");
        let signed = Signed {
            id: &id,
            timestamp: &timestamp,
            body: arrival.request.body(),
        };
        let now = timestamp.parse().unwrap();
        let secret = std::slice::from_ref(&self.secret);
        let public_key = std::slice::from_ref(&self.public_key);
        let v1 = verify_standard(secret, &signed, &signatures, now, Duration::ZERO).is_ok();
        let v1a = verify_ed25519(public_key, &signed, &signatures, now, Duration::ZERO).is_ok();
        assert_eq!(v1, v1a, "{signatures}");
        v1
    }
}

/// Waits for so many requests that came in later than [`IN_FORCE`] after this reply; the path's requests.
async fn in_force(world: &World, endpoint: &Endpoint, replied: BootTime) -> Vec<Arrival> {
    eventually(PATIENCE, || async {
        let arrivals = world.receiver.at(&endpoint.path);
        let late = |it: &&Arrival| it.at.since(replied) > IN_FORCE;
        (arrivals.iter().filter(late).count() >= ENOUGH).then_some(arrivals)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_secret_signs_nothing_two_seconds_later_and_nothing_goes_unsigned() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let both = json!({ "signing": ["v1", "v1a"] });
    let endpoint = world.endpoint("signed", both).await;
    let old = rotate(&world, &endpoint, 0).await;
    let poster = world.post(50, std::slice::from_ref(&endpoint));
    in_force(&world, &endpoint, old.replied).await;

    let new = rotate(&world, &endpoint, 86_400).await;
    let arrivals = in_force(&world, &endpoint, new.replied).await;
    for arrival in &arrivals {
        let since = arrival.at.since(old.replied);
        assert!(old.signed(arrival) || since <= IN_FORCE, "after {since:?}");
        let since = arrival.at.since(new.replied);
        assert!(new.signed(arrival) || since <= IN_FORCE, "after {since:?}");
    }

    let path = format!("/v1/endpoints/{}/secret/revoke", endpoint.id);
    let reply = world.ask("POST", &path, &Value::Null).await;
    assert_eq!(reply["revoked"], 2);
    let revoked = boot_time();
    let arrivals = in_force(&world, &endpoint, revoked).await;
    let last = arrivals
        .iter()
        .rfind(|arrival| old.signed(arrival))
        .unwrap();
    let since = last.at.since(revoked);
    assert!(since <= IN_FORCE, "still signed {since:?} after the reply");
    eprintln!("after the reply: signed with what was revoked until {since:?}");

    // A leaked secret is replaced at once.
    let next = rotate(&world, &endpoint, 0).await;
    let arrivals = in_force(&world, &endpoint, next.replied).await;
    for arrival in &arrivals {
        let since = arrival.at.since(next.replied);
        assert!(!new.signed(arrival) || since <= IN_FORCE, "after {since:?}");
        let since = arrival.at.since(old.replied);
        let known = [&old, &new, &next].iter().any(|one| one.signed(arrival));
        assert!(known || since <= IN_FORCE, "unsigned after {since:?}");
    }

    let accepted = poster.stop().await.all_accepted();
    world.finished(&accepted).await;
    let repeated = AtRisk::default().excuse(&world.receiver.all());
    assert_eq!(repeated, 0, "repetitions");
}
