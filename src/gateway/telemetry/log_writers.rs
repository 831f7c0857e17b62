//! Names the writers that a configuration starts: those of the access log and of the records for billing.

use super::access_log::AccessLogs;
use super::records::RecordWriters;

/// The writers of a process. Each has a thread for each destination, which a reload keeps or replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriters<'w> {
    pub access_logs: &'w AccessLogs,
    pub records: &'w RecordWriters,
}
