//! Why a name has no addresses. Texts hold no name: they are stored and shown.

use shared::policy::classify::{SendError, Shortage};

/// Why a look-up gave no address. Told from other errors by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub(in crate::sender) enum LookupFailed {
    /// NXDOMAIN.
    #[error("there is no such name")]
    NoSuchName,
    /// The name is there, and has neither an IPv4 nor an IPv6 address.
    #[error("the name has no address")]
    NoAddress,
    /// SERVFAIL, or an answer that cannot be understood.
    #[error("the DNS server failed to look it up")]
    ServerFailure,
    /// Silence.
    #[error("the DNS server did not answer in time")]
    TimedOut,
    /// REFUSED.
    #[error("the DNS server refused to look it up")]
    Refused,
    /// No server to ask.
    #[error("no DNS server could be reached")]
    Unreachable,
    /// DNS holds no such name: a label is empty or longer than 63 bytes, all of it is longer than
    /// 253, or it ends in a number like an address.
    #[error("it is not a name that DNS can hold")]
    MalformedName,
    /// Never had its turn (O1).
    #[error("too many look-ups are under way")]
    Overloaded,
    /// Nobody was asked: this machine had no socket for it.
    #[error("it could not be asked for: {0}")]
    NoSocket(Shortage),
    /// A bug of ours.
    #[error("the look-up broke off")]
    BrokeOff,
}

impl LookupFailed {
    /// What it means for a request: `otherwise` says so of its text, unless nobody was asked.
    pub(in crate::sender) fn explained(
        self,
        otherwise: impl FnOnce(String) -> SendError,
    ) -> SendError {
        if let Self::NoSocket(short) = self {
            return SendError::NoSocket(short);
        }
        otherwise(self.to_string())
    }

    /// Whether this is what DNS says about the name. All else says nothing about it, and leaves
    /// the last good answer as true as it was.
    #[must_use]
    pub(super) const fn is_answer(self) -> bool {
        match self {
            Self::NoSuchName | Self::NoAddress | Self::MalformedName => true,
            Self::ServerFailure
            | Self::TimedOut
            | Self::Refused
            | Self::Unreachable
            | Self::Overloaded
            | Self::NoSocket(_)
            | Self::BrokeOff => false,
        }
    }
}
