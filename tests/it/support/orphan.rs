//! Follows a process that took over from a gateway, and is nobody's child any more. Its [`Home`](super::Home) ends it.

use std::process::Command;

use super::{Gateway, eventually};

pub struct Orphan(String);

impl Orphan {
    /// By its process id.
    pub fn new(id: String) -> Orphan {
        Orphan(id)
    }

    /// The one that has taken over, by what the one before it says.
    #[track_caller]
    pub fn of(gateway: &Gateway, handovers: usize) -> Orphan {
        eventually("it hands over", || gateway.errors().matches("handed over").count() == handovers);
        let errors = gateway.errors();
        let line = errors.lines().rfind(|line| line.contains("handed over")).unwrap();
        let pid = line.split("pid=").nth(1).unwrap_or_else(|| panic!("no pid in {line}"));
        Orphan(pid.chars().take_while(char::is_ascii_digit).collect())
    }

    pub fn id(&self) -> &str {
        &self.0
    }

    #[track_caller]
    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").arg(format!("-{name}")).arg(&self.0).status().unwrap().success());
    }

    pub fn is_running(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z")
    }
}
