//! Tests properties of the fields that are read from a client's certificate, on any input.

use base::tls::client_certificate_properties::ClientCertificate;
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::mutation::{fuzz, is_bug_planted};

/// Splits a subject at each separator that is not escaped.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut escaped) = (vec![String::new()], false);
    for character in text.chars() {
        if character == separator && !escaped {
            parts.push(String::new());
            continue;
        }
        escaped = character == '\\' && !escaped;
        parts.last_mut().unwrap().push(character);
    }
    parts
}

#[test]
pub fn client_certificate() {
    let words: &[&[u8]] = &[
        b",",
        b"+",
        b"\\",
        b"=",
        b" ",
        b"#",
        b"\0",
        b"\x0c",
        b"\x13",
        b"\x1e",
        b"\x30\x80",
        b"\x82",
        b"\x86",
        b"\x06\x03\x55\x04\x03",
        b"\x06\x03\x55\x1d\x11",
        b"*.",
        b"spiffe://",
        b"\xff",
    ];
    fuzz("client-certificate", words, |bytes| {
        let read = ClientCertificate::read(bytes);
        let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(read.fingerprint, hash);
        let Ok((_, certificate)) = X509Certificate::from_der(bytes) else {
            assert_eq!(read, ClientCertificate { fingerprint: hash, ..ClientCertificate::default() });
            return (0, 0, 0);
        };
        // The planted bug: a comma in a value is not escaped.
        let subject = read.subject.clone().unwrap_or_default();
        let subject = if is_bug_planted() { subject.replace("\\,", ",") } else { subject };
        let expected: Vec<usize> = certificate.subject().iter_rdn().map(|part| part.iter().count()).collect();
        let found: Vec<usize> = match &*subject {
            "" => Vec::new(),
            text => split(text, ',').iter().rev().map(|part| split(part, '+').len()).collect(),
        };
        assert!(found == expected || expected.contains(&0), "{subject:?} has other parts than {expected:?}");
        assert!(!subject.contains('\0'));
        for name in [&read.dns, &read.uri].into_iter().flatten() {
            assert!(!name.is_empty());
        }
        assert!(read.dns.is_none_or(|dns| !dns.bytes().any(|byte| byte.is_ascii_uppercase())));
        (1 + found.len(), usize::from(read.uri.is_some()), subject.matches('#').count())
    });
}
