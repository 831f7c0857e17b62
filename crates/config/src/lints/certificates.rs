//! Finds out when the certificates of listeners expire.

use super::file::File;
use super::location::Finding;
use base::time::Timestamp;

/// Makes a finding for each certificate of a listener. The finding holds from the moment at which the certificate has
/// expired.
pub(super) fn expired_certificate(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, listener) in file.config.listeners.iter().enumerate() {
        let Some(tls) = &listener.tls else { continue };
        let location = file.root.key("listeners").member(index).key("tls").key("certificates");
        for (entry, title, validity) in tls.in_force().validities() {
            let location = location.member(entry).key("cert_file");
            let hint = "renew it: a renewed file comes into force by itself";
            let what = format!("{}; clients refuse to connect", validity.has_expired(title));
            // At the moment `not_after`, the certificate is still valid.
            found.push(location.finding(what, hint).from(Timestamp(validity.not_after.0.saturating_add(1))));
        }
    }
    found
}
