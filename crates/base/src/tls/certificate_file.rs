//! Reads certificates and keys from files. Explains in plain words which of them cannot be used, and why.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use rustls::sign::CertifiedKey;
use rustls::{CertRevocationListError, CertificateError, Error, InconsistentKeys, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Version;

use super::{names, pem};

/// The reason why a certificate and a key cannot be used as a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PairFault {
    Certificate(String),
    Key(String),
    /// The certificate and the key are valid, but the key does not belong to the certificate.
    Mismatch(String),
}

/// Reads the certificates of a PEM file, and checks that each can be used.
///
/// # Errors
/// If a certificate cannot be used. The message says which certificate, and why.
pub(super) fn chain(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = pem::certificates(file)?;
    for (index, certificate) in chain.iter().enumerate() {
        ParsedCertificate::try_from(certificate).map_err(|error| unreadable(index, certificate, &error))?;
    }
    Ok(chain)
}

/// Reads the certificates of trusted authorities from a PEM file.
///
/// # Errors
/// If a certificate cannot be used. The message says which certificate, and why.
pub(super) fn authorities(file: &[u8]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for (index, certificate) in pem::certificates(file)?.into_iter().enumerate() {
        store.add(certificate.clone()).map_err(|error| unreadable(index, &certificate, &error))?;
    }
    Ok(store)
}

/// Pairs a chain of certificates with the private key in `key`, the content of a PEM file. The key must belong to the first
/// certificate.
///
/// # Errors
/// If the key or a certificate cannot be used, or if they do not belong together. The fault says why.
pub(super) fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, PairFault> {
    let key = pem::private_key(key).map_err(PairFault::Key)?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| {
        PairFault::Key(
            "its key is of a kind that is not known: RSA with 2048 to 4096 bits, ECDSA on P-256 or P-384, and Ed25519 are"
                .to_owned(),
        )
    })?;
    let pair = CertifiedKey::new(chain, key);
    let Some(first) = pair.cert.first() else {
        return Err(PairFault::Certificate("there is no certificate in it".to_owned()));
    };
    match pair.keys_match() {
        // If a key does not show whether it belongs to the certificate, the key is accepted.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(Error::InconsistentKeys(_)) => {
            let title = title(first).map_or_else(String::new, |title| format!(" ({title})"));
            Err(PairFault::Mismatch(format!("must be the key of the certificate in `cert_file`{title}")))
        }
        Err(error) => Err(PairFault::Certificate(unreadable(0, first, &error))),
    }
}

/// Returns why a verifier of clients cannot be built: a revocation list cannot be used, or there is no authority.
pub(crate) fn bad_lists(error: &VerifierBuilderError) -> &'static str {
    use CertRevocationListError::{
        IssuerInvalidForCrl, ParseError, UnsupportedCriticalExtension, UnsupportedCrlVersion, UnsupportedDeltaCrl,
        UnsupportedIndirectCrl, UnsupportedRevocationReason,
    };
    let VerifierBuilderError::InvalidCrl(error) = error else { return "there is no authority in it" };
    match error {
        ParseError => "a revocation list in it is not one of X.509",
        UnsupportedCrlVersion => "a revocation list in it is of X.509 version 1, and must be of version 2",
        UnsupportedDeltaCrl => "a revocation list in it has only the changes to another one, and must be whole",
        UnsupportedIndirectCrl => {
            "a revocation list in it has certificates of several authorities, which is not supported"
        }
        UnsupportedCriticalExtension => "a revocation list in it has a critical extension that is not known",
        UnsupportedRevocationReason => "a revocation list in it has a reason that is not known",
        IssuerInvalidForCrl => "a revocation list in it is by an authority that may issue none",
        _ => "a revocation list in it is not valid",
    }
}

/// Returns the title of a certificate for reports. `None` if the certificate cannot be read.
fn title(certificate: &[u8]) -> Option<String> {
    X509Certificate::from_der(certificate).ok().map(|(_, certificate)| names::title(&certificate))
}

/// Returns the message that a certificate cannot be used. `index` is the position of the certificate in its file, from 0.
pub(super) fn unreadable(index: usize, certificate: &[u8], error: &Error) -> String {
    let which = match index {
        0 => "its first certificate".to_owned(),
        index => format!("its certificate number {}", index + 1),
    };
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return format!("{which} is not one of X.509");
    };
    let title = names::title(&certificate);
    let why = match error {
        _ if certificate.version() != X509Version::V3 => "is of an old version of X.509, and must be of version 3",
        Error::InvalidCertificate(CertificateError::BadEncoding) => "is not encoded as X.509 requires",
        Error::InvalidCertificate(CertificateError::UnhandledCriticalExtension) => {
            "has a critical extension that is not known"
        }
        _ => "has a part that is not known",
    };
    format!("{which} ({title}) {why}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    #[test]
    fn a_pair_that_is_none_names_the_certificate() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let params = CertificateParams::new(["a.test", "b.test", "c.test", "d.test"].map(str::to_owned)).unwrap();
        let text = params.self_signed(&key).unwrap().pem();
        let chain = || chain(text.as_bytes()).unwrap();
        assert!(pair(chain(), key.serialize_pem().as_bytes(), &provider()).is_ok());
        let mismatch = pair(chain(), other.serialize_pem().as_bytes(), &provider()).unwrap_err();
        let expected = "must be the key of the certificate in `cert_file` (for a.test, b.test, c.test and 1 more)";
        assert_eq!(mismatch, PairFault::Mismatch(expected.to_owned()));
        let unknown = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let unknown = pair(chain(), unknown.as_bytes(), &provider()).unwrap_err();
        assert!(matches!(&unknown, PairFault::Key(what) if what.starts_with("its key is of a kind")), "{unknown:?}");
    }

    #[test]
    fn of_several_certificates_the_wrong_one_is_named() {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(Vec::new()).unwrap();
        let good = params.self_signed(&key).unwrap().pem();
        let wrong = format!("{good}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        for read in [chain(wrong.as_bytes()).map(drop), authorities(wrong.as_bytes()).map(drop)] {
            assert_eq!(read, Err("its certificate number 2 is not one of X.509".to_owned()));
        }
    }
}
