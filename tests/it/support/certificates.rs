//! Makes a certificate authority, and certificates that it has signed.

use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority and certificates that it has signed, all as PEM.
pub(crate) struct Certificates {
    pub authority: String,
    /// The certificate for `localhost`, and its key.
    pub server: (String, String),
    pub client: (String, String),
}

impl Certificates {
    /// Returns one set that tests share.
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
