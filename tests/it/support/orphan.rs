//! Follows the next process after an upgrade, which is no child of the test. Its [`super::ConfigDirectory`] kills it.

use std::process::Command;

use super::{Gateway, eventually};

pub struct Orphan(String);

impl Orphan {
    /// The process with this id.
    pub fn new(id: String) -> Orphan {
        Orphan(id)
    }

    /// The process to which `gateway` has handed over, by the gateway's log.
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
