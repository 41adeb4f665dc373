//! The pools of API processes, from their `/metrics`: the database does not know who waits for a connection.

use std::time::Duration;

use shared::policy::doctor::{Finding, Pool};

/// One process.
const BUDGET: Duration = Duration::from_secs(3);
/// Where an API's metrics are unless it was told otherwise.
const DEFAULT: &str = "127.0.0.1:9464";
/// A page of metrics is some tens of kilobytes.
const LARGEST: usize = 4 << 20;

/// Asks each address. Nobody at the default address is no finding: the API runs elsewhere.
pub(super) async fn findings(addresses: &[String]) -> Vec<Finding> {
    if addresses.is_empty() {
        return ask(DEFAULT)
            .await
            .ok()
            .into_iter()
            .map(|pool| pool.finding())
            .collect();
    }
    let mut findings = Vec::new();
    for addr in addresses {
        findings.push(match ask(addr).await {
            Ok(pool) => pool.finding(),
            Err(why) => Finding::unknown(
                "pool",
                format!("{addr}: {why}"),
                "name the metrics address of an API process (its POSTRIDER_METRICS_ADDR), HOST:PORT",
            ),
        });
    }
    findings
}

async fn ask(addr: &str) -> Result<Pool, String> {
    // Fails only when another part of the process was first, with the same provider.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::trace!("a TLS provider was there already");
    }
    let client = reqwest::Client::builder()
        .timeout(BUDGET)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|error| error.to_string())?;
    let sent = client.get(format!("http://{addr}/metrics")).send().await;
    let mut answer = sent.map_err(|error| error.without_url().to_string())?;
    let mut body = Vec::new();
    while let Some(some) = answer
        .chunk()
        .await
        .map_err(|error| error.without_url().to_string())?
    {
        body.extend_from_slice(&some);
        if body.len() > LARGEST {
            return Err("this is no page of metrics: too large".to_owned());
        }
    }
    read(addr, &String::from_utf8_lossy(&body))
        .ok_or_else(|| "it has no postrider_db_pool".to_owned())
}

/// Reads the pool out of Prometheus's text format.
fn read(addr: &str, page: &str) -> Option<Pool> {
    let value = |state: &str| {
        let name = format!("postrider_db_pool{{state=\"{state}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&name))?;
        line.trim().parse::<u64>().ok()
    };
    Some(Pool {
        addr: addr.to_owned(),
        waiting: value("waiting")?,
        in_use: (value("in_use")?, value("max")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_read_out_of_a_page_of_metrics() {
        let page = "# TYPE postrider_db_pool gauge\npostrider_db_pool{state=\"idle\"} 1\n\
                    postrider_db_pool{state=\"in_use\"} 7\npostrider_db_pool{state=\"max\"} 8\n\
                    postrider_db_pool{state=\"waiting\"} 3\n";
        let pool = read("h:1", page).unwrap();
        assert_eq!((pool.waiting, pool.in_use), (3, (7, 8)));
        assert_eq!(read("h:1", "up 1\n"), None);
    }
}
