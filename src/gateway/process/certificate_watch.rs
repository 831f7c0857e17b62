//! Watches the certificate files of a listener, and applies changed files.
//!
//! A certificate and its key are written one after the other. So changed files are read when two checks in a row have
//! found all files the same. If a file cannot be used, the old certificates stay in force.

use std::sync::Arc;

use super::file_fingerprint::{FileFingerprint, Trigger};
use base::time::Timestamp;
use base::tls::server::{FileError, RereadResult, Server};

/// The reason why changed certificate files were rejected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidCertificates {
    pub problems: usize,
    pub detail: String,
}

#[derive(Debug)]
pub(crate) struct CertificateWatch {
    pub server: Arc<Server>,
    /// The fingerprints that the last check found.
    last_seen: Option<Vec<FileFingerprint>>,
    /// The fingerprints when the files were last read.
    last_read: Option<Vec<FileFingerprint>>,
    /// The faults of the last report, as long as they remain.
    reported: Option<Vec<FileError>>,
}

impl CertificateWatch {
    /// Makes a watch of the certificate files of `server`. The first checks also find changes that were made
    /// after the server had read its files.
    pub(crate) fn new(server: Arc<Server>) -> CertificateWatch {
        CertificateWatch { server, last_seen: None, last_read: None, reported: None }
    }

    /// Checks the files, and puts changed certificates in force. Returns `None` if there is nothing new to report.
    ///
    /// # Errors
    /// When a file cannot be used, or a new certificate is not valid at the time `now`.
    pub(crate) fn check(&mut self, trigger: Trigger, now: Timestamp) -> Option<Result<(), InvalidCertificates>> {
        let fingerprints = self.fingerprints();
        let settled = self.last_seen.as_ref() == Some(&fingerprints);
        self.last_seen = Some(fingerprints.clone());
        if trigger == Trigger::Interval && (!settled || self.last_read.as_ref() == Some(&fingerprints)) {
            return None;
        }
        let reread = self.server.reread(now);
        // A file may change again at once. So a read is final only if two checks in a row have found the same files.
        self.last_read = (settled && self.fingerprints() == fingerprints).then_some(fingerprints);
        match reread {
            Ok(reread) => {
                let was_wrong = self.reported.take().is_some();
                (reread == RereadResult::Changed || was_wrong).then_some(Ok(()))
            }
            // Someone may still be writing the files, so their faults are not reported yet.
            Err(_) if self.last_read.is_none() && trigger == Trigger::Interval => None,
            Err(errors) => {
                let is_new = self.reported.as_ref() != Some(&errors);
                let detail: Vec<String> = errors.iter().map(|error| self.server.describe(error)).collect();
                let invalid = InvalidCertificates { problems: errors.len(), detail: detail.join("; ") };
                self.reported = Some(errors);
                (is_new || trigger == Trigger::Operator).then_some(Err(invalid))
            }
        }
    }

    /// Whether the files could not be used at the last check.
    pub(crate) fn is_invalid(&self) -> bool {
        self.reported.is_some()
    }

    fn fingerprints(&self) -> Vec<FileFingerprint> {
        self.server.files().map(|(_, _, file)| FileFingerprint::of(file.path())).collect()
    }
}
