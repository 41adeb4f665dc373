//! What an endpoint signs with: made, rotated, revoked; and its public keys, for whoever asks.
//!
//! # Invariants
//! - S2: a secret is in the reply that made it and in no other. Of a key pair only the public half is ever
//!   shown.
//! - Nobody learns from the key set whether an endpoint exists.

use std::collections::HashMap;

use actix_web::http::{StatusCode, header};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use deadpool_postgres::Transaction;
use serde::{Deserialize, Serialize};
use shared::domain::audit::Object;
use shared::ids::{EndpointId, EndpointKey};
use shared::policy::signing::{InvalidKey, KeyPair, PublicKey, Secret};
use shared::runtime::jitter;
use shared::store::endpoint_secrets::{
    self as store, MAX_LIVE, NewPair, Rotated, pair_context, secret_context,
};
use shared::store::endpoints::{self, Endpoint};
use shared::store::notify;
use tokio_postgres::GenericClient;
use utoipa::ToSchema;
use uuid::Uuid;

use super::endpoints::{locked, to_change};
use super::{App, State, json as reply};
use crate::audit;
use crate::auth::Caller;
use crate::instant::Instant;
use crate::json::{self, Fields};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::Query;
use crate::problem::{ApiError, Kind};

/// A day: receivers that are deployed by people get through.
const DEFAULT_OVERLAP_SECONDS: u32 = 86_400;
const LONGEST_OVERLAP_SECONDS: u32 = 7 * 86_400;

/// How long a key set may be cached, in seconds. Shorter asks for more requests than keys change; longer
/// makes a rotation without overlap, which replaces a leaked key, wait for receivers' caches.
const KEY_SET_MAX_AGE: &str = "public, max-age=60";

/// A new secret, and what is stored of it.
pub(super) fn new_secret(state: &State, endpoint: Uuid) -> (Secret, Vec<u8>) {
    let secret = Secret::generate(jitter::bytes());
    let sealed = state
        .config
        .master_keys
        .seal(secret.as_bytes(), &secret_context(endpoint));
    (secret, sealed)
}

fn new_pair(state: &State, endpoint: Uuid) -> (PublicKey, Vec<u8>) {
    let pair = KeyPair::generate(jitter::bytes());
    let sealed = state
        .config
        .master_keys
        .seal(pair.seed(), &pair_context(endpoint));
    (pair.public_key(), sealed)
}

/// Makes the key pair of an endpoint that asks for one and has none.
pub(super) async fn ensure_pair(
    state: &State,
    transaction: &Transaction<'_>,
    endpoint: &Endpoint,
) -> Result<(), ApiError> {
    let wanted = endpoint.draft.settings.signs_with_key_pair();
    if !wanted || store::has_pair(&**transaction, endpoint.key).await? {
        return Ok(());
    }
    let (public, sealed) = new_pair(state, endpoint.id);
    let pair = NewPair {
        public_key: public.as_bytes(),
        sealed: &sealed,
    };
    Ok(store::add_pair(transaction, endpoint.key, pair).await?)
}

/// The public keys that these endpoints sign with, as texts, the current one first.
pub(super) async fn public_keys(
    client: &impl GenericClient,
    endpoints: &[Endpoint],
) -> Result<HashMap<EndpointKey, Vec<String>>, ApiError> {
    let asked: Vec<EndpointKey> = endpoints
        .iter()
        .filter(|endpoint| endpoint.draft.settings.signs_with_key_pair())
        .map(|endpoint| endpoint.key)
        .collect();
    let mut shown = HashMap::new();
    for (endpoint, keys) in store::public_keys(client, &asked).await? {
        let keys = parse(&keys)?;
        shown.insert(endpoint, keys.iter().map(ToString::to_string).collect());
    }
    Ok(shown)
}

fn parse(keys: &[Vec<u8>]) -> Result<Vec<PublicKey>, ApiError> {
    let keys: Result<_, InvalidKey> = keys.iter().map(|key| PublicKey::from_bytes(key)).collect();
    keys.map_err(|error| {
        tracing::error!(%error, "a stored public key cannot be read");
        ApiError::new(Kind::Internal, "the cause is in the log of the server")
    })
}

/// Rotate an endpoint's secret
///
/// The only other reply that holds a secret. Those before it sign as well until the overlap ends.
#[utoipa::path(
    post, path = "/v1/endpoints/{id}/secret/rotate", tag = "Endpoints", operation_id = "rotateSecret", security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id")),
    request_body(content = Option<RotateSecret>, example = json!({"overlap_seconds": 3600})),
    responses(
        (status = 200, description = "The new secret", body = RotatedSecret, example = json!({
            "id": example::ENDPOINT, "secret": "whsec_c2VjcmV0IHRoYXQgbm9ib2R5IGVsc2Uga25vd3M=", "public_key": null,
            "previous_end_at": example::LATER,
        })),
        Refused<(refused::Key, refused::Id, refused::Post, refused::Body, refused::Limit)>,
    )
)]
pub(super) async fn rotate(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let (caller, id) = to_change(&app, &request).await?;
    let tenant = caller.tenant;
    let body = json::read(&request, payload, json::MOST_BYTES).await?;
    let mut fields = Fields::parse(&body)?;
    let overlap = fields
        .number("overlap_seconds", 0, LONGEST_OVERLAP_SECONDS)
        .unwrap_or(DEFAULT_OVERLAP_SECONDS);
    fields.finish()?;
    let (secret, sealed) = new_secret(&app, id.0);

    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let endpoint = locked(&transaction, tenant, id.0).await?;
    // A pair that is not used at the moment is rotated as well: it may be used again.
    let pair = if store::has_pair(&*transaction, endpoint.key).await? {
        Some(new_pair(&app, endpoint.id))
    } else {
        None
    };
    let new_pair = pair.as_ref().map(|(public, sealed)| NewPair {
        public_key: public.as_bytes(),
        sealed,
    });
    let rotated = store::rotate(&transaction, endpoint.key, overlap, (&sealed, new_pair)).await?;
    let last_end = match rotated {
        Rotated::Done { last_end } => last_end,
        Rotated::TooMany => return Err(too_many()),
    };
    changed(
        &transaction,
        (&request, caller),
        &endpoint,
        "endpoint.secret_rotated",
    )
    .await?;
    transaction.commit().await?;
    notify::commands(&**client).await;
    drop(client);

    let used = endpoint.draft.settings.signs_with_key_pair();
    let public = pair.filter(|_| used).map(|(public, _)| public.to_string());
    let rotated = RotatedSecret {
        id,
        secret: secret.reveal(),
        public_key: public,
        previous_end_at: last_end.map(Instant),
    };
    reply(StatusCode::OK, &rotated)
}

/// How a secret is to be rotated.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
struct RotateSecret {
    /// How long the secrets before it sign as well: a day if absent.
    #[schema(minimum = 0, maximum = 604_800)]
    overlap_seconds: Option<u32>,
}

/// A new secret.
#[derive(Serialize, ToSchema)]
struct RotatedSecret {
    #[schema(value_type = schema::EndpointId)]
    id: EndpointId,
    /// In this reply and no other.
    secret: String,
    /// The new public key, if the endpoint signs with one.
    #[schema(required)]
    public_key: Option<String>,
    /// When the last of the secrets before it ends; null if none is left.
    #[schema(required)]
    previous_end_at: Option<Instant>,
}

/// What a revocation ended.
#[derive(Serialize, ToSchema)]
struct RevokedSecrets {
    #[schema(value_type = schema::EndpointId)]
    id: EndpointId,
    /// How many keys were live and are no more.
    revoked: usize,
}

/// Public keys (RFC 7517).
#[derive(Serialize, ToSchema)]
struct KeySet {
    keys: Vec<JsonWebKey>,
}

/// An Ed25519 key (RFC 8037).
#[derive(Serialize, ToSchema)]
struct JsonWebKey {
    kty: &'static str,
    crv: &'static str,
    alg: &'static str,
    r#use: &'static str,
    kid: String,
    x: String,
}

/// Tells workers and the audit log that an endpoint's secrets are others, in the transaction that changes them.
async fn changed(
    transaction: &Transaction<'_>,
    (request, caller): (&HttpRequest, Caller),
    endpoint: &Endpoint,
    action: &'static str,
) -> Result<(), ApiError> {
    endpoints::raise(transaction, caller.tenant, endpoint).await?;
    let object = Object::new("endpoint", endpoint.id);
    audit::record(
        &**transaction,
        (request, caller),
        action,
        object,
        &["secret"],
    )
    .await?;
    Ok(())
}

fn too_many() -> ApiError {
    let detail = format!(
        "{MAX_LIVE} secrets are live: end those before the current one with \
         POST /v1/endpoints/{{id}}/secret/revoke, or rotate with \"overlap_seconds\": 0, or wait until \
         overlaps end"
    );
    ApiError::new(Kind::LimitReached, detail)
}

/// Revoke an endpoint's earlier secrets
///
/// Two seconds after the reply nothing is signed any more with what came before the current secret.
#[utoipa::path(
    post, path = "/v1/endpoints/{id}/secret/revoke", tag = "Endpoints", operation_id = "revokeSecrets", security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id")),
    responses(
        (status = 200, description = "How many ended", body = RevokedSecrets,
         example = json!({"id": example::ENDPOINT, "revoked": 1})),
        Refused<(refused::Key, refused::Id, refused::Post)>,
    )
)]
pub(super) async fn revoke(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (caller, id) = to_change(&app, &request).await?;
    let tenant = caller.tenant;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let endpoint = locked(&transaction, tenant, id.0).await?;
    let revoked = store::revoke(&transaction, endpoint.key).await?;
    if revoked > 0 {
        changed(
            &transaction,
            (&request, caller),
            &endpoint,
            "endpoint.secrets_revoked",
        )
        .await?;
    }
    transaction.commit().await?;
    if revoked > 0 {
        notify::commands(&**client).await;
    }
    drop(client);
    reply(StatusCode::OK, &RevokedSecrets { id, revoked })
}

/// Get an endpoint's public keys
///
/// A JSON Web Key Set (RFC 7517, RFC 8037) of those that live. For anybody: a receiver has no key of ours.
#[utoipa::path(
    get, path = "/.well-known/jwks.json", tag = "Endpoints", operation_id = "getKeySet", security(()),
    params(("endpoint" = schema::EndpointId, Query, description = "The endpoint's id")),
    responses(
        (status = 200, description = "None for an endpoint that has none, or does not exist", body = KeySet,
         content_type = "application/jwk-set+json", example = json!({"keys": [{
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig",
            "kid": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
         }]})),
        Refused<(refused::Query,)>,
    )
)]
pub(super) async fn key_set(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = Query::parse(&request, &["endpoint"])?;
    let id: EndpointId = query.id("endpoint")?.ok_or_else(|| {
        let detail = "`endpoint` is missing: each endpoint has keys of its own; \
                      ask for /.well-known/jwks.json?endpoint=ep_…";
        ApiError::new(Kind::InvalidParameter, detail)
    })?;
    let client = app.client().await?;
    let keys = store::published(&**client, id.0).await?;
    drop(client);
    let keys = parse(&keys)?.iter().map(jwk).collect();
    let mut response = reply(StatusCode::OK, &KeySet { keys })?;
    response.headers_mut().insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static(KEY_SET_MAX_AGE),
    );
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/jwk-set+json"),
    );
    Ok(response)
}

fn jwk(key: &PublicKey) -> JsonWebKey {
    JsonWebKey {
        kty: "OKP",
        crv: "Ed25519",
        alg: "EdDSA",
        r#use: "sig",
        kid: key.thumbprint(),
        x: key.jwk_x(),
    }
}
