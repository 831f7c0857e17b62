//! Runs the commands of docs/guide in a shell, and compares their output. Checks that each page is short and links to the
//! next one.

use std::process::Command;

use super::docs;
use crate::support::not_checked;

fn pages() -> Vec<(&'static str, String)> {
    let names = docs::PAGES.iter().filter(|name| name.starts_with("docs/guide/"));
    names.map(|name| (*name, docs::read(name))).collect()
}

#[test]
fn every_command_of_the_guide_prints_what_the_guide_says() {
    for program in ["python3", "curl", "openssl", "redis-server", "pgrep", "setsid"] {
        if !Command::new("which").arg(program).output().is_ok_and(|found| found.status.success()) {
            not_checked(&format!("the guide: {program} is not installed"));
            return;
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/guide");
    let output = Command::new(script).arg(env!("CARGO_BIN_EXE_tollgate")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(printed, "as the guide says\n");
}

#[test]
fn every_page_of_the_guide_has_500_words_at_most_and_leads_to_the_next() {
    let pages = pages();
    assert_eq!(pages.len(), 8);
    for (at, (name, page)) in pages.iter().enumerate() {
        let words = page.split_whitespace().count();
        assert!(words <= 500, "{name} has {words} words");
        assert!(page.starts_with(&format!("# {}. ", at + 1)), "{name}");
        if let Some((next, _)) = pages.get(at + 1) {
            let file = next.rsplit('/').next().unwrap();
            assert!(page.lines().last().unwrap().contains(&format!("]({file})")), "{name} does not lead to {next}");
        }
    }
}
