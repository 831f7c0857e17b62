//! Reads the name of this machine.

/// Returns the host name of this machine, as the kernel reports it. Logs, spans and stores all use this name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
