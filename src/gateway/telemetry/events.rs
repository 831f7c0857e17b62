//! Keeps the last events of this gateway as short texts, for the status page.
//!
//! An event that recurs within [`AGAIN`] is counted with the earlier event. No event contains text from a client.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;

use base::printable::is_hidden;
use base::time::{Clock, Micros, Timestamp};

/// The maximum number of events that are kept.
const MOST: usize = 50;
/// The maximum length of a detail, in characters.
const LONGEST: usize = 200;
/// The maximum length, in characters, of a detail that contains only names from gateway.yaml. A longer detail is cut.
pub(crate) const LONGEST_OF_NAMES: usize = 1000;
const AGAIN: Micros = Micros(600_000_000);

/// The kinds of events on the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Started,
    Reloaded,
    ConfigRejected,
    NeedsRestart,
    ApiKeysReloaded,
    ApiKeysRejected,
    CertificatesReloaded,
    CertificatesRejected,
    StoreUp,
    StoreDown,
    StoreMayEvict,
    StoreEvictsNothing,
    HomeUp,
    HomeDown,
    HomeMayEvict,
    HomeEvictsNothing,
    OtherStoreFound,
    OtherStoreGone,
    BreakerOpened,
    BreakerClosed,
    FallbackBegan,
    FallbackEnded,
    KeysNotFetched,
    KeysFetchedAgain,
    EndpointDown,
    EndpointUp,
    EndpointEjected,
    LogLinesDropped,
    RecordsNotWritten,
    RecordsWrittenAgain,
    RecordsLost,
    BucketsReset,
    BucketsGranted,
    BucketsBanned,
    BucketRaised,
    BucketsNotSaved,
    AdminConnectionsClosed,
    UpgradeBegan,
    HandedOver,
    UpgradeFailed,
    Draining,
}

/// The importance of an event, which decides how the status page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Weight {
    Good,
    Plain,
    Warn,
    Bad,
}

impl EventKind {
    fn text_and_weight(self) -> (&'static str, Weight) {
        match self {
            EventKind::Started => ("started", Weight::Plain),
            EventKind::Reloaded => ("configuration reloaded", Weight::Good),
            EventKind::ConfigRejected => ("configuration rejected", Weight::Bad),
            EventKind::NeedsRestart => ("some keys take effect only after a restart", Weight::Warn),
            EventKind::ApiKeysReloaded => ("API keys reloaded", Weight::Good),
            EventKind::ApiKeysRejected => ("API keys rejected", Weight::Bad),
            EventKind::CertificatesReloaded => ("certificates reloaded", Weight::Good),
            EventKind::CertificatesRejected => ("certificates rejected", Weight::Bad),
            EventKind::StoreUp => ("store is up", Weight::Good),
            EventKind::StoreDown => ("store is down", Weight::Bad),
            EventKind::StoreMayEvict => ("store may evict buckets", Weight::Warn),
            EventKind::StoreEvictsNothing => ("store evicts no buckets any more", Weight::Good),
            EventKind::HomeUp => ("home is up", Weight::Good),
            EventKind::HomeDown => ("home is down", Weight::Bad),
            EventKind::HomeMayEvict => ("home may evict buckets", Weight::Warn),
            EventKind::HomeEvictsNothing => ("home evicts no buckets any more", Weight::Good),
            EventKind::OtherStoreFound => ("another store speaks for this region", Weight::Bad),
            EventKind::OtherStoreGone => ("one store speaks for this region again", Weight::Good),
            EventKind::BreakerOpened => ("breaker opened", Weight::Bad),
            EventKind::BreakerClosed => ("breaker closed", Weight::Good),
            EventKind::FallbackBegan => ("limits are decided without the store", Weight::Warn),
            EventKind::FallbackEnded => ("limits are decided by the store again", Weight::Good),
            EventKind::KeysNotFetched => ("keys of an issuer not fetched", Weight::Bad),
            EventKind::KeysFetchedAgain => ("keys of an issuer fetched again", Weight::Good),
            EventKind::EndpointDown => ("endpoint is down", Weight::Bad),
            EventKind::EndpointUp => ("endpoint is up again", Weight::Good),
            EventKind::EndpointEjected => ("endpoint ejected", Weight::Warn),
            EventKind::LogLinesDropped => ("access log lines dropped", Weight::Warn),
            EventKind::RecordsNotWritten => ("records for billing not written", Weight::Bad),
            EventKind::RecordsWrittenAgain => ("records for billing written again", Weight::Good),
            EventKind::RecordsLost => ("records for billing lost", Weight::Bad),
            EventKind::BucketsReset => ("buckets reset by an operator", Weight::Plain),
            EventKind::BucketsGranted => ("amounts given back by an operator", Weight::Plain),
            EventKind::BucketsBanned => ("buckets banned by an operator", Weight::Plain),
            EventKind::BucketRaised => ("bucket raised by an operator", Weight::Plain),
            EventKind::BucketsNotSaved => ("buckets not saved", Weight::Bad),
            EventKind::AdminConnectionsClosed => ("admin listener has too many connections", Weight::Warn),
            EventKind::UpgradeBegan => ("starting the next process", Weight::Plain),
            EventKind::HandedOver => ("handed over to the next process", Weight::Plain),
            EventKind::UpgradeFailed => ("the next process gave up", Weight::Bad),
            EventKind::Draining => ("draining", Weight::Warn),
        }
    }
}

/// An event on the status page, with the number of its occurrences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Event {
    /// The time of the last occurrence, in seconds since the Unix epoch.
    pub at: f64,
    pub first: f64,
    pub times: u64,
    pub weight: Weight,
    pub what: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

#[derive(Debug)]
pub(crate) struct Events {
    clock: Clock,
    /// The events, the newest first.
    events: Mutex<VecDeque<Event>>,
}

impl Events {
    pub(crate) fn new(clock: Clock) -> Events {
        Events { clock, events: Mutex::default() }
    }

    pub(crate) fn note(&self, kind: EventKind, detail: &str) {
        self.add(kind, brief(detail, LONGEST), Recurrence::SameDetail);
    }

    /// Records an event whose detail is a list of names. A recent event of the same kind is counted again, even if its names
    /// differ. The status page shows the latest names.
    pub(crate) fn note_names(&self, kind: EventKind, names: &str) {
        self.add(kind, brief(names, LONGEST_OF_NAMES), Recurrence::AnyDetail);
    }

    /// Replaces the names of an event that [`Events::note_names`] has recorded, without counting the event again. Used while
    /// the event goes on.
    pub(crate) fn extend_names(&self, kind: EventKind, names: &str) {
        self.add(kind, brief(names, LONGEST_OF_NAMES), Recurrence::GoesOn);
    }

    fn add(&self, kind: EventKind, detail: String, recurrence: Recurrence) {
        let (what, weight) = kind.text_and_weight();
        let at = self.clock.wall().since(Timestamp(0)).seconds();
        let mut events = self.events.lock();
        let same = |event: &Event| {
            let is_recent = at - event.at < AGAIN.seconds();
            event.what == what
                && match recurrence {
                    Recurrence::SameDetail => is_recent && event.detail == detail,
                    Recurrence::AnyDetail => is_recent,
                    Recurrence::GoesOn => true,
                }
        };
        let again = events.iter().position(same).and_then(|index| events.remove(index));
        let event = match again {
            Some(event) => {
                let times = event.times + u64::from(recurrence != Recurrence::GoesOn);
                Event { at, times, detail, ..event }
            }
            None => Event { at, first: at, times: 1, weight, what, detail },
        };
        events.truncate(MOST - 1);
        events.push_front(event);
    }

    /// Returns all recorded events, the newest first.
    pub(crate) fn all(&self) -> Vec<Event> {
        self.events.lock().iter().cloned().collect()
    }
}

/// The condition under which an event is counted with an earlier event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recurrence {
    /// A recent event of the kind has the same detail.
    SameDetail,
    /// A recent event of the kind exists.
    AnyDetail,
    /// The last event of the kind has not ended.
    GoesOn,
}

/// Returns the text as one line of limited length.
fn brief(detail: &str, longest: usize) -> String {
    let plain = |c: char| if is_hidden(c) { ' ' } else { c };
    let mut brief: String = detail.chars().take(longest).map(plain).collect();
    if detail.chars().nth(longest).is_some() {
        brief.push('…');
    }
    brief
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn events() -> (Events, Clock) {
        let clock = Clock::manual(Timestamp(1_000 * SECOND));
        (Events::new(clock.clone()), clock)
    }

    #[test]
    fn the_newest_come_first_and_the_oldest_are_dropped() {
        let (events, _) = events();
        for number in 0..200 {
            events.note(EventKind::Reloaded, &number.to_string());
        }
        let events: Vec<_> = events.all().into_iter().map(|event| event.detail).collect();
        assert_eq!((events.len(), &*events[0], &*events[49]), (50, "199", "150"));
    }

    #[test]
    fn a_flapping_state_is_two_events_and_keeps_the_others() {
        let (events, clock) = events();
        events.note(EventKind::Started, "");
        for second in 0..500 {
            clock.set(Timestamp((1_000 + second) * SECOND));
            events.note(if second % 2 == 0 { EventKind::StoreDown } else { EventKind::StoreUp }, "");
        }
        let noted: Vec<_> = events.all().iter().map(|event| (event.what, event.times, event.first, event.at)).collect();
        assert_eq!(
            noted,
            [
                ("store is up", 250, 1001.0, 1499.0),
                ("store is down", 250, 1000.0, 1498.0),
                ("started", 1, 1000.0, 1000.0)
            ]
        );
        // The same kind of event is listed again if its last occurrence was long ago.
        clock.set(Timestamp(10_000 * SECOND));
        events.note(EventKind::StoreDown, "");
        assert_eq!((events.all().len(), events.all()[0].times), (4, 1));
    }

    #[test]
    fn names_that_join_are_added_to_the_event_that_goes_on() {
        let (events, clock) = events();
        let second = |second: u64| clock.set(Timestamp((1_000 + second) * SECOND));
        let noted = || events.all().into_iter().map(|event| (event.detail, event.times, event.at)).collect::<Vec<_>>();
        events.note_names(EventKind::FallbackBegan, "a");
        // The event is extended even after a long time.
        second(2_000);
        events.extend_names(EventKind::FallbackBegan, "a, b");
        assert_eq!(noted(), [("a, b".to_owned(), 1, 3000.0)]);
        second(2_100);
        events.note_names(EventKind::FallbackBegan, "b");
        assert_eq!(noted(), [("b".to_owned(), 2, 3100.0)]);
        second(4_000);
        events.note_names(EventKind::FallbackBegan, "b");
        assert_eq!(noted()[0], ("b".to_owned(), 1, 5000.0));
        assert_eq!(noted().len(), 2, "much later it is a new event");
    }

    #[test]
    fn a_detail_is_one_line_of_bounded_length() {
        let (events, _) = events();
        events.note(EventKind::ConfigRejected, &"a\nb".repeat(1000));
        let detail = &events.all()[0].detail;
        assert!(detail.starts_with("a ba b") && detail.ends_with('…') && detail.chars().count() == LONGEST + 1);
    }
}
