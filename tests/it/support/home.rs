//! Holds the folder of a gateway.yaml, and ends every process that was started with a file in it.
//!
//! A process that took over from another is nobody's child, and would go on when a test fails. It has the arguments of the
//! one before it, by which it is found, also before anybody has said that it is there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub struct Home(TempDir);

impl Home {
    pub fn new() -> Home {
        Home(TempDir::new().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The processes that have been given a file of it.
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

impl Drop for Home {
    fn drop(&mut self) {
        // One of them may start another until it has ended.
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
