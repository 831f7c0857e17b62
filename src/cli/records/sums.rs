//! Reads the files of records, with the holds that were left beside them, and sums what they say by meter, subject and period.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use base::time::Timestamp;
use decision::left_hold::LeftHold;
use decision::record_line::{self, Moment, ReadLine, ThresholdData, UsageData};
use ledger::algorithm::Period;
use ledger::cost::Cost;
use ledger::holds::Owner;

/// The longest line that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// The most lines that are named although they are broken.
const MOST_NAMED: usize = 10;

/// What a sum is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SumKey {
    pub meter: String,
    /// The attribute that names the subject, and its value. `None` for requests without a subject.
    pub subject: Option<(String, String)>,
    /// The beginning and the end of the period. `None` if the lines name none.
    pub period: Option<(Timestamp, Timestamp)>,
    /// The name of the unit.
    pub unit: String,
}

impl SumKey {
    pub(super) fn period(&self) -> Option<Period> {
        self.period.map(|(begin, end)| Period { begin, end })
    }

    /// Whether this is the key of the same bucket, and the periods are the same.
    pub(super) fn is_like(&self, other: &SumKey, is_same: impl FnOnce(Period, Period) -> bool) -> bool {
        let parts = |key: &SumKey| (key.meter.clone(), key.subject.clone(), key.unit.clone());
        parts(self) == parts(other) && self.period().zip(other.period()).is_some_and(|(one, other)| is_same(one, other))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    pub quantity: Cost,
    pub requests: u64,
    pub refused: u64,
    /// The largest amount of a threshold that a line tells.
    pub told: Cost,
    /// What holds reserve that a process has left when it ended, and that no other has taken over.
    pub left: Vec<(Owner, Cost)>,
}

impl Sum {
    pub(super) fn add(&mut self, other: &Sum) {
        self.quantity = self.quantity.plus(other.quantity);
        self.requests = self.requests.saturating_add(other.requests);
        self.refused = self.refused.saturating_add(other.refused);
        self.told = self.told.max(other.told);
        self.left.extend(&other.left);
    }
}

/// The sums of all lines, and what was found beside them.
#[derive(Debug, Default)]
pub(super) struct RecordSums {
    pub sums: BTreeMap<SumKey, Sum>,
    /// The ids of the lines that were read, each as a number, because they are hashes.
    ids: HashSet<u128>,
    repeated: u64,
    /// The places of the first broken lines, and what is wrong with them.
    named: Vec<String>,
    broken: u64,
}

impl RecordSums {
    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read. A line that is no record is not an error.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<()> {
        let mut file = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        for number in 1u64.. {
            line.clear();
            if file.by_ref().take(LONGEST).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let is_whole = line.ends_with(b"\n");
            if !is_whole && u64::try_from(line.len()).is_ok_and(|length| length == LONGEST) {
                skip_line(&mut file)?;
            }
            let text = line.trim_ascii();
            let place = || format!("{}:{number}", path.display());
            match record_line::read(text) {
                _ if text.is_empty() => {}
                Ok(ReadLine::Usage { id, data }) => match amount(&data) {
                    Some(quantity) => self.add(&id, &data, quantity),
                    None => self.note_broken(&place(), "data.quantity: must be an amount of data.unit"),
                },
                Ok(ReadLine::Threshold(data)) => match data.quantity.amount(&data.unit) {
                    Some(amount) => {
                        let sum = self.sums.entry(threshold_key(&data)).or_default();
                        sum.told = sum.told.max(amount);
                    }
                    None => self.note_broken(&place(), "data.quantity: must be an amount of data.unit"),
                },
                Ok(ReadLine::Other) => {}
                Err(_) if !is_whole => {
                    self.note_broken(&place(), "the last line is not whole, as after a gateway was killed");
                }
                Err(error) => self.note_broken(&place(), &error.to_string()),
            }
        }
        Ok(())
    }

    /// Reads the holds that were left beside a file of records, if there are any.
    ///
    /// # Errors
    /// If the file cannot be read. A line that is no hold is not an error.
    pub(super) fn read_left(&mut self, records: &Path) -> io::Result<()> {
        let path = LeftHold::file(records);
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read?,
        };
        for (number, line) in (1u64..).zip(text.split(|byte| *byte == b'\n')).filter(|(_, line)| !line.is_empty()) {
            let place = || format!("{}:{number}", path.display());
            let hold = match LeftHold::read(line) {
                Ok(hold) => hold,
                Err(error) => {
                    self.note_broken(&place(), &error.to_string());
                    continue;
                }
            };
            let Some(reserved) = hold.quantity.amount(&hold.unit) else {
                self.note_broken(&place(), "quantity: must be an amount of unit");
                continue;
            };
            let subject = hold.subject_from.as_deref().zip(hold.subject.as_deref());
            let key = key(&hold.meter, subject, hold.period_begin.zip(hold.period_end), &hold.unit);
            self.sums.entry(key).or_default().left.push((hold.owner(), reserved));
        }
        Ok(())
    }

    /// Returns lines about what was skipped.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = self.named.clone();
        let rest = self.broken.saturating_sub(u64::try_from(self.named.len()).unwrap_or(u64::MAX));
        if rest > 0 {
            remarks.push(format!("{rest} more lines are no records, skipped"));
        }
        if self.repeated > 0 {
            remarks.push(format!("{} lines have the id of an earlier line, each counted once", self.repeated));
        }
        remarks
    }

    fn add(&mut self, id: &str, data: &UsageData<'_>, quantity: Cost) {
        if !self.ids.insert(id_number(id)) {
            self.repeated += 1;
            return;
        }
        let subject = data.subject_from.as_deref().zip(data.subject.as_deref());
        let key = key(&data.meter, subject, data.period_begin.zip(data.period_end), &data.unit);
        let sum = self.sums.entry(key).or_default();
        sum.quantity = sum.quantity.plus(quantity);
        sum.requests = sum.requests.saturating_add(data.requests);
        sum.refused = sum.refused.saturating_add(data.refused);
    }

    fn note_broken(&mut self, place: &str, what: &str) {
        self.broken += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(format!("{place}: skipped: {what}"));
        }
    }
}

fn key(meter: &str, subject: Option<(&str, &str)>, period: Option<(Moment, Moment)>, unit: &str) -> SumKey {
    SumKey {
        meter: meter.to_owned(),
        subject: subject.map(|(attribute, value)| (attribute.to_owned(), value.to_owned())),
        period: period.map(|(begin, end)| (begin.0, end.0)),
        unit: unit.to_owned(),
    }
}

fn threshold_key(data: &ThresholdData<'_>) -> SumKey {
    let subject = data.subject_from.as_deref().zip(data.subject.as_deref());
    key(&data.meter, subject, data.period_begin.zip(data.period_end), &data.unit)
}

fn amount(data: &UsageData<'_>) -> Option<Cost> {
    data.quantity.amount(&data.unit)
}

/// Returns an id as a number. An id that is not one of a gateway is hashed.
fn id_number(id: &str) -> u128 {
    use sha2::{Digest, Sha256};
    u128::from_str_radix(id, 16).unwrap_or_else(|_| {
        Sha256::digest(id).iter().take(16).fold(0, |number, byte| (number << 8) | u128::from(*byte))
    })
}

/// Skips the rest of a line.
fn skip_line(file: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = file.fill_buf()?;
        let end = memchr::memchr(b'\n', buffer);
        let length = end.map_or(buffer.len(), |end| end + 1);
        file.consume(length);
        if end.is_some() || length == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> RecordSums {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        std::fs::write(&path, text).unwrap();
        let mut sums = RecordSums::default();
        sums.read(&path).unwrap();
        sums
    }

    fn line(id: &str, subject: &str, quantity: &str) -> String {
        format!(
            "{{\"specversion\":\"1.0\",\"id\":\"{id}\",\"source\":\"s\",\"type\":\"tollgate.usage\",\"time\":\"2026-11-01T00:01:00Z\",\
             \"data\":{{\"meter\":\"m\",\"rule\":\"r\",\"subject\":{subject},\"subject_from\":\"key:id\",\"unit\":\"requests\",\
             \"quantity\":{quantity},\"requests\":1,\"refused\":0,\"from\":\"2026-11-01T00:00:00Z\",\"to\":\"2026-11-01T00:01:00Z\",\
             \"period_begin\":\"2026-11-01T00:00:00Z\",\"period_end\":\"2026-12-01T00:00:00Z\"}}}}\n"
        )
    }

    #[test]
    fn a_line_that_is_there_twice_is_counted_once_and_a_broken_one_is_skipped() {
        let one = line("0a", "\"a\"", "2");
        let ban = "{\"specversion\":\"1.0\",\"id\":\"0f\",\"source\":\"s\",\"type\":\"tollgate.ban\",\"time\":\"2026-11-01T00:01:00Z\",\"data\":{}}\n";
        let (begun, _) = one.split_at(99);
        let text = [&one, &line("0b", "\"a\"", "\"0.5\""), &one, "no\n", ban, &line("0c", "\"b\"", "1"), begun];
        let sums = read(text.concat().as_bytes());
        let found: Vec<_> = sums.sums.iter().map(|(key, sum)| (key.subject.clone().unwrap().1, sum.quantity)).collect();
        let expected = [("a".to_owned(), Cost::from_thousandths(2_500)), ("b".to_owned(), Cost::ONE)];
        assert_eq!(found, expected);
        let remarks = sums.remarks();
        assert_eq!(remarks.len(), 3, "{remarks:?}");
        assert!(remarks[0].contains("r.jsonl:4: skipped") && remarks[1].contains("r.jsonl:7: skipped: the last line"));
        assert!(remarks[2].starts_with("1 lines have the id"));
    }

    #[test]
    fn a_long_line_is_skipped_and_the_next_is_read() {
        let long = "x".repeat(3 << 20);
        let sums = read(format!("{long}\n{}", line("0a", "\"a\"", "1")).as_bytes());
        assert_eq!((sums.broken, sums.sums.len()), (1, 1));
    }
}
