//! Finds settings that let strangers read metrics, or recognise clients in the access log.

use super::file::File;
use super::location::Finding;

/// Finds an admin listener that other hosts can reach. The admin listener requires no password.
pub(super) fn public_admin(file: &File<'_>) -> Vec<Finding> {
    let Some(admin) = file.config.admin.filter(|admin| !admin.ip().to_canonical().is_loopback()) else {
        return Vec::new();
    };
    let what = format!("is {admin}: every host that can reach that address can read metrics without a password");
    let hint = "listen on 127.0.0.1, or on an address that only monitoring can reach, and say that it is meant";
    vec![file.root.key("admin").finding(what, hint)]
}

/// Finds an access log whose pseudonyms are made without a secret key. Anyone can find out what they stand for.
pub(super) fn guessable_names(file: &File<'_>) -> Vec<Finding> {
    if file.config.access_log.is_none() || !file.config.hash_key.is_public() {
        return Vec::new();
    }
    let what =
        "names buckets and clients without a secret: a reader can try every address, and find out whose line it is";
    vec![file.root.key("access_log").finding(what, "set hash_key, for instance to \"${TOLLGATE_HASH_KEY}\"")]
}
