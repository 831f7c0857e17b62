//! Makes the lines about an interval from the sums of all workers.

use std::collections::{BTreeMap, HashMap};

use sha2::{Digest, Sha256};

use super::first_half;
use super::table::{KeyParts, Sums, parts, subject_text};
use super::writer::RecordStream;
use base::time::Timestamp;
use decision::record_line::{Moment, Quantity, RecordLine, USAGE, UsageData};

/// An interval of a writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// The number of intervals of the writer before this one.
    pub number: u64,
    pub from: Timestamp,
    pub to: Timestamp,
}

/// What lines of one writer have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineOrigin<'o> {
    /// The random number of the process.
    pub run: [u8; 16],
    /// The number of the writer in its process.
    pub writer: u64,
    pub source: &'o str,
}

impl LineOrigin<'_> {
    /// Returns the id of a line. No other line is about the same `parts` in the same interval.
    pub(super) fn id(&self, interval: u64, parts: &[&[u8]]) -> String {
        let mut hash = Sha256::new();
        hash.update(self.run);
        hash.update(self.writer.to_le_bytes());
        hash.update(interval.to_le_bytes());
        for part in parts {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        first_half(&hash.finalize()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Makes the lines about these sums, and passes each to `line`.
pub(super) fn lines(
    sums: &HashMap<Box<[u8]>, Sums>,
    streams: &[RecordStream],
    interval: Interval,
    origin: LineOrigin<'_>,
    mut line: impl FnMut(Vec<u8>),
) {
    for (key, sums) in sums {
        let Some(KeyParts { stream, period, subject }) = parts(key) else { continue };
        let Some(stream) = usize::try_from(stream.0).ok().and_then(|index| streams.get(index)) else { continue };
        let RecordStream { meter, rule, unit, subject_from } = stream;
        let attribute = subject_from.as_deref().unwrap_or_default();
        let time = |moment: Timestamp| moment.0.to_le_bytes();
        let period_id = period.map_or([[0; 8]; 2], |period| [time(period.begin), time(period.end)]).concat();
        let id = origin.id(
            interval.number,
            &[meter.as_bytes(), rule.as_bytes(), unit.name().as_bytes(), attribute.as_bytes(), subject, &period_id],
        );
        let data = UsageData {
            meter: meter.into(),
            rule: rule.into(),
            subject: subject_from.is_some().then(|| subject_text(subject)),
            subject_from: subject_from.as_deref().map(Into::into),
            unit: unit.name().into(),
            quantity: Quantity::of(*unit, sums.quantity),
            requests: sums.requests,
            refused: sums.refused,
            from: Moment(interval.from),
            to: Moment(interval.to),
            period_begin: period.map(|period| Moment(period.begin)),
            period_end: period.map(|period| Moment(period.end)),
            by: sums.by.iter().map(|(model, used)| ((&**model).into(), *used)).collect::<BTreeMap<_, _>>(),
        };
        line(RecordLine::new(USAGE, id, origin.source, interval.to, data).text());
    }
}
