//! TLS client settings: how to verify a server, and the certificate to present to it.
//!
//! Everything is read and checked when a configuration is loaded: a bad file is a problem of the file, not of the first
//! connection. Certificates are always verified; there is no way to turn that off.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The certificate authorities that are trusted.
#[derive(Clone, Copy, Debug)]
pub enum Roots<'a> {
    /// The authorities that this machine trusts.
    System,
    /// Only these, as PEM.
    Pem(&'a [u8]),
}

/// A client certificate with its chain, and its key, as PEM.
#[derive(Clone, Copy)]
pub struct ClientCertificate<'a> {
    pub certificate: &'a [u8],
    pub key: &'a [u8],
}

impl fmt::Debug for ClientCertificate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate(…)")
    }
}

/// The input that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputError {
    Roots(String),
    Certificate(String),
    Key(String),
}

/// Settings for TLS 1.2 and 1.3, with ring, which Pingora's TLS also uses: one crypto library in the process.
///
/// # Errors
///
/// When a certificate or key cannot be parsed, or there is no trusted authority.
pub fn client(roots: Roots<'_>, identity: Option<ClientCertificate<'_>>) -> Result<Arc<ClientConfig>, InputError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| InputError::Roots(error.to_string()))?
        .with_root_certificates(store(roots)?);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates(identity.certificate).map_err(InputError::Certificate)?;
            let key = PrivateKeyDer::from_pem_slice(identity.key)
                .map_err(|_| InputError::Key("there is no private key in it".to_owned()))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| InputError::Key(error.to_string()))?
        }
    };
    Ok(Arc::new(config))
}

fn store(roots: Roots<'_>) -> Result<RootCertStore, InputError> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::Pem(pem) => {
            for certificate in certificates(pem).map_err(InputError::Roots)? {
                store.add(certificate).map_err(|error| InputError::Roots(error.to_string()))?;
            }
        }
        Roots::System => {
            let (usable, _) = store.add_parsable_certificates(system_roots());
            if usable == 0 {
                return Err(InputError::Roots("this machine trusts no authority".to_owned()));
            }
        }
    }
    Ok(store)
}

/// The certificates of the authorities that this machine trusts. One that cannot be read is left out: the others are
/// still good.
pub fn system_roots() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// At least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err("there is no certificate in it".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
