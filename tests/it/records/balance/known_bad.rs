//! Deliberate mistakes in records. The books and `tollgate records check` find every one of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::books::Finding::{
    LessSpent, MoreSpent, RecordedTooLittle, RecordedTooMuch, ThresholdTwice, WrongCheck, WrongCount,
};
use super::books::{Finding, METERS, SHORT, WORK};
use super::lines::thousandths;
use super::play::{Run, Setup, play};
use super::site::{Fault, StoreKind};
use crate::support::print_measured;

/// A change of one line.
struct Mistake {
    name: &'static str,
    /// The type of the line, and its meter.
    of: (&'static str, usize),
    change: fn(&str) -> String,
    found: &'static [Finding],
    /// The exit code of `tollgate records check`.
    code: i32,
}

const WORK_LINE: (&str, usize) = ("tollgate.usage", WORK);

const MISTAKES: [Mistake; 9] = [
    Mistake { name: "none", of: WORK_LINE, change: str::to_owned, found: &[], code: 0 },
    Mistake {
        name: "a line is dropped",
        of: WORK_LINE,
        change: |_| String::new(),
        found: &[RecordedTooLittle, MoreSpent, WrongCount],
        code: 1,
    },
    Mistake {
        name: "a line is torn",
        of: WORK_LINE,
        change: |line| format!("{}\n", &line[..line.len() / 2]),
        found: &[RecordedTooLittle, MoreSpent, WrongCount],
        code: 1,
    },
    Mistake { name: "a line is doubled", of: WORK_LINE, change: |line| line.repeat(2), found: &[], code: 0 },
    Mistake {
        name: "a line is doubled with another id",
        of: WORK_LINE,
        change: |line| line.to_owned() + &changed(line, |line| line["id"] = json!("0b")),
        found: &[RecordedTooMuch, LessSpent, WrongCount],
        code: 1,
    },
    Mistake {
        name: "a quantity is a thousandth larger",
        of: WORK_LINE,
        change: |line| changed(line, |line| line["data"]["quantity"] = larger(&line["data"]["quantity"])),
        found: &[RecordedTooMuch, LessSpent],
        code: 1,
    },
    Mistake {
        name: "a line names another subject",
        of: WORK_LINE,
        change: |line| changed(line, |line| line["data"]["subject"] = json!("nobody")),
        found: &[RecordedTooLittle, MoreSpent, WrongCount, WrongCheck],
        code: 1,
    },
    Mistake {
        name: "a refusal is counted twice",
        of: ("tollgate.usage", SHORT),
        change: |line| {
            changed(line, |line| line["data"]["refused"] = json!(line["data"]["refused"].as_u64().unwrap() + 1))
        },
        found: &[WrongCount],
        code: 0,
    },
    Mistake {
        name: "a threshold is reported twice",
        of: ("tollgate.threshold", SHORT),
        change: |line| line.to_owned() + &changed(line, |line| line["id"] = json!("0b")),
        found: &[ThresholdTwice],
        code: 0,
    },
];

fn changed(line: &str, change: fn(&mut Value)) -> String {
    let mut line: Value = serde_json::from_str(line).unwrap();
    change(&mut line);
    format!("{line}\n")
}

fn larger(quantity: &Value) -> Value {
    let quantity = thousandths(quantity) + 1;
    json!(format!("{}.{:03}", quantity / 1000, quantity % 1000))
}

/// Whether the line is of this type and about something that was used of this meter.
fn is_of(line: &str, (kind, meter): (&str, usize)) -> bool {
    let line: Value = serde_json::from_str(line).unwrap();
    line["type"] == kind && line["data"]["meter"] == METERS[meter] && line["data"]["quantity"] != 0
}

#[test]
fn mistakes_in_records_are_found() {
    let setup = Setup { seed: 1, store: StoreKind::Redis, faults: vec![Fault::Rotation] };
    let (Run { setup, books, faults, .. }, site) = play(&setup, None);
    let texts: BTreeMap<PathBuf, String> =
        site.files().into_iter().map(|file| (file.clone(), std::fs::read_to_string(file).unwrap())).collect();
    for Mistake { name, of, change, found: expected, code } in MISTAKES {
        let mut lines = texts.iter().flat_map(|(file, text)| text.split_inclusive('\n').map(move |line| (file, line)));
        let (file, line) = lines.find(|(_, line)| is_of(line, of)).expect("there is such a line");
        std::fs::write(file, texts[file].replace(line, &change(line))).unwrap();
        let run = Run::of(setup.clone(), books.clone(), faults.clone(), &site, String::new());
        let mut found: Vec<Finding> = run.findings().into_iter().map(|(finding, _)| finding).collect();
        found.dedup();
        print_measured(&format!("mistaken records: {name}: {found:?}, {:?} from records check", run.check.code));
        let details = || format!("{name}: {:#?}\n{}", run.findings(), run.check.out);
        assert_eq!((&*found, run.check.code), (expected, Some(code)), "{}", details());
        std::fs::write(file, &texts[file]).unwrap();
    }
}

/// A gateway whose reports are added again lets the bucket have more than the records.
#[test]
fn gateways_whose_sums_are_added_again_do_not_balance() {
    let is_found = (20..25).any(|seed| {
        let setup = Setup { seed, store: StoreKind::Redis, faults: Vec::new() };
        let (run, _) = play(&setup, Some("sums_added"));
        let findings: Vec<Finding> = run.findings().into_iter().map(|(finding, _)| finding).collect();
        print_measured(&format!("mistaken gateways: {findings:?}, {:?} from records check", run.check.code));
        findings.contains(&MoreSpent) && run.check.code == Some(1)
    });
    assert!(is_found);
}
