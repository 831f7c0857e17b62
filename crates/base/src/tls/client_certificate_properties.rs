//! Reads the properties of a client's certificate that rules can use.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::{Any, Tag};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::pem::certificates;
use super::timestamp;
use crate::time::Timestamp;

/// The properties of a certificate that a client has presented. The certificate may be unverified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// SHA-256 of the whole certificate, in lower-case hexadecimal digits.
    pub fingerprint: String,
    /// The subject in the form of RFC 4514. `None` if the subject is empty.
    pub subject: Option<String>,
    /// The DNS name of the certificate. `None` if the certificate has no DNS name, or several.
    pub dns: Option<String>,
    /// The URI of the certificate. `None` if the certificate has no URI, or several.
    pub uri: Option<String>,
    /// The last moment at which the certificate is valid. `None` if the certificate cannot be read.
    pub not_after: Option<Timestamp>,
}

impl ClientCertificate {
    /// Reads the first certificate in a PEM file.
    ///
    /// # Errors
    /// If no certificate can be read. The message says why.
    pub fn read_pem(bytes: &[u8]) -> Result<ClientCertificate, String> {
        let certificates = certificates(bytes)?;
        let first = certificates.first().map(|first| ClientCertificate::read(first));
        first.ok_or_else(|| "there is no certificate in it".to_owned())
    }

    /// Reads a certificate in DER. A property that cannot be read is `None`. This never happens with a verified certificate.
    pub fn read(der: &[u8]) -> ClientCertificate {
        let fingerprint = hexadecimal(&Sha256::digest(der));
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            return ClientCertificate { fingerprint, ..ClientCertificate::default() };
        };
        let subject = Some(name_text(certificate.subject())).filter(|text| !text.is_empty());
        let (mut dns, mut uris) = (Vec::new(), Vec::new());
        if let Ok(Some(names)) = certificate.subject_alternative_name() {
            for name in &names.value.general_names {
                match name {
                    GeneralName::DNSName(name) => dns.push(name.to_ascii_lowercase()),
                    GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                    _ => {}
                }
            }
        }
        let not_after = Some(timestamp(certificate.validity().not_after));
        ClientCertificate { fingerprint, subject, dns: only(dns), uri: only(uris), not_after }
    }

    /// Whether the certificate has expired at the moment `now`. A certificate that cannot be read counts as expired.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.not_after.is_none_or(|not_after| not_after < now)
    }
}

fn only(mut names: Vec<String>) -> Option<String> {
    let last = names.pop()?;
    (names.is_empty() && !last.is_empty()).then_some(last)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The attribute types for which RFC 4514 has names, each with its name.
const TYPES: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// Returns an X.509 name as text (RFC 4514). Separators in values are escaped, so different names have different texts.
pub(super) fn name_text(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in name.iter_rdn() {
        parts.push(part.iter().map(attribute_text).collect::<Vec<_>>().join("+"));
    }
    parts.reverse();
    parts.join(",")
}

fn attribute_text(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let known = TYPES.iter().find(|(known, _)| *known == oid).map(|(_, name)| *name);
    match known.zip(value_text(attribute.attr_value())) {
        Some((name, value)) => format!("{name}={}", escaped(value)),
        None => format!("{}=#{}", known.unwrap_or(&oid), hexadecimal(&encoded(attribute.attr_value()))),
    }
}

/// Returns the text of a value. `None` if the value is not a text in UTF-8 or ASCII.
fn value_text<'v>(value: &'v Any<'_>) -> Option<&'v str> {
    let is_text = matches!(value.tag(), Tag::NumericString | Tag::PrintableString | Tag::Utf8String | Tag::Ia5String);
    std::str::from_utf8(value.data).ok().filter(|_| is_text)
}

fn escaped(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut text = String::with_capacity(value.len());
    for (index, character) in value.chars().enumerate() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', character]),
            ' ' if index == 0 || index == last => text.push_str("\\ "),
            '#' if index == 0 => text.push_str("\\#"),
            '\0' => text.push_str("\\00"),
            _ => text.push(character),
        }
    }
    text
}

/// Returns the DER encoding of a primitive value: its tag, its length and its content.
fn encoded(value: &Any<'_>) -> Vec<u8> {
    let length = value.data.len();
    let mut bytes = vec![u8::try_from(value.tag().0).unwrap_or(u8::MAX)];
    match u8::try_from(length) {
        Ok(short @ ..128) => bytes.push(short),
        _ => {
            let digits: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            bytes.push(0x80 | u8::try_from(digits.len()).unwrap_or(0));
            bytes.extend(digits);
        }
    }
    bytes.extend_from_slice(value.data);
    bytes
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};

    use super::*;

    /// Makes a certificate with this subject and these alternative names.
    fn certificate(subject: &[(DnType, DnValue)], names: &[SanType]) -> ClientCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.subject_alt_names = names.to_vec();
        ClientCertificate::read(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn uri(name: &str) -> SanType {
        SanType::URI(name.try_into().unwrap())
    }

    #[test]
    fn a_subject_is_written_last_part_first_and_with_escapes() {
        let utf8 = |text: &str| DnValue::Utf8String(text.to_owned());
        let printable = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
        let subject = |parts: &[(DnType, DnValue)]| certificate(parts, &[]).subject;
        let (name, organization) = (DnType::CommonName, DnType::OrganizationName);
        let text = subject(&[(organization.clone(), utf8("Acme, Inc.")), (name.clone(), printable("api"))]);
        assert_eq!(text.as_deref(), Some("CN=api,O=Acme\\, Inc."));
        assert_eq!(subject(&[(name.clone(), utf8(" #a+b=\\\"c; "))]).as_deref(), Some("CN=\\ #a\\+b=\\\\\\\"c\\;\\ "));
        assert_eq!(subject(&[(name.clone(), utf8("#é"))]).as_deref(), Some("CN=\\#é"));
        let email = DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]);
        assert_eq!(subject(&[(email, utf8("a"))]).as_deref(), Some("1.2.840.113549.1.9.1=#0c0161"));
        let universal = DnValue::BmpString("a".try_into().unwrap());
        assert_eq!(subject(&[(name, universal)]).as_deref(), Some("CN=#1e020061"));
        assert_eq!(subject(&[]), None);
    }

    #[test]
    fn a_name_is_one_only_if_there_is_no_other_of_its_kind() {
        let names = |names: &[SanType]| {
            let ClientCertificate { dns, uri, .. } = certificate(&[], names);
            (dns.unwrap_or_default(), uri.unwrap_or_default())
        };
        let pair = |dns: &str, uri: &str| (dns.to_owned(), uri.to_owned());
        assert_eq!(names(&[]), pair("", ""));
        assert_eq!(names(&[dns("A.test"), uri("spiffe://x/y")]), pair("a.test", "spiffe://x/y"));
        assert_eq!(names(&[dns("a.test"), dns("b.test"), uri("spiffe://x/y")]), pair("", "spiffe://x/y"));
        assert_eq!(names(&[dns("a.test"), uri("spiffe://x/y"), uri("spiffe://x/z")]), pair("a.test", ""));
    }

    #[test]
    fn the_fingerprint_is_that_of_the_whole_certificate() {
        let one = certificate(&[], &[]);
        assert_eq!(one.fingerprint.len(), 64);
        assert_ne!(one.fingerprint, certificate(&[], &[]).fingerprint);
        assert_eq!(
            ClientCertificate::read(b"").fingerprint,
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
