//! Reads PEM files with certificates, keys and revocation lists.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Reads all certificates in a PEM file. The file must have at least one.
///
/// # Errors
/// If the file has no certificate, or if a certificate cannot be read. The message says why.
pub(super) fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    several(file, CertificateDer::pem_slice_iter(file), "certificate")
}

/// Reads all revocation lists in a PEM file. The file must have at least one.
///
/// # Errors
/// If the file has no revocation list, or if a list cannot be read. The message says why.
pub(crate) fn revocation_lists(file: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    several(file, CertificateRevocationListDer::pem_slice_iter(file), "revocation list")
}

/// Reads the first private key in a PEM file.
///
/// # Errors
/// If the file has no private key that can be read.
pub(super) fn private_key(file: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(file).map_err(|error| {
        let has = |text: &[u8]| file.windows(text.len()).any(|part| part == text);
        match error {
            // The key is encrypted with a pass phrase, in one of two formats.
            _ if has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || has(b"Proc-Type: 4,ENCRYPTED") => {
                "its key is encrypted, and must be without a pass phrase (`openssl pkey -in KEY -out PLAIN`)".to_owned()
            }
            error => words(file, &error, "private key"),
        }
    })
}

fn several<T>(file: &[u8], found: impl Iterator<Item = Result<T, pem::Error>>, what: &str) -> Result<Vec<T>, String> {
    match found.collect::<Result<Vec<T>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(words(file, &pem::Error::NoItemsFound, what)),
        Err(error) => Err(words(file, &error, what)),
    }
}

/// Explains why a PEM file does not contain `wanted`. Quotes no text of the file, which may be a key.
fn words(file: &[u8], error: &pem::Error, wanted: &str) -> String {
    let why = match error {
        // A certificate or key in DER begins with these two bytes.
        pem::Error::NoItemsFound if file.starts_with(&[0x30, 0x82]) => {
            return format!("it is DER, and must be PEM: text with -----BEGIN …----- and a {wanted}");
        }
        pem::Error::NoItemsFound => {
            let has = |text: &[u8]| file.windows(text.len()).any(|part| part == text);
            let other = match wanted {
                "certificate" if has(b"PRIVATE KEY-----") => ", but a private key",
                "private key" if has(b"-----BEGIN CERTIFICATE-----") => ", but a certificate",
                _ => "",
            };
            return format!("there is no {wanted} in it{other}");
        }
        pem::Error::MissingSectionEnd { .. } => "a section of it has no line with -----END …-----",
        pem::Error::IllegalSectionStart { .. } => "a line of it begins with -----BEGIN and does not end with -----",
        pem::Error::Base64Decode(_) => "what is between -----BEGIN …----- and -----END …----- in it is not base64",
        _ => "a section of it is too large",
    };
    why.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pem_is_said_in_words() {
        for (file, expected) in [
            (&b""[..], "there is no private key in it"),
            (b"\x30\x82\x01\x00", "it is DER, and must be PEM: text with -----BEGIN …----- and a private key"),
            (b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "a section of it has no line with -----END …-----"),
            (b"-----BEGIN PRIVATE KEY\nAAAA\n", "a line of it begins with -----BEGIN and does not end with -----"),
            (
                b"-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n",
                "what is between -----BEGIN …----- and -----END …----- in it is not base64",
            ),
            (
                b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "its key is encrypted, and must be without a pass phrase (`openssl pkey -in KEY -out PLAIN`)",
            ),
        ] {
            assert_eq!(private_key(file).unwrap_err(), expected);
        }
        assert_eq!(certificates(b"nothing").unwrap_err(), "there is no certificate in it");
        // The files of a certificate and its key are swapped.
        let key = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(certificates(key).unwrap_err(), "there is no certificate in it, but a private key");
        let certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(private_key(certificate).unwrap_err(), "there is no private key in it, but a certificate");
    }
}
