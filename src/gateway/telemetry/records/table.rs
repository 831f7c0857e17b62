//! Holds what subjects have used since the last interval ended, in bounded memory: one table for each worker.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;

use smallvec::SmallVec;

use base::time::Timestamp;
use decision::record_line::ModelUse;
use ledger::algorithm::Period;
use ledger::cost::Cost;
use llm::usage::Usage;

/// The approximate size of a table from which on the interval is ended early, in bytes.
const EARLY: usize = 8 << 20;
/// The approximate size from which on a table takes no new entry.
const MOST: usize = 16 << 20;
/// The approximate size of an entry beyond its key, in bytes.
const ENTRY: usize = 160;
/// The most models of an entry. Further models are counted as [`OTHER`].
const MOST_MODELS: usize = 50;
/// The longest name of a model, in bytes. The names come from responses.
const LONGEST_MODEL: usize = 100;
const OTHER: &str = "other";
/// The model of a response that names none, to a request that names none.
const UNNAMED: &str = "unnamed";

/// The stream of records that a limit writes about subjects of one attribute: its index in the writer's list of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(pub u32);

/// What a record is about: the stream, the period and the subject, as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordKey(pub(super) SmallVec<[u8; 64]>);

/// The parts of a [`RecordKey`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyParts<'k> {
    pub stream: StreamId,
    pub period: Option<Period>,
    pub subject: &'k [u8],
}

/// The number of bytes before the subject.
const HEAD: usize = 20;

impl RecordKey {
    pub(super) fn new(StreamId(stream): StreamId, subject: &[u8]) -> RecordKey {
        let mut key = SmallVec::with_capacity(HEAD + subject.len());
        key.extend_from_slice(&stream.to_le_bytes());
        key.extend_from_slice(&[0; 16]);
        key.extend_from_slice(subject);
        RecordKey(key)
    }

    /// Returns the key for the same stream and subject in this period.
    pub(crate) fn in_period(mut self, period: Option<Period>) -> RecordKey {
        let (begin, end) = period.map_or((0, 0), |period| (period.begin.0, period.end.0));
        let numbers = begin.to_le_bytes().into_iter().chain(end.to_le_bytes());
        self.0.iter_mut().skip(4).zip(numbers).for_each(|(to, from)| *to = from);
        self
    }
}

/// Takes a key apart. `None` for bytes that are no key.
pub(super) fn parts(key: &[u8]) -> Option<KeyParts<'_>> {
    let (stream, rest) = key.split_first_chunk::<4>()?;
    let (begin, rest) = rest.split_first_chunk::<8>()?;
    let (end, subject) = rest.split_first_chunk::<8>()?;
    let (begin, end) = (Timestamp(u64::from_le_bytes(*begin)), Timestamp(u64::from_le_bytes(*end)));
    let period = (end > begin).then_some(Period { begin, end });
    Some(KeyParts { stream: StreamId(u32::from_le_bytes(*stream)), period, subject })
}

/// What one request adds to a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Use<'u> {
    pub quantity: Cost,
    pub requests: u64,
    pub refused: u64,
    /// The tokens of a language model, with the name of the model, if a limit on models counts the request.
    pub tokens: Option<(Option<&'u str>, &'u Usage)>,
}

impl Use<'_> {
    /// Returns what a request adds that was charged this cost. One that cost nothing was not charged.
    pub(crate) fn charged(cost: Cost) -> Self {
        Use { quantity: cost, requests: u64::from(cost > Cost::default()), ..Use::default() }
    }

    /// Whether it adds nothing.
    fn is_empty(&self) -> bool {
        self.quantity == Cost::default() && self.refused == 0 && self.tokens.is_none()
    }
}

/// The sums of one record.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub quantity: Cost,
    pub requests: u64,
    pub refused: u64,
    pub by: Vec<(Box<str>, ModelUse)>,
}

/// The result of an addition to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddResult {
    Fits,
    /// The table has just become so large that the interval should end.
    Large,
    /// The table takes no new entry, so the addition is lost.
    Lost,
}

/// Returns a subject as text. In one that is not UTF-8, each invalid byte, and each backslash, is written as `\x` and two
/// digits, so that different subjects of this kind have different texts.
pub(super) fn subject_text(subject: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(subject) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(2 * subject.len());
    for chunk in subject.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\x5c"));
        // A `String` takes every text.
        chunk.invalid().iter().for_each(|byte| _ = write!(text, "\\x{byte:02x}"));
    }
    Cow::Owned(text)
}

/// What the subjects of one worker's requests have used since the last interval ended.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashMap<Box<[u8]>, Sums>,
    bytes: usize,
}

impl Table {
    pub(super) fn add(&mut self, RecordKey(key): &RecordKey, one: Use<'_>) -> AddResult {
        let before = self.bytes;
        if one.is_empty() {
            return AddResult::Fits;
        }
        let sums = match self.entries.get_mut(&key[..]) {
            Some(sums) => sums,
            None if before >= MOST => return AddResult::Lost,
            None => {
                self.bytes += key.len() + ENTRY;
                self.entries.entry(Box::from(&key[..])).or_default()
            }
        };
        self.bytes += sums.add(one);
        if before < EARLY && self.bytes >= EARLY { AddResult::Large } else { AddResult::Fits }
    }

    /// Takes all entries out, and adds them to those of other workers.
    pub(super) fn into_sums(self, all: &mut HashMap<Box<[u8]>, Sums>) {
        if all.is_empty() {
            *all = self.entries;
            return;
        }
        for (key, sums) in self.entries {
            all.entry(key).or_default().join(sums);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Sums {
    /// Adds what a request has used. Returns the number of further bytes.
    fn add(&mut self, Use { quantity, requests, refused, tokens }: Use<'_>) -> usize {
        self.quantity = self.quantity.plus(quantity);
        self.requests += requests;
        self.refused += refused;
        tokens.map_or(0, |(model, usage)| {
            let (used, bytes) = self.model(model.unwrap_or(UNNAMED));
            used.add(usage);
            bytes
        })
    }

    fn join(&mut self, other: Sums) {
        self.quantity = self.quantity.plus(other.quantity);
        self.requests += other.requests;
        self.refused += other.refused;
        for (model, used) in other.by {
            let (sum, _) = self.model(&model);
            let ModelUse { input, output, cached } = used;
            sum.add(&Usage { input, output, cached, cache_write: 0 });
        }
    }

    /// Returns the sums of a model, and the number of bytes that a new model takes.
    #[allow(clippy::indexing_slicing, reason = "the index was found, or is that of the last")]
    fn model(&mut self, name: &str) -> (&mut ModelUse, usize) {
        let is_listed = |by: &[(Box<str>, ModelUse)], name: &str| by.iter().position(|(model, _)| **model == *name);
        let fits = name.len() <= LONGEST_MODEL && (self.by.len() < MOST_MODELS || is_listed(&self.by, name).is_some());
        let name = if fits { name } else { OTHER };
        let known = is_listed(&self.by, name);
        let bytes = if known.is_some() { 0 } else { name.len() + size_of::<(Box<str>, ModelUse)>() };
        let index = known.unwrap_or_else(|| {
            self.by.push((name.into(), ModelUse::default()));
            self.by.len() - 1
        });
        (&mut self.by[index].1, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(tokens: u64) -> Use<'static> {
        Use { quantity: Cost::from_tokens(tokens), requests: 1, ..Use::default() }
    }

    #[test]
    fn a_request_that_cost_nothing_is_not_counted_as_charged() {
        let (mut table, key) = (Table::default(), RecordKey::new(StreamId(1), b"a"));
        table.add(&key, Use::charged(Cost::default()));
        assert!(table.is_empty());
        table.add(&key, Use { tokens: Some((None, &Usage::default())), ..Use::charged(Cost::default()) });
        table.add(&key, Use::charged(Cost::ONE));
        let mut sums = HashMap::new();
        table.into_sums(&mut sums);
        assert_eq!(sums.values().map(|sums| (sums.quantity, sums.requests)).collect::<Vec<_>>(), [(Cost::ONE, 1)]);
    }

    #[test]
    fn subjects_periods_and_streams_are_summed_apart() {
        let period = |begin: u64| Some(Period { begin: Timestamp(begin), end: Timestamp(begin + 10) });
        let key = |stream, begin, subject: &str| {
            RecordKey::new(StreamId(stream), subject.as_bytes()).in_period(period(begin))
        };
        let (mut one, mut other) = (Table::default(), Table::default());
        for (key, tokens) in [(key(1, 0, "a"), 2), (key(1, 0, "a"), 3), (key(1, 10, "a"), 4), (key(2, 0, "a"), 5)] {
            assert_eq!(one.add(&key, used(tokens)), AddResult::Fits);
        }
        other.add(&key(1, 0, "a"), used(7));
        other.add(&key(1, 0, "b"), Use { refused: 1, ..Use::default() });
        let mut all = HashMap::new();
        [one, other].into_iter().for_each(|table| table.into_sums(&mut all));
        let mut sums: Vec<_> = all
            .iter()
            .map(|(key, sums)| {
                let KeyParts { stream, period, subject } = parts(key).unwrap();
                let begin = period.unwrap().begin.0;
                (stream.0, begin, String::from_utf8_lossy(subject), sums.quantity.whole(), sums.requests, sums.refused)
            })
            .collect();
        sums.sort();
        let a = || "a".into();
        let expected =
            [(1, 0, a(), 12, 3, 0), (1, 0, "b".into(), 0, 0, 1), (1, 10, a(), 4, 1, 0), (2, 0, a(), 5, 1, 0)];
        assert_eq!(sums, expected);
        assert_eq!(parts(&RecordKey::new(StreamId(3), b"x").0).unwrap().period, None);
    }

    #[test]
    fn subjects_that_are_no_text_stay_apart() {
        for (subject, text) in [(&b"acme"[..], "acme"), (br"a\b", r"a\b"), ("ä".as_bytes(), "ä"), (b"", "")] {
            assert_eq!(subject_text(subject), text);
        }
        for (subject, text) in
            [(&b"a\xff"[..], r"a\xff"), (b"a\xfe", r"a\xfe"), (b"\\xff\xff", r"\x5cxff\xff"), (b"\xc3", r"\xc3")]
        {
            assert_eq!(subject_text(subject), text);
        }
    }

    #[test]
    fn many_models_and_long_names_are_counted_together() {
        let mut table = Table::default();
        let usage = Usage { input: 2, output: 1, cached: 4, cache_write: 3 };
        let key = RecordKey::new(StreamId(0), b"a");
        let long = "m".repeat(LONGEST_MODEL + 1);
        let names: Vec<String> = (0..MOST_MODELS + 2).map(|number| format!("m-{number}")).collect();
        for name in names.iter().map(|name| Some(&**name)).chain([None, Some(&*long), Some("m-0")]) {
            table.add(&key, Use { tokens: Some((name, &usage)), ..Use::default() });
        }
        let sums = table.entries.into_values().next().unwrap();
        let of = |name: &str| sums.by.iter().find(|(model, _)| **model == *name).map(|(_, used)| used.input);
        assert_eq!((of("m-0"), of("m-49"), of("m-50"), of(OTHER)), (Some(10), Some(5), None, Some(4 * 5)));
        assert_eq!(sums.by[0].1, ModelUse { input: 10, output: 2, cached: 8 });
    }

    #[test]
    fn a_table_is_bounded_and_goes_on_with_what_it_has() {
        let mut table = Table::default();
        let subject = |number: u64| RecordKey::new(StreamId(0), format!("{number:0900}").as_bytes());
        let results: Vec<AddResult> = (0..).map(|number| table.add(&subject(number), used(1))).take(20_000).collect();
        assert_eq!(results.iter().filter(|added| **added == AddResult::Large).count(), 1);
        assert!(results.ends_with(&[AddResult::Lost]) && table.bytes < MOST + 2_000, "{}", table.bytes);
        assert_eq!(table.add(&subject(0), used(1)), AddResult::Fits);
    }
}
