//! Notes two events: limits begin to be decided without the store, and the store decides again.

use std::collections::BTreeSet;

use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::{EventKind, Events};

/// How many seconds without such a decision end the fallback.
const RECOVERED: u32 = 10;
/// How many limits are named.
const NAMED: usize = 3;

#[derive(Debug, Default)]
pub struct FallbackEvents {
    /// The limits that were decided without the store; empty while the store decides.
    limits: BTreeSet<String>,
    seconds_without: u32,
}

impl FallbackEvents {
    /// To be called every second.
    pub fn update(&mut self, snapshot: &Snapshot, events: &Events) {
        let fell_back = snapshot.all_limits().filter(|(_, metrics)| metrics.has_fallen_back());
        self.add(fell_back.map(|(limit, _)| format!("{}/{}", limit.policy, limit.name)).collect(), events);
    }

    fn add(&mut self, fell_back: Vec<String>, events: &Events) {
        if fell_back.is_empty() {
            self.seconds_without += 1;
            if self.seconds_without >= RECOVERED && !self.limits.is_empty() {
                events.note(EventKind::FallbackEnded, &named(&self.limits));
                self.limits.clear();
            }
            return;
        }
        let began = self.limits.is_empty();
        self.limits.extend(fell_back);
        self.seconds_without = 0;
        if began {
            events.note(EventKind::FallbackBegan, &named(&self.limits));
        }
    }
}

fn named(limits: &BTreeSet<String>) -> String {
    let names = limits.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match limits.len().saturating_sub(NAMED) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::{Clock, Timestamp};

    #[test]
    fn an_outage_is_one_event_when_it_begins_and_one_when_it_is_over() {
        let events = Events::new(Clock::manual(Timestamp(0)));
        let mut fallback_events = FallbackEvents::default();
        let names = |count: usize| (0..count).map(|number| format!("plan/r{number}")).collect::<Vec<_>>();
        let noted = || events.all().into_iter().map(|event| (event.what, event.detail)).collect::<Vec<_>>();
        for seconds in [names(0), names(1), names(0), names(5), names(1)] {
            fallback_events.add(seconds, &events);
        }
        assert_eq!(noted(), [("limits are decided without the store", "plan/r0".to_owned())]);
        for _ in 0..3 * RECOVERED {
            fallback_events.add(names(0), &events);
        }
        let over = ("limits are decided by the store again", "plan/r0, plan/r1, plan/r2 and 2 more".to_owned());
        assert_eq!(noted()[0], over);
        assert_eq!(noted().len(), 2);
    }
}
