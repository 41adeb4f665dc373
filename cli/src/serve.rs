//! `postrider api` and `postrider worker`: the same code as the programs of those names.

use shared::runtime::program::Failure;
use shared::runtime::settings::{ConfigErrors, Settings};
use shared::store::StoreError;
use tokio_util::sync::CancellationToken;

pub(crate) async fn api(settings: &Settings, shutdown: CancellationToken) -> Result<(), Failure> {
    let config = api::Config::from_settings(settings)?;
    let running = api::start(config, shutdown).await.map_err(start_failure)?;
    running.finished().await.map_err(Failure::Failed)
}

pub(crate) async fn worker(
    settings: &Settings,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let config = worker::Config::from_settings(settings)?;
    let running = worker::start(config, shutdown)
        .await
        .map_err(start_failure)?;
    running.finished().await.map_err(Failure::Failed)
}

/// Which exit code a server that cannot start deserves.
pub(crate) fn start_failure(error: anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    let is_configuration = error.chain().any(|cause| {
        cause.is::<ConfigErrors>()
            || matches!(
                cause.downcast_ref::<StoreError>(),
                Some(StoreError::Configuration(_))
            )
    });
    if is_configuration {
        Failure::Configuration(text)
    } else {
        Failure::Failed(text)
    }
}
