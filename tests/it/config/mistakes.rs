//! Checks that mistakes which people make in a file are reported with their place, what must hold, and what was found.

use std::collections::BTreeSet;

use super::bad_files::parse;

/// The mistakes, each with its report.
const MISTAKES: &str = include_str!("../../config/mistakes.txt");

/// A file with a mistake.
struct Mistake<'t> {
    name: &'t str,
    file: &'t str,
    report: Vec<&'t str>,
}

fn mistakes() -> Vec<Mistake<'static>> {
    let each = MISTAKES.split("\n== ").skip(1).map(|text| {
        let (name, rest) = text.split_once('\n').unwrap();
        let (file, report) = rest.split_once("\n--\n").unwrap_or_else(|| panic!("{name}: no report"));
        Mistake { name, file, report: report.lines().collect() }
    });
    each.collect()
}

#[test]
fn every_mistake_is_reported_with_its_place_and_what_must_hold() {
    let mistakes = mistakes();
    assert!(mistakes.len() >= 50, "{}", mistakes.len());
    let names: BTreeSet<&str> = mistakes.iter().map(|mistake| mistake.name).collect();
    assert_eq!(names.len(), mistakes.len());
    let mut wrong = Vec::new();
    for Mistake { name, file, report } in mistakes {
        let Err(problems) = parse(file.as_bytes()) else {
            wrong.push(format!("== {name}\n{file}\n--\nok"));
            continue;
        };
        let lines = problems.report();
        // The last line has the number of problems.
        let found = &lines[..lines.len() - 1];
        if *found != report[..] {
            wrong.push(format!("== {name}\n{file}\n--\n{}", found.join("\n")));
        }
        for problem in problems.problems {
            assert!(problem.position.is_some() || file.trim().is_empty(), "{name}: {} has no place", problem.what);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
