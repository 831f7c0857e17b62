//! Observes the next process after an upgrade. It is no child of the test, so [`super::ConfigDirectory`] kills it.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Gateway, eventually};

pub(crate) struct Orphan(String);

impl Orphan {
    /// Returns the process with this id.
    pub(crate) fn new(id: String) -> Orphan {
        Orphan(id)
    }

    /// Returns the process to which `gateway` has handed over, according to the gateway's log.
    #[track_caller]
    pub(crate) fn of(gateway: &Gateway, handovers: usize) -> Orphan {
        eventually("it hands over", || gateway.errors().matches("handed over").count() == handovers);
        let errors = gateway.errors();
        let line = errors.lines().rfind(|line| line.contains("handed over")).unwrap();
        let pid = line.split("pid=").nth(1).unwrap_or_else(|| panic!("no pid in {line}"));
        Orphan(pid.chars().take_while(char::is_ascii_digit).collect())
    }

    pub(crate) fn id(&self) -> &str {
        &self.0
    }

    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").arg(format!("-{name}")).arg(&self.0).status().unwrap().success());
    }

    pub(crate) fn is_running(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z")
    }
}

/// Upgrades a gateway this many times, each time from the process of the last upgrade. After each handover the previous
/// process exits without an error, and `clients_go_on` waits until clients have got answers from the next one.
#[track_caller]
pub(crate) fn hand_over(gateway: &mut Gateway, times: usize, clients_go_on: impl Fn()) {
    let mut current: Option<Orphan> = None;
    for handovers in 1..=times {
        match &current {
            None => gateway.signal("USR2"),
            Some(process) => process.signal("USR2"),
        }
        let next = Orphan::of(gateway, handovers);
        match &current {
            None => assert!(gateway.wait().0.success(), "{}", gateway.errors()),
            Some(process) => eventually("the previous process leaves", || !process.is_running()),
        }
        clients_go_on();
        current = Some(next);
    }
}

/// Waits until each of these counts of answers has grown by more than twenty.
#[track_caller]
pub(crate) fn await_more(served: &[AtomicUsize]) {
    let before: Vec<_> = served.iter().map(|served| served.load(Ordering::Relaxed)).collect();
    let is_more = |(served, before): (&AtomicUsize, &usize)| served.load(Ordering::Relaxed) > before + 20;
    eventually("clients go on", || served.iter().zip(&before).all(is_more));
}
