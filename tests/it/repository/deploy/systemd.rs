//! The systemd unit: the program that it starts exists, and it waits longer than a drain takes.

use std::process::Command;

use config::{Config, Environment};

use super::{read, root};
use crate::support::{not_checked, print_measured};

const UNIT: &str = "deploy/systemd/tollgate.service";
const PROGRAM: &str = "/usr/local/bin/tollgate";

/// Returns the values of a setting, in their order.
fn settings<'u>(unit: &'u str, name: &str) -> Vec<&'u str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

#[track_caller]
fn seconds(text: &str) -> f64 {
    text.strip_suffix('s').unwrap_or(text).parse().unwrap_or_else(|_| panic!("{text} are no seconds"))
}

#[test]
fn the_unit_stops_later_than_a_gateway_drains() {
    let surroundings =
        Environment { variable: &|_| None, folder: root(), read: &|_| Err(std::io::ErrorKind::NotFound.into()) };
    let smallest = Config::parse("gateway.yaml", b"upstream: http://127.0.0.1:9000", surroundings).unwrap();
    let drain = smallest.drain.delay.plus(smallest.drain.timeout).seconds();
    let unit = read(UNIT);
    let stops = seconds(settings(&unit, "TimeoutStopSec")[0]);
    assert!(stops > drain, "it is killed after {stops} s, and drains for {drain}");
}

#[test]
fn the_commands_of_the_unit_accept_their_arguments() {
    let unit = read(UNIT);
    let mut tried = 0;
    for line in settings(&unit, "ExecStart").into_iter().chain(settings(&unit, "ExecReload")) {
        let Some(arguments) = line.strip_prefix(PROGRAM) else { continue };
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments.split_whitespace()).output().unwrap();
        // Not 2, which would be wrong usage: the file is not there.
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("/etc/tollgate/gateway.yaml"), "{output:?}");
        tried += 1;
    }
    assert_eq!(tried, 2);
    // A file that the gateway would reject must fail the reload, also one without its secrets, which are there.
    assert!(settings(&unit, "ExecReload")[0].contains(" check --require-secrets "));
    assert_eq!(settings(&unit, "ExecReload").last(), Some(&"/bin/sh -c 'kill -HUP $$MAINPID'"));
}

#[test]
fn the_group_of_the_gateway_can_read_its_logs_and_nobody_else() {
    let unit = read(UNIT);
    let octal = |name: &str| u32::from_str_radix(settings(&unit, name)[0], 8).unwrap();
    // The program creates an access log with 0640.
    let (file, folder) = (0o640 & !octal("UMask"), octal("LogsDirectoryMode"));
    assert_eq!((file, folder), (0o640, 0o750));
}

#[test]
fn systemd_verifies_the_unit_and_rates_its_exposure_low() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tollgate.service");
    // Where the program is here.
    std::fs::write(&file, read(UNIT).replace(PROGRAM, env!("CARGO_BIN_EXE_tollgate"))).unwrap();
    for arguments in [&["verify"][..], &["security", "--offline=true", "--no-pager", "--threshold=20"]] {
        let Ok(output) = Command::new("systemd-analyze").args(arguments).arg(&file).output() else {
            not_checked("systemd-analyze is not installed");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        // Older ones cannot judge a file.
        if said.contains("unrecognized option") {
            not_checked("systemd-analyze is older than version 250");
            return;
        }
        assert!(output.status.success() && !said.contains("Unknown"), "{arguments:?}: {said}");
        print_measured(said.trim().lines().last().unwrap_or_default());
    }
}
