//! Verifies the certificates of clients (mutual TLS) by `client_ca_file` and `client_crl_file`.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::{ClientAuth, FileKey, Unusable};
use crate::time::Timestamp;
use crate::tls::{certificate_file, pem, timestamp};

/// Makes the verifier of client certificates. `authorities` and `lists` are the contents of `client_ca_file` and
/// `client_crl_file`. `None` if clients are not asked for a certificate.
///
/// # Errors
///
/// Returns which file cannot be used and why.
pub(super) fn verifier(
    client_auth: ClientAuth,
    authorities: Option<&[u8]>,
    lists: Option<&[u8]>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, Unusable> {
    // The files are read even if they are not used, so that a mistake in them is reported.
    let Some(authorities) = authorities else { return Ok(None) };
    let roots =
        certificate_file::authorities(authorities).map_err(|what| Unusable::because(FileKey::ClientCaFile, what))?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let (builder, key) = match lists {
        None => (builder, FileKey::ClientCaFile),
        Some(lists) => {
            let key = FileKey::ClientCrlFile;
            let lists = pem::revocation_lists(lists).map_err(|error| Unusable::because(key, error))?;
            // A list that is out of date is rejected, because it may lack a revoked certificate.
            (builder.with_crls(lists).enforce_revocation_expiration(), key)
        }
    };
    let builder = if client_auth == ClientAuth::Optional { builder.allow_unauthenticated() } else { builder };
    let verifier = builder.build().map_err(|error| Unusable::because(key, certificate_file::bad_lists(&error)))?;
    Ok((client_auth != ClientAuth::Off).then_some(verifier))
}

/// Whether the client that presents the chain `shown` is accepted at the moment `now`. An empty chain means that the client has no
/// certificate.
pub(super) fn admits(
    verifier: &dyn ClientCertVerifier,
    client_auth: ClientAuth,
    shown: &[CertificateDer<'_>],
    now: Timestamp,
) -> bool {
    let Some((own, others)) = shown.split_first() else { return client_auth != ClientAuth::Required };
    let now = UnixTime::since_unix_epoch(Duration::from_micros(now.0));
    verifier.verify_client_cert(own, others, now).is_ok()
}

/// Returns the earliest moment at which a revocation list in `pem` is out of date. Lists that cannot be read are
/// reported elsewhere.
pub(super) fn lists_end(pem: &[u8]) -> Option<Timestamp> {
    let lists = pem::revocation_lists(pem).unwrap_or_default();
    let ends = lists.iter().filter_map(|list| {
        let (_, list) = CertificateRevocationList::from_der(list).ok()?;
        list.next_update().map(timestamp)
    });
    ends.min()
}
