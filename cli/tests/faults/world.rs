//! What every test has: a database, an API process, a receiver, a tenant; and what it asks of them.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use load_tests::client::{self, Connection};
use serde_json::{Value, json};
use shared::ids::{DeliveryId, EndpointId};
use shared::runtime::clock::boot_time;
use shared::store::{Database, Role, Session};
use shared::testing::eventually;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::poster::Poster;
use crate::process::{PATIENCE, Process};
use crate::receiver::{Arrival, Receiver};

/// The shortest lease that the budgets allow: three renewals of 2 s, and the margin of 2 s.
pub(crate) const LEASE: Duration = Duration::from_secs(8);
/// From the death of a worker until its slots may be taken: the lease, the second that a renewal may
/// be late, and the look that the others take every 2 s; the rest is a loaded machine's.
pub(crate) const TAKE_OVER: Duration = Duration::from_secs(25);
/// How many tests run at the same time, each with several processes: more would measure the machine.
static TURNS: Semaphore = Semaphore::const_new(3);
pub(crate) const ADMIN_TOKEN: &str = "admin-token-of-these-tests";
pub(crate) const SCOPES: [&str; 5] = [
    "events:write",
    "endpoints:write",
    "read",
    "replay",
    "data:delete",
];

/// A variable of a process's environment; of two for one name the later counts.
pub(crate) type Setting = (&'static str, String);

/// See the module.
pub(crate) struct World {
    pub(crate) receiver: Receiver,
    pub(crate) api: SocketAddr,
    pub(crate) key: String,
    database: Database,
    settings: Vec<Setting>,
    pub(crate) api_process: Process,
    _turn: SemaphorePermit<'static>,
}

/// A worker process.
pub(crate) struct Worker {
    pub(crate) process: Process,
    /// Its first life.
    pub(crate) incarnation: Uuid,
}

impl World {
    pub(crate) async fn start(url: &str, database: Database) -> Self {
        Self::start_with(url, database, &[], &[]).await
    }

    /// The same with more settings, of all processes and of the API alone.
    pub(crate) async fn start_with(
        url: &str,
        database: Database,
        all: &[Setting],
        api: &[Setting],
    ) -> Self {
        let turn = TURNS.acquire().await.unwrap();
        let mut settings = vec![
            ("DATABASE_URL", url.to_owned()),
            ("POSTRIDER_MASTER_KEY", STANDARD.encode([7; 32])),
            ("POSTRIDER_ALLOW_CIDRS", "127.0.0.0/8".to_owned()),
            ("POSTRIDER_METRICS_ADDR", "127.0.0.1:0".to_owned()),
            ("POSTRIDER_LEASE_TTL", format!("{}s", LEASE.as_secs())),
        ];
        settings.extend_from_slice(all);
        let mut for_api = settings.clone();
        for_api.push(("POSTRIDER_API_ADDR", "127.0.0.1:0".to_owned()));
        for_api.push(("POSTRIDER_ADMIN_TOKEN", ADMIN_TOKEN.to_owned()));
        for_api.extend_from_slice(api);
        let mut process = Process::start("api", &for_api);
        let listens = process.logs("the API listens", 1).await;
        let api = listens["addr"].as_str().unwrap().parse().unwrap();
        let key = tenant_key(api).await;
        Self {
            receiver: Receiver::start().await,
            api,
            key,
            database,
            settings,
            api_process: process,
            _turn: turn,
        }
    }

    /// Starts a worker; returns when it has joined.
    pub(crate) async fn worker(&self) -> Worker {
        self.worker_with(&[]).await
    }

    /// The same with more settings.
    pub(crate) async fn worker_with(&self, more: &[Setting]) -> Worker {
        let settings = [self.settings.as_slice(), more].concat();
        let mut process = Process::start("worker", &settings);
        let incarnation = process.joined(1).await;
        Worker {
            process,
            incarnation,
        }
    }

    /// Starts so many workers; returns when the slots are spread over them.
    pub(crate) async fn workers(&self, count: usize) -> Vec<Worker> {
        let mut workers = Vec::new();
        for _ in 0..count {
            workers.push(self.worker().await);
        }
        self.spread_over(count, PATIENCE).await;
        workers
    }

    /// A connection for the test's own questions.
    pub(crate) async fn sql(&self) -> Session {
        self.database.connect(Role::Maintenance).await.unwrap()
    }

    /// One number.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.sql().await.query_one(sql, &[]).await.unwrap().get(0)
    }

    // ## The API

    /// Asks the API as the tenant; fails unless the answer is 2xx.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = client::request(method, path, Some(&self.key), body.as_bytes());
        let reply = client::ask(self.api, &request).await.unwrap();
        if reply.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&reply).unwrap()
        }
    }

    /// Asks the API as whoever has this key; status and body of the answer, whatever it is.
    pub(crate) async fn ask_as(
        &self,
        key: Option<&str>,
        (method, path): (&str, &str),
        body: &[u8],
    ) -> (u16, String) {
        self.exchange(&client::request(method, path, key, body))
            .await
    }

    /// Status and body of the API's answer to this request.
    pub(crate) async fn exchange(&self, request: &[u8]) -> (u16, String) {
        let mut connection = Connection::open(self.api).await.unwrap();
        let reply = connection.exchange(request).await.unwrap();
        let text = String::from_utf8_lossy(reply.body).into_owned();
        (reply.status, text)
    }

    /// Makes an endpoint with these settings, for events of the type `name`, at the path `/name` of the
    /// receiver, or at the URL that they have.
    pub(crate) async fn endpoint(&self, name: &str, settings: Value) -> Endpoint {
        let path = format!("/{name}");
        let mut document = settings;
        if document["url"].is_null() {
            document["url"] = json!(self.receiver.url(&path));
        }
        document["event_types"] = json!([name]);
        let made = self.ask("POST", "/v1/endpoints", &document).await;
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        let (id, secret) = (text("id"), text("secret"));
        let public: EndpointId = id.parse().unwrap();
        let find = "SELECT id, slot FROM endpoints WHERE public_id = $1";
        let row = self
            .sql()
            .await
            .query_one(find, &[&public.0])
            .await
            .unwrap();
        Endpoint {
            id,
            secret,
            key: row.get(0),
            slot: row.get(1),
            path,
            event_type: name.to_owned(),
        }
    }

    /// One endpoint in each slot.
    pub(crate) async fn an_endpoint_in_each_slot(&self) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for number in 0..256 {
            endpoints.push(self.endpoint(&format!("e{number}"), json!({})).await);
        }
        let slots: HashSet<i16> = endpoints.iter().map(|endpoint| endpoint.slot).collect();
        assert_eq!(slots.len(), 256, "the API gives slots out in turn");
        endpoints
    }

    /// Publishes one event for this endpoint; the id of its delivery.
    pub(crate) async fn publish(&self, endpoint: &Endpoint) -> Uuid {
        let event = json!({ "type": endpoint.event_type, "payload": { "order": "A-17" } });
        let reply = self.ask("POST", "/v1/events", &event).await;
        let delivery: DeliveryId = reply["deliveries"][0]["id"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        delivery.0
    }

    /// Posts at this rate, in turn to these endpoints.
    pub(crate) fn post(&self, per_second: u32, endpoints: &[Endpoint]) -> Poster {
        let types = endpoints
            .iter()
            .map(|endpoint| endpoint.event_type.as_str());
        Poster::start(self.api, &self.key, per_second, types)
    }

    // ## Ownership

    /// Waits until every slot has a living owner.
    pub(crate) async fn all_slots_owned(&self, within: Duration) {
        let sql = self.sql().await;
        let owned = "SELECT count(*) FROM slots s JOIN workers w ON w.id = s.owner
                     WHERE w.expires_at > clock_timestamp()";
        eventually(within, || async {
            let count: i64 = sql.query_one(owned, &[]).await.unwrap().get(0);
            (count == 256).then_some(())
        })
        .await;
    }

    /// Waits until every slot is owned, by so many living workers, none of which has more than its
    /// share.
    pub(crate) async fn spread_over(&self, workers: usize, within: Duration) {
        let sql = self.sql().await;
        let shares = "SELECT count(*) FROM slots s JOIN workers w ON w.id = s.owner
                      WHERE w.expires_at > clock_timestamp() GROUP BY w.id";
        let most = i64::try_from(256_usize.div_ceil(workers)).unwrap();
        eventually(within, || async {
            let rows = sql.query(shares, &[]).await.unwrap();
            let shares: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            let even = shares.len() == workers && shares.iter().all(|share| *share <= most);
            (even && shares.iter().sum::<i64>() == 256).then_some(())
        })
        .await;
    }

    /// Which life of a worker owns this slot.
    pub(crate) async fn owner(&self, slot: i16) -> Uuid {
        let owner = "SELECT owner FROM slots WHERE slot = $1";
        let row = self.sql().await.query_one(owner, &[&slot]).await;
        row.unwrap().get(0)
    }

    /// The slots of this life of a worker.
    pub(crate) async fn slots_of(&self, incarnation: Uuid) -> HashSet<i16> {
        let sql = self.sql().await;
        let rows = sql
            .query("SELECT slot FROM slots WHERE owner = $1", &[&incarnation])
            .await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// Waits until a life of a worker that just ended was declared dead. Returns the deliveries of its
    /// slots that have arrived and are live as if they had not, with how often they arrived: what it
    /// had sent and not recorded, because nobody else could own its slots before.
    pub(crate) async fn buried(&self, incarnation: Uuid) -> HashMap<Uuid, usize> {
        let sql = self.sql().await;
        let live = "SELECT EXISTS (SELECT FROM workers WHERE id = $1), ARRAY(
              SELECT l.id FROM (SELECT slot, id FROM ready UNION ALL SELECT slot, id FROM retry UNION ALL SELECT slot, id FROM ready_ordered) l
              JOIN slots s ON s.slot = l.slot AND s.owner = $1)";
        let last = Mutex::new((0, Vec::new()));
        eventually(TAKE_OVER, || async {
            let place = self.receiver.count();
            let row = sql.query_one(live, &[&incarnation]).await.unwrap();
            let alive: bool = row.get(0);
            if alive {
                *last.lock().unwrap() = (place, row.get::<_, Vec<Uuid>>(1));
            }
            (!alive).then_some(())
        })
        .await;
        let (place, live) = last.into_inner().unwrap();
        let requests = requests(&self.receiver.between(0..place));
        let sent = |id: Uuid| Some((id, *requests.get(&id)?));
        live.into_iter().filter_map(sent).collect()
    }

    /// The deliveries that are live in the slots of this life of a worker.
    pub(crate) async fn live_with(&self, incarnation: Uuid) -> Vec<Uuid> {
        let live =
            "SELECT l.id FROM (SELECT slot, id FROM ready UNION ALL SELECT slot, id FROM retry UNION ALL SELECT slot, id FROM ready_ordered) l
              JOIN slots s ON s.slot = l.slot AND s.owner = $1";
        let rows = self.sql().await.query(live, &[&incarnation]).await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// Every event that there is.
    pub(crate) async fn events(&self) -> Vec<Uuid> {
        let sql = self.sql().await;
        let rows = sql.query("SELECT id FROM events", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    // ## What became of it

    /// Waits until nothing is left to do, and checks that every acknowledged event was received and
    /// that every delivery ended exactly once.
    pub(crate) async fn finished(&self, accepted: &[Uuid]) {
        self.found(accepted).await.is_well(accepted.len());
    }

    /// Waits until nothing is left to do, or not much longer than anything may take; then compares what
    /// was acknowledged, what was received, and what the database says.
    pub(crate) async fn found(&self, accepted: &[Uuid]) -> Found {
        let sql = self.sql().await;
        let live = "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM retry) + (SELECT count(*) FROM ready_ordered)";
        let began = boot_time();
        let stuck = eventually(PATIENCE * 2, || async {
            let count: i64 = sql.query_one(live, &[]).await.unwrap().get(0);
            (count == 0 || boot_time().since(began) > PATIENCE).then_some(count)
        })
        .await;
        let received: HashSet<Uuid> = self.receiver.all().iter().map(|it| it.event).collect();
        let lost = accepted.iter().filter(|it| !received.contains(it)).count();
        let (misplaced, ended_twice) = (self.misplaced().await, self.ended_twice().await);
        self.each_delivery_of_one_event();
        Found {
            lost,
            stuck: usize::try_from(stuck).unwrap(),
            misplaced,
            ended_twice,
        }
    }

    /// Every delivery is waiting, delivered, dead or closed, and exactly one of these (D6, D8, F88); a
    /// final status stands on one attempt only, and on none of a fenced worker (D3).
    pub(crate) async fn each_delivery_in_one_place(&self) {
        let places = (self.misplaced().await, self.ended_twice().await);
        assert_eq!(places, (0, 0), "deliveries misplaced, or ended twice");
    }

    /// How many deliveries are not in exactly one place.
    async fn misplaced(&self) -> i64 {
        let misplaced = "
            WITH d AS (SELECT unnest(fan_delivery) AS id FROM events),
            p AS (
              SELECT id FROM ready UNION ALL SELECT id FROM retry UNION ALL SELECT id FROM ready_ordered UNION ALL SELECT id FROM closed
              UNION ALL SELECT id FROM dead_letters
              UNION ALL SELECT delivery_id FROM attempts WHERE final_status = 3)
            SELECT count(*) FROM (
              SELECT d.id FROM d LEFT JOIN p ON p.id = d.id GROUP BY d.id HAVING count(p.id) <> 1) x";
        self.count(misplaced).await
    }

    /// How many deliveries ended more than once, or by a fenced worker.
    async fn ended_twice(&self) -> i64 {
        let ended_twice =
            "SELECT count(*) FROM (SELECT FROM attempts WHERE final_status IS NOT NULL
            GROUP BY tenant_id, delivery_id HAVING count(*) > 1 OR NOT bool_and(applied)) x";
        self.count(ended_twice).await
    }

    /// A repeated request carries the same `webhook-id`, by which receivers know it again.
    fn each_delivery_of_one_event(&self) {
        let mut events = HashMap::new();
        for arrival in self.receiver.all() {
            let event = *events.entry(arrival.delivery).or_insert(arrival.event);
            assert_eq!(
                event, arrival.event,
                "two webhook-ids for {}",
                arrival.delivery
            );
        }
    }
}

/// What became of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Acknowledged and never received.
    pub(crate) lost: usize,
    /// Still live when nothing should be.
    pub(crate) stuck: usize,
    misplaced: i64,
    ended_twice: i64,
}

impl Found {
    /// Nothing of so many acknowledged events is amiss.
    #[track_caller]
    pub(crate) fn is_well(self, accepted: usize) {
        let Self {
            lost,
            stuck,
            misplaced,
            ended_twice,
        } = self;
        assert_eq!(
            (lost, stuck, misplaced, ended_twice),
            (0, 0, 0, 0),
            "lost, stuck, misplaced, ended twice; of {accepted} acknowledged events"
        );
    }
}

impl Process {
    /// Waits for a worker's `count`th life; its incarnation.
    pub(crate) async fn joined(&mut self, count: usize) -> Uuid {
        let joined = self.logs("a worker joined", count).await;
        joined["worker.incarnation"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }
}

/// Deliveries that may be repeated, with how often: each was sent and not recorded when a part failed.
#[derive(Debug, Default)]
pub(crate) struct AtRisk(HashMap<Uuid, usize>);

impl AtRisk {
    /// A part failed; these were not recorded, and had arrived so often. What has not arrived since the
    /// failure before was not sent, so it is not excused twice.
    pub(crate) fn add(&mut self, not_recorded: impl IntoIterator<Item = (Uuid, usize)>) {
        for (delivery, sent) in not_recorded {
            let excused = self.0.entry(delivery).or_default();
            *excused += usize::from(sent > *excused);
        }
    }

    /// How many repetitions are excused.
    pub(crate) fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// The deliveries that were sent more often than once and once more for each time at risk, and how
    /// often.
    pub(crate) fn unexcused(&self, arrivals: &[Arrival]) -> Vec<(Uuid, usize)> {
        let excused = |delivery: &Uuid| self.0.get(delivery).copied().unwrap_or(0);
        let mut requests: Vec<_> = requests(arrivals).into_iter().collect();
        requests.retain(|(delivery, sent)| *sent > 1 + excused(delivery));
        requests
    }

    /// Fails if there is such a delivery. Returns how many requests were repetitions.
    pub(crate) fn excuse(&self, arrivals: &[Arrival]) -> usize {
        if let Some((delivery, sent)) = self.unexcused(arrivals).first() {
            let history = arrivals.iter().filter(|it| it.delivery == *delivery);
            let history: Vec<_> = history.collect();
            panic!("{sent} requests of one delivery: {history:#?}");
        }
        arrivals.len() - requests(arrivals).len()
    }
}

/// How often each delivery arrived.
pub(crate) fn requests(arrivals: &[Arrival]) -> HashMap<Uuid, usize> {
    let mut requests = HashMap::new();
    for arrival in arrivals {
        *requests.entry(arrival.delivery).or_default() += 1;
    }
    requests
}

/// A tenant and a key of its own.
async fn tenant_key(api: SocketAddr) -> String {
    let make = async |path: &str, body: Value| -> Value {
        let body = body.to_string();
        let request = client::request("POST", path, Some(ADMIN_TOKEN), body.as_bytes());
        client::ask_json(api, &request).await.unwrap()
    };
    let tenant = make("/v1/admin/tenants", json!({ "name": "tests" })).await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant["id"].as_str().unwrap());
    let made = make(&keys, json!({ "name": "tests", "scopes": SCOPES })).await;
    made["key"].as_str().unwrap().to_owned()
}
