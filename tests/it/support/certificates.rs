//! Makes a certificate authority, and certificates that it has signed.

use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Everything as PEM.
pub(crate) struct Certificates {
    pub authority: String,
    /// For `localhost`: the certificate and its key.
    pub server: (String, String),
    pub client: (String, String),
}

impl Certificates {
    /// One set, shared by all tests that need none of their own.
    pub(crate) fn shared() -> &'static Certificates {
        static SHARED: LazyLock<Certificates> = LazyLock::new(Certificates::new);
        &SHARED
    }

    pub(crate) fn new() -> Certificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "the authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let leaf = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new([name.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.signed_by(&key, &authority).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        Certificates { server: leaf("localhost"), client: leaf("gateway"), authority: authority.pem() }
    }
}
