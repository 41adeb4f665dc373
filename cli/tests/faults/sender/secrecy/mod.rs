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
use shared::sealed_parts::seal_headers;
use shared::sealing::MasterKeys;
use shared::testing::{TestDatabase, eventually};

use self::failing::{Failing, Said, Way, garbage};
use self::needles::Needles;
use super::authority::Authority;
use super::nowhere::Closed;
use super::scripted::{Act, Scripted};
use crate::process::PATIENCE;
use crate::world::{ADMIN_TOKEN, Setting, TAKE_OVER, Worker, World};

const PATH: &str = "SecretInPathQ7";
const QUERY: &str = "SecretInQueryX9";
const HEADER: &str = "SecretInHeaderV3";
const PAYLOAD: &str = "SecretInPayloadJ5";
const BODY: &str = "SecretInAnswerK8";
const LOCATION: &str = "SecretInLocationM2";
const MASTER: &[u8; 32] = b"SecretMasterKeyThatIs32BytesLong";
const OTHER_MASTER: &[u8; 32] = b"SecretOtherMasterKeyOf32BytesLen";
const DATABASE: &str = "SecretOfDatabaseT4";
const PROXY: &str = "SecretOfProxyW6";
const UNKNOWN: &str = "prk_SecretOfNobodyB1";

const UNREADABLE: &str = "an endpoint cannot be read; its deliveries wait";

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
    let (_file, trusted) = authority.trusted();
    let said = Said {
        body: BODY,
        location: LOCATION,
    };
    let failing = Failing::start(&authority, &said).await;
    let for_worker: [Setting; 2] = [trusted, ("POSTRIDER_DNS_SERVERS", failing.dns.to_string())];
    let mut scene = Scene::start(&database, failing, format).await;
    scene.make_endpoints(&authority).await;

    let mut worker = scene.world.worker_with(&for_worker).await;
    scene.all_fail().await;
    worker.process.logs(UNREADABLE, 1).await;
    scene.misuse_the_api().await;
    scene.ask_as_others().await;
    scene
        .look_at_metrics(&mut worker.process, "a worker started")
        .await;
    worker.process.kill().await;
    scene.written("the log of the worker", worker.process.log());

    scene.nothing_can_be_read(&for_worker).await;
    scene.proxies_fail(&for_worker).await;
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
            ("other master key", OTHER_MASTER),
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
            if way.name == "template" {
                document["kind"] = json!("postback");
                document["template"] = json!("token={token}&x={absent}");
            }
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
        self.damage().await;
        let notices = json!({ "headers": { "authorization": HEADER } });
        self.world.endpoint("postrider.*", notices).await;
    }

    /// Rows that were legal once, or never, and one whose headers cannot be opened: nothing that the API
    /// would save.
    async fn damage(&self) {
        let mut unreadable = settings("http://127.0.0.1:8443");
        unreadable["description"] = json!("unreadable");
        unreadable["event_types"] = json!(["all"]);
        self.world.ask("POST", "/v1/endpoints", &unreadable).await;
        let sql = self.world.sql().await;
        for (name, change) in [
            ("url-denied", "url = replace(url, ':8443', ':6379')"),
            (
                "url-broken",
                "url = replace(url, '//127.0.0.1:8443', '//[')",
            ),
            ("unreadable", r"sealed_headers = sealed_headers || '\x00'"),
        ] {
            let change = format!("UPDATE endpoints SET {change} WHERE description = $1");
            assert_eq!(sql.execute(&change, &[&name]).await.unwrap(), 1, "{name}");
        }
        let which = "SELECT public_id FROM endpoints WHERE description = 'header-broken'";
        let id = sql.query_one(which, &[]).await.unwrap().get(0);
        let split = vec![("x-split".to_owned(), format!("{HEADER}\r\n{HEADER}: 1"))];
        let sealed = seal_headers(&split, id, &MasterKeys::new(*MASTER, None));
        let store = "UPDATE endpoints SET sealed_headers = $2 WHERE public_id = $1";
        assert_eq!(sql.execute(store, &[&id, &sealed]).await.unwrap(), 1);
    }

    async fn publish_to_all(&self) {
        let event = json!({ "type": "all", "payload": { "token": PAYLOAD, PAYLOAD: [PAYLOAD] } });
        self.world.ask("POST", "/v1/events", &event).await;
    }

    /// One event to all of them; each failed as it should, so there was something to say about it.
    async fn all_fail(&mut self) {
        self.publish_to_all().await;
        let tried = "SELECT count(DISTINCT a.endpoint_id) FROM attempts a JOIN endpoints e ON e.id = a.endpoint_id WHERE e.event_types = '{all}'";
        let all = i64::try_from(self.failing.ways.len()).unwrap();
        eventually(PATIENCE, || async {
            (self.world.count(tried).await == all).then_some(())
        })
        .await;
        let told = "SELECT a.status, coalesce(a.error, '') FROM attempts a JOIN endpoints e ON e.id = a.endpoint_id WHERE e.description = $1";
        let sql = self.world.sql().await;
        for way in &self.failing.ways {
            // Shown where the wait is in vain.
            eprintln!("{}: {:?}", way.name, way.told);
            eventually(PATIENCE, || async {
                let rows = sql.query(told, &[&way.name]).await.unwrap();
                let is_told = rows.iter().any(|row| {
                    let (status, error): (Option<i16>, String) = (row.get(0), row.get(1));
                    status == way.told.0 && error.starts_with(way.told.1)
                });
                is_told.then_some(())
            })
            .await;
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

    /// A worker with another master key: it gives up on nothing, and says so.
    async fn nothing_can_be_read(&mut self, usual: &[Setting]) {
        let other = ("POSTRIDER_MASTER_KEY", STANDARD.encode(OTHER_MASTER));
        let with_other = [usual, &[other]].concat();
        let mut worker = self.world.worker_with(&with_other).await;
        self.world.all_slots_owned(TAKE_OVER).await;
        self.publish_to_all().await;
        worker.process.logs(UNREADABLE, 2).await;
        self.finish(worker, "the log of a worker with another key")
            .await;
    }

    /// What fails now is the way out: a proxy that refuses, is away, cuts, or is none.
    async fn proxies_fail(&mut self, usual: &[Setting]) {
        let refuses = Scripted::start(None, Act::answer(407)).await;
        let cuts = Scripted::start(None, Act::Close).await;
        let is_none = Scripted::start(None, garbage()).await;
        let away = Closed::new();
        for (name, proxy, told) in [
            (
                "proxy-refuses",
                refuses.addr(),
                "it wants other credentials",
            ),
            ("proxy-away", away.addr, "no connection to it"),
            ("proxy-cuts", cuts.addr(), "it closed the connection"),
            ("proxy-is-none", is_none.addr(), "its answer is not HTTP"),
        ] {
            let url = format!("http://user:{PROXY}@{proxy}");
            let through = [usual, &[("POSTRIDER_PROXY_URL", url)]].concat();
            let worker = self.world.worker_with(&through).await;
            let proxied = settings("https://127.0.0.1:8443");
            let proxied = self.world.endpoint(name, proxied).await;
            self.world.publish(&proxied).await;
            let refused = format!(
                "SELECT count(*) FROM attempts WHERE error LIKE 'the forward proxy: {told}%' AND endpoint_id = {}",
                proxied.key
            );
            eventually(PATIENCE, || async {
                (self.world.count(&refused).await > 0).then_some(())
            })
            .await;
            self.finish(worker, &format!("the log of a worker with a {name}"))
                .await;
        }
    }

    /// Looks at what a worker says of itself, and ends it.
    async fn finish(&mut self, mut worker: Worker, log: &str) {
        self.look_at_metrics(&mut worker.process, "a worker started")
            .await;
        worker.process.signal(Signal::TERM);
        assert!(worker.process.ends().await.success());
        self.written(log, worker.process.log());
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
