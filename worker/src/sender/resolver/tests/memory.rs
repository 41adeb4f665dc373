//! What is remembered, what is shared, and what stands in.

use std::time::Duration;

use shared::testing::eventually;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn an_address_is_asked_for_again_when_its_ttl_is_over_but_within_limits() {
    let world = World::new().await;
    for (name, ttl, milliseconds) in [
        ("zero.test", 0, 1_000),
        ("seven.test", 7, 7_000),
        ("day.test", 86_400, 30_000),
    ] {
        world.dns.answer(name, Reply::Addresses(vec![V4, V6], ttl));
        assert_eq!(world.ask(name).await, Ok(vec![V4, V6]));
        world.pass(milliseconds - 1);
        assert_eq!(world.ask(name).await, Ok(vec![V4, V6]));
        assert_eq!(world.asked(name), 1, "{name} too early");

        world.pass(1);
        assert_eq!(world.ask(name).await, Ok(vec![V4, V6]));
        assert_eq!(world.asked(name), 2, "{name} too late");
    }
}

#[tokio::test]
async fn a_receiver_that_moved_is_found_within_half_a_minute() {
    let world = World::new().await;
    world.dns.answer(NAME, Reply::address(V4, 3_600));
    assert_eq!(world.ask(NAME).await, Ok(vec![V4]));

    world.dns.answer(NAME, Reply::address(OTHER_V4, 3_600));
    world.pass(30_000);

    assert_eq!(world.ask(NAME).await, Ok(vec![OTHER_V4]));
}

#[tokio::test]
async fn each_look_up_gives_what_dns_says_then_also_when_it_turns_to_a_private_address() {
    let world = World::new().await;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let turns = vec![Reply::address(V4, 0), Reply::address(loopback, 0)];
    world.dns.answer_in_turn(NAME, turns);

    assert_eq!(world.ask(NAME).await, Ok(vec![V4]));
    world.pass(1_000);
    assert_eq!(world.ask(NAME).await, Ok(vec![loopback]));
}

#[tokio::test]
async fn fifty_who_ask_at_once_cost_one_question_of_each_type() {
    let world = World::new().await;
    let (go, wait) = watch::channel(false);
    let held = Reply::When(wait, Box::new(Reply::Addresses(vec![V4, V6], 60)));
    world.dns.answer(NAME, held);
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let resolver = world.resolver.clone();
        asking.spawn(async move { resolver.addresses(NAME).await });
    }
    eventually(Duration::from_secs(10), async || {
        (world.dns.asked(NAME, RecordType::A) > 0).then_some(())
    })
    .await;
    let (quick, slow) = world.resolver.0.turnstile.under_way();
    assert_eq!(quick + slow, 1);

    go.send_replace(true);

    for found in asking.join_all().await {
        assert_eq!(found.unwrap().to_vec(), vec![V4, V6]);
    }
    assert_eq!(world.asked(NAME), 1);
}

#[tokio::test]
async fn o3_one_who_gives_up_leaves_the_look_up_to_the_others() {
    let world = World::new().await;
    let (go, wait) = watch::channel(false);
    let held = Reply::When(wait, Box::new(Reply::address(V4, 60)));
    world.dns.answer(NAME, held);
    let asked = async || (world.dns.asked(NAME, RecordType::A) > 0).then_some(());
    tokio::select! {
        found = world.ask(NAME) => panic!("nobody answered {found:?}"),
        () = eventually(Duration::from_secs(10), asked) => {}
    }

    let (found, ()) = tokio::join!(world.ask(NAME), async {
        go.send_replace(true);
    });

    assert_eq!(found, Ok(vec![V4]));
    assert_eq!(world.asked(NAME), 1);
}

#[tokio::test]
async fn a_name_without_addresses_is_remembered_for_5_to_30_seconds() {
    let world = World::new().await;
    for (name, reply, milliseconds, failure) in [
        (
            "gone.test",
            Reply::NoSuchName(0),
            5_000,
            LookupFailed::NoSuchName,
        ),
        (
            "bare.test",
            Reply::NoData(12),
            12_000,
            LookupFailed::NoAddress,
        ),
        (
            "long.test",
            Reply::NoSuchName(86_400),
            30_000,
            LookupFailed::NoSuchName,
        ),
    ] {
        world.dns.answer(name, reply);
        assert_eq!(world.ask(name).await, Err(failure));
        world.pass(milliseconds - 1);
        assert_eq!(world.ask(name).await, Err(failure));
        assert_eq!(world.asked(name), 1, "{name} too early");

        world.dns.answer(name, Reply::address(V4, 60));
        world.pass(1);
        assert_eq!(world.ask(name).await, Ok(vec![V4]), "{name} too late");
    }
}

#[tokio::test]
async fn a_failing_server_is_left_alone_for_two_seconds() {
    let world = World::new().await;
    world.dns.answer(NAME, Reply::ServerFailure);
    for _ in 0..10 {
        assert_eq!(world.ask(NAME).await, Err(LookupFailed::ServerFailure));
    }
    assert_eq!(world.asked(NAME), 1);

    world.dns.answer(NAME, Reply::address(V4, 60));
    world.pass(2_000);
    assert_eq!(world.ask(NAME).await, Ok(vec![V4]));
}

#[tokio::test]
async fn n2_the_last_good_answer_goes_on_through_an_outage_and_ends_with_it() {
    for (outage, failure) in [
        (Reply::ServerFailure, LookupFailed::ServerFailure),
        (Reply::Refused, LookupFailed::Refused),
        (Reply::Garbage, LookupFailed::ServerFailure),
    ] {
        let world = World::new().await;
        world.dns.answer(NAME, Reply::Addresses(vec![V4, V6], 5));
        assert_eq!(world.ask(NAME).await, Ok(vec![V4, V6]));

        world.dns.answer(NAME, outage);
        for _ in 0..30 {
            world.pass(1_000);
            assert_eq!(world.ask(NAME).await, Ok(vec![V4, V6]), "{failure}");
        }
        assert!(world.asked(NAME) > 10, "an end would be missed");
        world.pass(3_600_000);
        assert_eq!(world.ask(NAME).await, Err(failure));

        world.dns.answer(NAME, Reply::address(OTHER_V4, 5));
        world.pass(2_000);
        assert_eq!(world.ask(NAME).await, Ok(vec![OTHER_V4]));
    }
}

#[tokio::test]
async fn n2_a_silent_server_is_waited_for_a_second_where_the_last_good_answer_can_stand_in() {
    let world = World::new().await;
    world.dns.answer(NAME, Reply::address(V4, 5));
    assert_eq!(world.ask(NAME).await, Ok(vec![V4]));

    world.dns.answer(NAME, Reply::Silence);
    world.pass(5_000);
    let asking = timeout(PATIENCE * 2, world.resolver.find(NAME)).await;

    let (result, found) = asking.expect("less than the look-up takes");
    assert_eq!((result, found.unwrap().to_vec()), ("stale", vec![V4]));
}

#[tokio::test]
async fn n1_a_name_that_is_gone_has_no_address_of_before() {
    for (gone, failure) in [
        (Reply::NoSuchName(5), LookupFailed::NoSuchName),
        (Reply::NoData(5), LookupFailed::NoAddress),
    ] {
        let world = World::new().await;
        world.dns.answer(NAME, Reply::address(V4, 5));
        assert_eq!(world.ask(NAME).await, Ok(vec![V4]));

        world.dns.answer(NAME, gone);
        world.pass(5_000);
        assert_eq!(world.ask(NAME).await, Err(failure));
        world.dns.answer(NAME, Reply::ServerFailure);
        world.pass(5_000);
        assert_eq!(world.ask(NAME).await, Err(LookupFailed::ServerFailure));
    }
}

#[tokio::test]
async fn o2_no_more_names_are_remembered_than_may_be_and_the_least_used_go_first() {
    let world = World::remembering(10, BUDGET).await;
    world.dns.answer_others(Reply::address(V4, 60));
    for number in 0..10 {
        world.ask(&format!("{number}.test.")).await.unwrap();
    }
    world.ask("0.TEST").await.unwrap();
    world.ask("10.test").await.unwrap();

    for (name, asked) in [("0.test", 1), ("10.test", 1), ("9.test", 1), ("1.test", 2)] {
        world.ask(name).await.unwrap();
        assert_eq!(world.asked(name), asked, "{name}");
    }
}

#[tokio::test]
async fn the_metric_tells_where_an_answer_came_from() {
    let world = World::new().await;
    world.dns.answer(NAME, Reply::address(V4, 5));
    assert_eq!(world.resolver.find(NAME).await.0, "asked");
    assert_eq!(world.resolver.find(NAME).await.0, "fresh");
    world.dns.answer(NAME, Reply::ServerFailure);
    world.pass(5_000);
    assert_eq!(world.resolver.find(NAME).await.0, "stale");
    assert_eq!(world.resolver.find(NAME).await.0, "stale");
    assert_eq!(world.resolver.find("gone.test").await.0, "failed");
    assert_eq!(world.resolver.find("gone.test").await.0, "failed");
}
