//! Warns at startup about unnecessary privileges and unprotected files.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use memchr::memmem;

use config::{Source, read_file};

const WRITABLE_BY_OTHERS: u32 = 0o002;
const READABLE_BY_OTHERS: u32 = 0o004;

/// Logs a warning if the process runs as root, if other users can write a file of `sources`, or if they can read a
/// secret file. `secrets` are the files that the configuration names as secrets.
pub(super) fn warn(sources: &[Source], secrets: &[PathBuf]) {
    if nix::unistd::geteuid().is_root() {
        log::warn!("runs as root, which it does not need");
    }
    for (index, source) in sources.iter().enumerate() {
        // A pipe can be read only once, and has already been read.
        let Some(metadata) = std::fs::metadata(&source.path).ok().filter(Metadata::is_file) else { continue };
        let (file, mode) = (source.path.display(), metadata.permissions().mode());
        if mode & WRITABLE_BY_OTHERS != 0 {
            log::warn!(file:%; "file is writable by all users");
        }
        // The first file, gateway.yaml, has no secrets.
        let is_exposed = index > 0 && mode & READABLE_BY_OTHERS != 0;
        let named = if secrets.contains(&source.path) { FileRole::AsSecret } else { FileRole::Otherwise };
        if is_exposed && read_file(&source.path).is_ok_and(|bytes| is_secret(named, &bytes)) {
            log::warn!(file:%; "secret is readable by all users");
        }
    }
}

/// The way in which gateway.yaml names a file: as a secret or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileRole {
    AsSecret,
    Otherwise,
}

/// Whether a file is secret: it has a private key, or is named as a secret and has no certificate or public key.
fn is_secret(named: FileRole, bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    // The file may have a million lines, so the search must be fast.
    let has = |words: &[u8]| memmem::find(text, words).is_some();
    let is_public = text.starts_with(b"-----BEGIN ") || text.starts_with(b"{");
    has(b"PRIVATE KEY-----") || (named == FileRole::AsSecret && !is_public)
}

#[cfg(test)]
mod tests {
    use super::{FileRole, is_secret};

    #[test]
    fn public_keys_and_certificates_are_not_secrets() {
        for public in ["-----BEGIN CERTIFICATE-----\n", "\n-----BEGIN PUBLIC KEY-----\n", "{\"keys\": []}"] {
            assert!(!is_secret(FileRole::AsSecret, public.as_bytes()), "{public}");
        }
        let both = "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n";
        for secret in ["correct horse", "", "-----BEGIN RSA PRIVATE KEY-----\n", both] {
            assert!(is_secret(FileRole::AsSecret, secret.as_bytes()), "{secret}");
        }
        for (text, expected) in [("<h1>429</h1>", false), ("192.0.2.0/24\n", false), (both, true)] {
            assert_eq!(is_secret(FileRole::Otherwise, text.as_bytes()), expected, "{text}");
        }
    }
}
