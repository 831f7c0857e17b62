//! Knows how many connections the open-file limit leaves room for.
//!
//! Each is a file, and most need a second one to the upstream. Where files run out, nobody can be accepted, answered or
//! told so; a bound that comes first turns away only those that are too many.

use std::io;

use log::Level;

use crate::config::Bounds;

/// Files that are no connections of clients: listeners, Redis, the log, what is read again.
const OTHERS: u64 = 64;
/// Connections to the admin listener.
const ADMIN: u64 = 64;
/// How many of those that are too many are told so at once; who comes then is closed without a word.
const TOLD: u64 = 256;
/// For how many files room is made at most before they are there.
const MADE_READY: usize = 1 << 20;

/// Raises the open-file limit as far as it goes, and says how far that is. Where it cannot be raised, it is as it was.
///
/// The kernel's table of this process' files is then made as large as it will have to be. It would be doubled whenever it is
/// full, and with several threads whoever opens a file waits for 10 to 30 ms then: with thousands of clients who come at once,
/// all others. To be called on the only thread there is, for which nothing has to be waited for.
pub fn raise(bounds: &Bounds) -> io::Result<u64> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    let room = FdBudget::here();
    let files = (2 * room.cut(bounds)).saturating_add(room.told + room.admin).min(MADE_READY);
    // What cannot be made now is made when it is needed.
    let _ = rustix::io::fcntl_dupfd_cloexec(io::stdin(), i32::try_from(files).unwrap_or(i32::MAX));
    raised
}

/// How many connections there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdBudget {
    connections: usize,
    told: usize,
    admin: usize,
}

impl FdBudget {
    /// By the limit of this process, as it is now.
    pub fn here() -> FdBudget {
        FdBudget::of(rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(u64::MAX, |(files, _)| files))
    }

    fn of(files: u64) -> FdBudget {
        let (told, admin) = (TOLD.min(files / 8), ADMIN.min(files / 16));
        let connections = files.saturating_sub(OTHERS + told + admin) / 2;
        let [connections, told, admin] =
            [connections, told, admin].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        FdBudget { connections: connections.max(1), told, admin: admin.max(1) }
    }

    /// How many may be told at once that they are too many.
    pub fn told(self) -> usize {
        self.told
    }

    /// How many there may be to the admin listener.
    pub fn admin(self) -> usize {
        self.admin
    }

    /// How many of those that the file allows.
    pub fn cut(self, bounds: &Bounds) -> usize {
        bounds.connections.min(self.connections)
    }

    /// Says it where the file allows more.
    pub fn tell(self, bounds: &Bounds) {
        if bounds.connections > self.connections {
            // Nobody asked for the default.
            let asked = bounds.connections != Bounds::DEFAULT_CONNECTIONS;
            let level = if asked { Level::Warn } else { Level::Info };
            let hint = "a connection takes two files: raise the open-file limit, or lower limits.connections";
            log::log!(level, wanted = bounds.connections, connections = self.connections, hint; "open files limit the connections");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_for_each_connection_and_some_for_the_rest() {
        let room = |files| (FdBudget::of(files).connections, FdBudget::of(files).told);
        assert_eq!(room(256), (72, 32));
        assert_eq!(room(65_536), (32_576, 256));
        assert_eq!((room(0), room(10)), ((1, 0), (1, 1)));
        for files in [256, 1024, 20_000, 1 << 20] {
            let (connections, told) = room(files);
            let admin = FdBudget::of(files).admin();
            assert!(2 * connections + told + admin + 64 <= usize::try_from(files).unwrap());
        }
    }
}
