//! Mutual TLS end to end: the certificate that an endpoint was given is what its receiver sees.

use serde_json::{Value, json};
use shared::testing::TestDatabase;

use super::authority::Authority;
use super::scripted::{Act, Scripted};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_asks_for_a_client_certificate_gets_that_of_the_endpoint() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let authority = Authority::new();
    let (_file, trusted) = authority.trusted();
    let _worker = world.worker_with(&[trusted]).await;
    let tls = Some(authority.server_of_known("127.0.0.1"));
    let receiver = Scripted::start(tls, Act::answer(200)).await;
    let once = |certificate: Value| {
        json!({
            "url": receiver.url("https", "/"), "max_attempts": 1, "replay_on_recovery": false,
            "client_certificate": certificate,
        })
    };
    let shown = |(certificate, private_key): (String, String)| json!({ "certificate": certificate, "private_key": private_key });
    let known = shown(authority.certificate("sender.example"));
    let known = world.endpoint("known", once(known)).await;
    let stranger = shown(Authority::new().certificate("sender.example"));
    let stranger = world.endpoint("stranger", once(stranger)).await;
    let nobody = world.endpoint("nobody", once(Value::Null)).await;

    let mut outcomes = Vec::new();
    for endpoint in [&known, &stranger, &nobody] {
        world.publish(endpoint).await;
    }
    world.finished(&[]).await;
    for endpoint in [&known, &stranger, &nobody] {
        let path = format!("/v1/deliveries?endpoint_id={}", endpoint.id);
        let found = world.ask("GET", &path, &Value::Null).await;
        let delivery = found["data"][0].clone();
        let error = delivery["last_error"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        outcomes.push((delivery["status"].as_str().unwrap().to_owned(), error));
    }

    assert_eq!(outcomes[0], ("delivered".to_owned(), String::new()));
    for (status, error) in &outcomes[1..] {
        assert_eq!(status, "dead_letter");
        assert!(error.starts_with("TLS: "), "{error}");
    }
    assert!(
        outcomes[2].1.to_lowercase().contains("certificate"),
        "{}",
        outcomes[2].1
    );
    assert_eq!(
        receiver.requests(),
        1,
        "no request of who did not show its certificate"
    );
}
