//! Warns at startup about unnecessary privileges and unprotected files.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;

use crate::config::{Source, read_file};

const WRITABLE_BY_OTHERS: u32 = 0o002;
const READABLE_BY_OTHERS: u32 = 0o004;

/// Checks the process and the files that it has read.
pub fn warn(sources: &[Source]) {
    if nix::unistd::geteuid().is_root() {
        log::warn!("runs as root, which it does not need");
    }
    for (index, source) in sources.iter().enumerate() {
        // A pipe can be read only once, and has been.
        let Some(metadata) = std::fs::metadata(&source.path).ok().filter(Metadata::is_file) else { continue };
        let (file, mode) = (source.path.display(), metadata.permissions().mode());
        if mode & WRITABLE_BY_OTHERS != 0 {
            log::warn!(file:%; "file is writable by all users");
        }
        // The first is gateway.yaml, which holds its secrets elsewhere.
        if index > 0 && mode & READABLE_BY_OTHERS != 0 && read_file(&source.path).is_ok_and(|bytes| is_secret(&bytes)) {
            log::warn!(file:%; "secret is readable by all users");
        }
    }
}

/// Of the files that gateway.yaml names, all that is neither a certificate, a public key nor a set of those.
fn is_secret(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let has = |words: &[u8]| text.windows(words.len()).any(|part| part == words);
    has(b"PRIVATE KEY-----") || !(text.starts_with(b"-----BEGIN ") || text.starts_with(b"{"))
}

#[cfg(test)]
mod tests {
    use super::is_secret;

    #[test]
    fn public_keys_and_certificates_are_not_secrets() {
        for public in ["-----BEGIN CERTIFICATE-----\n", "\n-----BEGIN PUBLIC KEY-----\n", "{\"keys\": []}"] {
            assert!(!is_secret(public.as_bytes()), "{public}");
        }
        let both = "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n";
        for secret in ["correct horse", "", "-----BEGIN RSA PRIVATE KEY-----\n", both] {
            assert!(is_secret(secret.as_bytes()), "{secret}");
        }
    }
}
