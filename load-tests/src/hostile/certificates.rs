//! Certificates of every kind, from an authority of the receiver's own.

use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsAcceptor;

/// What a server shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Good,
    Expired,
    NotYetValid,
    OtherName,
    NameInSubjectOnly,
    SelfSigned,
    WithoutIntermediate,
    OfAStranger,
    /// Good, over this version of TLS alone.
    OverTls12,
    OverTls13,
    /// For the other side of a connection.
    ForClients,
    /// An authority's, for itself.
    Authority,
    /// A good one with sixty others behind it.
    LongChain,
}

/// Whom the sender trusts, and below it who issues.
pub(super) struct Authority {
    root: rcgen::Certificate,
    intermediate: (rcgen::Certificate, Issuer<'static, KeyPair>),
    stranger: (rcgen::Certificate, Issuer<'static, KeyPair>),
}

impl Authority {
    pub(super) fn new() -> anyhow::Result<Self> {
        let (root, issuer) = authority("root", None)?;
        let intermediate = authority("intermediate", Some(&issuer))?;
        let stranger = authority("stranger", None)?;
        Ok(Self {
            root,
            intermediate,
            stranger,
        })
    }

    /// The certificate to trust, PEM.
    pub(super) fn pem(&self) -> String {
        self.root.pem()
    }

    /// A server's side of TLS; `protocol` is what it wants to speak inside.
    pub(super) fn acceptor(&self, shown: Shown, protocol: &[u8]) -> anyhow::Result<TlsAcceptor> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        named(&mut parameters, "127.0.0.1");
        match shown {
            Shown::Expired => parameters.not_after = rcgen::date_time_ymd(2001, 1, 1),
            Shown::NotYetValid => parameters.not_before = rcgen::date_time_ymd(2999, 1, 1),
            Shown::OtherName => {
                parameters.subject_alt_names =
                    vec![rcgen::SanType::DnsName("other.example".try_into()?)];
            }
            Shown::NameInSubjectOnly => parameters.subject_alt_names = Vec::new(),
            Shown::ForClients => {
                parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
            Shown::Authority => {
                parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            Shown::Good
            | Shown::OverTls12
            | Shown::OverTls13
            | Shown::SelfSigned
            | Shown::WithoutIntermediate
            | Shown::OfAStranger
            | Shown::LongChain => {}
        }
        let (above, issuer) = if shown == Shown::OfAStranger {
            &self.stranger
        } else {
            &self.intermediate
        };
        let own = if shown == Shown::SelfSigned {
            parameters.self_signed(&key)?
        } else {
            parameters.signed_by(&key, issuer)?
        };
        let mut chain = vec![own.der().clone()];
        chain.extend(behind(shown, above.der()));
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .ok()
            .context("a private key")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions(shown))?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

static TLS12_ALONE: [&SupportedProtocolVersion; 1] = [&TLS12];
static TLS13_ALONE: [&SupportedProtocolVersion; 1] = [&TLS13];

fn versions(shown: Shown) -> &'static [&'static SupportedProtocolVersion] {
    match shown {
        Shown::OverTls12 => &TLS12_ALONE,
        Shown::OverTls13 => &TLS13_ALONE,
        Shown::Good
        | Shown::Expired
        | Shown::NotYetValid
        | Shown::OtherName
        | Shown::NameInSubjectOnly
        | Shown::SelfSigned
        | Shown::WithoutIntermediate
        | Shown::OfAStranger
        | Shown::ForClients
        | Shown::Authority
        | Shown::LongChain => rustls::DEFAULT_VERSIONS,
    }
}

/// What comes after a server's own certificate.
fn behind(shown: Shown, above: &CertificateDer<'static>) -> Vec<CertificateDer<'static>> {
    match shown {
        Shown::SelfSigned | Shown::WithoutIntermediate => Vec::new(),
        Shown::LongChain => vec![above.clone(); 60],
        Shown::Good
        | Shown::OverTls12
        | Shown::OverTls13
        | Shown::ForClients
        | Shown::Authority
        | Shown::Expired
        | Shown::NotYetValid
        | Shown::OtherName
        | Shown::NameInSubjectOnly
        | Shown::OfAStranger => vec![above.clone()],
    }
}

fn authority(
    name: &str,
    above: Option<&Issuer<'static, KeyPair>>,
) -> anyhow::Result<(rcgen::Certificate, Issuer<'static, KeyPair>)> {
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(Vec::new())?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    named(&mut parameters, name);
    let certificate = match above {
        Some(above) => parameters.signed_by(&key, above)?,
        None => parameters.self_signed(&key)?,
    };
    Ok((certificate, Issuer::new(parameters, key)))
}

fn named(parameters: &mut CertificateParams, name: &str) {
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
}
