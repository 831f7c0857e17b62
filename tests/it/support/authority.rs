//! A certificate authority for tests. It signs and revokes certificates.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    next: AtomicU64,
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct IssuedCertificate {
    pub certificate: String,
    pub key: String,
    serial: u64,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer, next: AtomicU64::new(1) }
    }

    /// Returns the certificate of the authority.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for these names. The first name is also the subject's.
    pub(crate) fn issue(&self, names: &[&str]) -> IssuedCertificate {
        self.issue_until(names, 2090)
    }

    /// Issues a certificate with a SPIFFE URI.
    pub(crate) fn issue_with_uri(&self, names: &[&str], uri: &str) -> IssuedCertificate {
        self.sign(names, 2090, Some(uri))
    }

    /// Issues a certificate that is valid until the beginning of this year.
    pub(crate) fn issue_until(&self, names: &[&str], year: i32) -> IssuedCertificate {
        self.sign(names, year, None)
    }

    /// Issues a certificate that is valid for this time from now, to the second.
    pub(crate) fn issue_for(&self, names: &[&str], time: Duration) -> IssuedCertificate {
        self.sign_until(names, 1970, UNIX_EPOCH.elapsed().unwrap() + time, None)
    }

    fn sign(&self, names: &[&str], year: i32, uri: Option<&str>) -> IssuedCertificate {
        self.sign_until(names, year, Duration::ZERO, uri)
    }

    /// Signs a certificate that is valid until this time after the beginning of the year.
    fn sign_until(&self, names: &[&str], year: i32, time: Duration, uri: Option<&str>) -> IssuedCertificate {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).unwrap();
        params.distinguished_name.push(DnType::CommonName, names[0].clone());
        params.distinguished_name.push(DnType::OrganizationName, "Acme, Inc.");
        params.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
        params.serial_number = Some(SerialNumber::from(serial));
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1) + time;
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        IssuedCertificate { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }

    /// Returns a revocation list with these certificates, as PEM.
    pub(crate) fn revoke(&self, revoked: &[&IssuedCertificate]) -> String {
        self.revoke_until(revoked, 2090)
    }

    /// Returns a revocation list that is valid until the beginning of this year.
    pub(crate) fn revoke_until(&self, revoked: &[&IssuedCertificate], year: i32) -> String {
        self.revocation_list(revoked, year, Duration::ZERO)
    }

    /// Returns a revocation list that is valid for this time from now, to the second.
    pub(crate) fn revoke_for(&self, revoked: &[&IssuedCertificate], time: Duration) -> String {
        self.revocation_list(revoked, 1970, UNIX_EPOCH.elapsed().unwrap() + time)
    }

    fn revocation_list(&self, revoked: &[&IssuedCertificate], year: i32, time: Duration) -> String {
        let revoked = revoked.iter().map(|issued| RevokedCertParams {
            serial_number: SerialNumber::from(issued.serial),
            revocation_time: date_time_ymd(2010, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2010, 1, 2),
            next_update: date_time_ymd(year, 1, 1) + time,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}
