//! `postrider dev`: everything on one machine, for a first look and for development.
//!
//! It brings up, in this order: PostgreSQL (a private one, or `DATABASE_URL`), the schema, the API, a
//! demo receiver with a demo tenant, key and endpoint, a worker; then it publishes an event and waits
//! until the receiver has it. It stops them in the order that loses nothing: the API first, so that
//! nothing new comes; the worker, which finishes what is on the wire; the receiver; PostgreSQL.
//!
//! Not for production: the receiver is a demo, and keys lie in `.postrider` (readable by their owner).

mod demo;
mod first_event;
mod postgres;
mod servers;
mod state;

use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use tokio_util::sync::CancellationToken;

use crate::client::ApiClient;
use crate::listen::Printer;
use crate::output::{Output, note};
use crate::receiver::{Receiver, status};
use demo::Demo;
use postgres::DevDatabase;
use servers::Server;
use state::State;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Starts PostgreSQL, the API, a worker and a demo receiver, makes a demo tenant with a key and an
endpoint, and delivers a first event before your eyes. The last line printed is a `curl` to paste
into a second terminal. Ctrl-C stops all of it; a second Ctrl-C does so at once.

Database and keys are kept in ./.postrider; remove that folder to start afresh.

Examples:
  postrider dev
  postrider dev --ephemeral                     keep nothing
  DATABASE_URL=postgres://… postrider dev       use this database instead of a private one")]
pub(crate) struct Args {
    /// Keep nothing: a database that is removed at the end
    #[arg(long)]
    ephemeral: bool,
}

/// Longest wait for what a stopped part still does, beyond its own drain.
const STOP_GRACE: Duration = Duration::from_secs(10);

pub(crate) async fn run(
    args: &Args,
    settings: &Settings,
    output: Output,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let mut stack = Stack::default();
    let up = tokio::select! {
        up = Box::pin(stack.bring_up(args, settings, output)) => up,
        () = shutdown.cancelled() => Ok(()),
    };
    let result = match up {
        Ok(()) => stack.watch(&shutdown).await,
        Err(failure) => Err(failure),
    };
    if shutdown.is_cancelled() {
        note("\nstopping …");
    }
    let stopped = stack.stop(settings.duration("POSTRIDER_DRAIN_TIMEOUT") + STOP_GRACE);
    result.and(stopped.await)?;
    note("stopped");
    Ok(())
}

/// What runs, so that it can be stopped from wherever bringing it up got to.
#[derive(Default)]
struct Stack {
    database: Option<DevDatabase>,
    receiver: Option<CancellationToken>,
    printing: Option<tokio::task::JoinHandle<()>>,
    api: Option<Server>,
    worker: Option<Server>,
}

impl Stack {
    async fn bring_up(
        &mut self,
        args: &Args,
        settings: &Settings,
        output: Output,
    ) -> Result<(), Failure> {
        let began = boot_time();
        let state = State::open(settings, args.ephemeral)?;
        let database = self
            .database
            .insert(DevDatabase::start(settings, &state).await?);
        let settings = state.settings(settings, database.url())?;
        let store = database.migrate().await?;

        let receiver = Receiver::bind(([127, 0, 0, 1], 0).into())?;
        let receiver_addr = receiver.addr();
        let api = self.api.insert(Server::start_api(&settings).await?);
        let url = format!("http://{}", api.addr());
        let mut demo = Demo::ensure_key(&store, &state).await?;
        let client = ApiClient::new(&url, demo.key(), None)?;
        demo.ensure_endpoint(&client, receiver_addr).await?;
        demo.save(&state)?;

        let token = CancellationToken::new();
        let ok = status(200).map_err(Failure::Failed)?;
        let received = receiver.serve(demo.keys()?, ok, token.clone())?;
        self.receiver = Some(token);
        let worker = self.worker.insert(Server::start_worker(&settings).await?);

        let (seen, delivered) = first_event::watch(received, Printer::new(output));
        self.printing = Some(seen);
        let event = first_event::publish(&client).await?;
        let lag = delivered.wait_for(&event, &client).await?;
        let summary = Summary {
            url: &url,
            api: api.metrics_addr(),
            worker: worker.metrics_addr(),
            receiver: receiver_addr,
            key: demo.key(),
            state: &state,
            database_url: database.embedded_url(),
        };
        summary.print(lag, boot_time().since(began), output);
        Ok(())
    }

    /// Waits until it shall stop, or one of the parts ends by itself.
    async fn watch(&mut self, shutdown: &CancellationToken) -> Result<(), Failure> {
        let (Some(database), Some(api), Some(worker)) =
            (&mut self.database, &mut self.api, &mut self.worker)
        else {
            return Ok(());
        };
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            ended = api.ended() => Err(early("the API", ended)),
            ended = worker.ended() => Err(early("the worker", ended)),
            why = database.ended() => Err(Failure::Failed(format!("PostgreSQL ended: {why}"))),
        }
    }

    async fn stop(self, grace: Duration) -> Result<(), Failure> {
        let mut result = Ok(());
        for server in [self.api, self.worker].into_iter().flatten() {
            result = result.and(server.stop(grace).await);
        }
        if let Some(receiver) = self.receiver {
            receiver.cancel();
        }
        if let Some(printing) = self.printing
            && printing.await.is_err()
        {
            note("the demo receiver failed");
        }
        if let Some(database) = self.database {
            result = result.and(database.stop().await);
        }
        result
    }
}

fn early(what: &str, ended: Result<(), String>) -> Failure {
    let why = ended.err().unwrap_or_else(|| "without a reason".to_owned());
    Failure::Failed(format!("{what} ended by itself: {why}"))
}

/// What to know about what runs.
struct Summary<'a> {
    url: &'a str,
    api: std::net::SocketAddr,
    worker: std::net::SocketAddr,
    receiver: std::net::SocketAddr,
    key: &'a str,
    state: &'a State,
    database_url: Option<&'a str>,
}

/// Whether what is to be pasted can be run here: a fresh Debian has no curl.
fn has_curl() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("curl").is_file())
}

impl Summary<'_> {
    /// What to paste where there is no curl.
    fn send_line(&self) -> String {
        let program = std::env::current_exe().map_or_else(
            |_unknown| "postrider".to_owned(),
            |path| path.display().to_string(),
        );
        format!(
            "{program} send --url {} --key {} --type order.created '{{\"id\":2}}'",
            self.url, self.key
        )
    }

    fn print(&self, lag: Duration, took: Duration, output: Output) {
        let curl = format!(
            "curl -sS {}/v1/events -H 'Authorization: Bearer {}' \
             -H 'Content-Type: application/json' \
             -d '{{\"type\":\"order.created\",\"payload\":{{\"id\":2,\"total\":\"19.90\"}}}}'",
            self.url, self.key
        );
        let document = serde_json::json!({
            "api_url": self.url,
            "api_metrics_url": format!("http://{}/metrics", self.api),
            "worker_metrics_url": format!("http://{}/metrics", self.worker),
            "receiver_url": format!("http://{}/", self.receiver),
            "key": self.key,
            "database_url": self.database_url,
            "curl": curl,
        });
        output.result(&document, |_| {
            let mut lines = vec![format!(
                "\nThe event was accepted, signed, sent and received in {:.1} ms; \
                 everything was up in {:.1} s.\n",
                lag.as_secs_f64() * 1_000.0,
                took.as_secs_f64()
            )];
            let mut row = |name: &str, value: &str| lines.push(format!("{name:<10} {value}"));
            row("API", &format!("{}/v1", self.url));
            row("key", self.key);
            row("admin", &self.state.admin_hint());
            // One process, one registry: both addresses show the same.
            row(
                "metrics",
                &format!("http://{}/metrics (API and worker)", self.api),
            );
            row("", &format!("make observe TARGETS={}", self.api));
            row("receiver", &format!("http://{}/", self.receiver));
            if let Some(url) = self.database_url {
                row("database", &format!("psql '{url}'"));
            }
            if !has_curl() {
                row("no curl?", &self.send_line());
            }
            lines.push(
                "\nCtrl-C stops all of it. Paste this into a second terminal, and watch your own \
                 event arrive here:\n"
                    .to_owned(),
            );
            lines.push(curl);
            lines.join("\n")
        });
    }
}
