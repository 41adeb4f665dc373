//! Several servers, and names whose servers are silent.

use shared::testing::eventually;
use tokio::task::JoinSet;

use super::*;

const SILENT: usize = 300;

#[tokio::test]
async fn o1_three_hundred_silent_names_do_not_keep_out_a_good_one() {
    let world = World::new().await;
    world.dns.answer_others(Reply::Silence);
    world.dns.answer("good.test", Reply::address(V4, 60));
    let mut silent = JoinSet::new();
    for number in 0..SILENT {
        let resolver = world.resolver.clone();
        silent.spawn(async move { resolver.addresses(&format!("{number}.test")).await });
    }
    // No room is left, and the others stand in line.
    eventually(Duration::from_secs(10), async || {
        (world.resolver.0.turnstile.under_way() == (192, 64)).then_some(())
    })
    .await;

    let good = world.ask("good.test").await;

    assert_eq!(good, Ok(vec![V4]));
    assert_eq!(silent.len(), SILENT);
    assert!(
        silent.try_join_next().is_none(),
        "the silent ones are still waited for"
    );
    for found in silent.join_all().await {
        let failure = found.unwrap_err();
        assert!(!failure.is_answer(), "{failure}");
    }
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_does_not_know_and_stays_the_first() {
    for failing in [
        Reply::ServerFailure,
        Reply::Refused,
        Reply::Silence,
        Reply::Garbage,
    ] {
        let (broken, good) = (DnsServer::start().await, DnsServer::start().await);
        broken.answer_others(failing);
        good.answer_others(Reply::address(V4, 60));
        let resolver = Resolver::new(&asking(&[&broken, &good])).unwrap();

        let found = resolver.addresses("first.test").await;
        assert_eq!(found.unwrap().to_vec(), vec![V4]);
        assert_eq!(broken.asked("first.test", RecordType::A), 1);

        let found = resolver.addresses("second.test").await;
        assert_eq!(found.unwrap().to_vec(), vec![V4]);
        assert_eq!(broken.asked("second.test", RecordType::A), 0);
    }
}

#[tokio::test]
async fn the_first_server_is_asked_again_when_the_second_fails() {
    let (first, second) = (DnsServer::start().await, DnsServer::start().await);
    first.answer_others(Reply::ServerFailure);
    second.answer_others(Reply::address(V4, 60));
    let resolver = Resolver::new(&asking(&[&first, &second])).unwrap();
    resolver.addresses("a.test").await.unwrap();

    first.answer_others(Reply::address(OTHER_V4, 60));
    second.answer_others(Reply::ServerFailure);

    let found = resolver.addresses("b.test").await;
    assert_eq!(found.unwrap().to_vec(), vec![OTHER_V4]);
}

#[tokio::test]
async fn a_name_that_one_server_says_is_gone_is_gone() {
    let (first, second) = (DnsServer::start().await, DnsServer::start().await);
    first.answer(NAME, Reply::NoSuchName(5));
    second.answer(NAME, Reply::address(V4, 60));
    let resolver = Resolver::new(&asking(&[&first, &second])).unwrap();

    let found = resolver.addresses(NAME).await;

    assert_eq!(found, Err(LookupFailed::NoSuchName));
    assert!(second.names().is_empty());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_within_the_budget() {
    let dns = DnsServer::start().await;
    let settings = ResolverSettings {
        budget: Duration::from_millis(300),
        ..asking(&[&dns])
    };
    drop(dns);
    let resolver = Resolver::new(&settings).unwrap();

    let failure = timeout(BUDGET, resolver.addresses(NAME)).await.unwrap();

    assert!(!failure.unwrap_err().is_answer());
}
