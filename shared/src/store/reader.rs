//! Who reads lists: by statements that a pool's connection keeps.
//!
//! A statement over three tables with forty partitions each takes longer to plan than to execute, so its plan is kept, and
//! is one for any values: [`super::snapshot`] sees to that. A connection of one's own plans anew each time.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::StoreError;

/// Something that rows can be read from.
pub trait Reader: Sync {
    /// The rows of a statement of the store.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn rows(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;
}

impl Reader for Client {
    async fn rows(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        Ok(self.query(sql, params).await?)
    }
}

impl Reader for tokio_postgres::Transaction<'_> {
    async fn rows(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        Ok(self.query(sql, params).await?)
    }
}

impl Reader for deadpool_postgres::Transaction<'_> {
    async fn rows(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepare_cached(sql).await?;
        Ok(self.query(&statement, params).await?)
    }
}
