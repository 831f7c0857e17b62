//! TLS: settings for connections to servers and from clients, and the authorities that this machine trusts.

mod any_certificate;
pub mod certificate_error;
mod certificate_file;
pub mod client;
pub mod client_certificate_properties;
pub mod identity;
mod names;
mod pem;
pub mod server;

use rustls::pki_types::CertificateDer;
use x509_parser::time::ASN1Time;

use crate::time::Timestamp;

/// Returns the certificates of the authorities that this machine trusts. A certificate that cannot be read is left out.
pub fn system_roots() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// Converts a time. A time before 1970 becomes 1970.
fn timestamp(time: ASN1Time) -> Timestamp {
    Timestamp(u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1_000_000))
}
