//! Whether the fields that a postback's templates name are fields of the events that it gets: a misspelt one is told
//! when it is saved, not when money is lost.
//!
//! Only types with a schema say which fields their payloads have; of the others nothing is known until an event
//! is sent (`on_missing_field`).

use deadpool_postgres::Transaction;
use serde_json::Value;
use shared::domain::endpoint::wants_type;
use shared::domain::postback::EndpointKind;
use shared::ids::TenantKey;
use shared::policy::event_schema::has_field;
use shared::policy::postback::{Field, Template, UrlTemplate};
use shared::store::endpoints::EndpointDraft;
use shared::store::event_types;

use crate::problem::{ApiError, FieldError};

/// The most schemas that are looked at.
const MOST_SCHEMAS: i64 = 100;

/// Refuses an endpoint whose templates name fields that the schemas of its event types do not have.
pub(super) async fn check(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    draft: &EndpointDraft,
) -> Result<(), ApiError> {
    if draft.settings.kind != EndpointKind::Postback {
        return Ok(());
    }
    let schemas = event_types::schemas(&**transaction, tenant, MOST_SCHEMAS).await?;
    let wanted = schemas
        .into_iter()
        .filter(|(name, _)| wants_type(&draft.event_types, name))
        .filter_map(|(name, text)| Some((name, serde_json::from_str(&text).ok()?)));
    let mut errors = Vec::new();
    for (name, schema) in wanted {
        errors.extend(unknown_fields(draft, &name, &schema));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiError::fields(errors))
    }
}

/// Whether a change is one of templates, or of the events that they are filled from: nothing else is refused for
/// a schema that came later.
pub(super) fn concern(before: &EndpointDraft, after: &EndpointDraft) -> bool {
    before.url != after.url
        || before.event_types != after.event_types
        || before.settings.kind != after.settings.kind
        || before.settings.template != after.settings.template
}

fn unknown_fields(draft: &EndpointDraft, event_type: &str, schema: &Value) -> Vec<FieldError> {
    // Both were parsed when the document was read.
    let url = UrlTemplate::parse(&draft.url, false).ok();
    let template = draft.settings.template.as_deref();
    let template = template.and_then(|text| Template::parse_form(text).ok());
    let in_url = url.iter().flat_map(UrlTemplate::fields);
    let in_template = template.iter().flat_map(Template::fields);
    let fields = in_url
        .map(|field| ("/url", field))
        .chain(in_template.map(|field| ("/template", field)));
    fields
        .filter_map(|(pointer, field)| match field {
            Field::Payload(path) if !has_field(schema, path) => Some(FieldError {
                pointer: pointer.to_owned(),
                detail: format!(
                    "`{{{path}}}` is no field in the schema of the event type `{event_type}`"
                ),
            }),
            Field::Payload(_) | Field::EventId | Field::EventType | Field::DeliveryId => None,
        })
        .collect()
}
