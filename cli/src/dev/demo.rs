//! The demo's tenant, key and endpoint: found again when they are still there, else made.

use std::net::SocketAddr;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use shared::runtime::program::Failure;
use shared::store::keys::{self, OwnerKey};
use shared::store::{Database, Role, tenants};

use super::state::{Names, State};
use crate::client::ApiClient;
use crate::key::all_scopes;
use crate::output::note;
use crate::receiver;
use crate::signature::Keys;
use crate::store::store_failure;

/// What the demo publishes with and to.
pub(super) struct Demo {
    names: Names,
    key: String,
}

impl Demo {
    /// A tenant's key: the last run's if the database still knows it.
    pub(super) async fn ensure_key(database: &Database, state: &State) -> Result<Self, Failure> {
        let names = state.names();
        let session = database.connect(Role::Maintenance).await;
        let session = session.map_err(store_failure)?;
        if let Some(key) = names.key.clone() {
            let found = keys::find(&*session, &keys::hash(&key)).await;
            if found.map_err(store_failure)?.is_some() {
                return Ok(Self { names, key });
            }
        }
        let tenant = tenants::create(&*session, None, None, "demo").await;
        let owner = OwnerKey::Tenant(tenant.map_err(store_failure)?.key);
        let made = keys::create(&*session, owner, "demo", &all_scopes(owner), None).await;
        let (_, key) = made.map_err(store_failure)?;
        let key = key.reveal().to_owned();
        let names = Names {
            key: Some(key.clone()),
            ..Names::default()
        };
        Ok(Self { names, key })
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// An endpoint at the receiver: the last run's, moved to the receiver's new port, or a new one.
    pub(super) async fn ensure_endpoint(
        &mut self,
        client: &ApiClient,
        receiver: SocketAddr,
    ) -> Result<(), Failure> {
        let url = format!("http://{receiver}/webhooks");
        if let (Some(endpoint), Some(_)) = (&self.names.endpoint, &self.names.secret) {
            let path = format!("/v1/endpoints/{endpoint}");
            let change = json!({"url": url, "enabled": true})
                .to_string()
                .into_bytes();
            let answer = client.request(Method::PATCH, &path, Some(change)).await?;
            if answer.status != StatusCode::NOT_FOUND {
                answer.success()?;
                note(&format!("demo         endpoint {endpoint} at {url}"));
                return Ok(());
            }
        }
        let endpoint = json!({
            "url": url,
            "description": "the demo receiver of `postrider dev`",
        });
        let body = endpoint.to_string().into_bytes();
        let made = client.post("/v1/endpoints", body).await?.success()?;
        let text = |name: &str| made.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(id), Some(secret)) = (text("id"), text("secret")) else {
            return Err(Failure::Failed(
                "the API made an endpoint without an id or secret".to_owned(),
            ));
        };
        note(&format!("demo         endpoint {id} at {url}"));
        self.names.endpoint = Some(id);
        self.names.secret = Some(secret);
        Ok(())
    }

    /// The secrets that the receiver checks signatures with.
    pub(super) fn keys(&self) -> Result<Keys, Failure> {
        let secret = self.names.secret.clone();
        receiver::keys(&secret.into_iter().collect::<Vec<_>>())
    }

    pub(super) fn save(&self, state: &State) -> Result<(), Failure> {
        state.save(&self.names)
    }
}
