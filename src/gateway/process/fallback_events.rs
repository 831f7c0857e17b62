//! Notes two events: limits begin to be decided without the store, and the store decides again.

use std::collections::BTreeSet;

use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::events::{EventKind, Events};

/// How many seconds without such a decision end the fallback.
const QUIET: u32 = 10;
/// How many limits are named.
const NAMED: usize = 3;

#[derive(Debug, Default)]
pub struct FallbackEvents {
    /// The limits that were decided without the store; empty while the store decides.
    limits: BTreeSet<String>,
    quiet: u32,
}

impl FallbackEvents {
    /// To be called every second.
    pub fn update(&mut self, snapshot: &Snapshot, events: &Events) {
        let fallen = snapshot.all_limits().filter(|(_, metrics)| metrics.has_fallen_back());
        self.add(fallen.map(|(limit, _)| format!("{}/{}", limit.policy, limit.name)).collect(), events);
    }

    fn add(&mut self, fallen: Vec<String>, events: &Events) {
        if fallen.is_empty() {
            self.quiet += 1;
            if self.quiet >= QUIET && !self.limits.is_empty() {
                events.note(EventKind::FallbackEnded, &named(&self.limits));
                self.limits.clear();
            }
            return;
        }
        let began = self.limits.is_empty();
        self.limits.extend(fallen);
        self.quiet = 0;
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
        let mut without_store = FallbackEvents::default();
        let names = |count: usize| (0..count).map(|number| format!("plan/r{number}")).collect::<Vec<_>>();
        let told = || events.all().into_iter().map(|event| (event.what, event.detail)).collect::<Vec<_>>();
        for seconds in [names(0), names(1), names(0), names(5), names(1)] {
            without_store.add(seconds, &events);
        }
        assert_eq!(told(), [("limits are decided without the store", "plan/r0".to_owned())]);
        for _ in 0..3 * QUIET {
            without_store.add(names(0), &events);
        }
        let over = ("limits are decided by the store again", "plan/r0, plan/r1, plan/r2 and 2 more".to_owned());
        assert_eq!(told()[0], over);
        assert_eq!(told().len(), 2);
    }
}
