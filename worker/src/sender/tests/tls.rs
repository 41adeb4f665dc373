//! TLS: whom we trust, and what a failed handshake says.

use shared::policy::classify::CertificateProblem;
use time::macros::datetime;

use super::super::tls;
use super::*;

#[tokio::test]
async fn a_silent_tls_handshake_ends_at_the_deadline() {
    let receiver =
        Receiver::start(|mut connection, _| async move { connection.closed().await }).await;
    let sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        roots: Authority::new().trusted(),
        ..SenderSettings::default()
    })
    .unwrap();
    let url = format!("https://{}/", receiver.addr).parse().unwrap();

    let (result, timings) = sender.send(request(url, DEADLINE)).await;

    assert_eq!(result, Err(SendError::Timeout(Phase::Tls)));
    assert!(timings.connect.is_some() && timings.tls.is_none());
}

#[tokio::test]
async fn tls_is_spoken_with_whom_we_trust_and_its_time_is_told() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let sender = trusting(&authority);
    let url: Url = format!("https://{}/", receiver.addr).parse().unwrap();

    let (first, timings) = sender.send(request(url.clone(), AMPLE)).await;
    let (second, again) = sender.send(request(url, AMPLE)).await;

    assert_eq!(first.unwrap().status, 200);
    assert!(timings.tls.unwrap() > Duration::ZERO);
    assert!(timings.connect.unwrap() + timings.tls.unwrap() <= timings.first_byte.unwrap());
    assert_eq!(second.unwrap().status, 200);
    assert_eq!(again.tls, None);
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn f14_each_fault_of_a_certificate_is_told_from_the_others() {
    use CertificateProblem::*;
    let authority = Authority::new();
    let below = authority.intermediate();
    let chain = || vec![below.certificate()];
    let past = |it: &mut rcgen::CertificateParams| it.not_after = datetime!(2001-01-01 0:00 UTC);
    let future = |it: &mut rcgen::CertificateParams| it.not_before = datetime!(2999-01-01 0:00 UTC);
    let no_alternative = |it: &mut rcgen::CertificateParams| it.subject_alt_names = Vec::new();
    let other = Authority::new();
    let cases = [
        (
            "expired",
            authority.receiver_with(past, vec![]).await,
            Err(Expired),
        ),
        (
            "future",
            authority.receiver_with(future, vec![]).await,
            Err(NotValidYet),
        ),
        (
            "other name",
            authority.receiver("other.example").await,
            Err(WrongName),
        ),
        (
            "name in CN",
            authority.receiver_with(no_alternative, vec![]).await,
            Err(WrongName),
        ),
        (
            "self-signed",
            receiver::self_signed_receiver().await,
            Err(SelfSigned),
        ),
        (
            "leaf alone",
            below.receiver("127.0.0.1").await,
            Err(MissingIntermediate),
        ),
        (
            "full chain",
            below.receiver_with(|_| {}, chain()).await,
            Ok(200),
        ),
        (
            "stranger's chain",
            other
                .intermediate()
                .receiver_with(|_| {}, vec![other.certificate()])
                .await,
            Err(UnknownIssuer),
        ),
    ];
    let sender = trusting(&authority);
    for (name, receiver, expected) in cases {
        let result = over_tls(&sender, &receiver).await;
        let got = result.map(|answer| answer.status);
        assert_eq!(got, expected.map_err(SendError::Certificate), "{name}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_by_whom_it_belongs_to_and_no_connection_is_shared() {
    let authority = Authority::new();
    let receiver = authority.receiver_of_known().await;
    let sender = trusting(&authority);
    let identity = |authority: &Authority| {
        let (chain, key) = authority.client("sender.example");
        Some(Arc::new(ClientIdentity::parse(&chain, &key).unwrap()))
    };
    let url: Url = format!("https://{}/", receiver.addr).parse().unwrap();
    let post = async |identity| {
        let mut request = request(url.clone(), AMPLE);
        request.identity = identity;
        sender.send(request).await.0.map(|answer| answer.status)
    };

    let known = identity(&authority);
    assert_eq!(post(known.clone()).await, Ok(200));
    assert_eq!(post(known).await, Ok(200));
    assert_eq!(receiver.connections(), 1);
    let nobody = post(None).await;
    assert!(matches!(&nobody, Err(SendError::Tls(_))), "{nobody:?}");
    let stranger = post(identity(&Authority::new())).await;
    assert!(matches!(&stranger, Err(SendError::Tls(_))), "{stranger:?}");
    assert_eq!(post(identity(&authority)).await, Ok(200));
    assert_eq!(receiver.connections(), 4);
}

/// Resumed is what was agreed on with the same identity, and nothing else: a session carries it.
#[tokio::test]
async fn the_next_connection_resumes_the_session_of_its_own_identity() {
    use rustls::HandshakeKind::{Full, Resumed};
    let authority = Authority::new();
    let identity = || {
        let (chain, key) = authority.client("sender.example");
        Some(Arc::new(ClientIdentity::parse(&chain, &key).unwrap()))
    };
    let (one, other) = (identity(), identity());
    let turns = [
        (&None, Full),
        (&None, Resumed),
        (&one, Full),
        (&other, Full),
        (&one, Resumed),
        (&None, Resumed),
        (&other, Resumed),
        (&None, Resumed),
    ];
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (seen, mut kinds) = tokio::sync::mpsc::channel(16);
        let receiver = authority.receiver_of_one_request(version, seen).await;
        let url: Url = format!("https://{}/", receiver.addr).parse().unwrap();
        let sender = trusting(&authority);
        for (turn, (identity, expected)) in turns.iter().enumerate() {
            let mut request = request(url.clone(), AMPLE);
            request.identity.clone_from(identity);
            let answer = sender.send(request).await.0.unwrap();
            assert_eq!(answer.status, 200);
            assert_eq!(kinds.recv().await.as_ref(), Some(expected), "{turn}");
        }
        assert_eq!(receiver.connections(), turns.len());
    }
}

#[tokio::test]
async fn a_receiver_that_breaks_the_handshake_is_a_tls_error() {
    let authority = Authority::new();
    let cut = Receiver::start(|connection, _| async move { drop(connection) }).await;
    let result = over_tls(&trusting(&authority), &cut).await;
    assert!(matches!(&result, Err(SendError::Tls(_))), "{result:?}");

    let plain = Receiver::start(|mut connection, _| async move {
        connection
            .say("HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")
            .await;
        connection.closed().await;
    })
    .await;
    let result = over_tls(&trusting(&authority), &plain).await;
    assert!(matches!(&result, Err(SendError::Tls(_))), "{result:?}");
}

#[tokio::test]
async fn without_certificates_http_works_and_https_says_why_not() {
    let receiver = Receiver::answering(OK).await;
    let sender = local();

    assert_eq!(answer(&sender, &receiver).await.status, 200);
    let result = over_tls(&sender, &receiver).await;
    assert_eq!(result, Err(SendError::Tls(tls::NO_ROOTS.into())));
}

#[test]
fn s2_no_error_shows_the_url() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let silent =
            Receiver::start(|mut connection, _| async move { connection.closed().await }).await;
        let cut = Receiver::start(|connection, _| async move { drop(connection) }).await;
        let addresses = [silent.addr, cut.addr, "127.0.0.1:1".parse().unwrap()];
        for (scheme, address) in ["http", "https"]
            .into_iter()
            .flat_map(|s| addresses.map(|a| (s, a)))
        {
            let url = format!("{scheme}://{address}/t0ken?key=t0ken")
                .parse()
                .unwrap();
            let sender = trusting(&Authority::new());
            let (result, _) = sender.send(request(url, DEADLINE)).await;
            let error = result.unwrap_err();
            assert!(!error.to_string().contains("t0ken"), "{error}");
            assert!(!format!("{error:?}").contains("t0ken"), "{error:?}");
        }
    });
}

pub(super) fn trusting(authority: &Authority) -> Sender {
    Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        roots: authority.trusted(),
        ..SenderSettings::default()
    })
    .unwrap()
}

async fn over_tls(sender: &Sender, receiver: &Receiver) -> SendResult {
    let url = format!("https://{}/", receiver.addr).parse().unwrap();
    sender.send(request(url, AMPLE)).await.0
}
