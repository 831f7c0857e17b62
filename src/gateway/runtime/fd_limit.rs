//! Derives the maximum number of connections from the open-file limit.
//!
//! Each connection takes a file descriptor (here called a file), and often a second file for the connection to the
//! upstream. Without free files, no connection can be accepted or even rejected. So the number of connections is
//! limited below the open-file limit.

use std::io;

use log::Level;

use config::Bounds;

/// The files that are not connections of clients: listeners, the store, the log, watched files.
const OTHERS: u64 = 64;
/// Connections to the admin listener.
const ADMIN: u64 = 64;
/// The maximum number of excess connections that are answered with 503 at the same time. Others are closed without a
/// response.
const REJECTIONS: u64 = 256;
/// The largest size to which the table of open files is enlarged in advance.
const LARGEST_TABLE: usize = 1 << 20;

/// Raises the open-file limit as far as possible, and returns the new limit.
///
/// Also grows the kernel's table of this process's files, because a later growth can delay a thread by 30 ms. To be
/// called while the process has one thread.
///
/// # Errors
/// If the limit could not be raised. The old limit then stays in force.
pub(crate) fn raise(bounds: &Bounds) -> io::Result<u64> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    let budget = FdBudget::here();
    let files = (2 * budget.clamp(bounds)).saturating_add(budget.rejections + budget.admin).min(LARGEST_TABLE);
    // If this fails, the kernel enlarges the table later.
    let _ = rustix::io::fcntl_dupfd_cloexec(io::stdin(), i32::try_from(files).unwrap_or(i32::MAX));
    raised
}

/// The number of connections of each kind that the open-file limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdBudget {
    /// The files for clients' connections, their connections to upstreams, and connections of proxies that ask for decisions.
    files: usize,
    /// The part of `files` that is reserved for proxies that ask for decisions.
    deciding: usize,
    rejections: usize,
    admin: usize,
}

/// The numbers of open connections: connections of clients, HTTP/2 streams with separate connections to upstreams, and
/// connections of proxies that ask for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    pub proxying: usize,
    pub streams: usize,
    pub deciding: usize,
}

impl FdBudget {
    /// Returns the budget for the present open-file limit of this process.
    pub fn here() -> FdBudget {
        FdBudget::of(rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(u64::MAX, |(files, _)| files))
    }

    fn of(files: u64) -> FdBudget {
        let (rejections, admin) = (REJECTIONS.min(files / 8), ADMIN.min(files / 16));
        let connections = files.saturating_sub(OTHERS + rejections + admin);
        let [files, rejections, admin] =
            [connections, rejections, admin].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        FdBudget { files: files.max(2), deciding: 0, rejections, admin: admin.max(1) }
    }

    /// Returns this budget with a quarter of the files reserved for proxies that ask for decisions.
    pub fn with_decisions(self) -> FdBudget {
        FdBudget { deciding: self.files / 4, ..self }
    }

    /// Returns how many connections above the limit may be answered with 503 at the same time.
    pub fn rejections(self) -> usize {
        self.rejections
    }

    /// Returns the maximum number of connections to the admin listener.
    pub fn admin(self) -> usize {
        self.admin
    }

    /// The maximum number of client connections, if each has a connection to its upstream.
    fn connections(self) -> usize {
        ((self.files - self.deciding) / 2).max(1)
    }

    /// Returns `limits.connections`, or the number that the open-file limit allows, whichever is less.
    fn clamp(self, bounds: &Bounds) -> usize {
        bounds.connections.min(self.connections())
    }

    /// Returns whether the newest connection of a client fits. `open` counts the open connections, including the newest
    /// connection, and `most` is the maximum for connections of clients.
    pub fn admits_client(self, most: usize, open: OpenFiles) -> bool {
        open.proxying <= most && (open.proxying <= 1 || self.has_files(open))
    }

    /// Returns whether the newest connection of a proxy that asks for decisions fits. `open` counts the open
    /// connections, including the newest connection, and `most` is the maximum for connections of such proxies.
    pub fn admits_proxy(self, most: usize, open: OpenFiles) -> bool {
        open.deciding <= most && (open.deciding <= self.deciding.max(1) || self.has_files(open))
    }

    fn has_files(self, open: OpenFiles) -> bool {
        let connections = open.proxying.saturating_mul(2).saturating_add(open.streams);
        connections.saturating_add(open.deciding.max(self.deciding)) <= self.files
    }

    /// Returns whether the files suffice for `uncounted` connections, which were accepted but are not part of `open`
    /// yet. They cannot have the files that are reserved for proxies that ask for decisions. `rejecting` is the number
    /// of connections that are being answered with 503.
    pub fn has_file_for_uncounted(self, open: OpenFiles, rejecting: usize, uncounted: usize) -> bool {
        let connections = open.proxying.saturating_mul(2).saturating_add(open.streams);
        let others = open.deciding.max(self.deciding).saturating_add(rejecting).saturating_add(uncounted);
        connections.saturating_add(others) <= self.files.saturating_add(self.rejections)
    }

    /// Returns how many of the open connections exceed the available files. `upstream` is the number of connections to
    /// upstreams. `others` is the number of connections that are being rejected, or are not part of `open` yet.
    pub fn excess(self, open: OpenFiles, upstream: usize, others: usize) -> usize {
        let open = open.proxying.saturating_add(open.deciding).saturating_add(upstream).saturating_add(others);
        open.saturating_sub(self.files.saturating_add(self.rejections))
    }

    /// Returns how many HTTP/2 streams may have a separate connection to the upstream. `proxying` and `deciding` are the
    /// numbers of open connections of clients, and of proxies that ask for decisions.
    pub fn streams(self, proxying: usize, deciding: usize) -> usize {
        self.files.saturating_sub(proxying.saturating_mul(2)).saturating_sub(deciding.max(self.deciding))
    }

    /// Logs a warning if `limits.connections` exceeds what the open-file limit allows.
    pub fn warn_if_clamped(self, bounds: &Bounds) {
        let connections = self.connections();
        if bounds.connections > connections {
            // For the default value, no warning is needed.
            let chosen = bounds.connections != Bounds::DEFAULT_CONNECTIONS;
            let level = if chosen { Level::Warn } else { Level::Info };
            let hint = "a connection takes two files: raise the open-file limit, or lower limits.connections";
            log::log!(level, wanted = bounds.connections, connections, hint; "open files limit the connections");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_two_files_each_and_leave_some_for_the_process() {
        let budget = |files| (FdBudget::of(files).connections(), FdBudget::of(files).rejections);
        assert_eq!(budget(256), (72, 32));
        assert_eq!(budget(65_536), (32_576, 256));
        assert_eq!((budget(0), budget(10)), ((1, 0), (1, 1)));
        for files in [256, 1024, 20_000, 1 << 20] {
            let (connections, rejections) = budget(files);
            let admin = FdBudget::of(files).admin();
            assert!(2 * connections + rejections + admin + 64 <= usize::try_from(files).unwrap());
        }
    }

    #[test]
    fn clients_leave_files_for_proxies_that_ask_for_decisions_and_use_those_that_these_leave() {
        let budget = FdBudget::of(256).with_decisions();
        assert_eq!((budget.files, budget.deciding, budget.connections()), (144, 36, 54));
        let open = |proxying, streams, deciding| OpenFiles { proxying, streams, deciding };
        assert!(budget.admits_client(100, open(54, 0, 0)) && !budget.admits_client(100, open(55, 0, 0)));
        assert!(budget.admits_client(100, open(50, 8, 36)) && !budget.admits_client(100, open(50, 9, 0)));
        assert!(!budget.admits_client(100, open(50, 0, 45)));
        assert_eq!((budget.streams(50, 0), budget.streams(50, 40), budget.streams(80, 0)), (8, 4, 0));
        // 54 client connections, 36 reserved files and 32 rejections take all files.
        assert_eq!(budget.rejections, 32);
        assert!(budget.has_file_for_uncounted(open(54, 0, 0), 31, 1));
        assert!(!budget.has_file_for_uncounted(open(54, 0, 0), 32, 1));
        assert!(!budget.has_file_for_uncounted(open(54, 0, 36), 32, 1));
        // The connections to upstreams include some that no request uses.
        assert_eq!((budget.excess(open(54, 0, 0), 122, 0), budget.excess(open(54, 0, 10), 122, 5)), (0, 15));
        // Proxies always get the reserved files, and other files while these are free.
        assert!(budget.admits_proxy(100, open(72, 0, 36)) && !budget.admits_proxy(100, open(72, 0, 37)));
        assert!(budget.admits_proxy(100, open(22, 0, 100)) && !budget.admits_proxy(100, open(0, 0, 101)));
    }
}
