//! Holds what TLS knows of a client that rules may count it by.

use super::client_certificate::ClientCertificate;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The name that the client asked for, in lower case.
    pub server_name: Option<String>,
    /// Its certificate, which has verified.
    pub certificate: Option<ClientCertificate>,
}
