//! What a server can say, well-formed or not.

use super::*;

#[tokio::test]
async fn one_family_is_enough() {
    let world = World::new().await;
    world.dns.answer("v4.test", Reply::address(V4, 60));
    world.dns.answer("v6.test", Reply::address(V6, 60));
    assert_eq!(world.ask("v4.test").await, Ok(vec![V4]));
    assert_eq!(world.ask("v6.test").await, Ok(vec![V6]));
}

#[tokio::test]
async fn a_family_that_fails_or_is_silent_does_not_take_the_other_with_it() {
    let world = World::new().await;
    for (number, broken) in [Reply::ServerFailure, Reply::Silence, Reply::Garbage]
        .into_iter()
        .enumerate()
    {
        let name = format!("{number}.test");
        for (kind, address) in [(RecordType::A, V6), (RecordType::AAAA, V4)] {
            let name = format!("{kind}.{name}");
            world.dns.answer(&name, Reply::address(address, 60));
            world.dns.answer_type(&name, kind, broken.clone());
            let found = timeout(BUDGET / 2, world.ask(&name)).await;
            assert_eq!(found, Ok(Ok(vec![address])), "{broken:?}");
        }
    }
}

#[tokio::test]
async fn a_family_without_addresses_says_nothing_of_one_that_failed() {
    let world = World::new().await;
    world.dns.answer(NAME, Reply::NoData(5));
    world
        .dns
        .answer_type(NAME, RecordType::A, Reply::ServerFailure);
    assert_eq!(world.ask(NAME).await, Err(LookupFailed::ServerFailure));
}

#[tokio::test]
async fn aliases_are_followed_and_hold_as_long_as_the_shortest_of_them() {
    let world = World::new().await;
    let alias = |to: &str, ttl| Reply::Alias(to.to_owned(), ttl);
    world.dns.answer(NAME, alias("b.test", 50));
    world.dns.answer("b.test", alias("c.test", 3));
    world
        .dns
        .answer("c.test", Reply::Addresses(vec![V4, V6], 50));
    assert_eq!(world.ask(NAME).await, Ok(vec![V4, V6]));

    world.dns.answer("c.test", Reply::address(OTHER_V4, 50));
    world.pass(2_999);
    assert_eq!(world.ask(NAME).await, Ok(vec![V4, V6]));
    world.pass(1);
    assert_eq!(world.ask(NAME).await, Ok(vec![OTHER_V4]));
}

#[tokio::test]
async fn an_alias_to_nowhere_or_to_itself_is_an_error() {
    let world = World::new().await;
    world
        .dns
        .answer("dead.test", Reply::Alias("gone.test".to_owned(), 50));
    assert_eq!(world.ask("dead.test").await, Err(LookupFailed::NoSuchName));

    world
        .dns
        .answer("round.test", Reply::Alias("robin.test".to_owned(), 50));
    world
        .dns
        .answer("robin.test", Reply::Alias("round.test".to_owned(), 50));
    assert!(world.ask("round.test").await.is_err());
}

#[tokio::test]
async fn a_truncated_answer_is_fetched_over_tcp() {
    let world = World::new().await;
    let whole = Reply::Addresses(vec![V4, V6], 60);
    world.dns.answer(NAME, Reply::Truncated(Box::new(whole)));

    assert_eq!(world.ask(NAME).await, Ok(vec![V4, V6]));

    assert_eq!(world.dns.asked_over_tcp(), 2);
}

#[tokio::test]
async fn o2_of_thousands_of_addresses_sixteen_of_a_family_are_kept() {
    let world = World::new().await;
    let number = |number: u16| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + u32::from(number)));
    let addresses: Vec<_> = (0..2_000).map(number).chain([V6]).collect();
    world.dns.answer(NAME, Reply::Addresses(addresses, 60));

    let found = world.ask(NAME).await.unwrap();

    let expected: Vec<_> = (0..16).map(number).chain([V6]).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn an_answer_that_cannot_be_understood_is_an_error_and_no_hang() {
    let world = World::impatient().await;
    let many = (0..2_000_u32).map(|number| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number)));
    let many = Reply::Addresses(many.collect(), 60);
    for (name, reply, failure) in [
        ("garbage.test", Reply::Garbage, LookupFailed::ServerFailure),
        (
            "other-id.test",
            Reply::WrongId(Box::new(Reply::address(V4, 60))),
            LookupFailed::TimedOut,
        ),
        ("silent.test", Reply::Silence, LookupFailed::TimedOut),
        ("refused.test", Reply::Refused, LookupFailed::Refused),
    ] {
        world.dns.answer(name, reply);
        let ended = timeout(BUDGET, world.ask(name)).await;
        assert_eq!(ended, Ok(Err(failure)), "{name}");
    }
    world
        .dns
        .answer("long.test", Reply::OverLong(Box::new(many)));
    world
        .dns
        .answer_type("long.test", RecordType::AAAA, Reply::NoData(5));
    let ended = timeout(BUDGET, world.ask("long.test")).await;
    assert_eq!(ended, Ok(Err(LookupFailed::ServerFailure)));
}

#[tokio::test]
async fn this_machine_and_what_is_no_name_are_not_asked_for() {
    let world = World::new().await;
    world.dns.answer_others(Reply::address(V4, 60));
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for name in ["localhost", "LocalHost.", "db.localhost"] {
        assert_eq!(world.ask(name).await, Ok(loopback.to_vec()), "{name}");
    }
    for name in [&*format!("{}.test", "x".repeat(64)), "", "a..test", "127.1"] {
        assert_eq!(world.ask(name).await, Err(LookupFailed::MalformedName));
    }
    assert!(world.dns.names().is_empty());
}

#[tokio::test]
async fn a_name_is_asked_for_as_it_stands() {
    let world = World::new().await;
    world.dns.answer("db", Reply::address(V4, 60));
    assert_eq!(world.ask("db").await, Ok(vec![V4]));
    assert_eq!(world.ask("other").await, Err(LookupFailed::NoSuchName));
    let asked = ["db".to_owned(), "other".to_owned()];
    assert_eq!(world.dns.names(), asked.into());
}
