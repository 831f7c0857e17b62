//! Ejects endpoints that fail: they get no requests for a while. Only a configured share of an upstream's endpoints can
//! be ejected at the same time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::endpoint::Endpoint;
use base::time::Timestamp;

/// Ejects endpoints of one upstream after failures: an ejected endpoint gets no requests for a while.
#[derive(Debug, Default)]
pub(super) struct Ejector {
    /// Locked to eject an endpoint, so that two threads together do not eject too many endpoints.
    ejecting: Mutex<()>,
}

impl Ejector {
    /// Records that a request has failed at an endpoint. Returns whether this failure ejected the endpoint.
    pub(super) fn failed(
        &self,
        endpoint: &Endpoint,
        all: &[Arc<Endpoint>],
        settings: &config::Ejection,
        now: Timestamp,
    ) -> bool {
        let failures = endpoint.condition.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < settings.consecutive {
            return false;
        }
        let _ejecting = self.ejecting.lock();
        if endpoint.is_ejected(|| now) {
            return false;
        }
        let ejected = all.iter().filter(|other| other.is_ejected(|| now)).count();
        let allowed = all.len().saturating_mul(usize::from(settings.max_share)) / 100;
        if ejected >= allowed {
            return false;
        }
        let until = now.plus(settings.duration).0.max(1);
        endpoint.condition.ejected_until.store(until, Ordering::Relaxed);
        // After the ejection, the next failure ejects the endpoint again.
        endpoint.condition.failures.store(settings.consecutive.saturating_sub(1), Ordering::Relaxed);
        true
    }

    /// Records that a request has succeeded at an endpoint. Returns whether the endpoint had been ejected before.
    pub(super) fn succeeded(endpoint: &Endpoint, now: impl Fn() -> Timestamp) -> bool {
        let condition = &endpoint.condition;
        if condition.failures.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // A response to an earlier request does not end the ejection.
        if endpoint.is_ejected(now) {
            return false;
        }
        condition.failures.store(0, Ordering::Relaxed);
        condition.ejected_until.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::endpoint::{ConnectOptions, WeightedAddress};
    use super::*;
    use base::time::Micros;

    const SECOND: Micros = Micros(1_000_000);

    fn endpoints(count: u16) -> Vec<Arc<Endpoint>> {
        let timeouts = config::UpstreamTimeouts {
            connect: SECOND,
            first_byte: None,
            read: SECOND,
            write: SECOND,
            idle: SECOND,
            total: None,
        };
        let connecting = ConnectOptions { timeouts, protocol: config::Protocol::Http1, tls: None };
        let endpoint = |port| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let host = address.ip().to_string();
            let address = WeightedAddress { address: address.into(), scheme: config::Scheme::Http, host, weight: 1 };
            Arc::new(Endpoint::new(address, &connecting, Arc::default()).unwrap())
        };
        (1..=count).map(endpoint).collect()
    }

    fn settings(max_share: u8) -> config::Ejection {
        config::Ejection { consecutive: 3, duration: Micros(30_000_000), max_share }
    }

    #[test]
    fn consecutive_failures_eject_and_a_success_between_them_does_not() {
        let (all, ejector, settings) = (endpoints(2), Ejector::default(), settings(50));
        let failed = |now| ejector.failed(&all[0], &all, &settings, Timestamp(now));
        assert_eq!([failed(1), failed(1)], [false, false]);
        Ejector::succeeded(&all[0], || Timestamp(1));
        assert_eq!([failed(1), failed(1), failed(1)], [false, false, true]);
        assert!(!all[0].is_available(|| Timestamp(2)));
        // During the ejection, late failures and successes change nothing.
        assert!(!failed(2) && !Ejector::succeeded(&all[0], || Timestamp(3)));
        assert!(!all[0].is_available(|| Timestamp(30_000_000)));
        let back = Timestamp(30_000_001);
        assert!(all[0].is_available(|| back));
        // After the ejection, one failure is enough for another ejection.
        assert!(failed(back.0) && !all[0].is_available(|| back));
        let again = Timestamp(back.0 + 30_000_000);
        assert!(Ejector::succeeded(&all[0], || again));
        assert_eq!([failed(again.0), failed(again.0), failed(again.0)], [false, false, true]);
    }

    #[test]
    fn never_more_than_the_share_is_ejected() {
        for (count, share, most) in
            [(1, 50, 0), (2, 50, 1), (3, 50, 1), (4, 50, 2), (5, 100, 5), (3, 0, 0), (10, 35, 3)]
        {
            let (all, ejector, settings) = (endpoints(count), Ejector::default(), settings(share));
            for _ in 0..10 {
                for endpoint in &all {
                    ejector.failed(endpoint, &all, &settings, Timestamp(1));
                }
            }
            let ejected = all.iter().filter(|endpoint| !endpoint.is_available(|| Timestamp(2))).count();
            assert_eq!(ejected, most, "{count} at {share}%");
        }
    }
}
