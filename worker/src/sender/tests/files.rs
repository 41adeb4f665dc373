//! A process without a file to spare: our trouble and not the receiver's.

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared::policy::classify::Shortage;
use shared::testing::dns::{DnsServer, Reply};
use shared::testing::eventually;

use super::*;

/// So many files may be open as are open now.
fn allow_no_more() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest = open
        .filter_map(|file| file.unwrap().file_name().to_str()?.parse::<u64>().ok())
        .max();
    // The listing is a file itself; what a lower number is free for is taken below.
    let limit = Rlimit {
        current: highest,
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    before
}

#[tokio::test]
#[ignore = "leaves its process without files: run by the test below"]
async fn without_files() {
    let receiver = Receiver::answering(OK).await;
    let port = receiver.addr.port();
    let dns = DnsServer::start().await;
    dns.answer("a.test", Reply::address([127, 0, 0, 1], 1));
    let sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        resolver: ResolverSettings {
            servers: vec![dns.addr()],
            ..ResolverSettings::default()
        },
        ..SenderSettings::default()
    })
    .unwrap();
    let named: Url = format!("http://a.test:{port}/").parse().unwrap();
    let proxy = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        proxy: Some(Proxy::parse(&format!("http://127.0.0.1:{port}")).unwrap()),
        ..SenderSettings::default()
    })
    .unwrap();

    let before = allow_no_more();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let short = Err(SendError::NoSocket(Shortage::Files));
    assert_eq!(post(&sender, &receiver).await.0, short);
    let of_a_name = sender.send(request(named.clone(), AMPLE)).await.0;
    assert_eq!(of_a_name, short, "the look-up needs one too");
    assert_eq!(post(&proxy, &receiver).await.0, short);
    assert_eq!(receiver.connections(), 0);

    setrlimit(Resource::Nofile, before).unwrap();
    drop(taken);
    assert_eq!(answer(&sender, &receiver).await.status, 200);
    eventually(AMPLE, async || {
        let result = sender.send(request(named.clone(), AMPLE)).await.0;
        result.is_ok().then_some(())
    })
    .await;
}

#[test]
fn without_a_file_to_spare_it_is_our_trouble_and_passes() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sender::tests::files::without_files",
            "--ignored",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}
