//! Asks what this machine is called.

/// As the kernel has it, so that whatever tells it to others tells the same.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
