//! What each module's statements cost, by `pg_stat_statements`.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::Client;

/// What the statements of a module took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) calls: i64,
    pub(super) ms: f64,
}

/// Begins anew.
pub(super) async fn forget(client: &Client) -> anyhow::Result<()> {
    client
        .query("SELECT pg_stat_statements_reset()", &[])
        .await?;
    Ok(())
}

/// By module of the store; what is none of its statements is `other`.
pub(super) async fn spent(client: &Client) -> anyhow::Result<BTreeMap<String, Spent>> {
    const QUERY: &str =
        "SELECT query, calls, total_exec_time + total_plan_time FROM pg_stat_statements";
    let modules: HashMap<String, &str> = shared::store::statements()
        .map(|(name, sql)| {
            let module = name.split(['.', ':']).next().unwrap_or(name);
            (shape(sql), module)
        })
        .collect();
    let mut spent: BTreeMap<String, Spent> = BTreeMap::new();
    for row in client.query(QUERY, &[]).await? {
        let module = modules.get(&shape(row.get(0))).copied().unwrap_or("other");
        let sum = spent.entry(module.to_owned()).or_default();
        sum.calls += row.get::<_, i64>(1);
        sum.ms += row.get::<_, f64>(2);
    }
    Ok(spent)
}

/// The ids of the statements with these names, of those that ran.
pub(super) async fn queries_of(client: &Client, names: &[&str]) -> anyhow::Result<Vec<i64>> {
    const QUERY: &str = "SELECT query, queryid FROM pg_stat_statements";
    let wanted = shared::store::statements().filter(|(name, _)| names.contains(name));
    let wanted: Vec<String> = wanted.map(|(_, sql)| shape(sql)).collect();
    let rows = client.query(QUERY, &[]).await?;
    let rows = rows
        .iter()
        .filter(|row| wanted.contains(&shape(row.get(0))));
    Ok(rows.map(|row| row.get(1)).collect())
}

/// A statement without its constants and parameters, which are one and the same there.
fn shape(sql: &str) -> String {
    let mut shape = String::with_capacity(sql.len());
    let mut letters = sql.chars().peekable();
    let mut word = false;
    while let Some(letter) = letters.next() {
        let begins_value = !word && (letter == '$' || letter == '\'' || letter.is_ascii_digit());
        word = letter.is_alphanumeric() || letter == '_';
        if letter.is_whitespace() {
            continue;
        }
        if !begins_value {
            shape.push(letter);
            continue;
        }
        shape.push('?');
        if letter == '\'' {
            letters.by_ref().find(|it| *it == '\'');
        } else {
            while letters
                .next_if(|it| it.is_ascii_digit() || *it == '.')
                .is_some()
            {}
        }
    }
    for name in ["true", "false", "NULL"] {
        shape = shape.replace(name, "?");
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_known_by_its_shape() {
        let sent = "SELECT a1, now() - interval '1 day'\nFROM t WHERE x = $1 AND y > 10 AND NOT z IS true LIMIT 5";
        let kept = "SELECT a1, now() - interval $2\nFROM t WHERE x = $1 AND y > $3 AND NOT z IS $4 LIMIT $5";

        assert_eq!(shape(sent), shape(kept));
        assert_ne!(shape(sent), shape("SELECT a2 FROM t"));
    }
}
