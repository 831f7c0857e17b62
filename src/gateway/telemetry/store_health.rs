//! Listens to the store: counts its calls, knows whether it can be asked, and says when that changes.

use std::sync::Arc;

use parking_lot::Mutex;

use super::events::{Events, Happened};
use super::metrics::{Metrics, StoreMetrics};
use crate::base::time::{Clock, Timestamp};
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::store::{CallReport, Event, Fault, RunningGateway, Settings, StoreError, gateway_ttl};

#[derive(Debug)]
pub struct StoreHealth {
    metrics: StoreMetrics,
    events: Arc<Events>,
    clock: Clock,
    links: Mutex<Links>,
    heard: Mutex<Heard>,
    failures: LogThrottle,
    healings: LogThrottle,
}

/// What other gateways run, as they last told.
#[derive(Debug, Default)]
struct Heard {
    at: Timestamp,
    others: Vec<RunningGateway>,
}

#[derive(Debug)]
struct Links {
    /// By lane: why it cannot be asked.
    down: Vec<Option<StoreError>>,
    /// What was last said; none at first.
    said: Option<Result<(), StoreError>>,
}

impl StoreHealth {
    pub fn new(settings: &Settings, lanes: usize, metrics: &Metrics, clock: Clock, events: Arc<Events>) -> StoreHealth {
        // The embedded store needs no link.
        let down = if settings.is_shared() { vec![Some(StoreError::Unreachable); lanes] } else { Vec::new() };
        let metrics = StoreMetrics::new(settings.name(), &metrics.registry);
        metrics.gateways.set(float(settings.gateways()));
        metrics.up.set(if down.is_empty() { 1.0 } else { 0.0 });
        StoreHealth {
            metrics,
            events,
            clock,
            heard: Mutex::default(),
            links: Mutex::new(Links { down, said: None }),
            failures: LogThrottle::default(),
            healings: LogThrottle::default(),
        }
    }

    /// Whether every thread can ask it.
    pub fn is_up(&self) -> bool {
        self.links.lock().down.iter().all(Option::is_none)
    }

    /// Other gateways that run something else than this. Nothing is known of them while nobody can be heard.
    pub fn others(&self, configuration: &str) -> Vec<RunningGateway> {
        let heard = self.heard.lock();
        // It may answer requests and yet not tell who is there.
        if !self.is_up() || self.clock.now().since(heard.at) >= gateway_ttl() {
            return Vec::new();
        }
        heard.others.iter().filter(|other| other.configuration != configuration).cloned().collect()
    }

    pub fn hear(&self, event: Event) {
        match event {
            Event::CallEnded(called) => self.called(called),
            Event::BreakerOpened => {
                self.metrics.breaker_open.set(1.0);
                self.events.note(Happened::BreakerOpened, "");
                log::warn!("store is not asked for a while: it did not answer in time");
            }
            Event::BreakerClosed => {
                self.metrics.breaker_open.set(0.0);
                self.events.note(Happened::BreakerClosed, "");
                log::info!("store is asked again");
            }
            Event::Gateways { alive, others } => {
                self.metrics.gateways.set(float(alive));
                *self.heard.lock() = Heard { at: self.clock.now(), others };
            }
            Event::HeartbeatError(fault) => self.failed(&fault),
            Event::Up(lane) => self.changed(lane.0, Ok(()), ""),
            Event::Down { worker, fault } => {
                self.metrics.count_error(fault.error);
                self.changed(worker.0, Err(fault.error), &fault.detail);
            }
        }
    }

    fn called(&self, called: CallReport) {
        self.metrics.calls.increment(1);
        self.metrics.duration.record(called.took.seconds());
        self.metrics.batch.record(f64::from(u32::try_from(called.requests).unwrap_or(u32::MAX)));
        if called.healed > 0 {
            self.metrics.healed.increment(called.healed);
            if let Some(calls) = self.healings.admit(self.clock.now()) {
                let hint = "something else writes to keys of this prefix";
                log::warn!(buckets = called.healed, calls, hint; "impossible buckets now have nothing left");
            }
        }
        if let Some(fault) = &called.fault {
            self.failed(fault);
        }
    }

    fn failed(&self, fault: &Fault) {
        self.metrics.count_error(fault.error);
        if let Some(calls) = self.failures.admit(self.clock.now()) {
            log::warn!(kind = fault.error.name(), calls, detail = fault.detail; "store call failed");
        }
    }

    /// Every thread has a link, and they mostly come and go together: said is what differs from what was said last.
    fn changed(&self, lane: usize, now: Result<(), StoreError>, detail: &str) {
        let mut links = self.links.lock();
        if let Some(link) = links.down.get_mut(lane) {
            *link = now.err();
        }
        let up = links.down.iter().all(Option::is_none);
        self.metrics.up.set(if up { 1.0 } else { 0.0 });
        if links.said == Some(now) || (now.is_ok() && !up) {
            return;
        }
        links.said = Some(now);
        match now {
            Ok(()) => {
                self.events.note(Happened::StoreUp, "");
                log::info!("store is up");
            }
            Err(error) => {
                self.events.note(Happened::StoreDown, error.name());
                log::warn!(kind = error.name(), detail; "store is down");
            }
        }
    }
}

fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_forgotten_when_nothing_has_been_heard_for_seven_seconds() {
        let at = |seconds: u64| Timestamp((1_000 + seconds) * 1_000_000);
        let clock = Clock::manual(at(0));
        let (metrics, events) = (Metrics::default(), Arc::new(Events::new(clock.clone())));
        let health = StoreHealth::new(&Settings::default(), 1, &metrics, clock.clone(), events);
        let other = RunningGateway { host: "b".to_owned(), configuration: "2".to_owned() };
        let hear = || health.hear(Event::Gateways { alive: 2, others: vec![other.clone()] });
        assert!(health.is_up() && health.others("1").is_empty());
        hear();
        assert_eq!((health.others("1").len(), health.others("2").len()), (1, 0));
        // Once in vain is not yet gone.
        clock.set(at(6));
        health.hear(Event::HeartbeatError(Fault::new(StoreError::Forbidden, "no permission")));
        assert_eq!(health.others("1"), std::slice::from_ref(&other));
        clock.set(at(7));
        assert!(health.is_up() && health.others("1").is_empty());
        hear();
        assert_eq!(health.others("1").len(), 1);
    }
}
