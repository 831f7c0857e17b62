//! Binds a Unix domain socket to its path, where an earlier process may have left its socket file.
//!
//! The kernel leaves a socket file when its process ends. So the file is replaced if no process listens at it.
//! A lock on the folder keeps two processes from doing this at the same time.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use socket2::{Domain, SockAddr, Socket, Type};

/// The number of attempts to take the lock, and the pause between them. Other processes hold the lock only while they
/// bind.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// Binds a Unix domain socket to its path, and replaces the file of an earlier process. `mode` is the permissions of
/// the file. `None` leaves them to the umask of the process.
///
/// # Errors
/// If a process listens at the path, if a file of another kind is there, or if the file cannot be replaced.
pub(super) fn bind(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<UnixListener> {
    // A path is absolute, so it has a folder.
    let lock = lock(path.parent().unwrap_or(path))?;
    let address = SockAddr::unix(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::other("there is a file of another kind at its path"));
        }
        Ok(_) => {
            if is_listened_at(&address)? {
                return Err(io::Error::from_raw_os_error(rustix::io::Errno::ADDRINUSE.raw_os_error()));
            }
            std::fs::remove_file(path)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address)?;
    if let Some(mode) = mode {
        // The permissions are set before anybody can connect, because the socket does not listen yet.
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    socket.listen(backlog)?;
    drop(lock);
    Ok(socket.into())
}

/// Sets the permissions of a socket file after its socket was bound. Does nothing if the file has been removed.
///
/// # Errors
/// If the permissions cannot be set, for example because the file is another user's.
pub(super) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_listened_at(address: &SockAddr) -> io::Result<bool> {
    let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A blocking connect would wait if the queue of the listening socket is full.
    client.set_nonblocking(true)?;
    match client.connect(address) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(true),
            io::ErrorKind::ConnectionRefused => Ok(false),
            _ => Err(error),
        },
    }
}

/// Locks a folder until the file is dropped.
fn lock(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    for _ in 0..TRIES {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            locked => return locked.map(|()| folder).map_err(io::Error::from),
        }
    }
    Err(io::Error::other("another process has locked its folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_over_from_a_process_that_has_ended_and_from_no_other() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("gateway.sock");
        let first = bind(&path, None, 1).unwrap();
        assert_eq!(bind(&path, None, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // The queue is filled with connections that are not accepted, so that a further connect would wait.
        let connect = || {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            client.connect(&SockAddr::unix(&path).unwrap()).map(|()| client)
        };
        let waiting: Vec<_> = std::iter::repeat_with(connect).take(100).map_while(Result::ok).collect();
        assert!(waiting.len() < 100);
        assert_eq!(bind(&path, None, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists());
        let second = bind(&path, None, 1).unwrap();
        drop(std::os::unix::net::UnixStream::connect(&path).unwrap());
        second.accept().unwrap();
    }

    #[test]
    fn nothing_but_a_socket_is_replaced() {
        let folder = tempfile::TempDir::new().unwrap();
        let [file, link, missing] = ["file", "link", "folder/gateway.sock"].map(|name| folder.path().join(name));
        std::fs::write(&file, "mine").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let error = bind(path, None, 1).unwrap_err().to_string();
            assert_eq!(error, "there is a file of another kind at its path");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(bind(&missing, None, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
        // A socket of another type is not replaced either.
        let datagrams = folder.path().join("datagrams");
        let _socket = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        assert!(bind(&datagrams, None, 1).is_err());
        assert!(datagrams.exists());
    }

    #[test]
    fn of_many_that_start_at_once_one_gets_the_path() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("gateway.sock");
        drop(bind(&path, None, 1).unwrap());
        // The queue must hold the connections with which the other threads find out that the path is in use.
        let bound: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| bind(&path, None, 16))).collect();
            starts.into_iter().filter_map(|start| start.join().unwrap().ok()).collect()
        });
        assert_eq!(bound.len(), 1);
        drop(std::os::unix::net::UnixStream::connect(&path).unwrap());
    }
}
