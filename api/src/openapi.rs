//! The OpenAPI 3.1 document, generated from the handlers' own annotations and from the types of what they
//! read and write: nothing is written beside the code.
//!
//! Every route of [`crate::routes::configure`] has an operation here; what it may answer is said at its
//! handler, with [`crate::problem::Problem`] as the shape of every error.

use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use crate::problem::{FieldError, Problem};
use crate::routes;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Postrider",
        description = "Outbound webhooks and postbacks: post events, and they are delivered, signed and retried."
    ),
    paths(
        routes::endpoint_health::show,
        routes::limits::show,
        routes::limits::set,
        routes::audit_log::list,
        routes::audit_log::list_all,
        routes::removals::own_tenant,
        routes::removals::delete_own_tenant,
        routes::removals::delete_tenant,
        routes::removals::delete_organization,
        routes::removals::expunge_event,
        routes::removals::expunge,
        routes::removals::expunge_tenant,
        routes::removals::show,
        routes::removals::show_any,
        routes::removals::list,
    ),
    components(schemas(Problem<'_>, FieldError)),
    modifiers(&Keys),
    security(("key" = []))
)]
pub(crate) struct Document;

/// How a request says who sends it.
struct Keys;

impl utoipa::Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "A tenant's key (`prk_…`) or an organization's (`pro_…`)",
            ))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
    }
}
