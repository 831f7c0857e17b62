//! Writes a replay's report for people.

use std::collections::HashMap;
use std::fmt::Write;

use super::share::{grouped, percent};
use crate::replay::merge::TOLERANCE;
use crate::replay::picture::moment;
use crate::replay::report::{Ours, Outcome, Refuser, Report};

const SECOND: u64 = 1_000_000;

/// What was read, what to know about it, and what came of it under each file.
pub fn table(report: &Report, names: &[String]) -> String {
    let mut text = head(report);
    for warning in warnings(report, names) {
        let _ = writeln!(text, "! {warning}");
    }
    match &report.outcomes[..] {
        [only] => text += &aligned(&alone(only, report.requests)),
        [today, tomorrow, ..] => {
            let heading = names.iter().flat_map(|name| [name.clone(), String::new()]);
            let heading = [String::new()].into_iter().chain(heading).chain(["change".to_owned()]).collect();
            text += &aligned(&[vec![heading], beside(today, tomorrow, report.requests)].concat());
        }
        [] => {}
    }
    for (outcome, name) in report.outcomes.iter().zip(names) {
        for shadow in &outcome.shadows {
            let share = percent(shadow.would_refuse, shadow.asked);
            let (refused, asked) = (grouped(shadow.would_refuse), grouped(shadow.asked));
            let file = if names.len() > 1 { format!(" in {name}") } else { String::new() };
            let _ = writeln!(text, "shadow  {}{file} would refuse {refused} of {asked} ({share})", shadow.name);
        }
    }
    text += &worst(report);
    text += &top(report);
    text
}

fn head(report: &Report) -> String {
    let seen = &report.seen;
    let (seconds, tenths) = (report.took.0 / SECOND, report.took.0 % SECOND / 100_000);
    let mut text = format!("read {} lines in {seconds}.{tenths} s", grouped(seen.lines));
    if let Some((first, last)) = report.span {
        let _ = write!(text, ", {} to {} UTC", moment(first.0 / SECOND), moment(last.0 / SECOND));
    }
    text.push('\n');
    text
}

/// What whoever reads the numbers has to know about them.
pub fn warnings(report: &Report, names: &[String]) -> Vec<String> {
    let seen = &report.seen;
    let mut warnings = Vec::new();
    let of = |lines: u64| format!("{} requests ({})", grouped(lines), percent(lines, report.requests));
    if let Some(first) = &seen.first_unreadable {
        warnings.push(format!("{} lines unreadable, the first {first}", grouped(seen.unreadable)));
    }
    if seen.beside > 0 {
        warnings.push(format!("{} lines passed over: answered before any rule was asked", grouped(seen.beside)));
    }
    if report.ours == Ours::WithoutAllowed {
        let when = "requests that were allowed are not in this log (access_log.when), so the others find full buckets";
        warnings.push(when.to_owned());
    }
    if seen.spread > 0 {
        warnings.push("times in whole seconds are spread evenly within the second".to_owned());
    }
    if seen.late > 0 {
        let tolerance = TOLERANCE.ceil_seconds();
        warnings.push(format!("{} lines came more than {tolerance} s late, and were decided late", grouped(seen.late)));
    }
    for (outcome, name) in report.outcomes.iter().zip(names) {
        let file = if names.len() > 1 { format!("{name}: ") } else { String::new() };
        for missing in &outcome.missing {
            warnings.push(format!("{file}{} is missing on {}, taken as absent", missing.attribute, of(missing.lines)));
        }
        for log in &outcome.as_logged {
            let (policy, lines) = (&log.policy, of(log.lines));
            warnings.push(format!("{file}{policy}: on {lines} the rule and its bucket are those that the log names"));
        }
        for undecidable in &outcome.undecidable {
            let (what, attributes) = (&undecidable.name, undecidable.attributes.join(", "));
            let lines = of(undecidable.lines);
            warnings.push(format!("{file}{what} hangs on {attributes}, which the log does not tell: {lines} undecided"));
        }
    }
    warnings
}

/// A row: a label, then cells.
type Row = Vec<String>;

fn alone(outcome: &Outcome, requests: u64) -> Vec<Row> {
    let line = |label: &str, count: u64| vec![label.to_owned(), grouped(count), percent(count, requests)];
    let mut rows = vec![line("allowed", outcome.allowed), line("refused", outcome.refused)];
    for by in &outcome.by {
        rows.push(vec![format!("  {}", by.name), grouped(by.refused), String::new(), keys(by)]);
    }
    if outcome.undecided > 0 {
        rows.push(line("undecided", outcome.undecided));
    }
    rows
}

fn beside(today: &Outcome, tomorrow: &Outcome, requests: u64) -> Vec<Row> {
    let line = |label: &str, before: u64, after: u64| {
        let shares = [percent(before, requests), percent(after, requests)];
        let [share_before, share_after] = shares;
        vec![label.to_owned(), grouped(before), share_before, grouped(after), share_after, change(before, after)]
    };
    let mut rows = vec![
        line("allowed", today.allowed, tomorrow.allowed),
        line("refused", today.refused, tomorrow.refused),
    ];
    let before: HashMap<&str, u64> = today.by.iter().map(|by| (&*by.name, by.refused)).collect();
    let part = |name: &str, before: u64, after: u64, keys: String| {
        let (none, change) = (String::new(), change(before, after));
        vec![format!("  {name}"), grouped(before), none.clone(), grouped(after), none, change, keys]
    };
    for by in &tomorrow.by {
        rows.push(part(&by.name, before.get(&*by.name).copied().unwrap_or(0), by.refused, keys(by)));
    }
    for by in today.by.iter().filter(|by| !tomorrow.by.iter().any(|other| other.name == by.name)) {
        rows.push(part(&by.name, by.refused, 0, String::new()));
    }
    if today.undecided + tomorrow.undecided > 0 {
        rows.push(line("undecided", today.undecided, tomorrow.undecided));
    }
    rows
}

fn keys(by: &Refuser) -> String {
    let Some(keys) = by.keys else { return String::new() };
    let word = if keys == 1 { "key" } else { "keys" };
    match by.newly_refused_keys {
        Some(newly) if newly > 0 => format!("{} {word}, {} never refused before", grouped(keys), grouped(newly)),
        _ => format!("{} {word}", grouped(keys)),
    }
}

fn change(before: u64, after: u64) -> String {
    match before.cmp(&after) {
        std::cmp::Ordering::Less => format!("+{}", grouped(after - before)),
        std::cmp::Ordering::Equal => "0".to_owned(),
        std::cmp::Ordering::Greater => format!("-{}", grouped(before - after)),
    }
}

/// The minute or hour in which the last file refuses the most.
fn worst(report: &Report) -> String {
    let last = report.outcomes.len().saturating_sub(1);
    let Some(worst) = report.timeline.worst(last) else { return String::new() };
    let span = if worst.length == 3600 { "hour" } else { "minute" };
    let refused: Vec<String> = worst.part.refused[..=last].iter().map(|refused| grouped(*refused)).collect();
    format!("worst {span}  {} UTC, {} refused\n", moment(worst.start), refused.join(" → "))
}

fn top(report: &Report) -> String {
    let Some(outcome) = report.outcomes.last() else { return String::new() };
    let what = if outcome.newly_refused_keys.is_some() { "newly refused" } else { "most refused" };
    let row = |top: &crate::replay::report::Top| {
        let count = top.newly.unwrap_or(top.refused);
        let share = percent(count, top.asked);
        let counts = format!("{} of {} ({share})", grouped(count), grouped(top.asked));
        format!("{what}  {}  {}  {counts}\n", top.name, top.limit)
    };
    outcome.top.iter().map(row).collect()
}

/// The first and the last column to the left, those between to the right.
fn aligned(rows: &[Row]) -> String {
    const WORDS: usize = 6;
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        // A heading of two columns may stand over both.
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let (width, words) = (widths[column], cell.contains("key") || column >= WORDS);
            let _ = match (column, words) {
                (0, _) => write!(line, "{cell:<width$}"),
                (_, true) => write!(line, "   {cell}"),
                (_, false) => write!(line, "  {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
