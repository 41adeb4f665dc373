//! F16: answers that are not text. What cannot be shown as it is does not make a delivery fail.

use serde_json::{Value, json};
use shared::domain::attempt::{KEPT_OF_FAILURE, KEPT_OF_SUCCESS};
use shared::ids::DeliveryId;
use shared::testing::TestDatabase;

use crate::receiver::Answer;
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_answers_of_any_bytes_are_delivered_once_stored_and_shown() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let mut sent = Vec::new();
    for (number, body) in bodies().into_iter().enumerate() {
        for status in [200, 422] {
            let name = format!("b{number}-{status}");
            let endpoint = world.endpoint(&name, json!({})).await;
            let answer = Answer::now(status).body(body.clone());
            world.receiver.answers(&endpoint.path, &[answer]);
            let delivery = world.publish(&endpoint).await;
            sent.push((delivery, endpoint.path, status, body.clone()));
        }
    }

    world.finished(&[]).await;
    let find = "SELECT response, error, final_status FROM attempts WHERE delivery_id = $1";
    let sql = world.sql().await;
    for (delivery, path, status, body) in sent {
        assert_eq!(world.receiver.at(&path).len(), 1, "requests at {path}");
        let (most, final_status) = match status {
            200 => (KEPT_OF_SUCCESS, 3),
            _ => (KEPT_OF_FAILURE, 5),
        };
        let kept = &body[..body.len().min(most)];
        let row = sql.query_one(find, &[&delivery]).await.unwrap();
        assert_eq!(
            row.get::<_, Option<Vec<u8>>>(0).unwrap_or_default(),
            kept,
            "{path}"
        );
        assert_eq!(row.get::<_, i16>(2), final_status, "{path}");
        let attempts = format!("/v1/deliveries/{}/attempts", DeliveryId(delivery));
        let shown = world.ask("GET", &attempts, &Value::Null).await;
        let shown = &shown["data"][0];
        let text = shown["response"].as_str().unwrap_or_default();
        assert_eq!(text, String::from_utf8_lossy(kept), "{path}");
        assert_eq!(shown["response_truncated"], body.len() >= most, "{path}");
    }
}

fn bodies() -> Vec<Vec<u8>> {
    let every_byte = (0..=255).cycle().take(KEPT_OF_SUCCESS).collect();
    // A fixed sequence that looks like chance.
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = Vec::new();
    for _ in 0..40_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.push(state.to_le_bytes()[0]);
    }
    vec![
        every_byte,
        noise,
        vec![0],
        vec![0; 20_000],
        b"{\"a\":\"\\u0000\",\"b\":\"\\ud83d\"}".to_vec(),
        b"\xed\xa0\xbd\xed\xb8\x80 \xc3\x28 \xf8\x88\x80".to_vec(),
        // A character that the end of what is kept cuts through.
        [vec![b'x'; KEPT_OF_SUCCESS - 1], "\u{1f600}".into()].concat(),
        vec![0xff; 1 << 20],
    ]
}
