//! Reads the path of a Unix domain socket, as `unix:PATH` or alone.

use std::path::Path;
use std::sync::Arc;

/// The prefix that marks an address as the path of a Unix domain socket.
pub(crate) const UNIX: &str = "unix:";

/// The message for an invalid path of a Unix domain socket.
pub(crate) const SOCKET_SHAPE: &str =
    "be a socket like unix:/run/api.sock: an absolute path of at most 107 letters, digits and any of _./@:+,=~-";

/// The regular expression for the path of a Unix domain socket, with the prefix `unix:`.
pub(crate) const SOCKET_PATTERN: &str = "^unix:/[A-Za-z0-9_./@:+,=~-]{1,106}$";

/// The message for an invalid path of a Unix domain socket that is written without the prefix.
pub(crate) const PATH_SHAPE: &str =
    "be a path like /run/tollgate/admin.sock: absolute, of at most 107 letters, digits and any of _./@:+,=~-";

/// The regular expression for the path of a Unix domain socket, without the prefix.
pub(crate) const PATH_PATTERN: &str = "^/[A-Za-z0-9_./@:+,=~-]{1,106}$";

/// The length of the longest path, in bytes. The size of the kernel's `sockaddr_un` sets this bound.
const LONGEST_PATH: usize = 107;

/// Parses the path of a Unix domain socket, without the prefix. `None` if the path breaks a rule in [`SOCKET_SHAPE`].
pub(crate) fn socket_path(path: &str) -> Option<Arc<Path>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./@:+,=~-".contains(&byte);
    let is_path = path.len() > 1 && path.len() <= LONGEST_PATH && path.starts_with('/') && path.bytes().all(is_plain);
    is_path.then(|| Path::new(path).into())
}
