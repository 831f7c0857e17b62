//! Reads a certificate with its chain and its key, and what is known of it.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::names::CertificateNames;
use super::{FileKey, Unusable};
use crate::base::time::Timestamp;
use crate::base::tls::pem::{certificates, private_key};
use crate::base::tls::timestamp;

/// A certificate that the gateway presents.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    pub(super) key: Arc<CertifiedKey>,
    pub names: CertificateNames,
    pub validity: Validity,
}

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Validity {
    /// Why the certificate is not valid at this moment, if it is not.
    pub fn problem(self, now: Timestamp) -> Option<&'static str> {
        match self {
            Validity { not_after, .. } if not_after < now => Some("has expired"),
            Validity { not_before, .. } if not_before > now => Some("is not valid yet"),
            _ => None,
        }
    }
}

impl ServerCertificate {
    /// Reads the PEM of a certificate with its chain, and of its key.
    ///
    /// # Errors
    /// Says which of the two files cannot be used, and why.
    pub(super) fn read(
        certificate: &[u8],
        key: &[u8],
        provider: &CryptoProvider,
    ) -> Result<ServerCertificate, Unusable> {
        let (chain, names, validity) = read_chain(certificate)?;
        let key = private_key(key).map_err(|what| Unusable::because(FileKey::KeyFile, what))?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                Unusable { key: FileKey::KeyFile, what: "must be the key of the certificate in `cert_file`".to_owned() }
            }
            error => Unusable::because(FileKey::KeyFile, error),
        })?;
        Ok(ServerCertificate { key: Arc::new(key), names, validity })
    }
}

type Chain = (Vec<CertificateDer<'static>>, CertificateNames, Validity);

/// The certificates of a file, and what the first one says.
pub(super) fn read_chain(pem: &[u8]) -> Result<Chain, Unusable> {
    let unusable = |what: &dyn std::fmt::Display| Unusable::because(FileKey::CertFile, what);
    let chain = certificates(pem).map_err(|error| unusable(&error))?;
    let Some(first) = chain.first() else { return Err(unusable(&"there is no certificate in it")) };
    let Ok((_, certificate)) = X509Certificate::from_der(first) else {
        return Err(unusable(&"its first certificate is not one of X.509"));
    };
    let names = CertificateNames::of(&certificate);
    let validity = certificate.validity();
    let validity = Validity { not_before: timestamp(validity.not_before), not_after: timestamp(validity.not_after) };
    Ok((chain, names, validity))
}

/// SHA-256 of what files contain; a missing one differs from an empty one.
pub(super) fn content_hash<'c>(contents: impl IntoIterator<Item = Option<&'c [u8]>>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for content in contents {
        hash.update([u8::from(content.is_some())]);
        hash.update(Sha256::digest(content.unwrap_or_default()));
    }
    hash.finalize().into()
}
