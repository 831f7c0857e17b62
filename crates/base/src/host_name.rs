//! Reads the name of this machine.

/// The host name in the kernel, so that every user of it reports the same.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
