//! Reads the names for which a certificate is valid.

use std::net::IpAddr;

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::client_certificate_properties::name_text;

/// The largest number of names that a report lists for a certificate.
const REPORTED: usize = 3;

/// The host names and IP addresses among the subject alternative names of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    /// Names in lower case. In a name that begins with `*.`, the `*` stands for any single label.
    dns: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl CertificateNames {
    /// Reads the host names and IP addresses of a certificate. All other names are left out.
    pub(super) fn of(certificate: &X509Certificate<'_>) -> CertificateNames {
        let mut names = CertificateNames::default();
        let Ok(Some(extension)) = certificate.subject_alternative_name() else { return names };
        for name in &extension.value.general_names {
            match name {
                GeneralName::DNSName(name) => names.dns.push(name.to_ascii_lowercase()),
                GeneralName::IPAddress(octets) => names.addresses.extend(address(octets)),
                _ => {}
            }
        }
        names
    }

    pub(super) fn dns(&self) -> &[String] {
        &self.dns
    }

    /// Whether the certificate is valid for `host`: a name in lower case, or an IP address with or without brackets.
    pub(super) fn cover(&self, host: &str) -> bool {
        if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return self.addresses.contains(&address);
        }
        let parent = parent(host);
        self.dns.iter().any(|name| {
            name == host
                || name.strip_prefix("*.").is_some_and(|covered| parent.is_some_and(|parent| parent == covered))
        })
    }
}

/// Returns a description of a certificate for reports: the hosts for which it is valid, or else its subject.
pub(super) fn title(certificate: &X509Certificate<'_>) -> String {
    let CertificateNames { dns, addresses } = CertificateNames::of(certificate);
    let hosts: Vec<String> = dns.into_iter().chain(addresses.iter().map(IpAddr::to_string)).collect();
    if hosts.is_empty() {
        let subject = name_text(certificate.subject());
        return if subject.is_empty() { "without a name".to_owned() } else { format!("of {subject}") };
    }
    let first = hosts.iter().take(REPORTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match hosts.len().saturating_sub(REPORTED) {
        0 => format!("for {first}"),
        more => format!("for {first} and {more} more"),
    }
}

/// Returns the part of a name after its first label. `None` if one of the two parts is empty.
pub(super) fn parent(name: &str) -> Option<&str> {
    name.split_once('.').filter(|(label, parent)| !label.is_empty() && !parent.is_empty()).map(|(_, parent)| parent)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_one_label_and_an_address_is_itself() {
        let names = CertificateNames {
            dns: vec!["example.com".to_owned(), "*.api.example.com".to_owned()],
            addresses: vec![[127, 0, 0, 1].into(), "::1".parse().unwrap()],
        };
        for covered in ["example.com", "a.api.example.com", "127.0.0.1", "[::1]"] {
            assert!(names.cover(covered), "{covered}");
        }
        for other in ["www.example.com", "api.example.com", "b.a.api.example.com", ".api.example.com", "", "127.0.0.2"]
        {
            assert!(!names.cover(other), "{other}");
        }
    }
}
