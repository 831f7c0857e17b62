//! Warns at startup about unnecessary privileges and files that other users can write. Secrets that they can read are found by the lint
//! `readable_secret`.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;

use config::Source;

const WRITABLE_BY_OTHERS: u32 = 0o002;

/// Logs a warning if the process runs as root, or if other users can write a file of `sources`.
pub(super) fn warn(sources: &[Source]) {
    if nix::unistd::geteuid().is_root() {
        log::warn!("runs as root, which it does not need");
    }
    for source in sources {
        let Some(metadata) = std::fs::metadata(&source.path).ok().filter(Metadata::is_file) else { continue };
        let (file, mode) = (source.path.display(), metadata.permissions().mode());
        if mode & WRITABLE_BY_OTHERS != 0 {
            log::warn!(file:%; "file is writable by all users");
        }
    }
}
