//! Deliberate mistakes in records. The books and `tollgate records check` find every one of them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::books::Finding;
use super::play::{Run, Setup, play};
use super::site::{Fault, Site, StoreKind};
use crate::support::print_measured;

/// Plays a run in which nothing is lost.
fn clean() -> (Run, Site) {
    let setup = Setup { seed: 1, store: StoreKind::Redis, faults: vec![Fault::Rotation] };
    let (run, site) = play(&setup, None);
    assert_eq!(run.findings(), []);
    assert_eq!(run.check.code, Some(0), "{}", run.check.out);
    (run, site)
}

/// Returns the texts of all files with a line about the work of some subject, which is in the first of them, split around it.
fn around_a_line(
    texts: &BTreeMap<std::path::PathBuf, String>,
    is: impl Fn(&Value) -> bool,
) -> (&Path, String, String, String) {
    let mut lines =
        texts.iter().flat_map(|(file, text)| text.split_inclusive('\n').map(move |line| (file, text, line)));
    let found = lines.find(|(.., line)| serde_json::from_str(line).is_ok_and(|line: Value| is(&line)));
    let (file, text, line) = found.expect("there is such a line");
    let (before, after) = text.split_once(line).unwrap();
    (file, before.to_owned(), line.to_owned(), after.to_owned())
}

#[test]
fn mistakes_in_records_are_found() {
    let (run, site) = clean();
    let Run { setup, books, interruptions, .. } = run;
    let texts: BTreeMap<_, _> =
        site.files().into_iter().map(|file| (file.clone(), std::fs::read_to_string(file).unwrap())).collect();
    let is_work = |line: &Value| {
        line["type"] == "tollgate.usage" && line["data"]["meter"] == "work" && line["data"]["quantity"] != 0
    };
    let is_told = |line: &Value| line["type"] == "tollgate.threshold" && line["data"]["meter"] == "short";
    let changed = |line: &str, change: &dyn Fn(&mut Value)| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        change(&mut line);
        format!("{line}\n")
    };
    type Change<'c> = Box<dyn Fn(&str) -> String + 'c>;
    let mistakes: Vec<(&str, bool, Change<'_>, &[Finding], i32)> = vec![
        ("none", false, Box::new(str::to_owned), &[], 0),
        ("a line is dropped", false, Box::new(|_| String::new()), &[Finding::RecordedTooLittle, Finding::MoreSpent], 1),
        (
            "a line is torn",
            false,
            Box::new(|line| format!("{}\n", &line[..line.len() / 2])),
            &[Finding::RecordedTooLittle, Finding::MoreSpent],
            1,
        ),
        ("a line is doubled", false, Box::new(|line| line.repeat(2)), &[], 0),
        (
            "a line is doubled with another id",
            false,
            Box::new(|line| {
                line.to_owned() + &changed(line, &|line| line["id"] = json!("0123456789abcdef0123456789abcdef"))
            }),
            &[Finding::RecordedTooMuch, Finding::LessSpent],
            1,
        ),
        (
            "a quantity is a thousandth larger",
            false,
            Box::new(|line| {
                changed(line, &|line| {
                    let quantity = super::lines::thousandths(&line["data"]["quantity"]) + 1;
                    line["data"]["quantity"] = json!(format!("{}.{:03}", quantity / 1000, quantity % 1000));
                })
            }),
            &[Finding::RecordedTooMuch, Finding::LessSpent],
            1,
        ),
        (
            "a line names another subject",
            false,
            Box::new(|line| changed(line, &|line| line["data"]["subject"] = json!("nobody"))),
            &[Finding::RecordedTooLittle, Finding::MoreSpent, Finding::WrongCheck],
            1,
        ),
        (
            "a threshold is told twice",
            true,
            Box::new(|line| line.to_owned() + &changed(line, &|line| line["id"] = json!("0b"))),
            &[Finding::ThresholdTwice],
            0,
        ),
    ];
    for (name, is_threshold, change, expected, code) in mistakes {
        let chosen: &dyn Fn(&Value) -> bool = if is_threshold { &is_told } else { &is_work };
        let (file, before, line, after) = around_a_line(&texts, chosen);
        std::fs::write(file, format!("{before}{}{after}", change(&line))).unwrap();
        let run = Run::of(setup.clone(), books.clone(), interruptions.clone(), &site, String::new());
        let mut found: Vec<Finding> = run.findings().into_iter().map(|(finding, _)| finding).collect();
        found.dedup();
        print_measured(&format!("mistaken records: {name}: {found:?}, {:?} from records check", run.check.code));
        assert_eq!(
            (&*found, run.check.code),
            (expected, Some(code)),
            "{name}: {:#?}\n{}",
            run.findings(),
            run.check.out
        );
        std::fs::write(file, &texts[file]).unwrap();
    }
}

/// A gateway whose reports are added again lets the bucket have more than the records.
#[test]
fn gateways_whose_sums_are_added_again_do_not_balance() {
    let found = (20..25).any(|seed| {
        let setup = Setup { seed, store: StoreKind::Redis, faults: Vec::new() };
        let (run, _) = play(&setup, Some("sums_added"));
        let findings: Vec<Finding> = run.findings().into_iter().map(|(finding, _)| finding).collect();
        print_measured(&format!("mistaken gateways: {findings:?}, {:?} from records check", run.check.code));
        findings.contains(&Finding::MoreSpent) && run.check.code == Some(1)
    });
    assert!(found);
}
