//! Finds files with secrets that every user of this machine can read.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::file::File;
use super::location::Finding;
use crate::language::remarks::{FileRole, NamedFileRemark};
use crate::sources::read_file;

const READABLE_BY_OTHERS: u32 = 0o004;
/// The largest file that is searched for a private key, in bytes, unless gateway.yaml names it as a secret.
const LARGEST_KEY: u64 = 1 << 16;

/// Finds files that gateway.yaml names as secrets, and files with private keys, that other users may read.
pub(super) fn readable_secret(file: &File<'_>) -> Vec<Finding> {
    let mut seen = HashSet::new();
    let named = file.config.remarks.named_files.iter().filter(|named| seen.insert(&named.file));
    let exposed = named.filter(|named| is_exposed(named));
    exposed.map(|named| Finding::of_remark(&named.remark, "take the permission from others: chmod o-r")).collect()
}

fn is_exposed(named: &NamedFileRemark) -> bool {
    // A pipe can be read only once, and has already been read.
    let Some(metadata) = std::fs::metadata(&named.file).ok().filter(Metadata::is_file) else { return false };
    metadata.permissions().mode() & READABLE_BY_OTHERS != 0
        && (named.role == FileRole::Secret || metadata.len() <= LARGEST_KEY)
        && read_file(&named.file).is_ok_and(|bytes| is_secret(named.role, &bytes))
}

/// Whether a file is secret: it has a private key, or is named as a secret and has no certificate or public key.
fn is_secret(role: FileRole, bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let is_public = text.starts_with(b"-----BEGIN ") || text.starts_with(b"{");
    String::from_utf8_lossy(text).contains("PRIVATE KEY-----")
        || has_private_jwk(text)
        || (role == FileRole::Secret && !is_public)
}

/// Whether the bytes are a JWK or a JWK set with a shared secret or a private key: with the member `k` or `d` (RFC 7518, section 6).
fn has_private_jwk(bytes: &[u8]) -> bool {
    let Ok(set) = serde_json::from_slice::<Value>(bytes) else { return false };
    let keys = set.get("keys").and_then(Value::as_array).map_or(std::slice::from_ref(&set), Vec::as_slice);
    keys.iter().any(|key| key.get("kty").is_some() && (key.get("k").is_some() || key.get("d").is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_keys_and_certificates_are_not_secrets() {
        for public in ["-----BEGIN CERTIFICATE-----\n", "\n-----BEGIN PUBLIC KEY-----\n", "{\"keys\": []}"] {
            assert!(!is_secret(FileRole::Secret, public.as_bytes()), "{public}");
        }
        let both = "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n";
        for secret in ["correct horse", "", "-----BEGIN RSA PRIVATE KEY-----\n", both] {
            assert!(is_secret(FileRole::Secret, secret.as_bytes()), "{secret}");
        }
        let (shared, public) = ("{\"keys\": [{\"kty\": \"oct\", \"k\": \"AA\"}]}", "{\"kty\": \"EC\", \"x\": \"AA\"}");
        for (text, expected) in [(shared, true), (public, false), ("{\"kty\": \"EC\", \"d\": \"AA\"}", true)] {
            assert_eq!(is_secret(FileRole::Other, text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in [("<h1>429</h1>", false), ("192.0.2.0/24\n", false), (both, true)] {
            assert_eq!(is_secret(FileRole::Other, text.as_bytes()), expected, "{text}");
        }
    }
}
