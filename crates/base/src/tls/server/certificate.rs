//! Reads a certificate with its chain and key, and determines its names and validity.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{FileKey, Unusable};
use crate::rfc3339::format_seconds;
use crate::time::Timestamp;
use crate::tls::certificate_file::{self, PairFault};
use crate::tls::names::{self, CertificateNames};
use crate::tls::{pem, timestamp};

/// A certificate that the gateway presents.
#[derive(Clone, Debug)]
pub(crate) struct ServerCertificate {
    pub(super) key: Arc<CertifiedKey>,
    pub names: CertificateNames,
    /// A description of the certificate. In a report, it follows the words “the certificate”.
    pub title: String,
    pub validity: Validity,
}

/// The first and the last moment at which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Validity {
    /// Returns the message that the certificate `title` is not valid at the moment `now`. `None` if it is valid.
    pub fn problem(self, title: &str, now: Timestamp) -> Option<String> {
        match self {
            Validity { not_after, .. } if not_after < now => Some(self.has_expired(title)),
            Validity { not_before, .. } if not_before > now => {
                Some(format!("is not valid yet: the certificate {title} is from {} on", format_seconds(not_before)))
            }
            _ => None,
        }
    }

    /// Returns the message that the certificate with this title has expired.
    pub fn has_expired(self, title: &str) -> String {
        format!("has expired: the certificate {title} was valid until {}", format_seconds(self.not_after))
    }
}

impl ServerCertificate {
    /// Reads a certificate with its chain, and its private key, both in PEM.
    ///
    /// # Errors
    /// If one of the two files cannot be used. The error names the file and the reason.
    pub(super) fn read(
        certificate: &[u8],
        key: &[u8],
        provider: &CryptoProvider,
    ) -> Result<ServerCertificate, Unusable> {
        let ReadChain { chain, names, title, validity } = read_chain(certificate)?;
        let key = certificate_file::pair(chain, key, provider).map_err(|fault| match fault {
            PairFault::Certificate(what) => Unusable::because(FileKey::CertFile, what),
            PairFault::Key(what) => Unusable::because(FileKey::KeyFile, what),
            PairFault::Mismatch(what) => Unusable { key: FileKey::KeyFile, what },
        })?;
        Ok(ServerCertificate { key: Arc::new(key), names, title, validity })
    }
}

/// The certificates of a file, with the names, title and validity of the first certificate.
pub(super) struct ReadChain {
    chain: Vec<CertificateDer<'static>>,
    names: CertificateNames,
    title: String,
    validity: Validity,
}

/// Reads the certificates of a PEM file, and the names, title and validity of the first certificate.
///
/// # Errors
/// If the file has no certificate that can be used. The error says why.
pub(super) fn read_chain(file: &[u8]) -> Result<ReadChain, Unusable> {
    let unusable = |what: &str| Unusable::because(FileKey::CertFile, what);
    let chain = pem::certificates(file).map_err(|what| unusable(&what))?;
    let Some(first) = chain.first() else { return Err(unusable("there is no certificate in it")) };
    let Ok((_, certificate)) = X509Certificate::from_der(first) else {
        return Err(unusable("its first certificate is not one of X.509"));
    };
    let (names, title) = (CertificateNames::of(&certificate), names::title(&certificate));
    let validity = certificate.validity();
    let validity = Validity { not_before: timestamp(validity.not_before), not_after: timestamp(validity.not_after) };
    Ok(ReadChain { chain, names, title, validity })
}

/// Returns a SHA-256 hash of the contents of several files. A missing file (`None`) differs from an empty file.
pub(super) fn content_hash<'c>(contents: impl IntoIterator<Item = Option<&'c [u8]>>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for content in contents {
        hash.update([u8::from(content.is_some())]);
        hash.update(Sha256::digest(content.unwrap_or_default()));
    }
    hash.finalize().into()
}
