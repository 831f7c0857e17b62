//! Notes two events: when limits begin to be decided without the store, and when the store decides again. Both events name
//! all these limits, with the action taken.

use std::collections::BTreeSet;

use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::{EventKind, Events, LONGEST_OF_NAMES};

/// The number of seconds without a fallback decision after which the fallback has ended.
const RECOVERED: u32 = 10;
/// The number of characters of a detail that are reserved for the count of limits that are not named.
const ROOM_FOR_COUNT: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct FallbackEvents {
    /// The limits that were decided without the store, each with the action taken. Empty if there is no fallback.
    limits: BTreeSet<String>,
    seconds_without: u32,
}

impl FallbackEvents {
    /// Notes an event when limits begin to be decided without the store, and when the store decides again. Must be called every
    /// second.
    pub(crate) fn update(&mut self, snapshot: &Snapshot, events: &Events) {
        let fell_back = snapshot.all_limits().flat_map(|(limit, metrics)| {
            let text = |action: &str| format!("{}/{} ({action})", limit.policy, limit.name);
            metrics.take_fallback_actions().map(move |action| text(action.name()))
        });
        self.add(fell_back.collect(), events);
    }

    fn add(&mut self, fell_back: Vec<String>, events: &Events) {
        if fell_back.is_empty() {
            self.seconds_without += 1;
            if self.seconds_without >= RECOVERED && !self.limits.is_empty() {
                events.note_names(EventKind::FallbackEnded, &named(&self.limits));
                self.limits.clear();
            }
            return;
        }
        let before = self.limits.len();
        self.limits.extend(fell_back);
        self.seconds_without = 0;
        if before == 0 {
            events.note_names(EventKind::FallbackBegan, &named(&self.limits));
        } else if self.limits.len() > before {
            events.extend_names(EventKind::FallbackBegan, &named(&self.limits));
        }
    }
}

/// Returns the names of as many limits as fit into the detail of an event, at least one.
fn named(limits: &BTreeSet<String>) -> String {
    let (mut text, mut count) = (String::new(), 0);
    for limit in limits {
        if !text.is_empty() && text.len() + limit.len() > LONGEST_OF_NAMES - ROOM_FOR_COUNT {
            break;
        }
        let separator = if text.is_empty() { "" } else { ", " };
        text = text + separator + limit;
        count += 1;
    }
    match limits.len() - count {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::{Clock, Timestamp};

    fn limits(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("plan/r{number} (local)")).collect()
    }

    #[test]
    fn an_outage_is_one_event_with_all_its_limits_and_one_when_it_is_over() {
        let events = Events::new(Clock::manual(Timestamp(0)));
        let mut fallback_events = FallbackEvents::default();
        let noted = || events.all().into_iter().map(|event| (event.what, event.detail)).collect::<Vec<_>>();
        let began = |names: &str| ("limits are decided without the store", names.to_owned());
        for (seconds, names) in [
            (limits(1), "plan/r0 (local)"),
            (limits(0), "plan/r0 (local)"),
            (limits(3), "plan/r0 (local), plan/r1 (local), plan/r2 (local)"),
            (limits(1), "plan/r0 (local), plan/r1 (local), plan/r2 (local)"),
        ] {
            fallback_events.add(seconds, &events);
            assert_eq!(noted(), [began(names)]);
        }
        for _ in 0..3 * RECOVERED {
            fallback_events.add(Vec::new(), &events);
        }
        let over = "plan/r0 (local), plan/r1 (local), plan/r2 (local)";
        assert_eq!(noted(), [("limits are decided by the store again", over.to_owned()), began(over)]);
        assert!(events.all().iter().all(|event| event.times == 1));
    }

    #[test]
    fn of_very_many_limits_as_many_are_named_as_fit() {
        let all: BTreeSet<String> = limits(500).into_iter().collect();
        let names = named(&all);
        let count = names.matches("plan/").count();
        assert!(count > 30 && names.chars().count() <= LONGEST_OF_NAMES, "{names}");
        assert!(names.ends_with(&format!(" and {} more", 500 - count)), "{names}");
    }
}
