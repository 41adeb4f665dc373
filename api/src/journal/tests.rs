use std::os::unix::fs::PermissionsExt as _;

use bytes::Bytes;
use shared::domain::idempotency::{IdempotencyKey, KeySpace};
use shared::domain::trace::TraceContext;
use shared::ids::{TenantKey, new_v7};
use shared::runtime::clock::wall_time;
use time::OffsetDateTime;

use super::*;

const ROOM: u64 = 1 << 20;

fn event(payload: &str, key: Option<&str>) -> NewEvent {
    let bytes = Bytes::copy_from_slice(payload.as_bytes());
    let key = key.map(|key| IdempotencyKey::of_request(key, "/v1/events", &bytes));
    NewEvent {
        tenant: TenantKey(7),
        event_type: "order.created".into(),
        payload: bytes,
        channels: vec!["eu".to_owned(), "ü, \"quoted\"".to_owned()],
        deliver_before: Some(OffsetDateTime::UNIX_EPOCH + time::Duration::milliseconds(1_234)),
        order_key: None,
        external_id: Some("A-17".into()),
        idempotency: key.into_iter().collect(),
        trace: TraceContext::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        checked: None,
        configuration: 0,
        id: Some(new_v7(wall_time())),
        from_journal: true,
    }
}

/// The id that an answer names.
fn id(reply: &Reply) -> uuid::Uuid {
    let accepted = reply.as_ref().unwrap();
    assert!(accepted.is_local());
    accepted.id
}

async fn append(journal: &Journal, event: NewEvent) -> Reply {
    let mut replies = journal.append(vec![event]).await;
    assert_eq!(replies.len(), 1);
    replies.remove(0)
}

#[test]
fn p1_an_event_is_read_as_it_was_written() {
    let before = event("{\"total\": 1.10,\n \"s\":\"\\u00e9\"}", Some("k"));
    let bytes = Bytes::from(record::encode(&before, None).unwrap());
    assert_eq!(record::decode(&bytes).unwrap(), before);

    let plain = NewEvent {
        channels: Vec::new(),
        deliver_before: None,
        external_id: None,
        idempotency: Vec::new(),
        trace: None,
        ..before
    };
    let bytes = Bytes::from(record::encode(&plain, None).unwrap());
    assert_eq!(record::decode(&bytes).unwrap(), plain);
    for length in 0..bytes.len() - plain.payload.len() {
        assert!(record::decode(&bytes.slice(..length)).is_err(), "{length}");
    }
}

/// A file of these records, as the keeper writes it.
fn file(records: &[&[u8]]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("1.journal");
    let mut writer = segment::Writer::create(&path).unwrap();
    for record in records {
        writer.push(record).unwrap();
    }
    writer.sync().unwrap();
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes.len() as u64, writer.length());
    bytes
}

#[test]
fn a_crash_at_any_byte_leaves_every_record_before_it() {
    let records: [&[u8]; 3] = [b"first", b"the second one", b"3"];
    let whole = file(&records);
    let ends: Vec<usize> = records
        .iter()
        .scan(8, |end, record| {
            *end += record.len() + 8;
            Some(*end)
        })
        .collect();
    for length in 0..=whole.len() {
        let cut = Bytes::copy_from_slice(&whole[..length]);
        let found = segment::scan(&cut);
        let expected = ends.iter().filter(|end| **end <= length).count();
        assert_eq!(found.records, records[..expected], "cut at {length}");
        assert_eq!(found.damaged, 0, "a torn tail is no damage: {length}");
        let is_between = length == 8 || ends.contains(&length);
        assert_eq!(found.torn == 0, is_between, "cut at {length}");
    }
    // A file system that had given the space already.
    let mut zeros = whole[..ends[1]].to_vec();
    zeros.extend([0; 64]);
    let found = segment::scan(&Bytes::from(zeros));
    assert_eq!(found.records, records[..2]);
    assert_eq!((found.torn, found.damaged), (64, 0));
}

#[test]
fn a_byte_that_changed_costs_its_record_and_is_never_taken_for_another() {
    let records: [&[u8]; 3] = [b"first", b"the second one", b"3"];
    let whole = file(&records);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        let found = segment::scan(&Bytes::from(bytes));
        assert!(found.torn > 0 || found.damaged > 0, "changed at {at}");
        for record in &found.records {
            assert!(
                records.contains(&&record[..]),
                "changed at {at}: {record:?}"
            );
        }
    }
    // Damage in the middle does not hide what follows.
    let mut bytes = whole;
    bytes[8 + 8] ^= 1;
    let found = segment::scan(&Bytes::from(bytes));
    assert_eq!(found.records, records[1..]);
    assert_eq!(found.damaged, 1);
}

#[tokio::test]
async fn d2_what_was_answered_is_there_for_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let events: Vec<NewEvent> = (0..3)
        .map(|n| event(&n.to_string(), Some(&format!("k{n}"))))
        .collect();
    let path = {
        let journal = Journal::open(directory.path(), ROOM).unwrap();
        assert!(journal.is_empty());
        let replies = journal.append(events.clone()).await;
        assert_eq!(
            replies.iter().map(id).collect::<Vec<_>>(),
            events.iter().map(|it| it.id.unwrap()).collect::<Vec<_>>()
        );
        assert!(!journal.is_empty());
        assert!(
            Journal::open(directory.path(), ROOM)
                .unwrap_err()
                .to_string()
                .contains("another process")
        );
        std::fs::read_dir(directory.path())
            .unwrap()
            .map(|it| it.unwrap().path())
            .find(|path| path.extension().is_some_and(|it| it == "journal"))
            .unwrap()
    };
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600,
        "S2"
    );

    // The keeper's thread ends when the journal is dropped, and with it the lock.
    let journal = reopened(directory.path()).await;
    assert_eq!(journal.directory.records(), 3);
    let contents = inspect(directory.path()).unwrap();
    assert_eq!(
        (contents.events, contents.refused, contents.damaged_files),
        (3, 0, 0)
    );
    let oldest = journal.directory.oldest().unwrap();
    let read = segment::read(&oldest.path).unwrap();
    let read: Vec<NewEvent> = read
        .records
        .iter()
        .map(|bytes| record::decode(bytes).unwrap())
        .collect();
    assert_eq!(read, events);

    // Its keys are known as well.
    let again = NewEvent {
        id: Some(new_v7(wall_time())),
        ..events[1].clone()
    };
    assert_eq!(id(&append(&journal, again).await), events[1].id.unwrap());
    let other = event("another body", Some("k1"));
    assert_eq!(
        append(&journal, other).await.unwrap_err(),
        Refusal::Mismatch(KeySpace::Header)
    );
    assert_eq!(journal.directory.records(), 3, "neither was written");
}

/// Opens it as soon as the thread of the one before has ended.
async fn reopened(path: &Path) -> Arc<Journal> {
    shared::testing::eventually(std::time::Duration::from_secs(20), || async {
        Journal::open(path, ROOM).ok()
    })
    .await
}

#[tokio::test]
async fn equal_keys_of_one_batch_are_one_event() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), ROOM).unwrap();
    let (first, second) = (event("a", Some("k")), event("a", Some("k")));
    let third = event("b", Some("k"));
    let replies = journal.append(vec![first.clone(), second, third]).await;
    assert_eq!(id(&replies[0]), first.id.unwrap());
    assert_eq!(id(&replies[1]), first.id.unwrap());
    assert_eq!(
        *replies[2].as_ref().unwrap_err(),
        Refusal::Mismatch(KeySpace::Header)
    );
    assert_eq!(journal.directory.records(), 1);
}

#[tokio::test]
async fn it_takes_no_more_of_the_disk_than_it_may() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), 4_096).unwrap();
    let payload = "x".repeat(1_000);
    let mut accepted = 0;
    let refusal = loop {
        match append(&journal, event(&payload, None)).await {
            Ok(_) => accepted += 1,
            Err(refusal) => break refusal,
        }
        assert!(accepted < 10);
    };
    assert_eq!(refusal, Refusal::JournalFull);
    assert!((2..=4).contains(&accepted), "{accepted}");
    let on_disk = inspect(directory.path()).unwrap().bytes;
    assert!(on_disk <= 4_096, "{on_disk}");
    assert_eq!(on_disk, journal.bytes());
    // A smaller one still fits.
    assert!(append(&journal, event("1", None)).await.is_ok());
}

#[tokio::test]
async fn a_file_that_fails_is_not_written_again_and_what_it_was_to_hold_is_not_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), ROOM).unwrap();
    let first = event("1", Some("k1"));
    assert!(append(&journal, first.clone()).await.is_ok());
    journal.seal().await;
    // No file can be made any more: a directory stands where it would be.
    let next: u64 = 2;
    std::fs::create_dir(directory.path().join(format!("{next:020}.journal"))).unwrap();
    let second = event("2", Some("k2"));
    assert_eq!(
        append(&journal, second.clone()).await.unwrap_err(),
        Refusal::JournalFailed
    );
    // The next file has another name, and the key is still free.
    assert_eq!(
        id(&append(&journal, second.clone()).await),
        second.id.unwrap()
    );
    assert_eq!(journal.directory.records(), 2);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "").unwrap();
    let error = Journal::open(&path, ROOM).unwrap_err();
    assert!(format!("{error:#}").contains("cannot be"), "{error:#}");
    assert!(inspect(&directory.path().join("none")).is_err());
}
