//! The documentation that the API serves about itself: the document, and pages that show it.
//!
//! The viewer is Swagger UI, out of the program: `utoipa-swagger-ui` has its files from a package, so neither
//! the build nor the browser asks any other host. The page's policy allows nothing but this server's files,
//! and no script within the page.

use std::sync::{Arc, LazyLock};

use actix_web::http::header::{self, HeaderName};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse};
use utoipa::ToSchema;
use utoipa_swagger_ui::Config;

use crate::openapi;
use crate::openapi::refused::{self, Refused};
use crate::problem::ApiError;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Paths are relative: it works behind a prefix too.
const PAGE: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Postrider API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"#;

const START: &str = r##""use strict";
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  validatorUrl: null,
});
"##;

/// A file of the page, with its media type. They are the same as long as the process lives.
type File = (&'static str, Bytes);

/// What the page loads.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "for the documentation; the path is read by its text"
)]
enum PageFile {
    #[schema(rename = "start.js")]
    Start,
    #[schema(rename = "swagger-ui-bundle.js")]
    Script,
    #[schema(rename = "swagger-ui.css")]
    Style,
}

/// Get this document
#[utoipa::path(
    get, path = "/openapi.json", tag = "Documentation", operation_id = "getOpenApi", security(()),
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object, example = json!({"openapi": "3.1.0"})),
        Refused<()>,
    )
)]
pub(super) async fn document() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(openapi::served())
}

/// Read this document
///
/// As pages, in a browser. They load nothing from anywhere else.
#[utoipa::path(
    get, path = "/docs", tag = "Documentation", operation_id = "getDocs", security(()),
    responses(
        (status = 200, description = "HTML", body = String, content_type = "text/html", example = "<!doctype html>"),
        Refused<()>,
    )
)]
pub(super) async fn page() -> HttpResponse {
    served(&(
        "text/html; charset=utf-8",
        Bytes::from_static(PAGE.as_bytes()),
    ))
}

/// Get a file of the pages
#[utoipa::path(
    get, path = "/docs/{file}", tag = "Documentation", operation_id = "getDocsFile", security(()),
    params(("file" = inline(PageFile), Path, description = "Which")),
    responses(
        (status = 200, description = "The file", content(
            (String = "text/javascript", example = "SwaggerUIBundle({})"), (String = "text/css", example = "body {}"),
        )),
        Refused<(refused::File,)>,
    )
)]
pub(super) async fn file(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    static FILES: LazyLock<[(&str, Option<File>); 3]> = LazyLock::new(|| {
        [
            (
                "start.js",
                Some((
                    "text/javascript; charset=utf-8",
                    Bytes::from_static(START.as_bytes()),
                )),
            ),
            (
                "swagger-ui-bundle.js",
                packaged("swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
            ),
            (
                "swagger-ui.css",
                packaged("swagger-ui.css", "text/css; charset=utf-8"),
            ),
        ]
    });
    let asked = request.match_info().get("file").unwrap_or_default();
    FILES
        .iter()
        .find(|(name, _)| *name == asked)
        .and_then(|(_, file)| file.as_ref())
        .map(served)
        .ok_or_else(|| ApiError::not_found("file"))
}

/// A file of Swagger UI.
fn packaged(name: &str, media_type: &'static str) -> Option<File> {
    let file = utoipa_swagger_ui::serve(name, Arc::new(Config::default())).ok()??;
    Some((media_type, file.bytes.into_owned().into()))
}

fn served((media_type, body): &File) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, *media_type))
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header((
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ))
        .insert_header((header::CACHE_CONTROL, "public, max-age=300"))
        .body(body.clone())
}
