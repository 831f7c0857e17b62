//! Tracks the home of limits over several regions: counts the calls, and reports when it is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::events::{EventKind, Events};
use super::metrics::{HomeMetrics, Metrics};
use super::store_health::NO_EVICTION;
use crate::gateway::runtime::log_throttle::LogThrottle;
use base::time::{Clock, Micros, Timestamp};
use stores::{Event, Fault, Settings, StoreError};

/// The health of home.
#[derive(Debug)]
pub(crate) struct LeaseHealth {
    metrics: HomeMetrics,
    events: Arc<Events>,
    clock: Clock,
    /// The address in the settings.
    address: String,
    state: Mutex<HomeState>,
    /// The eviction policy that was last reported.
    eviction_policy: Mutex<Option<String>>,
    failures: LogThrottle,
    healings: LogThrottle,
    /// Whether another store than this region's speaks for this region.
    has_other_store: AtomicBool,
}

/// Whether home is connected, and whether it is asked.
#[derive(Debug, Default)]
struct HomeState {
    is_connected: bool,
    is_breaker_open: bool,
    /// The state that was reported last. `None` before the first report.
    reported: Option<bool>,
    /// The failure of the last call. `None` after an answer.
    last_failure: Option<Fault>,
}

impl LeaseHealth {
    pub(crate) fn new(settings: &Settings, metrics: &Metrics, clock: Clock, events: Arc<Events>) -> LeaseHealth {
        let address = settings.endpoint().map_or_else(String::new, |endpoint| endpoint.to_string());
        let metrics = HomeMetrics::new(&metrics.registry);
        let (state, eviction_policy, failures) = (Mutex::default(), Mutex::default(), LogThrottle::default());
        let healings = LogThrottle::default();
        let has_other_store = AtomicBool::new(false);
        LeaseHealth { metrics, events, clock, address, state, eviction_policy, failures, healings, has_other_store }
    }

    /// Returns the address of home as the settings have it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns whether home is connected and answers.
    pub(crate) fn is_up(&self) -> bool {
        let state = self.state.lock();
        state.is_connected && !state.is_breaker_open
    }

    /// Records an event of the store at home.
    pub(crate) fn record(&self, event: Event) {
        match event {
            Event::Up { .. } => self.change(|state| state.is_connected = true, None),
            Event::Down { fault, .. } => {
                self.metrics.errors.increment(&fault.error);
                self.change(|state| state.is_connected = false, Some(&fault));
            }
            Event::BreakerOpened => {
                // What has opened it says more than that it is open. The call that did so is recorded later.
                let last = self.state.lock().last_failure.clone();
                let fault = last.unwrap_or_else(|| Fault::new(StoreError::BreakerOpen, "calls have failed"));
                self.change(|state| state.is_breaker_open = true, Some(&fault));
            }
            Event::BreakerClosed => self.change(|state| state.is_breaker_open = false, None),
            Event::EvictionPolicy(policy) => self.record_eviction_policy(policy),
            _ => {}
        }
    }

    fn record_eviction_policy(&self, policy: String) {
        let may_evict = policy != NO_EVICTION;
        self.metrics.set_may_evict(may_evict);
        let mut last = self.eviction_policy.lock();
        if last.as_ref() == Some(&policy) {
            return;
        }
        if may_evict {
            self.events.note(EventKind::HomeMayEvict, &policy);
            let hint = "an evicted bucket is full again in all regions: set `maxmemory-policy noeviction`";
            log::warn!(server = self.address, maxmemory_policy = policy, hint; "home may evict buckets");
        } else if last.is_some() {
            self.events.note(EventKind::HomeEvictsNothing, "");
            log::info!(server = self.address; "home evicts no buckets any more");
        }
        *last = Some(policy);
    }

    /// Records whether gateways of this region use another store than this one, and reports it when that changes.
    pub(crate) fn record_other_store(&self, region: &str, is_found: bool) {
        self.metrics.other_store.set(if is_found { 1.0 } else { 0.0 });
        if self.has_other_store.swap(is_found, Ordering::Relaxed) == is_found {
            return;
        }
        if is_found {
            self.events.note(EventKind::OtherStoreFound, region);
            let hint = "each region needs a name and a store of its own: compare `store` and `store.home.region` of its gateways";
            log::error!(region, hint; "another store speaks for this region");
        } else {
            self.events.note(EventKind::OtherStoreGone, region);
            log::info!(region; "one store speaks for this region again");
        }
    }

    /// Records when home was last heard.
    pub(crate) fn record_heard(&self, heard: Option<Timestamp>, now: Timestamp) {
        if let Some(heard) = heard {
            self.metrics.set_heard(now.since(heard));
        }
    }

    /// Whether gateways of this region use another store than this one.
    pub(crate) fn has_other_store(&self) -> bool {
        self.has_other_store.load(Ordering::Relaxed)
    }

    /// Records a call to home with this number of words. While home is down, a call that was not sent is not logged: the line about the
    /// outage says why.
    pub(crate) fn record_call(&self, words: usize, took: Micros, fault: Option<&Fault>) {
        if fault.is_none_or(|fault| !fault.is_unsent) {
            self.metrics.calls.increment(1);
            self.metrics.words.increment(u64::try_from(words).unwrap_or(u64::MAX));
            self.metrics.duration.record(took.seconds());
        }
        let is_known_down = {
            let mut state = self.state.lock();
            state.last_failure = fault.cloned();
            state.reported == Some(false)
        };
        let Some(fault) = fault else { return };
        self.metrics.errors.increment(&fault.error);
        if fault.is_unsent && is_known_down {
            return;
        }
        if let Some(calls) = self.failures.admit(self.clock.now()) {
            let server = fault.node.as_deref().unwrap_or(&self.address);
            log::warn!(server, kind = fault.error.name(), calls, detail = fault.detail; "call to home failed");
        }
    }

    /// Records how many buckets at home had an invalid state. They have nothing left until their period ends.
    pub(crate) fn record_healed(&self, buckets: u64) {
        if buckets == 0 {
            return;
        }
        self.metrics.healed.increment(buckets);
        if let Some(calls) = self.healings.admit(self.clock.now()) {
            let hint = "something else writes to keys of this prefix at home";
            log::warn!(server = self.address, buckets, calls, hint; "impossible buckets at home were reset, with nothing left");
        }
    }

    /// Changes the state, and reports whether home is up, if that has changed.
    fn change(&self, change: impl FnOnce(&mut HomeState), fault: Option<&Fault>) {
        let mut state = self.state.lock();
        change(&mut state);
        let is_up = state.is_connected && !state.is_breaker_open;
        self.metrics.up.set(if is_up { 1.0 } else { 0.0 });
        if state.reported.replace(is_up) == Some(is_up) {
            return;
        }
        if is_up {
            self.events.note(EventKind::HomeUp, &self.address);
            log::info!(server = self.address; "home is up");
        } else {
            let (kind, detail) = fault.map_or(("", ""), |fault| (fault.error.name(), &*fault.detail));
            self.events.note(EventKind::HomeDown, kind);
            log::warn!(server = self.address, kind, detail; "home is down");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stores::Worker;

    #[test]
    fn home_is_up_while_it_is_connected_and_its_breaker_is_closed() {
        let clock = Clock::manual(Timestamp(1));
        let (metrics, events) = (Metrics::new(&Settings::default()), Arc::new(Events::new(clock.clone())));
        let health = LeaseHealth::new(&Settings::default(), &metrics, clock, events);
        let fault = Fault::new(StoreError::Closed, "gone");
        let states = [
            Event::Up { worker: Worker(0), server: None },
            Event::BreakerOpened,
            Event::Down { worker: Worker(0), fault },
            Event::BreakerClosed,
            Event::Up { worker: Worker(0), server: None },
        ];
        let is_up = states.map(|event| {
            health.record(event);
            health.is_up()
        });
        assert_eq!(is_up, [true, false, false, false, true]);
    }

    #[test]
    fn a_home_whose_breaker_opens_is_down_for_what_its_calls_have_failed() {
        let clock = Clock::manual(Timestamp(1));
        let (metrics, events) = (Metrics::new(&Settings::default()), Arc::new(Events::new(clock.clone())));
        let health = LeaseHealth::new(&Settings::default(), &metrics, clock, Arc::clone(&events));
        health.record(Event::Up { worker: Worker(0), server: None });
        let refused = Fault::new(StoreError::Refused, "NOREPLICAS Not enough good replicas to write.");
        for fault in [Some(&refused), None] {
            health.record_call(1, Micros(1), fault);
            health.record(Event::BreakerOpened);
            health.record(Event::BreakerClosed);
        }
        let down = events.all().into_iter().filter(|event| event.what == "home is down");
        assert_eq!(down.map(|event| event.detail).collect::<Vec<_>>(), ["breaker_open", "refused"]);
    }

    #[test]
    fn a_home_that_may_evict_is_noted_once_and_so_is_its_end() {
        let clock = Clock::manual(Timestamp(1));
        let (metrics, events) = (Metrics::new(&Settings::default()), Arc::new(Events::new(clock.clone())));
        let health = LeaseHealth::new(&Settings::default(), &metrics, clock, Arc::clone(&events));
        for policy in ["noeviction", "allkeys-lru", "allkeys-lru", "noeviction"] {
            health.record(Event::EvictionPolicy(policy.to_owned()));
        }
        let noted: Vec<_> = events.all().into_iter().map(|event| (event.what, event.detail)).collect();
        let expected = [("home evicts no buckets any more", ""), ("home may evict buckets", "allkeys-lru")];
        assert_eq!(noted, expected.map(|(what, detail)| (what, detail.to_owned())));
    }
}
