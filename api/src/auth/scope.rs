//! What a key may do: a closed set, because a scope that nobody checks is a promise.

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    EventsWrite,
    EndpointsWrite,
    Read,
    Replay,
    TenantsWrite,
    KeysWrite,
    DataDelete,
}

impl Scope {
    pub(crate) const ALL: [Self; 7] = [
        Self::EventsWrite,
        Self::EndpointsWrite,
        Self::Read,
        Self::Replay,
        Self::TenantsWrite,
        Self::KeysWrite,
        Self::DataDelete,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::EventsWrite => "events:write",
            Self::EndpointsWrite => "endpoints:write",
            Self::Read => "read",
            Self::Replay => "replay",
            Self::TenantsWrite => "tenants:write",
            Self::KeysWrite => "keys:write",
            Self::DataDelete => "data:delete",
        }
    }

    pub(super) const fn bit(self) -> u8 {
        match self {
            Self::EventsWrite => 1,
            Self::EndpointsWrite => 2,
            Self::Read => 4,
            Self::Replay => 8,
            Self::TenantsWrite => 16,
            Self::KeysWrite => 32,
            Self::DataDelete => 64,
        }
    }
}
