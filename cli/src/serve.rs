//! `postrider api` and `postrider worker`: the same code as the programs of those names.

use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::failure::start_failure;
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
