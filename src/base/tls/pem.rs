//! Reads PEM files with certificates, keys and revocation lists.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// The certificates in a file, at least one.
///
/// # Errors
/// Says why the file is no such file.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    several(CertificateDer::pem_slice_iter(pem), "certificate")
}

/// The revocation lists in a file, at least one.
///
/// # Errors
/// Says why the file is no such file.
pub fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    several(CertificateRevocationListDer::pem_slice_iter(pem), "revocation list")
}

/// The first private key in a file.
///
/// # Errors
/// If the file has no private key.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| "there is no private key in it")
}

fn several<T, E: std::fmt::Display>(found: impl Iterator<Item = Result<T, E>>, what: &str) -> Result<Vec<T>, String> {
    match found.collect::<Result<Vec<T>, E>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("there is no {what} in it")),
        Err(error) => Err(error.to_string()),
    }
}
