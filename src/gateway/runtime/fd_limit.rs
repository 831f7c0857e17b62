//! Derives from the open-file limit how many connections there may be.
//!
//! Each is a file, and most need a second one to the upstream; with HTTP/2, each request may need one. Once files run out, no connection can be accepted, answered or
//! rejected; a limit that is reached before that rejects only the connections that are too many.

use std::io;

use log::Level;

use crate::config::Bounds;

/// Files that are not connections of clients: listeners, Redis, the log, files that are read again.
const OTHERS: u64 = 64;
/// Connections to the admin listener.
const ADMIN: u64 = 64;
/// Over-limit connections that are answered with 503 at the same time; any beyond are closed without a response.
const REJECTIONS: u64 = 256;
/// The largest size to which the table of open files is grown ahead of need.
const LARGEST_TABLE: usize = 1 << 20;

/// Raises the open-file limit as far as possible, and returns what it is then.
///
/// The kernel's table of this process' files is then grown to its final size. The kernel would double it whenever it is full,
/// and with several threads a thread that opens a file then waits for 10 to 30 ms: so would all connections while thousands
/// of clients connect at once. To be called while the process has one thread, for which the kernel does not wait.
///
/// # Errors
/// If the limit could not be raised; it is unchanged then.
pub fn raise(bounds: &Bounds) -> io::Result<u64> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    let budget = FdBudget::here();
    let files = (2 * budget.clamp(bounds)).saturating_add(budget.rejections + budget.admin).min(LARGEST_TABLE);
    // If this fails, the table grows when it has to.
    let _ = rustix::io::fcntl_dupfd_cloexec(io::stdin(), i32::try_from(files).unwrap_or(i32::MAX));
    raised
}

/// How many connections there may be at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdBudget {
    connections: usize,
    rejections: usize,
    admin: usize,
}

impl FdBudget {
    /// From the limit of this process as it is now.
    pub fn here() -> FdBudget {
        FdBudget::of(rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(u64::MAX, |(files, _)| files))
    }

    fn of(files: u64) -> FdBudget {
        let (rejections, admin) = (REJECTIONS.min(files / 8), ADMIN.min(files / 16));
        let connections = files.saturating_sub(OTHERS + rejections + admin) / 2;
        let [connections, rejections, admin] =
            [connections, rejections, admin].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        FdBudget { connections: connections.max(1), rejections, admin: admin.max(1) }
    }

    /// How many over-limit connections may be answered at the same time.
    pub fn rejections(self) -> usize {
        self.rejections
    }

    /// How many connections there may be to the admin listener.
    pub fn admin(self) -> usize {
        self.admin
    }

    /// `limits.connections`, or what the open-file limit allows if that is less.
    pub fn clamp(self, bounds: &Bounds) -> usize {
        bounds.connections.min(self.connections)
    }

    /// How many requests there may be beside one for each of the open connections, each with a connection to the upstream.
    pub fn streams(self, connections: usize) -> usize {
        self.connections.saturating_sub(connections).saturating_mul(2)
    }

    /// Logs it if `limits.connections` is more than the open-file limit allows.
    pub fn warn_if_clamped(self, bounds: &Bounds) {
        if bounds.connections > self.connections {
            // The default was not chosen by the operator.
            let chosen = bounds.connections != Bounds::DEFAULT_CONNECTIONS;
            let level = if chosen { Level::Warn } else { Level::Info };
            let hint = "a connection takes two files: raise the open-file limit, or lower limits.connections";
            log::log!(level, wanted = bounds.connections, connections = self.connections, hint; "open files limit the connections");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_two_files_each_and_leave_some_for_the_process() {
        let budget = |files| (FdBudget::of(files).connections, FdBudget::of(files).rejections);
        assert_eq!(budget(256), (72, 32));
        assert_eq!(budget(65_536), (32_576, 256));
        assert_eq!((budget(0), budget(10)), ((1, 0), (1, 1)));
        for files in [256, 1024, 20_000, 1 << 20] {
            let (connections, rejections) = budget(files);
            let admin = FdBudget::of(files).admin();
            assert!(2 * connections + rejections + admin + 64 <= usize::try_from(files).unwrap());
        }
    }
}
