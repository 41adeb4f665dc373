//! API and worker inside this process, on the usual ports or on free ones.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::time::Duration;

use shared::runtime::program::Failure;
use shared::runtime::settings::{Settings, Source};
use shared::store::failure::start_failure;
use tokio_util::sync::CancellationToken;

use crate::output::note;

/// How often a server that found its free port taken after all is started again: another `dev` that
/// starts at the same moment looks for free ports too.
const TRIES: u32 = 3;

type Ended = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A server that runs.
pub(super) struct Server {
    name: &'static str,
    addr: SocketAddr,
    metrics_addr: SocketAddr,
    shutdown: CancellationToken,
    /// `None` once it has been seen to end.
    ended: Option<Ended>,
}

impl Server {
    pub(super) async fn start_api(settings: &Settings) -> Result<Self, Failure> {
        let mut tries = 1;
        loop {
            let settings = choose(settings, "POSTRIDER_API_ADDR", local(8080), "API", tries)?;
            let settings = choose(
                &settings,
                "POSTRIDER_METRICS_ADDR",
                local(9464),
                "API metrics",
                tries,
            )?;
            let shutdown = CancellationToken::new();
            let config = api::Config::from_settings(&settings)?;
            match Box::pin(api::start(config, shutdown.clone())).await {
                Ok(running) => {
                    note(&format!("API          http://{}", running.addr));
                    return Ok(Self {
                        name: "the API",
                        addr: running.addr,
                        metrics_addr: running.metrics_addr,
                        shutdown,
                        ended: Some(Box::pin(running.finished())),
                    });
                }
                Err(error) if tries < TRIES && is_taken(&error) => tries += 1,
                Err(error) => return Err(start_failure(error)),
            }
        }
    }

    pub(super) async fn start_worker(settings: &Settings) -> Result<Self, Failure> {
        let mut tries = 1;
        loop {
            let settings = choose(
                settings,
                "POSTRIDER_METRICS_ADDR",
                local(9465),
                "worker metrics",
                tries,
            )?;
            let shutdown = CancellationToken::new();
            let config = worker::Config::from_settings(&settings)?;
            match Box::pin(worker::start(config, shutdown.clone())).await {
                Ok(running) => {
                    note("worker       up");
                    return Ok(Self {
                        name: "the worker",
                        addr: running.metrics_addr,
                        metrics_addr: running.metrics_addr,
                        shutdown,
                        ended: Some(Box::pin(running.finished())),
                    });
                }
                Err(error) if tries < TRIES && is_taken(&error) => tries += 1,
                Err(error) => return Err(start_failure(error)),
            }
        }
    }

    pub(super) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) const fn metrics_addr(&self) -> SocketAddr {
        self.metrics_addr
    }

    /// Waits until it has ended by itself.
    pub(super) async fn ended(&mut self) -> Result<(), String> {
        match &mut self.ended {
            Some(ended) => {
                let result = ended.await;
                self.ended = None;
                result
            }
            None => std::future::pending().await,
        }
    }

    /// Tells it to stop and waits until it has.
    pub(super) async fn stop(self, grace: Duration) -> Result<(), Failure> {
        self.shutdown.cancel();
        let Some(ended) = self.ended else {
            return Ok(());
        };
        match tokio::time::timeout(grace, ended).await {
            Ok(result) => result.map_err(|why| Failure::Failed(format!("{}: {why}", self.name))),
            Err(_elapsed) => Err(Failure::Failed(format!(
                "{} did not stop within {grace:?}",
                self.name
            ))),
        }
    }
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The settings with an address that is free: what was asked for, else the usual one, else any port.
fn choose(
    settings: &Settings,
    name: &str,
    usual: SocketAddr,
    what: &str,
    tries: u32,
) -> Result<Settings, Failure> {
    if settings.source(name) != Source::Default {
        return Ok(settings.clone());
    }
    let mut addr = usual;
    if tries > 1 || TcpListener::bind(usual).is_err() {
        note(&format!(
            "{what}: port {} is taken, using a free one",
            usual.port()
        ));
        addr.set_port(0);
    }
    Ok(settings.clone().with(name, &addr.to_string())?)
}

fn is_taken(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::AddrInUse)
    })
}
