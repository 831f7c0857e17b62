//! Lists the properties of a client's certificate that rules can read.

use base::tls::client_certificate_properties::ClientCertificate;

/// A property of a client's certificate that rules can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientCertificateField {
    Fingerprint,
    Subject,
    /// The DNS name, if the certificate has exactly one.
    Dns,
    /// The URI, if the certificate has exactly one.
    Uri,
}

impl ClientCertificateField {
    pub fn name(self) -> &'static str {
        match self {
            ClientCertificateField::Fingerprint => "fingerprint",
            ClientCertificateField::Subject => "subject",
            ClientCertificateField::Dns => "dns",
            ClientCertificateField::Uri => "uri",
        }
    }

    /// Returns this property of a certificate. `None` if the certificate has no such value, or several.
    pub fn of(self, certificate: &ClientCertificate) -> Option<&str> {
        match self {
            ClientCertificateField::Fingerprint => Some(&certificate.fingerprint),
            ClientCertificateField::Subject => certificate.subject.as_deref(),
            ClientCertificateField::Dns => certificate.dns.as_deref(),
            ClientCertificateField::Uri => certificate.uri.as_deref(),
        }
    }
}
