//! Endpoints that were saved under other rules, or damaged since (field reports F23, F34): nothing is sent,
//! nothing is repaired in silence, and no ladder is climbed for what cannot get better.

use serde_json::{Value, json};
use shared::ids::{DeliveryId, EndpointId};
use shared::sealing::MasterKeys;
use shared::testing::{TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::world::World;

/// Puts a URL, and headers if any, where only the API writes.
async fn store(world: &World, endpoint: &Endpoint, url: &str, headers: Option<Value>) {
    let id = endpoint.id.parse::<EndpointId>().unwrap().0;
    let seal = |headers: Value| {
        let text = headers.to_string();
        MasterKeys::new([7; 32], None).seal(text.as_bytes(), &format!("headers:{id}"))
    };
    let sealed = headers.map(seal);
    let change = "UPDATE endpoints SET url = $2, sealed_headers = $3 WHERE id = $1";
    let changed = world
        .sql()
        .await
        .execute(change, &[&endpoint.key, &url, &sealed])
        .await;
    assert_eq!(changed.unwrap(), 1);
}

/// The delivery, once it is a dead letter.
async fn dead(world: &World, delivery: uuid::Uuid) -> Value {
    let path = format!("/v1/deliveries/{}", DeliveryId(delivery));
    eventually(PATIENCE, || async {
        let delivery = world.ask("GET", &path, &Value::Null).await;
        (delivery["status"] == "dead_letter").then_some(delivery)
    })
    .await
}

/// A name, what is stored, and the class and words of the dead letter.
type Case = (
    &'static str,
    String,
    Option<Value>,
    &'static str,
    &'static str,
);

fn cases(http: &str) -> [Case; 7] {
    let https = http.replace("http://", "https://");
    [
        (
            "plain",
            http.to_owned(),
            None,
            "refused",
            "POSTRIDER_HTTPS_ONLY",
        ),
        (
            "port",
            https.replace(&port(&https), "6379"),
            None,
            "refused",
            "port 6379",
        ),
        (
            "user",
            https.replace("//", "//user:hunter2@"),
            None,
            "refused",
            "user name",
        ),
        (
            "private",
            "https://[::ffff:10.0.0.1]/".to_owned(),
            None,
            "refused",
            "POSTRIDER_ALLOW_CIDRS",
        ),
        (
            "broken",
            "https://[".to_owned(),
            None,
            "internal",
            "cannot be parsed",
        ),
        (
            "signed",
            https.clone(),
            Some(json!([["webhook-signature", "v1,hunter2"]])),
            "internal",
            "stored header",
        ),
        (
            "split",
            https.clone(),
            Some(json!([["x-a", "1"], ["x-b", "hunter2\r\nhost: b"]])),
            "internal",
            "stored header",
        ),
    ]
}

/// S1, P1, F34: each fails once, says what is wrong, and reaches nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_not_legal_any_more_fails_once_and_says_why() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let cases = cases(&world.receiver.url("/stored"));
    let mut deliveries = Vec::new();
    for (name, url, headers, class, says) in cases {
        let endpoint = world.endpoint(name, json!({})).await;
        store(&world, &endpoint, &url, headers).await;
        deliveries.push((name, world.publish(&endpoint).await, class, says));
    }

    let _worker = world
        .worker_with(&[("POSTRIDER_HTTPS_ONLY", "true".to_owned())])
        .await;

    for (name, delivery, class, says) in deliveries {
        let delivery = dead(&world, delivery).await;
        assert_eq!(delivery["dead_letter_class"], class, "{name}");
        assert_eq!(delivery["attempt_count"], 1, "{name}");
        let error = delivery["last_error"].as_str().unwrap();
        assert!(error.contains(says), "{name}: {error}");
        assert!(!error.contains("hunter2"), "{name}: {error}");
    }
    assert_eq!(world.receiver.count(), 0, "nothing was sent");
    world.each_delivery_in_one_place().await;
}

fn port(url: &str) -> String {
    let parsed: reqwest::Url = url.parse().unwrap();
    parsed.port().unwrap().to_string()
}
