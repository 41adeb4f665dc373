//! TLS: whom we trust, and what a failed handshake says.

use super::super::tls;
use super::*;

const FAR: OffsetDateTime = datetime!(2999-01-01 0:00 UTC);

#[tokio::test]
async fn a_silent_tls_handshake_ends_at_the_deadline() {
    let receiver =
        Receiver::start(|mut connection, _| async move { connection.closed().await }).await;
    let sender = Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        roots: Some(Authority::new().trusted()),
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
    let receiver = authority.receiver("127.0.0.1", FAR).await;
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
async fn a_certificate_that_is_not_good_is_a_tls_error_with_its_reason() {
    let authority = Authority::new();
    let cases = [
        ("127.0.0.1", datetime!(2001-01-01 0:00 UTC), "expired"),
        ("other.example", FAR, "not valid for name"),
    ];
    for (name, not_after, reason) in cases {
        let receiver = authority.receiver(name, not_after).await;
        let result = over_tls(&trusting(&authority), &receiver).await;
        assert!(
            matches!(&result, Err(SendError::Tls(text)) if text.contains(reason)),
            "{result:?}"
        );
    }
    let receiver = authority.receiver("127.0.0.1", FAR).await;
    let result = over_tls(&trusting(&Authority::new()), &receiver).await;
    assert!(matches!(&result, Err(SendError::Tls(_))), "{result:?}");
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

    assert!(!sender.trusts_anyone());
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

fn trusting(authority: &Authority) -> Sender {
    Sender::new(SenderSettings {
        rules: AddressRules::parse("127.0.0.0/8").unwrap(),
        roots: Some(authority.trusted()),
        ..SenderSettings::default()
    })
    .unwrap()
}

async fn over_tls(sender: &Sender, receiver: &Receiver) -> SendResult {
    let url = format!("https://{}/", receiver.addr).parse().unwrap();
    sender.send(request(url, AMPLE)).await.0
}
