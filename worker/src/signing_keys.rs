//! What an endpoint's requests are signed with, opened and ready; and the header that it makes of one.
//!
//! # Invariants
//! - P1 the signature covers the bytes that are sent.
//! - An endpoint that is to sign and has nothing to sign with sends nothing: a receiver that does not check
//!   would not notice.

use http::header::{HeaderName, HeaderValue};
use shared::domain::endpoint::EndpointSettings;
use shared::domain::signature::SignatureStyle;
use shared::policy::signing::{KeyPair, Secret, Signed, sign_ed25519, sign_standard, sign_stripe};
use shared::sealing::MasterKeys;
use shared::store::endpoint_configs::{SealedKey, StoredEndpoint};
use shared::store::endpoint_secrets::{pair_context, secret_context};
use time::OffsetDateTime;

const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const POSTRIDER_SIGNATURE: HeaderName = HeaderName::from_static("postrider-signature");

/// Live keys of one version of an endpoint: those that its settings use, and no others.
#[derive(Debug, Default)]
pub struct SigningKeys {
    /// Which header, in which form.
    pub style: SignatureStyle,
    /// The current one first.
    pub secrets: Vec<Live<Secret>>,
    /// The current one first.
    pub pairs: Vec<Live<KeyPair>>,
}

/// A key and, after a rotation, the end of its overlap.
#[derive(Debug)]
pub struct Live<K> {
    /// Redacted in `Debug`.
    pub key: K,
    /// Not used from this instant on.
    pub expires_at: Option<OffsetDateTime>,
}

impl SigningKeys {
    /// Opens what these settings use. None at all is an error, unless nothing is to be signed.
    ///
    /// # Errors
    /// What cannot be opened, without showing it.
    pub fn open(
        keys: &MasterKeys,
        stored: &StoredEndpoint,
        settings: &EndpointSettings,
    ) -> Result<Self, String> {
        let id = stored.id.0;
        let mut opened = Self {
            style: settings.signature,
            ..Self::default()
        };
        if settings.signs_with_secret() {
            opened.secrets = open_all(&stored.sealed_secrets, |sealed| {
                let key = keys.open(sealed, &secret_context(id));
                let key = key.map_err(|error| error.to_string())?;
                Secret::from_bytes(&key).map_err(|error| error.to_string())
            })?;
        }
        if settings.signs_with_key_pair() {
            opened.pairs = open_all(&stored.sealed_key_pairs, |sealed| {
                let seed = keys.open(sealed, &pair_context(id));
                let seed = seed.map_err(|error| error.to_string())?;
                KeyPair::from_seed(&seed).map_err(|error| error.to_string())
            })?;
            check_published(&opened.pairs, &stored.public_keys)?;
        }
        if settings.signs_with_secret() && opened.secrets.is_empty()
            || settings.signs_with_key_pair() && opened.pairs.is_empty()
        {
            return Err("it is to sign, and has no live key".to_owned());
        }
        Ok(opened)
    }

    /// The header that signs a request which starts now; `None` for an endpoint that does not sign.
    ///
    /// # Errors
    /// A sentence for the record, when no key is live any more.
    pub fn header(
        &self,
        id: &str,
        now: OffsetDateTime,
        body: &[u8],
    ) -> Result<Option<(HeaderName, HeaderValue)>, &'static str> {
        let seconds = now.unix_timestamp();
        let secrets = live(&self.secrets, now);
        let (name, signature) = match self.style {
            SignatureStyle::None => return Ok(None),
            SignatureStyle::Standard => {
                let mut signature = sign_standard(secrets, id, seconds, body);
                if !self.pairs.is_empty() {
                    let timestamp = seconds.to_string();
                    let signed = Signed {
                        id,
                        timestamp: &timestamp,
                        body,
                    };
                    sign_ed25519(&mut signature, live(&self.pairs, now), &signed);
                }
                (WEBHOOK_SIGNATURE, signature)
            }
            SignatureStyle::Stripe => {
                let mut secrets = secrets.peekable();
                let signature = if secrets.peek().is_some() {
                    sign_stripe(secrets, seconds, body)
                } else {
                    String::new()
                };
                (POSTRIDER_SIGNATURE, signature)
            }
        };
        if signature.is_empty() {
            return Err("the endpoint has no live key to sign with");
        }
        let value =
            HeaderValue::try_from(signature).map_err(|_never| "a signature cannot be a header")?;
        Ok(Some((name, value)))
    }
}

/// What receivers verify with has to be what is signed with: else every one of them refuses everything, and
/// nobody sees why.
fn check_published(pairs: &[Live<KeyPair>], published: &[Vec<u8>]) -> Result<(), String> {
    let made = pairs.iter().map(|pair| *pair.key.public_key().as_bytes());
    if made.eq(published.iter().map(Vec::as_slice)) {
        return Ok(());
    }
    Err(
        "the public key that receivers are shown is not that of its key pair: rotate its secret"
            .to_owned(),
    )
}

fn live<K>(keys: &[Live<K>], now: OffsetDateTime) -> impl Iterator<Item = &K> {
    keys.iter()
        .filter(move |one| one.expires_at.is_none_or(|end| now < end))
        .map(|one| &one.key)
}

fn open_all<K>(
    sealed: &[SealedKey],
    open: impl Fn(&[u8]) -> Result<K, String>,
) -> Result<Vec<Live<K>>, String> {
    sealed
        .iter()
        .map(|(sealed, expires_at)| {
            Ok(Live {
                key: open(sealed)?,
                expires_at: *expires_at,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use shared::domain::endpoint::EndpointState;
    use shared::domain::signature::Signing;
    use shared::ids::{EndpointId, EndpointKey};
    use shared::store::endpoint_runtime::Runtime;
    use uuid::Uuid;

    use super::*;

    const ID: Uuid = Uuid::from_u128(7);

    fn master() -> MasterKeys {
        MasterKeys::new([7; 32], None)
    }

    fn stored(secrets: Vec<SealedKey>, pairs: Vec<SealedKey>) -> StoredEndpoint {
        StoredEndpoint {
            key: EndpointKey(1),
            id: EndpointId(ID),
            version: 1,
            state: EndpointState::Enabled,
            url: String::new(),
            settings: Ok(EndpointSettings::default()),
            sealed_headers: None,
            sealed_client_certificate: None,
            sealed_secrets: secrets,
            public_keys: vec![public_key(); pairs.len()],
            sealed_key_pairs: pairs,
            ordered: false,
            runtime: Runtime::default(),
        }
    }

    fn settings(signature: SignatureStyle, signing: Signing) -> EndpointSettings {
        EndpointSettings {
            signature,
            signing,
            ..EndpointSettings::default()
        }
    }

    fn sealed(context: &str) -> SealedKey {
        (master().seal(&[1; 32], context), None)
    }

    /// Of the key pair that [`sealed`] holds.
    fn public_key() -> Vec<u8> {
        let pair = KeyPair::from_seed(&[1; 32]).unwrap();
        pair.public_key().as_bytes().to_vec()
    }

    #[test]
    fn a_public_key_that_is_not_that_of_its_pair_is_not_signed_with() {
        let both = settings(SignatureStyle::Standard, Signing::V1a);
        let mut stored = stored(Vec::new(), vec![sealed(&pair_context(ID)); 2]);
        assert!(SigningKeys::open(&master(), &stored, &both).is_ok());

        stored.public_keys[1][0] ^= 1;
        let error = SigningKeys::open(&master(), &stored, &both).unwrap_err();
        assert!(error.contains("rotate its secret"), "{error}");
    }

    #[test]
    fn only_what_the_settings_use_is_opened() {
        let secrets = vec![sealed(&secret_context(ID)), sealed(&secret_context(ID))];
        let stored = stored(secrets, vec![sealed(&pair_context(ID))]);
        for (style, signing, expected) in [
            (SignatureStyle::Standard, Signing::V1, (2, 0)),
            (SignatureStyle::Standard, Signing::Both, (2, 1)),
            (SignatureStyle::Standard, Signing::V1a, (0, 1)),
            (SignatureStyle::Stripe, Signing::V1, (2, 0)),
            (SignatureStyle::None, Signing::V1, (0, 0)),
        ] {
            let keys = SigningKeys::open(&master(), &stored, &settings(style, signing)).unwrap();
            assert_eq!((keys.secrets.len(), keys.pairs.len()), expected);
            assert_eq!(keys.style, style);
        }
    }

    #[test]
    fn an_endpoint_without_a_key_that_it_is_to_sign_with_cannot_be_read() {
        let (secret, pair) = (sealed(&secret_context(ID)), sealed(&pair_context(ID)));
        let both = settings(SignatureStyle::Standard, Signing::Both);
        for (secrets, pairs) in [
            (vec![secret.clone()], Vec::new()),
            (Vec::new(), vec![pair.clone()]),
            // S3: neither is the other, though both are 32 bytes of the same endpoint.
            (vec![pair.clone()], vec![pair]),
            (vec![secret.clone()], vec![secret]),
        ] {
            let stored = stored(secrets, pairs);
            assert!(SigningKeys::open(&master(), &stored, &both).is_err());
            let unsigned = settings(SignatureStyle::None, Signing::V1);
            assert!(SigningKeys::open(&master(), &stored, &unsigned).is_ok());
        }
    }
}
