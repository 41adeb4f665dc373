//! Postbacks and hidden fields, as endpoints have them in their document.

use serde_json::{Value, json};

use crate::app::{text, world};
use crate::bad_input::pointers;

const TRACKER: &str = "http://127.0.0.1/pb?click_id={click_id}&payout={payout}";

#[tokio::test]
async fn a_postback_is_kept_and_shown_as_it_was_registered() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;

    let made = tenant
        .endpoint(json!({"kind": "postback", "url": TRACKER}))
        .await;

    for (field, expected) in [
        ("url", json!(TRACKER)),
        ("kind", json!("postback")),
        ("method", json!("GET")),
        ("template", Value::Null),
        ("on_missing_field", json!("fail")),
        ("redact", json!([])),
    ] {
        assert_eq!(made[field], expected, "{field}");
    }
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let form = json!({"method": "POST", "template": "id={order.id}&e={$event_id}", "on_missing_field": "empty", "redact": ["order.id"]});
    let changed = server.patch(&path, &tenant.key, &form).await.expect(200);
    for (field, expected) in form.as_object().unwrap() {
        assert_eq!(changed[field], *expected, "{field}");
    }
    assert_eq!(tenant.get(&path).await.expect(200), changed);

    // A webhook's URL has no fields, and its method is its own.
    let webhook = json!({"kind": "webhook", "template": null, "url": "http://127.0.0.1/in"});
    let changed = server.patch(&path, &tenant.key, &webhook).await.expect(200);
    assert_eq!(
        (&changed["kind"], &changed["method"]),
        (&json!("webhook"), &json!("POST"))
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_postback_is_said_at_its_field() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let postback = |more: Value| {
        let mut document = json!({"kind": "postback", "url": TRACKER});
        let fields = document.as_object_mut().unwrap();
        fields.append(&mut more.as_object().unwrap().clone());
        document
    };
    let url = |url: &str| postback(json!({ "url": url }));
    for (document, field, says) in [
        (
            json!({"url": "http://127.0.0.1/", "method": "GET"}),
            "method",
            "postback",
        ),
        (
            json!({"url": "http://127.0.0.1/", "template": "a={a}"}),
            "template",
            "postback",
        ),
        (
            json!({"url": "http://127.0.0.1/", "kind": "email"}),
            "kind",
            "postback",
        ),
        (postback(json!({"method": "DELETE"})), "method", "GET"),
        (
            postback(json!({"template": "http://127.0.0.1/?a={a}"})),
            "template",
            "`url`",
        ),
        (postback(json!({"template": "a={a"})), "template", "%7B"),
        (
            postback(json!({"template": "a={a}#b"})),
            "template",
            "percent-encode",
        ),
        (
            postback(json!({"template": "a={$now}"})),
            "template",
            "$event_id",
        ),
        (postback(json!({"template": 7})), "template", "string"),
        (
            postback(json!({"on_missing_field": "skip"})),
            "on_missing_field",
            "empty",
        ),
        (
            postback(json!({"redact": ["a b"]})),
            "redact",
            "order.items.0.id",
        ),
        (postback(json!({"redact": "a"})), "redact", "list"),
        (url("http://{host}/"), "url", "path and query"),
        (url("http://127.0.0.1:{port}/"), "url", "path and query"),
        (url("http://127.0.0.1/#{a}"), "url", "fragment"),
        (url("http://127.0.0.1/{a b}"), "url", "a name"),
        (url("http://10.0.0.1/{a}"), "url", "POSTRIDER_ALLOW_CIDRS"),
    ] {
        let problem = tenant.post("/v1/endpoints", &document).await;
        let problem = problem.problem(422, "invalid-fields");
        assert_eq!(pointers(&problem), [format!("/{field}")], "{document}");
        let detail = text(&problem["errors"][0]["detail"]);
        if says != "a name" && says != "fragment" {
            assert!(detail.contains(says), "{document}: {detail}");
        }
    }
}

#[tokio::test]
async fn s2_a_field_that_an_endpoint_hides_is_hidden_in_the_payload_that_is_shown() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let of = |name: &str, redact: Value| json!({"event_types": [name], "redact": redact});
    tenant.endpoint(of("both", json!(["click_id"]))).await;
    tenant.endpoint(of("both", json!(["user.mail"]))).await;
    tenant.endpoint(of("open", json!([]))).await;
    let payload = json!({"click_id": "c-1", "user": {"mail": "a@b.example", "n": 1}});

    let shown = async |name: &str| {
        let event = tenant.publishes(name, &payload).await;
        let path = format!("/v1/events/{}/payload", text(&event["id"]));
        tenant.get(&path).await.expect(200)
    };

    let hidden = json!({"click_id": "***", "user": {"mail": "***", "n": 1}});
    assert_eq!(shown("both").await, hidden);
    assert_eq!(shown("open").await, payload);
}

#[tokio::test]
async fn a_field_that_the_schema_of_an_event_type_does_not_have_is_told_when_it_is_saved() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let schema =
        json!({"type": "object", "properties": {"click_id": {"type": "string"}, "order": {}}});
    let path = "/v1/event-types/conversion.created";
    let body = json!({ "schema": schema }).to_string();
    let put = reqwest::Method::PUT;
    let declared = server.send(put, path, Some(&tenant.key), body, &[]).await;
    declared.expect(200);
    let postback = |types: Value, url: &str, template: Value| {
        json!({
            "kind": "postback", "event_types": types, "template": template,
            "url": format!("http://127.0.0.1/{url}"),
        })
    };
    let all = || json!([]);

    for (document, expected) in [
        (
            postback(json!(["conversion.*"]), "?a={click_di}", Value::Null),
            "/url",
        ),
        (
            postback(all(), "?a={click_id}", json!("b={payout}")),
            "/template",
        ),
    ] {
        let refused = tenant.post("/v1/endpoints", &document).await;
        let problem = refused.problem(422, "invalid-fields");
        assert_eq!(pointers(&problem), [expected]);
        assert!(
            problem.to_string().contains("conversion.created"),
            "{problem}"
        );
    }
    let made = tenant
        .endpoint(postback(
            all(),
            "?a={click_id}&b={order.id}&c={$event_id}",
            Value::Null,
        ))
        .await;
    // Of what it does not get it needs nothing.
    tenant
        .endpoint(postback(
            json!(["order.created"]),
            "?a={anything}",
            Value::Null,
        ))
        .await;
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let patch = json!({"template": "d={typo}"});
    let refused = server.patch(&path, &tenant.key, &patch).await;
    assert_eq!(
        pointers(&refused.problem(422, "invalid-fields")),
        ["/template"]
    );
}
