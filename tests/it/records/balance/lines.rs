//! Reads the files of records and the output of `tollgate records check` without the program's own reader.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use serde_json::Value;

/// What the lines say of a meter, a subject and a period. Amounts are thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub quantity: u64,
    pub requests: u64,
    pub refused: u64,
}

/// The beginning and the end of a period, in microseconds.
pub type Period = [u64; 2];

/// A threshold as a line tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    pub meter: String,
    pub subject: String,
    pub period: Period,
    /// In thousandths.
    pub amount: u64,
}

#[derive(Debug, Default)]
pub struct Lines {
    /// By meter, subject and period.
    pub sums: BTreeMap<(String, String, Period), Sum>,
    /// How often each threshold was reported.
    pub told: BTreeMap<Told, u64>,
}

/// What `tollgate records check` says of one sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    pub meter: String,
    pub subject: String,
    pub period: Period,
    pub sum: Sum,
    pub result: CheckResult,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Equal(u64),
    More { spent: u64, by: u64 },
    Less { spent: u64, by: u64 },
    NotCompared(String),
}

/// Returns an amount of JSON or text in thousandths.
#[track_caller]
pub fn thousandths(amount: &Value) -> u64 {
    amount.as_str().map_or_else(|| decimal(&amount.to_string()), decimal)
}

#[track_caller]
fn decimal(text: &str) -> u64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = format!("{part:0<3}");
    assert_eq!(part.len(), 3, "{text}");
    whole.parse::<u64>().unwrap_or_else(|error| panic!("{text}: {error}")) * 1000 + part.parse::<u64>().unwrap()
}

/// Returns a moment in microseconds.
#[track_caller]
fn micros(moment: &str) -> u64 {
    base::rfc3339::parse(moment).and_then(|micros| micros.try_into().ok()).unwrap_or_else(|| panic!("{moment}"))
}

/// Returns the whole lines of these files.
pub fn of_files(files: &[PathBuf]) -> Vec<Value> {
    let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
    texts.flat_map(|text| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>()).collect()
}

/// Returns the last interval of which there is a line: its beginning and end, in microseconds.
pub fn last_interval(lines: &[Value]) -> Option<Period> {
    let interval = |line: &Value| Some([micros(line["data"]["from"].as_str()?), micros(line["data"]["to"].as_str()?)]);
    lines.iter().filter_map(interval).max_by_key(|[_, end]| *end)
}

impl Told {
    /// Returns the sum that it belongs to.
    pub fn key(&self) -> (String, String, Period) {
        (self.meter.clone(), self.subject.clone(), self.period)
    }
}

impl Lines {
    /// Sums lines, of which each id counts once.
    #[track_caller]
    pub fn of(lines: &[Value]) -> Lines {
        let (mut sums, mut ids) = (Lines::default(), HashSet::new());
        for line in lines {
            let data = &line["data"];
            let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
            let period = ["period_begin", "period_end"].map(|name| data[name].as_str().map_or(0, micros));
            let is_new = ids.insert(line["id"].to_string());
            match line["type"].as_str() {
                Some("tollgate.usage") if is_new => {
                    let sum = sums.sums.entry((text("meter"), text("subject"), period)).or_default();
                    sum.quantity += thousandths(&data["quantity"]);
                    sum.requests += data["requests"].as_u64().unwrap();
                    sum.refused += data["refused"].as_u64().unwrap();
                }
                Some("tollgate.threshold") if is_new => {
                    let amount = thousandths(&data["quantity"]);
                    let told = Told { meter: text("meter"), subject: text("subject"), period, amount };
                    *sums.told.entry(told).or_default() += 1;
                }
                _ => {}
            }
        }
        sums
    }

    /// Returns the sum of a meter and subject over all periods.
    pub fn of_subject(&self, meter: &str, subject: &str) -> Sum {
        let own = self.sums.iter().filter(|((of, name, _), _)| (&**of, &**name) == (meter, subject));
        own.fold(Sum::default(), |all, (_, sum)| Sum {
            quantity: all.quantity + sum.quantity,
            requests: all.requests + sum.requests,
            refused: all.refused + sum.refused,
        })
    }
}

/// Reads the output of `tollgate records check` about meters that are counted by `X-User`.
#[track_caller]
pub fn checked(output: &str) -> Vec<Checked> {
    output.lines().filter_map(|line| line.split_once(" recorded (").map(|parts| (line, parts))).map(one).collect()
}

#[track_caller]
fn one((line, (left, right)): (&str, (&str, &str))) -> Checked {
    let parse = || {
        let (head, quantity) = left.rsplit_once(": ")?;
        let (meter, rest) = head.split_once(' ')?;
        let (subject, period) = rest.split_once(", ")?;
        let (begin, end) = period.split_once(" to ")?;
        let (counts, result) = right.split_once("), ")?;
        let (requests, refused) = counts.split_once(" requests, ")?;
        let sum = Sum {
            quantity: decimal(quantity.split(' ').next()?),
            requests: requests.parse().ok()?,
            refused: refused.strip_suffix(" refused")?.parse().ok()?,
        };
        let result = match result.split_once(" spent: ") {
            None => CheckResult::NotCompared(result.strip_prefix("not compared: ")?.to_owned()),
            Some((spent, "equal")) => CheckResult::Equal(decimal(spent)),
            Some((spent, by)) => {
                let (by, which) = by.split_once(' ')?;
                let (spent, by) = (decimal(spent), decimal(by));
                if which == "more spent" { CheckResult::More { spent, by } } else { CheckResult::Less { spent, by } }
            }
        };
        Some(Checked {
            meter: meter.to_owned(),
            subject: subject.strip_prefix("header:x-user=")?.to_owned(),
            period: [micros(begin), micros(end)],
            sum,
            result,
        })
    };
    parse().unwrap_or_else(|| panic!("{line}"))
}
