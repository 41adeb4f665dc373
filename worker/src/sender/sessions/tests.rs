use super::super::tls::HOSTS;
use super::*;

fn host(number: usize) -> ServerName<'static> {
    ServerName::try_from(format!("h{number}.test")).unwrap()
}

/// T1.
#[test]
fn as_many_hosts_as_promised_are_remembered_and_the_least_used_goes_first() {
    let sessions = Sessions::of(HOSTS);
    for number in 0..HOSTS.get() {
        sessions.set_kx_hint(host(number), NamedGroup::secp256r1);
    }
    let known = |number| sessions.kx_hint(&host(number)).is_some();
    assert!(known(0), "the first of {HOSTS}");

    sessions.set_kx_hint(host(HOSTS.get()), NamedGroup::X25519);

    assert_eq!(sessions.hosts().len(), 65_536);
    assert!(known(0), "it was used just now");
    assert!(!known(1));
    assert_eq!(
        sessions.kx_hint(&host(HOSTS.get())),
        Some(NamedGroup::X25519)
    );
}

#[test]
fn a_host_that_is_not_known_has_no_session() {
    let sessions = Sessions::of(HOSTS);
    sessions.remove_tls12_session(&host(0));
    assert!(sessions.tls12_session(&host(0)).is_none());
    assert!(sessions.take_tls13_ticket(&host(0)).is_none());
    assert_eq!(sessions.hosts().len(), 0, "who asks takes no room");
    assert_eq!(format!("{sessions:?}"), "Sessions");
}
