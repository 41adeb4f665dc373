//! What one request went through: how long each part took, what is under way, which addresses were
//! dialled.

use std::net::IpAddr;
use std::time::Duration;

use shared::policy::classify::Phase;
use shared::runtime::clock::{BootTime, boot_time};

/// How long each part took. `None`: it did not happen, or did not end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timings {
    /// Looking up the name.
    pub dns: Option<Duration>,
    /// The TCP connection; through a proxy, the proxy's to the receiver as well.
    pub connect: Option<Duration>,
    /// The TLS handshake.
    pub tls: Option<Duration>,
    /// From the start to the head of the answer.
    pub first_byte: Option<Duration>,
    /// From the start to the end.
    pub total: Duration,
    /// The address that was sent to, or the last one dialled in vain.
    pub addr: Option<IpAddr>,
    /// Every address dialled, in order; empty when a connection was used again.
    pub dialled: Vec<IpAddr>,
    /// The request went over a connection that had carried others before.
    pub reused: bool,
}

/// The notes on one request.
pub(super) struct Trace {
    started: BootTime,
    phase: Phase,
    entered: BootTime,
    timings: Timings,
}

impl Trace {
    pub(super) fn start() -> Self {
        let now = boot_time();
        Self {
            started: now,
            phase: Phase::Response,
            entered: now,
            timings: Timings::default(),
        }
    }

    /// The next part begins, and the one under way has ended well.
    pub(super) fn enter(&mut self, phase: Phase) {
        let now = boot_time();
        let took = Some(now.since(self.entered));
        match self.phase {
            Phase::Dns => self.timings.dns = took,
            Phase::Connect => self.timings.connect = took,
            Phase::Tls => self.timings.tls = took,
            Phase::Response => {}
        }
        self.phase = phase;
        self.entered = now;
    }

    /// What is under way.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn dials(&mut self, address: IpAddr) {
        self.timings.dialled.push(address);
        self.timings.addr = Some(address);
    }

    pub(super) fn sends_to(&mut self, address: IpAddr, reused: bool) {
        self.timings.addr = Some(address);
        self.timings.reused = reused;
    }

    pub(super) fn answered(&mut self) {
        self.timings.first_byte = Some(boot_time().since(self.started));
    }

    pub(super) fn into_timings(self) -> Timings {
        Timings {
            total: boot_time().since(self.started),
            ..self.timings
        }
    }
}
