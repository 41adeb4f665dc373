//! S2 and F24: a receiver's URL is a credential, and so are headers, payloads, keys and passwords. Whatever
//! fails, none of them is written anywhere but where it belongs.
//!
//! Everything is made to fail with secrets in every place where there can be one, at the most talkative
//! log there is; then every place where something was written is searched for them, in every form that a
//! program may write. What the tenant's own key may read is searched for what even that may not show.

mod asking;
mod failing;
mod needles;
mod searching;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};
use tempfile::NamedTempFile;

use self::failing::{Failing, Said, Way};
use self::needles::Needles;
use super::authority::Authority;
use super::scripted::{Act, Scripted};
use crate::process::PATIENCE;
use crate::world::{ADMIN_TOKEN, Setting, TAKE_OVER, World};

const PATH: &str = "SecretInPathQ7";
const QUERY: &str = "SecretInQueryX9";
const HEADER: &str = "SecretInHeaderV3";
const PAYLOAD: &str = "SecretInPayloadJ5";
const BODY: &str = "SecretInAnswerK8";
const LOCATION: &str = "SecretInLocationM2";
const MASTER: &[u8; 32] = b"SecretMasterKeyThatIs32BytesLong";
const DATABASE: &str = "SecretOfDatabaseT4";
const PROXY: &str = "SecretOfProxyW6";
const UNKNOWN: &str = "prk_SecretOfNobodyB1";

/// What may be shown to the tenant's own key with the scope `read`.
const READABLE: [&str; 4] = ["URL", "payload", "answer", "location"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_no_secret_is_written_anywhere_when_everything_fails_logged_as_json() {
    nothing_is_written("json").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_no_secret_is_written_anywhere_when_everything_fails_logged_as_text() {
    nothing_is_written("text").await;
}

/// The scan itself: each form of each secret is found where it stands.
#[test]
fn the_search_finds_every_form_of_every_secret() {
    let mut needles = Needles::default();
    needles.add("the master key", MASTER);
    needles.add("a key with odd characters", "a+b/c=d\"e e\u{e9}");
    needles.add("bytes", [0xff, 0x00, 0x80, 0xfe]);
    for (told, written) in needles.all() {
        let line = format!(r#"{{"message":"a log line","field":"before{written}after"}}"#);
        assert!(needles.in_text(&line).contains(&told), "{told} in {line}");
    }
    for around in ["", "x", "xy"] {
        let basic = STANDARD.encode([around.as_bytes(), MASTER, b":more"].concat());
        assert!(!needles.in_text(&basic).is_empty(), "{basic}");
    }
    assert!(
        needles
            .in_text("nothing of it: SecretMasterKeyThat")
            .is_empty()
    );
}

/// A world with secrets in every place, and what was written in it.
struct Scene {
    world: World,
    needles: Needles,
    /// `ep_…` and what it does.
    failing: Failing,
    /// Where something was written, and what.
    written: Vec<(String, String)>,
}

async fn nothing_is_written(format: &str) {
    let database = TestDatabase::new().await;
    let authority = Authority::new();
    let trusted = NamedTempFile::new().unwrap();
    std::fs::write(trusted.path(), authority.pem()).unwrap();
    let said = Said {
        body: BODY,
        location: LOCATION,
    };
    let failing = Failing::start(&authority, &said).await;
    let proxy = Scripted::start(None, Act::answer(407)).await;
    let for_worker: [Setting; 2] = [
        (
            "POSTRIDER_CA_FILE",
            trusted.path().to_str().unwrap().to_owned(),
        ),
        ("POSTRIDER_DNS_SERVERS", failing.dns.to_string()),
    ];
    let mut scene = Scene::start(&database, failing, format).await;
    scene.make_endpoints(&authority).await;

    let mut worker = scene.world.worker_with(&for_worker).await;
    scene.all_fail().await;
    scene.misuse_the_api().await;
    scene.ask_as_others().await;
    scene
        .look_at_metrics(&mut worker.process, "a worker started")
        .await;
    worker.process.kill().await;
    scene.written("the log of the worker", worker.process.log());

    let through = (
        "POSTRIDER_PROXY_URL",
        format!("http://user:{PROXY}@{}", proxy.addr()),
    );
    let through = [for_worker.as_slice(), &[through]].concat();
    let mut next = scene.world.worker_with(&through).await;
    scene.world.all_slots_owned(TAKE_OVER).await;
    scene.the_proxy_fails().await;
    scene
        .look_at_metrics(&mut next.process, "a worker started")
        .await;
    next.process.signal(Signal::TERM);
    assert!(next.process.ends().await.success());
    scene.written("the log of the next worker", next.process.log());
    scene.end().await;
}

impl Scene {
    async fn start(database: &TestDatabase, failing: Failing, format: &str) -> Self {
        let url = format!("{}&password={DATABASE}", database.url());
        let all = [
            ("DATABASE_URL", url.clone()),
            ("POSTRIDER_MASTER_KEY", STANDARD.encode(MASTER)),
            ("RUST_LOG", "trace".to_owned()),
            ("POSTRIDER_LOG_FORMAT", format.to_owned()),
        ];
        // The API takes what the workers refuse.
        let api = [("POSTRIDER_ALLOW_CIDRS", "127.0.0.0/8,10.0.0.0/8".to_owned())];
        let world = World::start_with(&url, database.database(), &all, &api).await;
        let mut needles = Needles::default();
        for (what, secret) in [
            ("URL: path", PATH.as_bytes()),
            ("URL: query", QUERY.as_bytes()),
            ("header", HEADER.as_bytes()),
            ("payload", PAYLOAD.as_bytes()),
            ("answer", BODY.as_bytes()),
            ("location", LOCATION.as_bytes()),
            ("master key", MASTER),
            ("database password", DATABASE.as_bytes()),
            ("proxy password", PROXY.as_bytes()),
            ("admin token", ADMIN_TOKEN.as_bytes()),
            ("tenant key", world.key.as_bytes()),
            ("unknown key", UNKNOWN.as_bytes()),
        ] {
            needles.add(what, secret);
        }
        Self {
            world,
            needles,
            failing,
            written: Vec::new(),
        }
    }

    /// What even the tenant's own key with the scope `read` is not shown.
    fn not_even_readable(&self) -> Needles {
        let all = self.needles.clone();
        READABLE.iter().fold(all, |rest, what| rest.without(what))
    }

    fn written(&mut self, place: impl Into<String>, text: String) {
        self.written.push((place.into(), text));
    }

    /// One endpoint for each way to fail, all for events of the type `all`; the tenant is told of them.
    async fn make_endpoints(&mut self, authority: &Authority) {
        let refused = Way {
            name: "refused",
            base: "http://10.1.2.3".to_owned(),
            told: (None, ""),
        };
        self.failing.ways.push(refused);
        for way in &self.failing.ways {
            let (certificate, private_key) = authority.certificate("sender.test");
            let mut document = settings(&way.base);
            document["description"] = json!(way.name);
            document["event_types"] = json!(["all"]);
            document["client_certificate"] =
                json!({ "certificate": certificate, "private_key": private_key });
            let made = self.world.ask("POST", "/v1/endpoints", &document).await;
            let secret = made["secret"]
                .as_str()
                .unwrap()
                .trim_start_matches("whsec_");
            self.needles.add("endpoint's secret", secret);
            self.needles
                .add("endpoint's secret, bytes", STANDARD.decode(secret).unwrap());
            let line = private_key.lines().nth(1).unwrap();
            self.needles.add("private key", line);
        }
        let notices = json!({ "headers": { "authorization": HEADER } });
        self.world.endpoint("postrider.*", notices).await;
    }

    /// One event to all of them; each failed as it should, so there was something to say about it.
    async fn all_fail(&mut self) {
        let event = json!({ "type": "all", "payload": { "token": PAYLOAD, PAYLOAD: [PAYLOAD] } });
        self.world.ask("POST", "/v1/events", &event).await;
        let tried = "SELECT count(DISTINCT a.endpoint_id) FROM attempts a JOIN endpoints e ON e.id = a.endpoint_id WHERE e.event_types = '{all}'";
        let all = i64::try_from(self.failing.ways.len()).unwrap();
        eventually(PATIENCE, || async {
            (self.world.count(tried).await == all).then_some(())
        })
        .await;
        let told = "SELECT a.status, coalesce(a.error, '') FROM attempts a JOIN endpoints e ON e.id = a.endpoint_id WHERE e.description = $1";
        let sql = self.world.sql().await;
        for way in &self.failing.ways {
            let row = &sql.query(told, &[&way.name]).await.unwrap()[0];
            let (status, error): (Option<i16>, String) = (row.get(0), row.get(1));
            assert_eq!(status, way.told.0, "{}: {error}", way.name);
            assert!(error.starts_with(way.told.1), "{}: {error}", way.name);
        }
        // Ladders end, and the tenant is told.
        let dead = "SELECT count(*) FROM dead_letters";
        eventually(PATIENCE, || async {
            (self.world.count(dead).await >= 5).then_some(())
        })
        .await;
        let told = || async { (!self.world.receiver.all().is_empty()).then_some(()) };
        eventually(PATIENCE, told).await;
    }

    /// What fails now is the way out.
    async fn the_proxy_fails(&mut self) {
        let proxied = self
            .world
            .endpoint("proxied", settings("https://127.0.0.1:8443"))
            .await;
        self.world.publish(&proxied).await;
        let refused = "SELECT count(*) FROM attempts WHERE error LIKE 'the forward proxy%'";
        eventually(PATIENCE, || async {
            (self.world.count(refused).await > 0).then_some(())
        })
        .await;
    }
}

/// An endpoint with secrets wherever one can be, and a short ladder.
fn settings(base: &str) -> Value {
    json!({
        "url": format!("{base}/{PATH}/in?token={QUERY}"),
        "headers": { "authorization": format!("Bearer {HEADER}"), "x-token": HEADER },
        "timeout_ms": 1_500,
        "max_attempts": 2,
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 2, "cooldown_seconds": 1, "max_cooldown_seconds": 1 },
    })
}
