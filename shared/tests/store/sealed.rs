//! Sealing anew under another master key: all of it, beside those who work, as often as one likes.

use std::time::Duration;

use shared::sealing::{MasterKeys, SealedWith};
use shared::store::Session;
use shared::store::sealed::{self, BATCH, COLUMNS, Column, Counts};
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(20);

fn before() -> MasterKeys {
    MasterKeys::new([1; 32], None)
}

fn during() -> MasterKeys {
    MasterKeys::new([2; 32], Some([1; 32]))
}

fn after() -> MasterKeys {
    MasterKeys::new([2; 32], None)
}

fn column(name: &str) -> &'static Column {
    COLUMNS.iter().find(|column| column.name == name).unwrap()
}

/// An endpoint with everything that can be sealed of one.
async fn endpoint(session: &Session, keys: &MasterKeys, state: i16) -> Uuid {
    let id = Uuid::new_v4();
    let seal = |context: &str| keys.seal(context.as_bytes(), &format!("{context}:{id}"));
    let insert = "WITH e AS (
                    INSERT INTO endpoints (public_id, tenant_id, slot, state, url, sealed_headers, sealed_client_certificate)
                    VALUES ($1, 1, 0, $2, '', $3, $4) RETURNING id),
                  s AS (INSERT INTO endpoint_secrets (endpoint_id, sealed) SELECT id, $5 FROM e)
                  INSERT INTO endpoint_key_pairs (endpoint_id, public_key, sealed)
                  SELECT id, sha256(''), $6 FROM e";
    let [headers, certificate, secret, pair] =
        ["headers", "client_certificate", "secret", "key_pair"].map(seal);
    session
        .execute(
            insert,
            &[&id, &state, &headers, &certificate, &secret, &pair],
        )
        .await
        .unwrap();
    id
}

/// Walks over all columns; what was sealed anew, and what could not be.
async fn reseal(session: &Session, keys: &MasterKeys) -> (u64, Vec<String>) {
    let (mut resealed, mut failed) = (0, Vec::new());
    for column in COLUMNS {
        let mut next = Some(0);
        while let Some(from) = next {
            let step = sealed::reseal(session, keys, column, from).await.unwrap();
            resealed += step.resealed;
            failed.extend(step.failed.into_iter().map(|one| one.why));
            assert!(step.next.is_none_or(|next| next > from));
            next = step.next;
        }
    }
    (resealed, failed)
}

async fn counts(session: &Session, keys: &MasterKeys) -> Counts {
    let mut sum = Counts::default();
    for column in COLUMNS {
        let counts = sealed::count(session, keys, column).await.unwrap();
        sum.current += counts.current;
        sum.previous += counts.previous;
        sum.other += counts.other;
    }
    sum
}

#[tokio::test]
async fn every_sealed_column_of_the_schema_is_known() {
    let database = TestDatabase::new().await;
    let sql = "SELECT table_name || '.' || column_name FROM information_schema.columns
               WHERE table_schema = 'public' AND column_name LIKE 'sealed%' ORDER BY 1";
    let rows = database.session().await.query(sql, &[]).await.unwrap();
    let schema: Vec<String> = rows.iter().map(|row| row.get(0)).collect();

    let mut known: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    known.sort_unstable();
    assert_eq!(schema, known);
}

#[tokio::test]
async fn everything_is_sealed_anew_once_and_opens_in_its_place() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    // A deleted endpoint's are sealed too; one without anything is passed over.
    let mut ids = vec![
        endpoint(&session, &before(), 1).await,
        endpoint(&session, &before(), 3).await,
    ];
    let bare = "INSERT INTO endpoints (public_id, tenant_id, slot, url) VALUES ($1, 1, 0, '')";
    session.execute(bare, &[&Uuid::new_v4()]).await.unwrap();
    ids.push(endpoint(&session, &during(), 2).await);
    let counted = |current, previous, other| Counts {
        current,
        previous,
        other,
    };
    assert_eq!(counts(&session, &during()).await, counted(4, 8, 0));
    assert_eq!(counts(&session, &after()).await, counted(4, 0, 8));

    assert_eq!(reseal(&session, &during()).await, (8, Vec::new()));

    assert_eq!(counts(&session, &after()).await, counted(12, 0, 0));
    let sql = "SELECT e.sealed_headers, e.sealed_client_certificate, s.sealed, k.sealed FROM endpoints e
               JOIN endpoint_secrets s ON s.endpoint_id = e.id JOIN endpoint_key_pairs k ON k.endpoint_id = e.id
               WHERE e.public_id = $1";
    for id in ids {
        let row = session.query_one(sql, &[&id]).await.unwrap();
        for (at, context) in ["headers", "client_certificate", "secret", "key_pair"]
            .into_iter()
            .enumerate()
        {
            let sealed: Vec<u8> = row.get(at);
            let opened = after().open(&sealed, &format!("{context}:{id}")).unwrap();
            assert_eq!(opened.as_slice(), context.as_bytes());
        }
    }
    assert_eq!(reseal(&session, &during()).await, (0, Vec::new()));
}

#[tokio::test]
async fn a_walk_takes_a_bounded_number_of_rows_at_a_time_and_all_of_them_in_the_end() {
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let id = endpoint(&session, &before(), 1).await;
    let more = "INSERT INTO endpoint_secrets (endpoint_id, sealed)
                SELECT s.endpoint_id, s.sealed FROM endpoint_secrets s, generate_series(1, $1)";
    let rows = i32::try_from(BATCH).unwrap();
    session.execute(more, &[&rows]).await.unwrap();
    let secrets = column("endpoint_secrets.sealed");

    let first = sealed::reseal(&session, &during(), secrets, 0)
        .await
        .unwrap();
    assert_eq!(first.resealed, u64::try_from(BATCH).unwrap());
    let left = sealed::count(&session, &during(), secrets).await.unwrap();
    assert_eq!((left.current, left.previous), (BATCH, 1));

    let next = first.next.unwrap();
    let second = sealed::reseal(&session, &during(), secrets, next).await;
    let second = second.unwrap();
    assert_eq!((second.resealed, second.next), (1, None));
    let sql = "SELECT count(DISTINCT sealed) FROM endpoint_secrets";
    let distinct: i64 = session.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(
        distinct,
        BATCH + 1,
        "each with a nonce of its own, for {id}"
    );
}

#[tokio::test]
async fn a_change_that_comes_meanwhile_wins() {
    let database = TestDatabase::new().await;
    let (api, session) = (database.session().await, database.session().await);
    let id = endpoint(&api, &before(), 1).await;
    let newer = during().seal(b"newer", &format!("headers:{id}"));
    let headers = column("endpoints.sealed_headers");

    // The change is made and not committed: the walk has read what was before, and waits for the row.
    api.batch_execute("BEGIN").await.unwrap();
    let change = "UPDATE endpoints SET sealed_headers = $1";
    api.execute(change, &[&newer]).await.unwrap();
    let keys = during();
    let walk = sealed::reseal(&session, &keys, headers, 0);
    let commit = async {
        let watch = database.session().await;
        eventually(PATIENCE, || async {
            let waiting = "SELECT FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
            let rows = watch.query(waiting, &[]).await.unwrap();
            (!rows.is_empty()).then_some(())
        })
        .await;
        api.batch_execute("COMMIT").await.unwrap();
    };
    let (step, ()) = tokio::join!(walk, commit);

    assert_eq!(step.unwrap().resealed, 0);
    let row = api
        .query_one("SELECT sealed_headers FROM endpoints", &[])
        .await;
    assert_eq!(row.unwrap().get::<_, Vec<u8>>(0), newer);
}

#[tokio::test]
async fn two_walks_at_once_do_the_work_once() {
    let database = TestDatabase::new().await;
    let (one, other) = (database.session().await, database.session().await);
    for _ in 0..20 {
        endpoint(&one, &before(), 1).await;
    }
    let keys = during();

    let ((first, _), (second, _)) = tokio::join!(reseal(&one, &keys), reseal(&other, &keys));

    assert_eq!(first + second, 80);
    assert_eq!(counts(&one, &after()).await.current, 80);
}

#[tokio::test]
async fn what_cannot_be_opened_is_told_and_stays_as_it_is() {
    // S2
    let database = TestDatabase::new().await;
    let session = database.session().await;
    let good = endpoint(&session, &before(), 1).await;
    let bad = endpoint(&session, &before(), 1).await;
    let foreign = MasterKeys::new([9; 32], None).seal(b"x", &format!("headers:{bad}"));
    let spoil = "UPDATE endpoints SET sealed_headers = $2, sealed_client_certificate = 'no seal' WHERE public_id = $1";
    session.execute(spoil, &[&bad, &foreign]).await.unwrap();
    // Moved from another endpoint.
    let swap = "UPDATE endpoint_secrets SET sealed = (SELECT s.sealed FROM endpoint_secrets s JOIN endpoints e
                  ON e.id = s.endpoint_id WHERE e.public_id = $1)
                WHERE endpoint_id = (SELECT id FROM endpoints WHERE public_id = $2)";
    session.execute(swap, &[&good, &bad]).await.unwrap();
    let orphan = "INSERT INTO endpoint_key_pairs (endpoint_id, public_key, sealed) VALUES (-1, sha256(''), 'x')";
    session.execute(orphan, &[]).await.unwrap();

    let (resealed, failed) = reseal(&session, &during()).await;

    assert_eq!(resealed, 5);
    assert_eq!(failed.len(), 4, "{failed:?}");
    for part in [
        "POSTRIDER_MASTER_KEY_PREVIOUS",
        "not a sealed value",
        "belongs elsewhere",
        "belongs to no endpoint",
    ] {
        assert!(failed.iter().any(|why| why.contains(part)), "{failed:?}");
    }
    let sql = "SELECT sealed_headers FROM endpoints WHERE public_id = $1";
    let kept: Vec<u8> = session.query_one(sql, &[&bad]).await.unwrap().get(0);
    assert_eq!(kept, foreign);
    assert_eq!(during().sealed_with(&kept), SealedWith::Other);
}
