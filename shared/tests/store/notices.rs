//! Operational events: who is told, how often, and what.

use std::time::Duration;

use serde_json::{Map, Value};
use shared::domain::attempt::Outcome;
use shared::domain::notice::NoticeKind;
use shared::ids::{EndpointKey, TenantKey};
use shared::store::notices::{self, Notice, Published};
use shared::store::retention::{self, RetentionSettings};
use shared::store::{Role, Session};

use crate::owner::{ENDPOINT, ITS_TENANT, Owner};
use crate::world::{count, lease};

const LONG: Duration = Duration::from_secs(10 * 365 * 86_400);
const DAY: Duration = Duration::from_secs(86_400);
const PATIENCE: Duration = Duration::from_secs(20);
const LISTENER: EndpointKey = EndpointKey(2);

async fn notice(owner: &Owner, kind: NoticeKind) -> Notice {
    let mut payload = Map::new();
    payload.insert("reason".to_owned(), "it fails".into());
    Notice {
        endpoint: ENDPOINT,
        tenant: ITS_TENANT,
        kind,
        window: LONG,
        since: owner.now().await - DAY / 2,
        payload,
    }
}

async fn listener(owner: &Owner, key: EndpointKey, patterns: &[&str]) {
    owner.endpoint(key, "http://listener.example/in").await;
    let update = "UPDATE endpoints SET event_types = $2 WHERE id = $1";
    let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
    owner
        .session
        .execute(update, &[&key.0, &patterns])
        .await
        .unwrap();
}

async fn publish(owner: &mut Owner, notice: &Notice) -> Published {
    notices::publish(&mut owner.session, notice).await.unwrap()
}

async fn payload(session: &Session) -> Value {
    let query = "SELECT payload FROM events";
    let bytes: Vec<u8> = session.query_one(query, &[]).await.unwrap().get(0);
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn a_notice_is_an_event_with_a_delivery_for_who_asks() {
    // D1
    let mut owner = Owner::new().await;
    listener(&owner, LISTENER, &["postrider.endpoint.*"]).await;
    let at = owner.now().await;
    owner
        .attempt(ENDPOINT, Outcome::Transient, at - DAY / 4)
        .await;
    owner
        .attempt(ENDPOINT, Outcome::Transient, at - DAY / 5)
        .await;
    let status = "UPDATE attempts SET status = 503";
    owner.session.execute(status, &[]).await.unwrap();
    let secret = "UPDATE endpoints SET url = 'https://user:pass-word@receiver.example:8443/hook/s3cret?token=t0k-en' WHERE id = 1";
    owner.session.execute(secret, &[]).await.unwrap();
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;

    let published = publish(&mut owner, &opened).await;

    let Published::Sent(event, 1) = published else {
        panic!("{published:?}")
    };
    let row = format!(
        "ready r JOIN events e ON e.id = r.event_id JOIN event_types t ON t.id = e.type_id
         WHERE r.kind = 4 AND r.endpoint_id = 2 AND r.slot = 1 AND e.id = '{event}'
           AND t.name = 'postrider.endpoint.opened' AND e.fan_endpoint = '{{2}}' AND e.fan_delivery = ARRAY[r.id]"
    );
    assert_eq!(owner.count(&row).await, 1);
    let told = format!("notices WHERE event_id = '{event}' AND count = 1 AND tenant_id = 7");
    assert_eq!(owner.count(&told).await, 1);
    let body = payload(&owner.session).await;
    assert_eq!(body["reason"], "it fails");
    assert_eq!(body["url_host"], "receiver.example");
    assert_eq!(body["last_status_code"], 503);
    assert_eq!(body["failed_attempts"], 2);
    assert!(body["endpoint_id"].as_str().unwrap().starts_with("ep_"));
    // S2
    let text = body.to_string();
    for secret in ["s3cret", "t0k-en", "pass-word", "hook"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn nobody_else_is_told() {
    // Review finding 22, S3.
    let mut owner = Owner::new().await;
    let own = "UPDATE endpoints SET event_types = '{postrider.*}' WHERE id = 1";
    owner.session.execute(own, &[]).await.unwrap();
    listener(&owner, EndpointKey(2), &[]).await;
    listener(&owner, EndpointKey(3), &["*", "p*", "order.*"]).await;
    listener(&owner, EndpointKey(4), &["postrider.delivery.*"]).await;
    for (key, change) in [
        (5, "state = 2"),
        (6, "state = 3"),
        (7, "backlog_full = true"),
        (8, "tenant_id = 8"),
    ] {
        listener(&owner, EndpointKey(key), &["postrider.*"]).await;
        let update = format!("UPDATE endpoints SET {change} WHERE id = {key}");
        owner.session.batch_execute(&update).await.unwrap();
    }
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;

    let published = publish(&mut owner, &opened).await;

    assert_eq!(published, Published::Unheard);
    assert_eq!(owner.count("events").await, 0);
    assert_eq!(owner.count("ready").await, 0);
    assert_eq!(owner.count("notices WHERE event_id IS NULL").await, 1);
}

#[tokio::test]
async fn an_endpoint_of_another_tenant_is_not_told_about() {
    // S3
    let mut owner = Owner::new().await;
    listener(&owner, LISTENER, &["postrider.*"]).await;
    let strange = Notice {
        endpoint: EndpointKey(9),
        ..notice(&owner, NoticeKind::EndpointOpened).await
    };
    let foreign = Notice {
        tenant: TenantKey(8),
        ..notice(&owner, NoticeKind::EndpointOpened).await
    };

    assert_eq!(publish(&mut owner, &strange).await, Published::Unheard);
    assert_eq!(publish(&mut owner, &foreign).await, Published::Unheard);
    assert_eq!(owner.count("ready").await, 0);
}

#[tokio::test]
async fn the_same_is_told_once_in_a_window_and_another_kind_or_endpoint_by_itself() {
    let mut owner = Owner::new().await;
    listener(&owner, LISTENER, &["postrider.*"]).await;
    owner
        .endpoint(EndpointKey(3), "http://receiver.example/")
        .await;
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;
    let closed = notice(&owner, NoticeKind::EndpointClosed).await;
    let other = Notice {
        endpoint: EndpointKey(3),
        ..opened.clone()
    };

    let mut sent = 0;
    for it in [&opened, &opened, &closed, &opened, &other, &closed] {
        sent += usize::from(matches!(
            publish(&mut owner, it).await,
            Published::Sent(_, 1)
        ));
    }

    assert_eq!(sent, 3);
    assert_eq!(owner.count("ready").await, 3);
    assert_eq!(owner.count("notices WHERE count = 3").await, 1);
    assert_eq!(owner.count("notices WHERE count = 2").await, 1);
}

#[tokio::test]
async fn it_is_told_again_in_the_next_window() {
    let mut owner = Owner::new().await;
    listener(&owner, LISTENER, &["postrider.*"]).await;
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;
    publish(&mut owner, &opened).await;
    let past = "UPDATE notices SET window_start = window_start - interval '1 day'";
    owner.session.execute(past, &[]).await.unwrap();

    let again = publish(&mut owner, &opened).await;

    assert!(matches!(again, Published::Sent(_, 1)), "{again:?}");
    assert_eq!(owner.count("event_types").await, 2, "one type, made once");
}

#[tokio::test]
async fn two_workers_that_tell_the_same_at_once_tell_it_once() {
    let mut owner = Owner::new().await;
    listener(&owner, LISTENER, &["postrider.*"]).await;
    let mut other = owner.database.connect(Role::Worker).await.unwrap();
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;

    let (one, two) = tokio::join!(
        notices::publish(&mut owner.session, &opened),
        notices::publish(&mut other, &opened)
    );

    let published = [one.unwrap(), two.unwrap()];
    assert!(published.contains(&Published::Counted), "{published:?}");
    assert_eq!(owner.count("ready").await, 1);
}

#[tokio::test]
async fn the_owners_of_those_who_are_told_get_a_hint() {
    let mut owner = Owner::new().await;
    listener(&owner, LISTENER, &["postrider.*"]).await;
    listener(&owner, EndpointKey(3), &["postrider.*"]).await;
    let (ears, mut heard) = owner
        .database
        .connect_listening(Role::Worker, 8)
        .await
        .unwrap();
    ears.batch_execute("LISTEN postrider_hint").await.unwrap();
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;

    publish(&mut owner, &opened).await;

    let hint = tokio::time::timeout(PATIENCE, heard.recv()).await;
    assert_eq!(hint.unwrap().unwrap().payload(), "1:2,1:3");
}

#[tokio::test]
async fn windows_are_forgotten_with_the_events() {
    let mut owner = Owner::new().await;
    let session = owner.database.connect(Role::Maintenance).await.unwrap();
    let opened = notice(&owner, NoticeKind::EndpointOpened).await;
    let closed = notice(&owner, NoticeKind::EndpointClosed).await;
    publish(&mut owner, &opened).await;
    publish(&mut owner, &closed).await;
    let ages = "UPDATE notices SET window_start = now() - CASE kind WHEN 1 THEN interval '31 d' ELSE interval '29 d' END";
    owner.session.execute(ages, &[]).await.unwrap();
    let settings = RetentionSettings {
        events: 30 * DAY,
        attempts: 30 * DAY,
        dead_letters: 90 * DAY,
        audit_log: Duration::from_secs(365 * 86_400),
    };
    let lease = lease(&session).await;

    let report = retention::run(&session, &lease, &settings, owner.now().await)
        .await
        .unwrap();

    assert_eq!(report.notices, 1);
    assert_eq!(count(&session, "notices WHERE kind = 2").await, 1);
}
