//! Runs the simulation of limits that several regions share, in its short form: no random schedule of faults lets more pass than the
//! limit, and every deliberate mistake is found.

use std::process::Command;

use super::imports::root;
use crate::support::not_checked;

/// Returns the exit code and what the simulation prints. `None` without Python.
fn simulation(arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let mut python = Command::new("python3");
    // Without `-B` it would leave compiled files beside its sources.
    let Ok(output) = python.args(["-B", "benches/regions"]).args(arguments).current_dir(root()).output() else {
        not_checked("the simulation of regions: python3 is not installed");
        return None;
    };
    Some((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap()))
}

#[test]
fn leases_let_no_more_pass_than_the_limit_under_any_fault_and_every_mistake_is_found() {
    let Some((code, text)) = simulation(&[]) else { return };
    assert_eq!(code, Some(0), "{text}");
    let row = |name: &str| {
        let row = text.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let cells: Vec<&str> =
            row.unwrap_or_else(|| panic!("no row {name}: {text}")).split('|').map(str::trim).collect();
        let number = |place: usize| cells[place].parse::<u32>().unwrap();
        (number(2), number(3))
    };
    let ((played, failed), (also_played, broken)) = (row("the chosen form"), row("the first form"));
    assert!(played >= 300 && played == also_played && failed == 0 && broken > 0, "{text}");
    // A mistake that is not found is an error, so those that are listed were found.
    let found = text.lines().filter(|line| line.starts_with("| `")).count();
    assert!(found >= 14, "{found} mistakes are found: {text}");
}

#[test]
fn the_simulation_prints_the_shortest_schedule_of_faults_that_shows_a_mistake() {
    let Some((code, text)) = simulation(&["--mistake", "credit-twice"]) else { return };
    assert_eq!(code, Some(1), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let [title, limit, faults @ .., excess] = &lines[..] else { panic!("{text}") };
    assert!(
        title.starts_with("credit-twice: ") && limit.starts_with("seed ") && excess.starts_with("key 0: "),
        "{text}"
    );
    // Without a second answer for one number there is nothing to credit twice.
    assert!(!faults.is_empty(), "{text}");
}
