//! Holds which limits of a configuration are recorded, and finds the subject of a request.

use std::borrow::Cow;
use std::sync::Arc;

use super::RecordWriters;
use super::held_subject::{HeldAttribute, HeldSubject};
use super::table::{RecordKey, StreamId};
use super::writer::{RecordStream, RecordWriter};
use config::Config;
use config::access_log::LoggedAttribute;
use ledger::algorithm::Algorithm;
use ledger::algorithm::thresholds::Thresholds;
use ledger::charge::{ChargePurpose, LimitId, Plan};
use request::attribute_value::AttributeValue;
use request::request::Request;
use rules::rule::Mode;
use rules::rule_set::CompiledLimit;

/// The longest value that names a subject, in bytes. It bounds the memory and the lines, because clients may choose values.
const LONGEST: usize = 1024;

/// The limits of one configuration whose use is recorded, and the writer of the records.
#[derive(Debug)]
pub(crate) struct RecordedLimits {
    pub writer: Arc<RecordWriter>,
    /// The attributes that name a subject, in the order in which they are tried.
    attributes: Vec<LoggedAttribute>,
    /// The streams of each limit: one for each of the attributes, and one for requests without them. `None` for a limit that is
    /// not recorded.
    streams: Vec<Option<Box<[StreamId]>>>,
    /// The shares of these limits that are reported once in a period.
    thresholds: Thresholds,
}

/// Who is charged for a request.
#[derive(Clone, Debug)]
pub(crate) struct Subject<'r> {
    /// The index of the attribute with the value. The number of attributes if the request has none of them.
    attribute: usize,
    value: Cow<'r, [u8]>,
}

impl RecordedLimits {
    /// Finds the limits that this configuration records. `None` if it has no `records`. A writer of the configuration `before` that
    /// writes to the same destination goes on.
    pub(crate) fn of(
        config: &Config,
        before: Option<&RecordedLimits>,
        writers: &RecordWriters,
    ) -> Option<RecordedLimits> {
        let settings = config.records.as_ref()?;
        let kept = before.filter(|before| before.writer.writes_to(&settings.to));
        let writer = match kept {
            Some(before) => {
                before.writer.set_interval(settings.every);
                Arc::clone(&before.writer)
            }
            None => Arc::new(writers.start(settings)),
        };
        let streams = |limit: &CompiledLimit| {
            let meter = limit.meter.as_ref().filter(|meter| settings.meters.contains(meter))?;
            let stream = |subject_from: Option<&LoggedAttribute>| {
                writer.stream(RecordStream {
                    meter: meter.clone(),
                    rule: limit.name.clone(),
                    unit: limit.unit(),
                    subject_from: subject_from.map(|attribute| attribute.text.clone()),
                })
            };
            (limit.mode == Mode::Enforce).then(|| settings.subject.iter().map(Some).chain([None]).map(stream).collect())
        };
        let streams = config.rules.limits().iter().map(streams).collect();
        let (attributes, thresholds) = (settings.subject.clone(), settings.thresholds);
        Some(RecordedLimits { writer, attributes, streams, thresholds })
    }

    /// Returns whether the use of a limit is recorded.
    pub(crate) fn records(&self, limit: LimitId) -> bool {
        self.streams_of(limit).is_some()
    }

    /// Lets the charges of a plan to these limits tell the thresholds that they reach.
    pub(crate) fn tell_thresholds(&self, plan: &mut Plan) {
        if self.thresholds.is_empty() {
            return;
        }
        for charge in plan.enforced.iter_mut().filter(|charge| charge.purpose == ChargePurpose::Spend) {
            if self.records(charge.limit) {
                charge.algorithm = charge.algorithm.with_thresholds(self.thresholds);
            }
        }
    }

    /// Returns a limit with the thresholds that are reported.
    pub(crate) fn with_thresholds(&self, algorithm: &Algorithm) -> Algorithm {
        algorithm.with_thresholds(self.thresholds)
    }

    /// Returns who is charged for a request. One with too long a value has no subject.
    pub(crate) fn subject<'r>(&self, request: &Request<'r>) -> Subject<'r> {
        let values = self.attributes.iter().map(|listed| listed.attribute.resolve_for_match(request));
        let found = values.enumerate().find_map(|(attribute, value)| match value {
            AttributeValue::Single(value) => Some(Subject { attribute, value }),
            AttributeValue::Missing | AttributeValue::List(_) => None,
        });
        let found = found.filter(|subject: &Subject<'_>| subject.value.len() <= LONGEST);
        found.unwrap_or(self.none())
    }

    /// Returns a subject of a request under this configuration, to keep it.
    pub(crate) fn held_subject(&self, subject: &Subject<'_>) -> HeldSubject {
        let named = self.named(subject);
        named.map_or_else(HeldSubject::default, |(text, value)| HeldSubject {
            attribute: HeldAttribute::of(text),
            value: value.to_vec(),
        })
    }

    /// Returns a subject that was kept under an earlier configuration. If this one does not list its attribute, the hold has no subject.
    pub(crate) fn subject_of_hold<'s>(&self, held: &'s HeldSubject) -> Subject<'s> {
        match held.attribute.index(self.attributes.iter().map(|listed| &*listed.text)) {
            Some(attribute) => Subject { attribute, value: Cow::Borrowed(&held.value) },
            None => self.none(),
        }
    }

    /// Returns the subject of a request without one.
    fn none(&self) -> Subject<'static> {
        Subject { attribute: self.attributes.len(), value: Cow::Borrowed(b"") }
    }

    /// Returns the attribute that names the subject, and its value. `None` if the request has no subject.
    pub(crate) fn named<'s>(&'s self, subject: &'s Subject<'_>) -> Option<(&'s str, &'s [u8])> {
        Some((&*self.attributes.get(subject.attribute)?.text, &*subject.value))
    }

    /// Returns the key of the record for a charge of this subject. `None` if the limit is not recorded.
    pub(crate) fn key(&self, limit: LimitId, subject: &Subject<'_>) -> Option<RecordKey> {
        let stream = self.streams_of(limit)?.get(subject.attribute)?;
        Some(RecordKey::new(*stream, &subject.value))
    }

    fn streams_of(&self, limit: LimitId) -> Option<&[StreamId]> {
        self.streams.get(usize::try_from(limit.0).ok()?)?.as_deref()
    }
}
