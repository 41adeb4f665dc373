//! The files of the machine.

use std::fs;
use std::path::Path;

use super::super::machine::servers;
use super::*;

#[tokio::test]
async fn a_name_of_the_hosts_file_is_not_asked_for_and_the_file_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "192.0.2.1 a.test # one\n2001:db8::1 A.test b\n").unwrap();
    let dns = DnsServer::start().await;
    dns.answer_others(Reply::address(OTHER_V4, 60));
    let settings = ResolverSettings {
        hosts_file: hosts.clone(),
        ..asking(&[&dns])
    };
    let resolver = Resolver::new(&settings).unwrap();
    let ask = async |name: &str| resolver.addresses(name).await.unwrap().to_vec();

    assert_eq!(ask(NAME).await, vec![V4, V6]);
    assert_eq!(ask("b").await, vec![V6]);
    assert!(dns.names().is_empty());

    fs::write(&hosts, "192.0.2.1 other.test\n").unwrap();
    assert_eq!(ask("other.test").await, vec![V4]);
    assert_eq!(ask("c.test").await, vec![OTHER_V4]);
}

#[test]
fn the_servers_of_the_machine_are_those_of_its_file_and_nothing_else_of_it_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    let text = "search corp.example\noptions ndots:5 timeout:30\nnameserver 10.0.0.2\n\
                nameserver fd00::2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n";
    fs::write(&file, text).unwrap();
    let expected = ["10.0.0.2:53", "[fd00::2]:53", "10.0.0.3:53"];
    assert_eq!(servers(&file), expected.map(|it| it.parse().unwrap()));
}

#[test]
fn a_machine_that_names_no_server_is_asked_itself() {
    let itself = [SocketAddr::from(([127, 0, 0, 1], 53))];
    assert_eq!(servers(Path::new("/nonexistent/resolv.conf")), itself);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    fs::write(&file, "search corp.example\n").unwrap();
    assert_eq!(servers(&file), itself);
}
