//! Formats the report of a replay as a table.

use std::fmt::Write;

use super::share::{counted, grouped, percent};
use replay::merge::TOLERANCE;
use replay::report::{Bans, LeftOut, Outcome, OwnLog, Refuser, Report};
use replay::svg::moment;

const SECOND: u64 = 1_000_000;

/// Formats the report as lines of text.
pub(super) fn table(report: &Report, names: &[String]) -> Vec<String> {
    let mut lines = vec![head(report)];
    lines.extend(warnings(report, names).iter().map(|warning| format!("! {warning}")));
    lines.extend(aligned(&rows(&report.outcomes, report.requests), names));
    for (outcome, name) in report.outcomes.iter().zip(names) {
        for shadow in &outcome.shadows {
            let share = percent(shadow.would_refuse, shadow.asked);
            let (refused, asked) = (grouped(shadow.would_refuse), grouped(shadow.asked));
            let file = if names.len() > 1 { format!(" in {name}") } else { String::new() };
            lines.push(format!("shadow  {}{file} would refuse {refused} of {asked} ({share})", shadow.name));
        }
    }
    for (outcome, name) in report.outcomes.iter().zip(names) {
        for Bans { name: limit, bans, keys } in &outcome.bans {
            let file = if names.len() > 1 { format!(" in {name}") } else { String::new() };
            lines.push(format!("banned  {limit}{file}: {} with {}", counted(*keys, "key"), counted(*bans, "ban")));
        }
    }
    lines.extend(worst(report));
    lines.extend(top(report));
    lines
}

fn head(report: &Report) -> String {
    let read = &report.read;
    let (seconds, tenths) = (report.took.0 / SECOND, report.took.0 % SECOND / 100_000);
    let mut text = format!("read {} in {seconds}.{tenths} s", counted(read.lines, "line"));
    if let Some((first, last)) = report.span {
        let _ = write!(text, ", {} to {} UTC", moment(first.0 / SECOND), moment(last.0 / SECOND));
    }
    text
}

/// Returns warnings about the report, such as unreadable lines.
pub(super) fn warnings(report: &Report, names: &[String]) -> Vec<String> {
    let read = &report.read;
    let mut warnings = Vec::new();
    let of = |lines: u64| format!("{} ({})", counted(lines, "request"), percent(lines, report.requests));
    if let Some(first) = &read.first_unreadable {
        warnings.push(format!("{} unreadable, the first {first}", counted(read.unreadable, "line")));
    }
    if read.before_rules > 0 {
        let lines = counted(read.before_rules, "line");
        warnings.push(format!("{lines} skipped: answered before any rule was checked"));
    }
    if report.ours == OwnLog::WithoutAllowed {
        let when = "requests that were allowed are not in this log (access_log.when), so the others find full buckets";
        warnings.push(when.to_owned());
    }
    if read.spread > 0 {
        warnings.push("times in whole seconds are spread evenly within the second".to_owned());
    }
    if read.late > 0 {
        let tolerance = TOLERANCE.ceil_seconds();
        let lines = counted(read.late, "line");
        warnings.push(format!("{lines} more than {tolerance} s late, and decided when they were read"));
    }
    for (outcome, name) in report.outcomes.iter().zip(names) {
        let file = if names.len() > 1 { format!("{name}: ") } else { String::new() };
        if outcome.several_issuers {
            warnings.push(format!(
                "{file}the log does not record which of several jwt.issuers signed a token: equal names count as one client"
            ));
        }
        for LeftOut { name, lines } in &outcome.left_out {
            let lines = of(*lines);
            warnings.push(format!("{file}{name} leaves out {lines}: the log does not tell what the response has cost"));
        }
        for missing in &outcome.missing {
            warnings.push(format!(
                "{file}{} is missing on {}, treated as absent",
                missing.attribute,
                of(missing.lines)
            ));
        }
        for log in &outcome.as_logged {
            let (policy, lines) = (&log.policy, of(log.lines));
            let taken = format!("{file}{policy}: on {lines} the rule and its bucket are those that the log names");
            // With a second file, changed rules are found by the first.
            let assumed = if names.len() > 1 { "" } else { ASSUMED };
            let to_log = match log.to_log.is_empty() {
                true => String::new(),
                false => format!("; to decide by this file from now on, log access_log: {{{}}}", log.to_log),
            };
            warnings.push(format!("{taken}{assumed}{to_log}"));
        }
        for undecidable in &outcome.undecidable {
            let (what, attributes) = (&undecidable.name, undecidable.attributes.join(", "));
            let lines = of(undecidable.lines);
            warnings.push(format!(
                "{file}{what} depends on {attributes}, which the log does not record: {lines} undecided"
            ));
        }
        if !outcome.undecidable.is_empty() && !outcome.lacking.is_empty() {
            warnings.extend(advice(report.ours, outcome).map(|advice| format!("{file}{advice}")));
        }
    }
    warnings
}

/// What the rule of a log is taken from, if there is no former file to compare with.
const ASSUMED: &str =
    ", as if `match`, keys and order of its rules were the same then (-c FORMER --against THIS compares)";

/// Returns how to decide requests that are undecided because the log lacks attributes. `None` if there is no way.
fn advice(ours: OwnLog, outcome: &Outcome) -> Option<String> {
    let possible = &outcome.may_be_absent;
    let absent = (!possible.is_empty())
        .then(|| format!("say that requests had none of these, --absent '{}'", possible.join(",")));
    let to_log = &outcome.to_log;
    match (ours, absent) {
        (OwnLog::None, Some(absent)) => {
            Some(format!("to decide them, {absent}, or take them from a log of JSON with --map"))
        }
        (OwnLog::None, None) => Some("to decide them, take them from a log of JSON with --map".to_owned()),
        // The log only does not list them, so the requests may have had them.
        _ if !to_log.is_empty() => {
            Some(format!("to decide such requests from now on, log what is missing, access_log: {{{to_log}}}"))
        }
        (_, absent) => absent.map(|absent| format!("to decide them, {absent}")),
    }
}

#[derive(Default)]
struct Row {
    label: String,
    /// For each file: a number, and its share or an empty text.
    counts: Vec<(String, String)>,
    change: String,
    note: String,
}

fn rows(outcomes: &[Outcome], requests: u64) -> Vec<Row> {
    let line = |label: &str, count: fn(&Outcome) -> u64| {
        let counts: Vec<u64> = outcomes.iter().map(count).collect();
        Row {
            label: label.to_owned(),
            counts: counts.iter().map(|count| (grouped(*count), percent(*count, requests))).collect(),
            change: change(&counts),
            note: String::new(),
        }
    };
    let mut rows = vec![line("allowed", |outcome| outcome.allowed), line("refused", |outcome| outcome.refused)];
    // The last file gives the order of the rows. Rules of other files follow.
    let mut listed: Vec<&str> = Vec::new();
    for by in outcomes.iter().rev().flat_map(|outcome| &outcome.by) {
        if listed.contains(&&*by.name) {
            continue;
        }
        listed.push(&by.name);
        let of = |outcome: &Outcome| outcome.by.iter().find(|other| other.name == by.name).map_or(0, |by| by.refused);
        let counts: Vec<u64> = outcomes.iter().map(of).collect();
        rows.push(Row {
            label: format!("  {}", by.name),
            counts: counts.iter().map(|count| (grouped(*count), String::new())).collect(),
            change: change(&counts),
            note: if outcomes.last().map_or(0, of) > 0 { keys(by) } else { String::new() },
        });
    }
    if outcomes.iter().any(|outcome| outcome.undecided > 0) {
        rows.push(line("undecided", |outcome| outcome.undecided));
    }
    rows
}

fn keys(by: &Refuser) -> String {
    let Some(keys) = by.keys else { return String::new() };
    match by.newly_refused_keys {
        Some(newly) if newly > 0 => format!("{}, {} never refused before", counted(keys, "key"), grouped(newly)),
        _ => counted(keys, "key"),
    }
}

/// Formats the change from the first file to the second.
fn change(counts: &[u64]) -> String {
    match counts {
        [before, after, ..] if before < after => format!("+{}", grouped(after - before)),
        [before, after, ..] if before > after => format!("-{}", grouped(before - after)),
        [_, _, ..] => "0".to_owned(),
        _ => String::new(),
    }
}

/// Returns the minute or hour in which the last file refuses the most requests.
fn worst(report: &Report) -> Option<String> {
    let last = report.outcomes.len().saturating_sub(1);
    let worst = report.timeline.worst(last)?;
    let span = if worst.length == 3600 { "hour" } else { "minute" };
    let refused: Vec<String> = (0..=last).map(|file| grouped(worst.part.refused_by(file))).collect();
    Some(format!("worst {span}  {} UTC, {} refused", moment(worst.start), refused.join(" → ")))
}

fn top(report: &Report) -> Vec<String> {
    let Some(outcome) = report.outcomes.last() else { return Vec::new() };
    let what = if outcome.newly_refused_keys.is_some() { "newly refused" } else { "most refused" };
    let row = |top: &replay::report::Top| {
        let count = top.newly.unwrap_or(top.refused);
        let share = percent(count, top.asked);
        let counts = format!("{} of {} ({share})", grouped(count), grouped(top.asked));
        format!("{what}  {}  {}  {counts}", top.name, top.limit)
    };
    outcome.top.iter().map(row).collect()
}

/// Aligns the columns: numbers to the right, words to the left.
fn aligned(rows: &[Row], names: &[String]) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    let widest = |cell: &dyn Fn(&Row) -> usize| rows.iter().map(cell).max().unwrap_or(0);
    let label = widest(&|row| length(&row.label));
    let heads: &[String] = if names.len() > 1 { names } else { &[] };
    let mut lines: Vec<String> = vec![format!("{:label$}", "")];
    lines.extend(rows.iter().map(|row| format!("{:<label$}", row.label)));
    for file in 0..names.len() {
        let count = widest(&|row| row.counts.get(file).map_or(0, |(count, _)| length(count)));
        let share = widest(&|row| row.counts.get(file).map_or(0, |(_, share)| length(share)));
        let head = heads.get(file).map_or("", String::as_str);
        let width = (count + share + 2).max(length(head));
        let cells = rows.iter().map(|row| row.counts.get(file));
        let cells = cells.map(|cell| cell.map_or_else(String::new, |(n, s)| format!("{n:>count$}  {s:>share$}")));
        for (line, cell) in lines.iter_mut().zip(std::iter::once(head.to_owned()).chain(cells)) {
            let _ = write!(line, "  {cell:>width$}");
        }
    }
    let change = if heads.is_empty() { "" } else { "change" };
    let width = widest(&|row| length(&row.change)).max(length(change));
    let cells = rows.iter().map(|row| (&*row.change, &*row.note));
    let mut complete = Vec::new();
    for (mut line, (change, note)) in lines.into_iter().zip(std::iter::once((change, "")).chain(cells)) {
        if !heads.is_empty() {
            let _ = write!(line, "  {change:>width$}");
        }
        let _ = write!(line, "   {note}");
        if !line.trim_end().is_empty() {
            complete.push(line.trim_end().to_owned());
        }
    }
    complete
}
