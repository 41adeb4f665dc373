//! What an endpoint's requests look like, in its document: `kind`, `method`, `template`, `on_missing_field`
//! and `redact`.

use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::domain::postback::{EndpointKind, OnMissingField, RequestMethod};
use shared::policy::payload::FieldPath;
use shared::policy::postback::Template;

use crate::json::Fields;

/// The most fields that are hidden.
const MOST_REDACTED: usize = 64;

/// The five fields.
#[derive(Default)]
pub(super) struct Shape {
    pub(super) kind: EndpointKind,
    pub(super) method: RequestMethod,
    pub(super) template: Option<String>,
    pub(super) on_missing_field: OnMissingField,
    pub(super) redact: Vec<String>,
}

pub(super) fn read(fields: &mut Fields) -> Shape {
    let kind: EndpointKind = choice(fields, "kind", "must be `webhook` or `postback`");
    let is_webhook = kind == EndpointKind::Webhook;
    let method = fields.text("method").map(|text| {
        let method: Option<RequestMethod> = serde_json::from_value(Value::String(text)).ok();
        if method.is_none() {
            fields.wrong("method", "must be `POST`, `PUT` or, for a postback, `GET`");
        }
        method.unwrap_or_default()
    });
    let method = method.unwrap_or_else(|| RequestMethod::default_of(kind));
    if is_webhook && method == RequestMethod::Get {
        let detail = "must be `POST` or `PUT` for a webhook, whose request has a body; a `postback` may be a `GET`";
        fields.wrong("method", detail);
    }
    let template = template(fields, is_webhook);
    let on_missing_field = choice(fields, "on_missing_field", "must be `fail` or `empty`");
    Shape {
        kind,
        method,
        template,
        on_missing_field,
        redact: redact(fields),
    }
}

fn choice<T: Default + DeserializeOwned>(fields: &mut Fields, name: &str, wrong: &str) -> T {
    let Some(text) = fields.text(name) else {
        return T::default();
    };
    serde_json::from_value(Value::String(text)).unwrap_or_else(|_unknown| {
        fields.wrong(name, wrong);
        T::default()
    })
}

fn template(fields: &mut Fields, is_webhook: bool) -> Option<String> {
    let text = fields.text("template")?;
    if is_webhook {
        let detail = "is for a `postback`; a webhook carries the payload itself";
        fields.wrong("template", detail);
    } else if text.starts_with("http:") || text.starts_with("https:") {
        let detail = "is a form or a query, such as click_id={click_id}; the URL, with fields in it, goes into `url`";
        fields.wrong("template", detail);
    } else if let Err(error) = Template::parse_form(&text) {
        fields.wrong("template", error.to_string());
    }
    (!text.is_empty()).then_some(text)
}

fn redact(fields: &mut Fields) -> Vec<String> {
    let paths = fields.texts("redact", MOST_REDACTED).unwrap_or_default();
    for path in &paths {
        if let Err(error) = path.parse::<FieldPath>() {
            fields.wrong("redact", format!("each {error}"));
            break;
        }
    }
    paths
}
