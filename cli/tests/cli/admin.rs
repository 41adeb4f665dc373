//! Commands that go straight to a database.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use shared::testing::{TestCluster, TestDatabase};

use crate::running::{Said, postrider, run};

fn on(url: &str, args: &[&str]) -> Said {
    run(postrider(args).env("DATABASE_URL", url))
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_is_checked_done_and_done_only_once() {
    let cluster = TestCluster::new().await;
    let session = cluster
        .database()
        .connect(shared::store::Role::Maintenance)
        .await
        .unwrap();
    session
        .batch_execute("CREATE DATABASE fresh")
        .await
        .unwrap();
    let url = cluster.url().replacen("/postrider?", "/fresh?", 1);
    assert!(url.contains("/fresh?"), "{url}");

    let before = on(&url, &["migrate", "--check"]).ended_with(1);
    assert!(before.stdout.contains("pending 0001_"), "{before:?}");
    let list = on(&url, &["tenant", "list"]).ended_with(1);
    assert!(list.stderr.contains("run `postrider migrate`"), "{list:?}");

    let done = on(&url, &["migrate"]).ended_with(0);
    assert!(done.stdout.contains("applied 0001_"), "{done:?}");
    let again = on(&url, &["migrate", "--output", "json"]).ended_with(0);
    assert_eq!(again.json()["applied"], serde_json::json!([]));
    on(&url, &["migrate", "--check"]).ended_with(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_rows_of_an_installation_are_made_and_listed() {
    let database = TestDatabase::new().await;
    let url = database.url();

    let organization = on(url, &["organization", "create", "--name", "Acme"]).ended_with(0);
    let organization = organization.line();
    assert!(organization.starts_with("org_"), "{organization}");
    let create = |external: &str| {
        let args = [
            "tenant",
            "create",
            "--name",
            "Shop",
            "--organization",
            organization,
        ];
        on(url, &[&args[..], &["--external-id", external]].concat())
    };
    let tenant = create("shop-1").ended_with(0);
    let taken = create("shop-1").ended_with(1);
    assert!(
        taken
            .stderr
            .contains("has a tenant with this external id already"),
        "{taken:?}"
    );
    let tenant = tenant.line();

    let listed = on(url, &["tenant", "list", "--output", "json"]).ended_with(0);
    assert_eq!(listed.json()[0]["id"], tenant);
    assert_eq!(listed.json()[0]["organization_id"], organization);
    assert_eq!(listed.json()[0]["external_id"], "shop-1");
    let organizations = on(url, &["organization", "list"]).ended_with(0);
    assert_eq!(organizations.line(), format!("{organization}  Acme"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_shown_once_listed_without_its_text_and_revoked() {
    let database = TestDatabase::new().await;
    let url = database.url();
    let tenant = on(url, &["tenant", "create", "--name", "Shop"]).ended_with(0);
    let tenant = tenant.line();

    let create = ["key", "create", "--tenant", tenant, "--name", "backend"];
    let made = on(
        url,
        &[&create[..], &["--expires-in", "90d", "--scope", "read"]].concat(),
    );
    let made = made.ended_with(0);
    assert!(made.line().starts_with("prk_"), "{made:?}");
    assert!(!made.stdout.trim().contains('\n'), "only the key: {made:?}");

    let listed = on(
        url,
        &["key", "list", "--tenant", tenant, "--output", "json"],
    )
    .ended_with(0);
    assert!(!listed.stdout.contains(made.line()), "{listed:?}");
    let row = listed.json()[0].clone();
    assert_eq!(row["scopes"], serde_json::json!(["read"]));
    assert!(row["expires_at"].is_string(), "{row}");
    assert!(row["revoked_at"].is_null(), "{row}");
    let id = row["id"].as_str().unwrap();
    assert!(made.stderr.contains(id), "{made:?}");

    on(url, &["key", "revoke", "--tenant", tenant, id]).ended_with(0);
    let listed = on(url, &["key", "list", "--tenant", tenant]).ended_with(0);
    assert!(listed.stdout.contains("revoked"), "{listed:?}");
    let elsewhere = on(url, &["tenant", "create", "--name", "Other"]).ended_with(0);
    let foreign = on(url, &["key", "revoke", "--tenant", elsewhere.line(), id]).ended_with(1);
    assert!(
        foreign.stderr.contains("this owner has no key"),
        "{foreign:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_does_not_exist_is_named() {
    let database = TestDatabase::new().await;
    let nobody = "tnt_01j00000000000000000000000";

    let said = on(database.url(), &["key", "list", "--tenant", nobody]).ended_with(1);

    assert!(said.stderr.contains(nobody), "{said:?}");
    assert!(said.stderr.contains("postrider tenant list"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_key_is_rotated_step_by_step() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let keys = shared::sealing::MasterKeys::new([1; 32], None);
    for _ in 0..3 {
        let id = uuid::Uuid::new_v4();
        let (secret, headers) = (
            keys.seal(b"s", &format!("secret:{id}")),
            keys.seal(b"h", &format!("headers:{id}")),
        );
        let insert =
            "WITH e AS (INSERT INTO endpoints (public_id, tenant_id, slot, url, sealed_headers)
                                 VALUES ($1, 1, 0, '', $2) RETURNING id)
                      INSERT INTO endpoint_secrets (endpoint_id, sealed) SELECT id, $3 FROM e";
        session
            .execute(insert, &[&id, &headers, &secret])
            .await
            .unwrap();
    }
    let text = |byte: u8| STANDARD.encode([byte; 32]);
    let reseal = |current: u8, previous: Option<u8>, more: &[&str]| {
        let mut command = postrider(&[&["master-key", "reseal"], more].concat());
        command.env("DATABASE_URL", database.url());
        command.env("POSTRIDER_MASTER_KEY", text(current));
        if let Some(previous) = previous {
            command.env("POSTRIDER_MASTER_KEY_PREVIOUS", text(previous));
        }
        run(&mut command)
    };

    reseal(1, None, &["--check"]).ended_with(0);
    let lost = reseal(2, None, &[]).ended_with(1);
    assert!(
        lost.stderr.contains("6 values cannot be opened"),
        "{lost:?}"
    );
    assert!(
        lost.stdout.contains("endpoint_secrets.sealed of ep_"),
        "{lost:?}"
    );
    let left = reseal(2, Some(1), &["--check"]).ended_with(1);
    assert!(
        left.stderr
            .contains("6 values are sealed with POSTRIDER_MASTER_KEY_PREVIOUS"),
        "{left:?}"
    );

    let done = reseal(2, Some(1), &["--output", "json"])
        .ended_with(0)
        .json();
    assert_eq!((&done["resealed"], &done["left"]), (&json!(6), &json!(0)));
    let again = reseal(2, Some(1), &["--output", "json"])
        .ended_with(0)
        .json();
    assert_eq!(again["resealed"], 0);
    let checked = reseal(2, None, &["--check"]).ended_with(0);
    assert!(
        checked.stdout.contains("endpoints.sealed_headers"),
        "{checked:?}"
    );
    for said in [lost, left, checked] {
        for byte in [1, 2] {
            assert!(!said.stdout.contains(&text(byte)) && !said.stderr.contains(&text(byte)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn percentiles_are_computed_without_a_worker() {
    let database = TestDatabase::new().await;
    on(database.url(), &["tenant", "create", "--name", "Shop"]).ended_with(0);
    let none = on(database.url(), &["stats", "run", "--once"]).ended_with(0);
    let samples = "
        WITH e AS (
          INSERT INTO endpoints (public_id, tenant_id, slot, url, settings)
          SELECT gen_random_uuid(), id, 3, 'https://example.com/', '{}' FROM tenants RETURNING id, tenant_id)
        INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms, outcome, applied)
        SELECT tenant_id, gen_random_uuid(), 1, 1, now() - interval '1 minute', id, gen_random_uuid(), 1, ms, 1, true
        FROM e, unnest(ARRAY[10, 30]) ms";
    let session = database.session().await;
    session.execute(samples, &[]).await.unwrap();

    let one = on(database.url(), &["stats", "run", "--once"]).ended_with(0);
    let how = on(database.url(), &["stats", "run"]).ended_with(2);

    assert!(none.stdout.contains(" 0 endpoints"), "{none:?}");
    assert!(one.stdout.contains(" 1 endpoints"), "{one:?}");
    assert!(how.stderr.contains("--once"), "{how:?}");
    let found = session
        .query_one("SELECT samples, p50_ms FROM endpoint_stats", &[])
        .await
        .unwrap();
    assert_eq!((found.get::<_, i64>(0), found.get::<_, f64>(1)), (2, 20.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_held_back_by_rule_and_the_rules_listed() {
    let database = TestDatabase::new().await;
    let pause = |args: &[&str]| on(database.url(), &[&["pause"], args].concat());
    let tenant = on(database.url(), &["tenant", "create", "--name", "Shop"]).ended_with(0);
    let tenant = tenant.line();
    let both = ["--tenant", tenant, "--event-type", "report.*"];

    let nothing = pause(&["start", "--reason", "x"]).ended_with(2);
    assert!(nothing.stderr.contains("--tenant"), "{nothing:?}");
    let no_type = pause(&["start", "--event-type", "re port", "--reason", "x"]).ended_with(2);
    assert!(no_type.stderr.contains("like `order.*`"), "{no_type:?}");
    let long = pause(&["start", "--event-type", "a", "--reason", "x", "--for", "8d"]).ended_with(2);
    assert!(long.stderr.contains("at most 7d"), "{long:?}");
    let why = pause(&["start", "--event-type", "a"]).ended_with(2);
    assert!(why.stderr.contains("--reason"), "{why:?}");

    let started = [
        &["start", "--reason", "wrong totals", "--for", "30m"],
        &both[..],
    ]
    .concat();
    let started = pause(&started).ended_with(0);
    assert!(
        started.stdout.starts_with("held back until "),
        "{started:?}"
    );
    pause(&["start", "--event-type", "a.b", "--reason", "other"]).ended_with(0);
    let listed = pause(&["list"]).ended_with(0);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert!(
        lines[0].contains(tenant) && lines[0].ends_with("wrong totals"),
        "{listed:?}"
    );
    assert!(lines[1].starts_with("every tenant"), "{listed:?}");

    let unknown = pause(&["end", "--tenant", tenant]).ended_with(1);
    assert!(
        unknown.stderr.contains("postrider pause list"),
        "{unknown:?}"
    );
    pause(&[&["end"], &both[..]].concat()).ended_with(0);
    let listed = pause(&["list"]).ended_with(0);
    assert_eq!(listed.stdout.lines().count(), 1, "{listed:?}");
    let listed = pause(&["list", "--all", "--output", "json"])
        .ended_with(0)
        .json();
    assert_eq!(
        (&listed[0]["over"], &listed[1]["over"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(listed[0]["tenant_id"], json!(tenant));
}
