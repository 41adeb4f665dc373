//! NOTIFY, on a connection of its own: hints that may be lost.

use std::time::Duration;

use tokio_postgres::{GenericClient, Statement};

use super::pool::within;
use super::{Database, Role, Session, StoreError};

/// New deliveries: `slot:endpoint,…` (decimal).
pub const HINTS: &str = "postrider_hint";
/// Rows in `commands`: no payload.
pub const COMMANDS: &str = "postrider_commands";

/// How long one notification may take before the connection counts as lost.
const BUDGET: Duration = Duration::from_secs(5);

/// A notification changes no table: waiting for the disk would only delay it.
const SETTINGS: &str = "SET synchronous_commit = off";

const NOTIFY: &str = "SELECT pg_notify($1, $2)";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[("notify.notify", NOTIFY)];

/// A session that only notifies.
pub struct Notifier {
    session: Session,
    notify: Statement,
}

impl Notifier {
    /// Connects and prepares.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        let session = database.connect(Role::Api).await?;
        within(BUDGET, session.batch_execute(SETTINGS)).await?;
        let notify = within(BUDGET, session.prepare(NOTIFY)).await?;
        Ok(Self { session, notify })
    }

    /// Tells workers where new deliveries wait.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn hint(&self, payload: &str) -> Result<(), StoreError> {
        within(
            BUDGET,
            self.session.execute(&self.notify, &[&HINTS, &payload]),
        )
        .await?;
        Ok(())
    }
}

/// Tells workers where new deliveries wait; best effort, outside of any transaction.
pub async fn hint(client: &impl GenericClient, payload: &str) {
    if let Err(error) = client.execute(NOTIFY, &[&HINTS, &payload]).await {
        tracing::debug!(%error, "workers will find the new deliveries by themselves");
    }
}

/// Tells workers that there are new commands. After the commit that holds them, and best effort:
/// they look each second anyway.
pub async fn commands(client: &impl GenericClient) {
    if let Err(error) = client.execute(NOTIFY, &[&COMMANDS, &""]).await {
        tracing::debug!(%error, "workers will find the new command by themselves");
    }
}
