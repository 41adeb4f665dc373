use super::*;

fn server() -> Server {
    let on = |name: &str| (name.to_owned(), "on".to_owned());
    Server {
        version: 150_018,
        switches: vec![
            on("fsync"),
            on("full_page_writes"),
            on("synchronous_commit"),
        ],
        most_connections: 97,
        connections: 20,
        ours: 12,
        waiting_for_lock: (0, Duration::ZERO),
        idle_in_transaction: Duration::ZERO,
        replicas: (0, 0),
        oldest_id_age: 1_000,
    }
}

/// The finding of this check.
fn of(findings: &[Finding], check: &str) -> Finding {
    findings
        .iter()
        .find(|one| one.check == check)
        .cloned()
        .unwrap()
}

fn state(findings: &[Finding], check: &str) -> State {
    of(findings, check).state
}

#[test]
fn a_server_as_it_should_be_is_good_and_needs_no_advice() {
    for finding in server().findings() {
        assert_eq!(finding.state, State::Good, "{finding:?}");
        assert_eq!(finding.advice, None);
    }
}

#[test]
fn d2_whatever_makes_a_commit_less_than_durable_is_critical_and_named() {
    for name in ["fsync", "full_page_writes", "synchronous_commit"] {
        let mut server = server();
        for (known, value) in &mut server.switches {
            if known == name {
                "off".clone_into(value);
            }
        }
        let finding = of(&server.findings(), "durability");
        assert_eq!(finding.state, State::Critical);
        assert_eq!(finding.found, format!("{name} = off"));
    }
    let mut local = server();
    local.switches = vec![("synchronous_commit".to_owned(), "local".to_owned())];
    assert_eq!(state(&local.findings(), "durability"), State::Critical);
}

#[test]
fn each_limit_of_the_server_has_a_warning_before_it_is_critical() {
    type Set = fn(&mut Server, i64);
    let limits: [(&str, Set, [i64; 4]); 4] = [
        ("connections", |it, n| it.connections = n, [77, 78, 92, 93]),
        (
            "transaction_ids",
            |it, n| it.oldest_id_age = n,
            [1_199_999_999, 1_200_000_000, 1_899_999_999, 1_900_000_000],
        ),
        (
            "locks",
            |it, n| it.waiting_for_lock = (1, Duration::from_millis(n.unsigned_abs())),
            [999, 1_000, 9_999, 10_000],
        ),
        (
            "locks",
            |it, n| it.idle_in_transaction = Duration::from_millis(n.unsigned_abs()),
            [999, 1_000, 9_999, 10_000],
        ),
    ];
    for (check, set, values) in limits {
        let expected = [State::Good, State::Warning, State::Warning, State::Critical];
        for (value, expected) in values.into_iter().zip(expected) {
            let mut server = server();
            set(&mut server, value);
            assert_eq!(
                state(&server.findings(), check),
                expected,
                "{check} at {value}"
            );
        }
    }
    let old = Server {
        version: 140_012,
        ..server()
    };
    assert_eq!(state(&old.findings(), "server_version"), State::Critical);
}

#[test]
fn a_clock_is_off_by_what_the_round_trip_cannot_explain() {
    let clock = |offset_ms: i64, round_trip_ms: u64| {
        Clock {
            offset_micros: offset_ms * 1_000,
            round_trip: Duration::from_millis(round_trip_ms),
        }
        .finding()
    };
    assert_eq!(clock(999, 0).state, State::Good);
    assert_eq!(clock(-1_000, 0).state, State::Warning);
    assert_eq!(clock(-5_000, 0).state, State::Critical);
    assert!(clock(-5_000, 0).found.contains("5 s ahead of the database"));
    assert!(clock(5_000, 0).found.contains("5 s behind the database"));
    // 1.4 s seen within a second's round trip may be 0.9 s.
    assert!(clock(1_400, 1_000).found.contains("a round trip takes 1 s"));
    assert_eq!(clock(1_600, 1_000).state, State::Warning);
    assert_eq!(clock(0, 19).state, State::Good);
    let far = clock(0, 20);
    assert_eq!(far.state, State::Warning);
    assert!(far.advice.unwrap().contains("far away"));
}

#[test]
fn an_old_snapshot_is_named_with_its_holders() {
    let horizon = |seconds| Horizon {
        open: Duration::from_secs(seconds),
        holders: vec![Holder {
            kind: "session".to_owned(),
            who: "4711 (report, idle in transaction)".to_owned(),
            open: Some(Duration::from_secs(seconds)),
        }],
    };
    assert_eq!(horizon(59).finding().state, State::Good);
    let warned = horizon(60).finding();
    assert_eq!(warned.state, State::Warning);
    assert!(
        warned
            .found
            .contains("session 4711 (report, idle in transaction), 60 s"),
        "{warned:?}"
    );
    assert_eq!(horizon(600).finding().state, State::Critical);
}

#[test]
fn dead_rows_count_where_there_are_most() {
    let table = |name: &str, dead| Table {
        name: name.to_owned(),
        live: 5,
        dead,
    };
    assert_eq!(Table::finding(&[]).state, State::Unknown);
    assert_eq!(
        Table::finding(&[table("ready", 199_999), table("retry", 9)]).state,
        State::Good
    );
    let bad = Table::finding(&[table("ready", 3), table("retry", 200_000)]);
    assert_eq!(bad.state, State::Warning);
    assert!(bad.advice.unwrap().contains("VACUUM retry"));
    assert_eq!(
        Table::finding(&[table("ready", 2_000_000)]).state,
        State::Critical
    );
}

#[test]
fn partitions_for_less_than_three_days_are_critical() {
    let days = |ahead, detaching| Partitions { ahead, detaching }.finding().state;
    assert_eq!(days(8, 0), State::Good);
    assert_eq!(days(7, 0), State::Good);
    assert_eq!(days(6, 0), State::Warning);
    assert_eq!(days(8, 1), State::Warning);
    assert_eq!(days(3, 0), State::Warning);
    assert_eq!(days(2, 0), State::Critical);
    assert_eq!(days(-1, 0), State::Critical);
}

fn workers() -> Workers {
    Workers {
        alive: 3,
        draining: 0,
        expired: 0,
        shortest_lease: Some(Duration::from_secs(9)),
        free_slots: 0,
        most_slots: (86, 86),
    }
}

#[test]
fn no_worker_or_a_slot_without_one_is_critical_a_late_lease_is_not() {
    for finding in workers().findings() {
        assert_eq!(finding.state, State::Good, "{finding:?}");
    }
    let none = Workers {
        alive: 0,
        shortest_lease: None,
        free_slots: 256,
        ..workers()
    };
    assert_eq!(state(&none.findings(), "slots"), State::Critical);
    let free = Workers {
        free_slots: 1,
        ..workers()
    };
    assert_eq!(state(&free.findings(), "slots"), State::Critical);
    let uneven = Workers {
        most_slots: (95, 86),
        ..workers()
    };
    assert_eq!(state(&uneven.findings(), "slots"), State::Warning);
    let expired = Workers {
        expired: 1,
        ..workers()
    };
    assert_eq!(state(&expired.findings(), "leases"), State::Warning);
    let late = Workers {
        shortest_lease: Some(Duration::from_millis(2_999)),
        ..workers()
    };
    assert_eq!(state(&late.findings(), "leases"), State::Warning);
}

#[test]
fn jobs_without_a_leader_are_named() {
    let led = vec!["stats".to_owned()];
    let all = Jobs {
        led: led.clone(),
        idle: Vec::new(),
    };
    assert_eq!(all.finding().state, State::Good);
    let one = Jobs {
        led,
        idle: vec!["removal".to_owned()],
    }
    .finding();
    assert_eq!(one.state, State::Warning);
    assert!(one.found.contains("removal"));
}

#[test]
fn endpoints_that_outlast_the_settings_are_counted() {
    let fits = Endpoints {
        enabled: 7,
        slow: 0,
        lasting: 0,
    };
    assert_eq!(fits.finding().state, State::Good);
    assert_eq!(
        Endpoints { slow: 1, ..fits }.finding().state,
        State::Warning
    );
    assert_eq!(
        Endpoints { lasting: 1, ..fits }.finding().state,
        State::Warning
    );
}

#[test]
fn d8_what_nobody_would_look_at_again_is_critical_what_a_job_is_late_with_is_not() {
    let good = Astray {
        waiting: 10,
        ..Astray::default()
    };
    assert_eq!(good.finding().state, State::Good);
    type Set = fn(&mut Astray);
    let kinds: [(Set, State); 6] = [
        (|it| it.unowned = 1, State::Critical),
        (|it| it.bodyless = 1, State::Critical),
        (|it| it.too_late = 1, State::Critical),
        (|it| it.unclosed = 1, State::Warning),
        (|it| it.too_old = 1, State::Warning),
        (|it| it.forgotten = 1, State::Warning),
    ];
    for (set, expected) in kinds {
        let mut astray = good;
        set(&mut astray);
        let finding = astray.and(Astray { cut: true, ..good }).finding();
        assert_eq!(finding.state, expected, "{finding:?}");
        assert!(
            finding.found.starts_with("of 20 waiting deliveries: 1 "),
            "{finding:?}"
        );
    }
    assert_eq!(
        Astray { cut: true, ..good }.finding().state,
        State::Unknown,
        "not all were seen"
    );
}

#[test]
fn d1_d6_a_delivery_is_in_one_place() {
    let good = Newest {
        looked_for: 9,
        nowhere: 0,
        twice: 0,
    };
    assert_eq!(good.finding().state, State::Good);
    assert_eq!(
        Newest { nowhere: 1, ..good }.finding().state,
        State::Critical
    );
    assert_eq!(Newest { twice: 1, ..good }.finding().state, State::Critical);
}

#[test]
fn what_waits_dies_and_queues_for_a_connection_has_its_limits() {
    let waits = |seconds| Waiting(Some(Duration::from_secs(seconds))).finding().state;
    assert_eq!(Waiting(None).finding().state, State::Good);
    assert_eq!(waits(299), State::Good);
    assert_eq!(waits(300), State::Warning);
    assert_eq!(waits(1_800), State::Critical);

    let dead = DeadLetters {
        internal: 0,
        all: 100,
        most: 100,
    };
    assert_eq!(
        dead.finding().state,
        State::Good,
        "receivers that refuse are their tenants' affair"
    );
    assert!(dead.finding().found.starts_with("100 or more"));
    assert_eq!(
        DeadLetters {
            internal: 1,
            ..dead
        }
        .finding()
        .state,
        State::Critical
    );

    let pool = |waiting| {
        Pool {
            addr: "h:1".to_owned(),
            waiting,
            in_use: (8, 8),
        }
        .finding()
        .state
    };
    assert_eq!(pool(0), State::Good);
    assert_eq!(pool(1), State::Warning);
    assert_eq!(pool(32), State::Critical);
}

#[test]
fn lengths_are_told_in_the_unit_in_which_they_are_small() {
    let told = |seconds| shown(Duration::from_secs(seconds));
    assert_eq!(shown(Duration::from_millis(7)), "7 ms");
    assert_eq!(told(119), "119 s");
    assert_eq!(told(120), "2 min");
    assert_eq!(told(7_200), "2 h");
    assert_eq!(told(172_800), "2 days");
}
