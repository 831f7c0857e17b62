//! The directory of a gateway.yaml. When it is dropped, every process is killed that was started with a file in it.
//!
//! After an upgrade, the next process is not a child of the test, so it would outlive a test that fails. It has the arguments
//! of the process before it. So it is found by them even before it is ready.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub(crate) struct ConfigDirectory(TempDir);

impl ConfigDirectory {
    pub(crate) fn new() -> ConfigDirectory {
        ConfigDirectory(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the processes that have a file of this directory among their arguments.
    fn processes(&self) -> Vec<String> {
        let given = |id: &str| {
            let arguments = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let mut arguments = arguments.split(|byte| *byte == 0);
            arguments.any(|argument| Path::new(OsStr::from_bytes(argument)).starts_with(self.path()))
        };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && given(name)).collect()
    }
}

impl Drop for ConfigDirectory {
    fn drop(&mut self) {
        // Until all have ended, one of them may start another.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            let _ = Command::new("kill").arg("-KILL").args(left).stderr(Stdio::null()).status();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
