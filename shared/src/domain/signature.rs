//! How an endpoint's requests are signed: part of its settings.
//!
//! Not here: keys, and the signing itself ([`crate::policy::signing`]).

use serde::{Deserialize, Serialize};

/// Which header carries the signature, and in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignatureStyle {
    /// `webhook-signature`, as the Standard Webhooks specification has it.
    #[default]
    Standard,
    /// `Postrider-Signature: t=…,v1=…`, as Stripe's verifiers read it.
    Stripe,
    /// Nothing is signed.
    None,
}

/// One scheme of the Standard Webhooks specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// HMAC-SHA256 with a secret that both sides know.
    V1,
    /// Ed25519: receivers know the public key only.
    V1a,
}

/// The schemes that sign: at least one, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Scheme>", into = "Vec<Scheme>")]
pub enum Signing {
    /// `["v1"]`
    #[default]
    V1,
    /// `["v1", "v1a"]`
    Both,
    /// `["v1a"]`
    V1a,
}

/// Why a list of schemes says nothing usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(r#"must be `["v1"]`, `["v1a"]` or `["v1", "v1a"]`"#)]
pub struct WrongSchemes;

impl Signing {
    /// Whether the secret signs.
    #[must_use]
    pub const fn has_v1(self) -> bool {
        match self {
            Self::V1 | Self::Both => true,
            Self::V1a => false,
        }
    }

    /// Whether the key pair signs.
    #[must_use]
    pub const fn has_v1a(self) -> bool {
        match self {
            Self::V1a | Self::Both => true,
            Self::V1 => false,
        }
    }
}

impl TryFrom<Vec<Scheme>> for Signing {
    type Error = WrongSchemes;

    fn try_from(schemes: Vec<Scheme>) -> Result<Self, WrongSchemes> {
        match schemes.as_slice() {
            [Scheme::V1] => Ok(Self::V1),
            [Scheme::V1a] => Ok(Self::V1a),
            [Scheme::V1, Scheme::V1a] | [Scheme::V1a, Scheme::V1] => Ok(Self::Both),
            _ => Err(WrongSchemes),
        }
    }
}

impl From<Signing> for Vec<Scheme> {
    fn from(signing: Signing) -> Self {
        match signing {
            Signing::V1 => vec![Scheme::V1],
            Signing::V1a => vec![Scheme::V1a],
            Signing::Both => vec![Scheme::V1, Scheme::V1a],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_stored_as_a_list_and_a_list_that_says_nothing_is_refused() {
        for (signing, text) in [
            (Signing::V1, r#"["v1"]"#),
            (Signing::V1a, r#"["v1a"]"#),
            (Signing::Both, r#"["v1","v1a"]"#),
        ] {
            assert_eq!(serde_json::to_string(&signing).unwrap(), text);
            assert_eq!(serde_json::from_str::<Signing>(text).unwrap(), signing);
        }
        let turned = serde_json::from_str::<Signing>(r#"["v1a","v1"]"#).unwrap();
        assert_eq!(turned, Signing::Both);
        for text in ["[]", r#"["v1","v1"]"#, r#"["v2"]"#, r#""v1""#, "null"] {
            assert!(serde_json::from_str::<Signing>(text).is_err(), "{text}");
        }
    }
}
