//! The certificate that an endpoint shows in mutual TLS: checked when saved, its key never shown.

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use shared::ids::EndpointId;
use shared::sealing::MasterKeys;

use crate::app::{text, world};

fn self_signed(key: &KeyPair) -> String {
    let parameters = CertificateParams::new(vec!["sender.example".to_owned()]).unwrap();
    parameters.self_signed(key).unwrap().pem()
}

#[tokio::test]
async fn a_client_certificate_is_kept_sealed_renewed_without_its_key_and_taken_away() {
    // S2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let key = KeyPair::generate().unwrap();
    let (first, second) = (self_signed(&key), self_signed(&key));

    let created = tenant
        .endpoint(json!({"client_certificate": {
            "certificate": first, "private_key": key.serialize_pem()}}))
        .await;

    let shown = |certificate: &str| json!({"certificate": certificate, "private_key": "***"});
    assert_eq!(created["client_certificate"], shown(&first));
    let path = format!("/v1/endpoints/{}", text(&created["id"]));
    let patch = async |body: Value| server.patch(&path, &tenant.key, &body).await.expect(200);
    let same = patch(json!({"client_certificate": created["client_certificate"]})).await;
    assert_eq!(same["updated_at"], created["updated_at"], "nothing changed");
    let renewed = patch(json!({"client_certificate": {"certificate": second}})).await;
    assert_eq!(renewed["client_certificate"], shown(&second));

    let uuid = text(&created["id"]).parse::<EndpointId>().unwrap().0;
    let sealed = "SELECT sealed_client_certificate FROM endpoints WHERE public_id = $1";
    let session = database.session().await;
    let row = session.query_one(sealed, &[&uuid]).await.unwrap();
    let opened = MasterKeys::new([7; 32], None)
        .open(row.get(0), &format!("client_certificate:{uuid}"))
        .unwrap();
    let stored: Value = serde_json::from_slice(&opened).unwrap();
    let expected = json!({"certificate": second, "private_key": key.serialize_pem()});
    assert_eq!(stored, expected);

    let without = patch(json!({"client_certificate": null})).await;
    assert_eq!(without["client_certificate"], Value::Null);
    let row = session.query_one(sealed, &[&uuid]).await.unwrap();
    assert_eq!(row.get::<_, Option<Vec<u8>>>(0), None);
}

#[tokio::test]
async fn what_cannot_be_a_client_certificate_is_refused_by_field() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let (certificate, pem) = (self_signed(&key), key.serialize_pem());
    let many = certificate.repeat(9);
    let cases = [
        (json!("PEM"), "/client_certificate", "object"),
        (json!({}), "/client_certificate/certificate", "required"),
        (
            json!({"certificate": certificate}),
            "/client_certificate/private_key",
            "required",
        ),
        (
            json!({"certificate": "x", "private_key": pem}),
            "/client_certificate/certificate",
            "PEM",
        ),
        (
            json!({"certificate": many, "private_key": pem}),
            "/client_certificate/certificate",
            "at most 7 intermediates",
        ),
        (
            json!({"certificate": certificate, "private_key": "x"}),
            "/client_certificate/private_key",
            "PEM",
        ),
        (
            json!({"certificate": certificate, "private_key": other.serialize_pem()}),
            "/client_certificate/private_key",
            "does not belong",
        ),
        (
            json!({"certificate": certificate, "private_key": "***"}),
            "/client_certificate/private_key",
            "no value yet",
        ),
        (
            json!({"certificate": certificate, "private_key": "x".repeat(40_000)}),
            "/client_certificate/private_key",
            "at most",
        ),
        (
            json!({"certificate": certificate, "private_key": pem, "passphrase": "x"}),
            "/client_certificate/passphrase",
            "not a known field",
        ),
    ];
    for (value, pointer, expected) in cases {
        let body = json!({"url": "http://127.0.0.1/", "client_certificate": value});
        let problem = server
            .post("/v1/endpoints", &tenant.key, &body)
            .await
            .expect(422);
        let error = &problem["errors"][0];
        assert_eq!(error["pointer"], pointer, "{problem}");
        assert!(text(&error["detail"]).contains(expected), "{problem}");
        assert!(
            !problem.to_string().contains("PRIVATE KEY-----\\n"),
            "{problem}"
        );
    }
}
