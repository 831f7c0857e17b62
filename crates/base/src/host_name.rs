//! Reads the name of this machine.

/// The host name as the kernel reports it, so that logs, spans and stores all show the same one.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
