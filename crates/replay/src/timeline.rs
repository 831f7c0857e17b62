//! Counts requests over time in a limited number of intervals, the parts. Parts become longer when there would be too
//! many.

use std::collections::BTreeMap;

use super::result::SimulatedResult;
use base::time::Timestamp;

/// The possible lengths of parts in seconds. Each length is a multiple of the length before it.
const WIDTHS: [u64; 5] = [1, 10, 60, 600, LONGEST];
const LONGEST: u64 = 3600;
const MOST_PARTS: usize = 20_000;
/// Lengths of stretches in seconds that are easy to read.
const ROUND: [u64; 17] = [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, DAY];
const DAY: u64 = 86_400;

const SECOND: u64 = 1_000_000;

#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The index in [`WIDTHS`] of the length of the parts.
    width: usize,
    /// The intervals, each by its number since the epoch.
    parts: BTreeMap<u64, Part>,
}

/// The counts of requests in one interval. Each array has one count for each of two files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub requests: u64,
    pub refused: [u64; 2],
    pub undecided: [u64; 2],
}

impl Part {
    pub fn add(&mut self, other: &Part) {
        self.requests += other.requests;
        for (ours, others) in [(&mut self.refused, other.refused), (&mut self.undecided, other.undecided)] {
            ours.iter_mut().zip(others).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Returns the number of requests that the file with this index refuses.
    pub fn refused_by(&self, file: usize) -> u64 {
        self.refused.get(file).copied().unwrap_or_default()
    }

    pub fn undecided_by(&self, file: usize) -> u64 {
        self.undecided.get(file).copied().unwrap_or_default()
    }
}

/// An interval of time, with its counts. `start` is in seconds since the Unix epoch, and `length` is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub start: u64,
    pub length: u64,
    pub part: Part,
}

impl Timeline {
    pub fn add(&mut self, at: Timestamp, results: [Option<SimulatedResult>; 2]) {
        let number = at.0 / SECOND / self.seconds();
        if self.parts.len() >= MOST_PARTS && !self.parts.contains_key(&number) && self.width + 1 < WIDTHS.len() {
            self.lengthen();
            return self.add(at, results);
        }
        let count = |wanted: SimulatedResult| results.map(|result| u64::from(result == Some(wanted)));
        let part = Part {
            requests: 1,
            refused: count(SimulatedResult::Refused),
            undecided: count(SimulatedResult::Undecided),
        };
        self.parts.entry(number).or_default().add(&part);
    }

    fn seconds(&self) -> u64 {
        WIDTHS.get(self.width).copied().unwrap_or(LONGEST)
    }

    fn lengthen(&mut self) {
        let before = self.seconds();
        self.width += 1;
        let factor = self.seconds() / before;
        for (number, part) in std::mem::take(&mut self.parts) {
            self.parts.entry(number / factor).or_default().add(&part);
        }
    }

    /// Returns the minute in which `file` refuses the most requests, or the hour if the logs cover more than six hours.
    /// Of equal intervals, returns the first. `None` if `file` refuses no request.
    pub fn worst(&self, file: usize) -> Option<Stretch> {
        let (first, last) = self.span()?;
        let length = if last - first <= 6 * 3600 { 60 } else { 3600 };
        let length = length.max(self.seconds());
        let mut stretches: BTreeMap<u64, Part> = BTreeMap::new();
        for (number, part) in &self.parts {
            stretches.entry(number * self.seconds() / length).or_default().add(part);
        }
        let worst = stretches.into_iter().rev().max_by_key(|(_, part)| part.refused_by(file))?;
        let stretch = Stretch { start: worst.0 * length, length, part: worst.1 };
        (stretch.part.refused_by(file) > 0).then_some(stretch)
    }

    /// Divides the time of the logs into at most `most` intervals of equal, round length, with or without requests.
    pub fn stretches(&self, most: u64) -> Vec<Stretch> {
        let Some((first, last)) = self.span() else { return Vec::new() };
        let enough = |length: u64| last.div_ceil(length) - first / length <= most;
        let round = ROUND.into_iter().find(|length| length.is_multiple_of(self.seconds()) && enough(*length));
        // A length above one day is a whole number of days.
        let days = || (1..).map(|days| days * DAY).find(|length| enough(*length)).unwrap_or(last.max(1));
        let length = round.unwrap_or_else(days);
        let empty = |number| Stretch { start: number * length, length, part: Part::default() };
        let mut stretches: Vec<Stretch> = (first / length..last.div_ceil(length)).map(empty).collect();
        for (number, part) in &self.parts {
            let index = number * self.seconds() / length - first / length;
            if let Some(stretch) = usize::try_from(index).ok().and_then(|index| stretches.get_mut(index)) {
                stretch.part.add(part);
            }
        }
        stretches
    }

    /// Returns the start of the first part and the end of the last part, in seconds since the epoch.
    fn span(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.parts.keys().next()?, self.parts.keys().next_back()?);
        Some((first * self.seconds(), (last + 1) * self.seconds()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_counts_every_request_however_long_it_is() {
        for step in [1, 7, 61, 4_000] {
            let mut timeline = Timeline::default();
            for number in 0..100_000 {
                let result = if number % 10 == 0 { SimulatedResult::Refused } else { SimulatedResult::Allowed };
                timeline.add(Timestamp((1_795_272_712 + number * step) * SECOND), [Some(result), None]);
            }
            let stretches = timeline.stretches(120);
            assert!((30..=120).contains(&stretches.len()), "{}", stretches.len());
            let sum = |count: fn(&Part) -> u64| stretches.iter().map(|stretch| count(&stretch.part)).sum::<u64>();
            assert_eq!((sum(|part| part.requests), sum(|part| part.refused[0])), (100_000, 10_000));
            let ends = stretches.iter().map(|stretch| stretch.start + stretch.length);
            assert!(ends.zip(stretches.iter().skip(1)).all(|(end, next)| end == next.start));
        }
        assert_eq!(Timeline::default().stretches(120), []);
    }

    #[test]
    fn the_worst_interval_is_a_minute_within_hours_and_an_hour_within_days() {
        let mut timeline = Timeline::default();
        let at = |second: u64| Timestamp((1_795_269_600 + second) * SECOND);
        timeline.add(at(59), [Some(SimulatedResult::Refused), Some(SimulatedResult::Refused)]);
        timeline.add(at(60), [Some(SimulatedResult::Refused), None]);
        timeline.add(at(119), [Some(SimulatedResult::Refused), None]);
        let worst = timeline.worst(0).unwrap();
        assert_eq!((worst.start, worst.length, worst.part.refused), (1_795_269_660, 60, [2, 0]));
        assert_eq!(timeline.worst(1).unwrap().start, 1_795_269_600);
        timeline.add(at(7 * 3600), [Some(SimulatedResult::Allowed), None]);
        let worst = timeline.worst(0).unwrap();
        assert_eq!((worst.start, worst.length, worst.part.refused), (1_795_269_600, 3600, [3, 1]));
        let mut calm = Timeline::default();
        calm.add(at(0), [Some(SimulatedResult::Allowed), None]);
        assert_eq!(calm.worst(0), None);
    }
}
