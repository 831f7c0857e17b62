//! Remembers what has happened to this gateway, in a few words each, for whoever opens the status page.
//!
//! The log says more and keeps it; this is bounded and goes with the process. What happens again within [`AGAIN`] is the
//! same event, counted, so that what comes and goes does not push out all else. Nothing in it comes from a client.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;

use crate::base::time::{Clock, Micros, Timestamp};

const MOST: usize = 50;
/// Of a detail, in characters.
const LONGEST: usize = 200;
const AGAIN: Micros = Micros(600_000_000);

/// Kinds of what can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    Started,
    Reloaded,
    WrongFile,
    NeedsRestart,
    ApiKeysTakenUp,
    ApiKeysWrong,
    StoreUp,
    StoreDown,
    BreakerOpened,
    BreakerClosed,
    WithoutStore,
    WithStoreAgain,
    KeysNotFetched,
    KeysFetchedAgain,
    LogLinesDropped,
    BucketsReset,
    AdminCrowded,
    NextProcess,
    HandedOver,
    NotHandedOver,
    Draining,
}

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    Good,
    Plain,
    Warn,
    Bad,
}

impl Happened {
    fn words(self) -> (&'static str, Weight) {
        match self {
            Happened::Started => ("started", Weight::Plain),
            Happened::Reloaded => ("configuration taken up", Weight::Good),
            Happened::WrongFile => ("configuration not taken up", Weight::Bad),
            Happened::NeedsRestart => ("only a restart changes", Weight::Warn),
            Happened::ApiKeysTakenUp => ("API keys taken up", Weight::Good),
            Happened::ApiKeysWrong => ("API keys not taken up", Weight::Bad),
            Happened::StoreUp => ("store is up", Weight::Good),
            Happened::StoreDown => ("store is down", Weight::Bad),
            Happened::BreakerOpened => ("breaker opened", Weight::Bad),
            Happened::BreakerClosed => ("breaker closed", Weight::Good),
            Happened::WithoutStore => ("limits decide without the store", Weight::Warn),
            Happened::WithStoreAgain => ("the store decides again", Weight::Good),
            Happened::KeysNotFetched => ("keys of an issuer not fetched", Weight::Bad),
            Happened::KeysFetchedAgain => ("keys of an issuer fetched again", Weight::Good),
            Happened::LogLinesDropped => ("lines of the access log dropped", Weight::Warn),
            Happened::BucketsReset => ("buckets made full by an operator", Weight::Plain),
            Happened::AdminCrowded => ("admin listener has too many connections", Weight::Warn),
            Happened::NextProcess => ("a next process starts", Weight::Plain),
            Happened::HandedOver => ("handed over to the next process", Weight::Plain),
            Happened::NotHandedOver => ("the next process gave up", Weight::Bad),
            Happened::Draining => ("draining", Weight::Warn),
        }
    }
}

/// Something that has happened, once or several times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// The last time, since the epoch in seconds.
    pub at: f64,
    pub first: f64,
    pub times: u64,
    pub weight: Weight,
    pub what: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

#[derive(Debug)]
pub struct Events {
    clock: Clock,
    /// The newest first.
    kept: Mutex<VecDeque<Event>>,
}

impl Events {
    pub fn new(clock: Clock) -> Events {
        Events { clock, kept: Mutex::default() }
    }

    pub fn note(&self, happened: Happened, detail: &str) {
        let (what, weight) = happened.words();
        let detail = brief(detail);
        let at = self.clock.wall().since(Timestamp(0)).seconds();
        let mut kept = self.kept.lock();
        let same = |event: &Event| event.what == what && event.detail == detail && at - event.at < AGAIN.seconds();
        let again = kept.iter().position(same).and_then(|place| kept.remove(place));
        let event = match again {
            Some(event) => Event { at, times: event.times + 1, ..event },
            None => Event { at, first: at, times: 1, weight, what, detail },
        };
        kept.truncate(MOST - 1);
        kept.push_front(event);
    }

    /// The newest first.
    pub fn all(&self) -> Vec<Event> {
        self.kept.lock().iter().cloned().collect()
    }
}

/// One line, and not a long one: a part of it may be words of another's, such as an error of a file system.
fn brief(detail: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut brief: String = detail.chars().take(LONGEST).map(plain).collect();
    if detail.chars().nth(LONGEST).is_some() {
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
    fn the_newest_stand_first_and_the_oldest_go() {
        let (events, _) = events();
        for number in 0..200 {
            events.note(Happened::Reloaded, &number.to_string());
        }
        let kept: Vec<_> = events.all().into_iter().map(|event| event.detail).collect();
        assert_eq!((kept.len(), &*kept[0], &*kept[49]), (50, "199", "150"));
    }

    #[test]
    fn what_comes_and_goes_is_two_events_and_leaves_the_others_be() {
        let (events, clock) = events();
        events.note(Happened::Started, "");
        for second in 0..500 {
            clock.set(Timestamp((1_000 + second) * SECOND));
            events.note(if second % 2 == 0 { Happened::StoreDown } else { Happened::StoreUp }, "");
        }
        let told: Vec<_> = events.all().iter().map(|event| (event.what, event.times, event.first, event.at)).collect();
        assert_eq!(
            told,
            [
                ("store is up", 250, 1001.0, 1499.0),
                ("store is down", 250, 1000.0, 1498.0),
                ("started", 1, 1000.0, 1000.0)
            ]
        );
        // Much later it is news again.
        clock.set(Timestamp(10_000 * SECOND));
        events.note(Happened::StoreDown, "");
        assert_eq!((events.all().len(), events.all()[0].times), (4, 1));
    }

    #[test]
    fn a_detail_is_one_line_of_bounded_length() {
        let (events, _) = events();
        events.note(Happened::WrongFile, &"a\nb".repeat(1000));
        let detail = &events.all()[0].detail;
        assert!(detail.starts_with("a ba b") && detail.ends_with('…') && detail.chars().count() == LONGEST + 1);
    }
}
