//! What endpoints sign with: their settings, rotation, revocation, public keys.

use serde_json::{Value, json};
use shared::ids::{EndpointId, new_v7};
use shared::policy::signing::{KeyPair, PublicKey, Secret};
use shared::sealing::MasterKeys;
use shared::store::Session;
use shared::testing::TestDatabase;
use uuid::Uuid;

use crate::app::{ADMIN, Reply, Server, Tenant, text, world};

/// An endpoint of a tenant, and a look behind the API.
struct Bench<'a> {
    tenant: &'a Tenant<'a>,
    session: Session,
    created: Value,
    path: String,
    id: Uuid,
}

/// A live key as stored: its text, and in how many seconds it ends.
type Stored = (String, Option<f64>);

impl<'a> Bench<'a> {
    async fn new(tenant: &'a Tenant<'a>, database: &TestDatabase, fields: Value) -> Self {
        let created = tenant.endpoint(fields).await;
        let id = text(&created["id"]);
        Self {
            tenant,
            session: database.session().await,
            path: format!("/v1/endpoints/{id}"),
            id: id.parse::<EndpointId>().unwrap().0,
            created,
        }
    }

    async fn shown(&self) -> Value {
        self.tenant.get(&self.path).await.expect(200)
    }

    async fn rotate(&self, body: Value) -> Reply {
        let path = format!("{}/secret/rotate", self.path);
        self.tenant.post(&path, &body).await
    }

    async fn revoke(&self) -> Value {
        let path = format!("{}/secret/revoke", self.path);
        self.tenant.post(&path, &json!({})).await.expect(200)
    }

    /// Live secrets, newest first.
    async fn secrets(&self) -> Vec<Stored> {
        self.live("endpoint_secrets", |sealed| {
            let key = keys().open(sealed, &format!("secret:{}", self.id)).unwrap();
            Secret::from_bytes(&key).unwrap().reveal()
        })
        .await
    }

    /// Public halves of live key pairs, newest first.
    async fn pairs(&self) -> Vec<Stored> {
        self.live("endpoint_key_pairs", |sealed| {
            let seed = keys()
                .open(sealed, &format!("key_pair:{}", self.id))
                .unwrap();
            KeyPair::from_seed(&seed).unwrap().public_key().to_string()
        })
        .await
    }

    async fn live(&self, table: &str, open: impl Fn(&[u8]) -> String) -> Vec<Stored> {
        let sql = format!(
            "SELECT s.sealed, extract(epoch FROM s.expires_at - now())::float8
             FROM {table} s JOIN endpoints e ON e.id = s.endpoint_id
             WHERE e.public_id = $1 AND coalesce(s.expires_at > now(), true) ORDER BY s.id DESC"
        );
        let rows = self.session.query(&sql, &[&self.id]).await.unwrap();
        rows.iter()
            .map(|row| (open(row.get(0)), row.get(1)))
            .collect()
    }

    /// Versions of endpoint and tenant, and how many reloads were asked for.
    async fn versions(&self) -> (i32, i64, i64) {
        let sql = "SELECT e.version, t.config_version,
                     (SELECT count(*) FROM commands c WHERE c.endpoint_id = e.id AND c.slot = e.slot AND c.verb = 1)
                   FROM endpoints e JOIN tenants t ON t.id = e.tenant_id WHERE e.public_id = $1";
        let row = self.session.query_one(sql, &[&self.id]).await.unwrap();
        (row.get(0), row.get(1), row.get(2))
    }

    async fn key_set(&self, server: &Server) -> Reply {
        let id = EndpointId(self.id);
        server
            .open(&format!(
                "{}/.well-known/jwks.json?endpoint={id}",
                server.base
            ))
            .await
    }
}

fn keys() -> MasterKeys {
    MasterKeys::new([7; 32], None)
}

/// Ends, of which the clock has taken at most a minute.
#[track_caller]
fn assert_ends(stored: &[Stored], expected: &[Option<f64>]) {
    assert_eq!(stored.len(), expected.len(), "{stored:?}");
    for ((_, end), expected) in stored.iter().zip(expected) {
        match (end, expected) {
            (None, None) => {}
            (Some(end), Some(most)) => assert!(*end <= *most && *end > most - 60.0, "{stored:?}"),
            (None, Some(_)) | (Some(_), None) => panic!("{stored:?}"),
        }
    }
}

#[tokio::test]
async fn a_rotation_shows_the_new_secret_once_and_lets_the_old_one_sign_for_a_day() {
    // S2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({})).await;
    let first = text(&bench.created["secret"]);
    let before = bench.versions().await;

    let reply = bench.rotate(json!({})).await.expect(200);

    let second = text(&reply["secret"]);
    assert_ne!(first, second);
    assert_eq!(reply["id"], bench.created["id"]);
    assert_eq!(reply["public_key"], Value::Null);
    assert!(reply["previous_end_at"].is_string());
    let live = bench.secrets().await;
    assert_eq!([&live[0].0, &live[1].0], [&second, &first]);
    assert_ends(&live, &[None, Some(86_400.0)]);
    let after = bench.versions().await;
    assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));

    let shown = bench.shown().await;
    let list = tenant.get("/v1/endpoints").await.expect(200);
    for document in [shown.to_string(), list.to_string()] {
        assert!(!document.contains("whsec_"), "{document}");
    }
    assert_ne!(shown["updated_at"], bench.created["updated_at"]);
}

#[tokio::test]
async fn several_rotations_overlap_and_an_earlier_end_stays_earlier() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({})).await;

    for overlap in [1_000, 5_000, 3_000] {
        let body = json!({"overlap_seconds": overlap});
        bench.rotate(body).await.expect(200);
    }
    let live = bench.secrets().await;
    assert_ends(&live, &[None, Some(3_000.0), Some(3_000.0), Some(1_000.0)]);

    for _ in 0..4 {
        bench.rotate(json!({})).await.expect(200);
    }
    assert_eq!(bench.secrets().await.len(), 8);
    let before = (bench.secrets().await.len(), bench.versions().await);
    let problem = bench.rotate(json!({})).await.problem(422, "limit-reached");
    let detail = text(&problem["detail"]);
    assert!(
        detail.contains("8 secrets are live") && detail.contains("secret/revoke"),
        "{detail}"
    );
    assert_eq!(
        (bench.secrets().await.len(), bench.versions().await),
        before
    );

    // What has ended makes room, and is not kept.
    let end = "UPDATE endpoint_secrets SET expires_at = now() WHERE expires_at < now() + interval '3000 s'";
    let ended = bench.session.execute(end, &[]).await.unwrap();
    assert_eq!(ended, 3);
    bench.rotate(json!({})).await.expect(200);
    let rows = "SELECT count(*) FROM endpoint_secrets";
    let rows: i64 = bench.session.query_one(rows, &[]).await.unwrap().get(0);
    assert_eq!(rows, 6);
}

#[tokio::test]
async fn a_rotation_without_overlap_leaves_the_new_secret_alone_even_at_the_limit() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({"signing": ["v1", "v1a"]})).await;
    for _ in 0..7 {
        bench.rotate(json!({})).await.expect(200);
    }
    assert_eq!(
        (bench.secrets().await.len(), bench.pairs().await.len()),
        (8, 8)
    );

    let reply = bench
        .rotate(json!({"overlap_seconds": 0}))
        .await
        .expect(200);

    assert_eq!(reply["previous_end_at"], Value::Null);
    assert_eq!(bench.secrets().await, [(text(&reply["secret"]), None)]);
    assert_eq!(bench.pairs().await, [(text(&reply["public_key"]), None)]);
    assert_eq!(
        bench.shown().await["public_keys"],
        json!([reply["public_key"]])
    );
}

#[tokio::test]
async fn a_revocation_ends_all_but_the_current_keys_at_once() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({"signing": ["v1", "v1a"]})).await;
    bench.rotate(json!({})).await.expect(200);
    let newest = bench.rotate(json!({})).await.expect(200);
    let before = bench.versions().await;

    assert_eq!(
        bench.revoke().await,
        json!({"id": bench.created["id"], "revoked": 4})
    );

    assert_eq!(bench.secrets().await, [(text(&newest["secret"]), None)]);
    assert_eq!(bench.pairs().await, [(text(&newest["public_key"]), None)]);
    let after = bench.versions().await;
    assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));

    assert_eq!(bench.revoke().await["revoked"], 0);
    assert_eq!(
        bench.versions().await,
        after,
        "nothing to revoke changes nothing"
    );
}

#[tokio::test]
async fn a_rotation_is_bounded_and_says_what_is_wrong_with_its_body() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({})).await;
    for (body, pointer) in [
        (json!({"overlap_seconds": 604_801}), "/overlap_seconds"),
        (json!({"overlap_seconds": -1}), "/overlap_seconds"),
        (json!({"overlap_seconds": 1.5}), "/overlap_seconds"),
        (json!({"overlap_seconds": "1"}), "/overlap_seconds"),
        (json!({"overlap": 1}), "/overlap"),
    ] {
        let problem = bench.rotate(body).await.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    assert_eq!(bench.secrets().await.len(), 1);
    let longest = json!({"overlap_seconds": 604_800});
    bench.rotate(longest).await.expect(200);
    assert_ends(&bench.secrets().await, &[None, Some(604_800.0)]);

    for verb in ["rotate", "revoke"] {
        let path = format!("{}/secret/{verb}", bench.path);
        server
            .get(&path, &tenant.key)
            .await
            .problem(405, "method-not-allowed");
    }
}

#[tokio::test]
async fn only_the_tenant_itself_with_the_right_scope_rotates_and_revokes() {
    // S3
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let other = server.tenant("other").await;
    let bench = Bench::new(&tenant, &database, json!({})).await;
    let reader = server
        .post(
            &format!("/v1/admin/tenants/{}/keys", tenant.id),
            ADMIN,
            &json!({"name": "reader", "scopes": ["read", "events:write", "replay"]}),
        )
        .await
        .expect(201);
    let reader = text(&reader["key"]);
    let deleted = Bench::new(&tenant, &database, json!({})).await;
    server.delete(&deleted.path, &tenant.key).await.expect(204);
    for verb in ["rotate", "revoke"] {
        let path = format!("{}/secret/{verb}", bench.path);
        let body = json!({});
        server
            .post(&path, &other.key, &body)
            .await
            .problem(404, "not-found");
        server
            .post(&path, &reader, &body)
            .await
            .problem(403, "missing-scope");
        server
            .post(&path, "prk_nobody", &body)
            .await
            .problem(401, "unauthorized");
        let path = format!("{}/secret/{verb}", deleted.path);
        server
            .post(&path, &tenant.key, &body)
            .await
            .problem(404, "not-found");
    }
    assert_eq!(bench.secrets().await.len(), 1);
    assert_eq!(bench.versions().await.0, 1);
}

#[tokio::test]
async fn signature_and_signing_are_kept_and_only_go_together_where_both_mean_something() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({})).await;
    assert_eq!(bench.created["signature"], "standard");
    assert_eq!(bench.created["signing"], json!(["v1"]));
    assert_eq!(bench.created["public_keys"], json!([]));

    for fields in [
        json!({"signature": "stripe"}),
        json!({"signature": "none", "signing": ["v1"]}),
        json!({"signature": "standard", "signing": ["v1a"]}),
    ] {
        let shown = tenant.endpoint(fields.clone()).await;
        for (name, value) in fields.as_object().unwrap() {
            assert_eq!(shown[name], *value, "{fields}");
        }
    }
    for (fields, pointer, why) in [
        (
            json!({"signature": "Stripe"}),
            "/signature",
            "`standard`, `stripe` or `none`",
        ),
        (json!({"signature": 1}), "/signature", "must be a string"),
        (json!({"signing": []}), "/signing", r#"["v1", "v1a"]"#),
        (
            json!({"signing": ["v1", "v1"]}),
            "/signing",
            r#"["v1", "v1a"]"#,
        ),
        (json!({"signing": "v1a"}), "/signing", r#"["v1", "v1a"]"#),
        (
            json!({"signing": ["v1a"], "signature": "stripe"}),
            "/signing",
            "one scheme only",
        ),
        (
            json!({"signing": ["v1", "v1a"], "signature": "none"}),
            "/signing",
            "signs nothing",
        ),
        (
            json!({"public_keys": ["whpk_x"]}),
            "/public_keys",
            "is read-only",
        ),
    ] {
        let problem = server
            .patch(&bench.path, &tenant.key, &fields)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{fields}");
        let detail = text(&problem["errors"][0]["detail"]);
        assert!(detail.contains(why), "{detail}");
    }
}

#[tokio::test]
async fn a_key_pair_is_made_when_it_is_first_asked_for_and_stays() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({})).await;
    assert_eq!(bench.pairs().await, []);
    let patch = async |fields: Value| {
        let reply = server.patch(&bench.path, &tenant.key, &fields).await;
        reply.expect(200)["public_keys"].clone()
    };

    let keys = patch(json!({"signing": ["v1", "v1a"]})).await;
    let made = text(&keys[0]);
    assert_eq!(bench.pairs().await, [(made.clone(), None)]);
    assert_eq!(bench.shown().await["public_keys"], json!([made]));
    let list = tenant.get("/v1/endpoints").await.expect(200);
    assert_eq!(list["data"][0]["public_keys"], json!([made]));

    assert_eq!(patch(json!({"signing": ["v1a"]})).await, json!([made]));
    assert_eq!(patch(json!({"signing": null})).await, json!([]));
    assert_eq!(patch(json!({"signing": ["v1a"]})).await, json!([made]));

    // One that is not used is rotated as well: a leak is over also when it is used again.
    patch(json!({"signing": null})).await;
    let reply = bench
        .rotate(json!({"overlap_seconds": 0}))
        .await
        .expect(200);
    assert_eq!(reply["public_key"], Value::Null, "it is not used");
    let keys = patch(json!({"signing": ["v1a"]})).await;
    assert_ne!(keys, json!([made]));
    assert_eq!(bench.pairs().await, [(text(&keys[0]), None)]);
}

#[tokio::test]
async fn the_key_set_has_all_live_public_keys_for_anybody() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bench = Bench::new(&tenant, &database, json!({"signing": ["v1a"]})).await;
    let rotated = bench.rotate(json!({})).await.expect(200);

    let reply = bench.key_set(&server).await;

    assert_eq!(reply.header("content-type"), "application/jwk-set+json");
    assert_eq!(reply.header("cache-control"), "public, max-age=60");
    let set = reply.expect(200);
    let expected: Vec<Value> = [&rotated["public_key"], &bench.created["public_keys"][0]]
        .into_iter()
        .map(|key| {
            let key = PublicKey::parse(&text(key)).unwrap();
            json!({
                "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig",
                "kid": key.thumbprint(), "x": key.jwk_x()
            })
        })
        .collect();
    assert_eq!(set, json!({"keys": expected}));

    bench.revoke().await;
    let set = bench.key_set(&server).await.expect(200);
    assert_eq!(set, json!({"keys": [expected[0]]}));
}

#[tokio::test]
async fn the_key_set_does_not_tell_which_endpoints_exist() {
    // S3
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let shared = Bench::new(&tenant, &database, json!({})).await;
    let turned_off = Bench::new(&tenant, &database, json!({"signing": ["v1a"]})).await;
    server
        .patch(&turned_off.path, &tenant.key, &json!({"signing": null}))
        .await
        .expect(200);
    let deleted = Bench::new(&tenant, &database, json!({"signing": ["v1a"]})).await;
    server.delete(&deleted.path, &tenant.key).await.expect(204);
    let base = format!("{}/.well-known/jwks.json", server.base);
    let unknown = EndpointId(new_v7(time::OffsetDateTime::UNIX_EPOCH));
    let nobody = server.open(&format!("{base}?endpoint={unknown}")).await;
    let without_date = |reply: &Reply| {
        let mut headers = reply.headers.clone();
        headers.remove("date");
        headers.remove("x-request-id");
        headers
    };
    for bench in [shared, turned_off, deleted] {
        let reply = bench.key_set(&server).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.bytes, br#"{"keys":[]}"#);
        assert_eq!(reply.bytes, nobody.bytes);
        assert_eq!(without_date(&reply), without_date(&nobody));
    }

    for query in [
        "",
        "?endpoint=",
        "?endpoint=evt_1",
        "?key=1",
        "?endpoint=x&endpoint=y",
    ] {
        let problem = server
            .open(&format!("{base}{query}"))
            .await
            .problem(400, "invalid-parameter");
        let detail = text(&problem["detail"]);
        assert!(detail.contains("endpoint"), "{query}: {detail}");
    }
}
