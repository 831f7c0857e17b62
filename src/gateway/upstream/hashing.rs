//! Selects an endpoint by a value of the request, so that requests with the same value go to the same endpoint.
//!
//! Each endpoint gets a score from the value, its address and its weight. The endpoint with the highest score is chosen
//! (rendezvous hashing). If an endpoint is removed, only its own values move to other endpoints.
//!
//! An endpoint with more than [`FACTOR`] times its share of the requests under way is skipped.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::Pool;
use super::endpoint::Endpoint;
use super::stable_hash::stable_hash;

/// The factor by which an endpoint may exceed its share of the requests under way.
const FACTOR: f64 = 1.25;

/// The hash of a value of the request, such as a user id. Requests with equal values go to the same endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BalanceKey(NonZeroU64);

impl BalanceKey {
    pub(crate) fn new(value: &[u8]) -> BalanceKey {
        BalanceKey(NonZeroU64::MIN | stable_hash(value))
    }
}

/// The last step of SplitMix64: every bit of the result depends on every bit of `hash`.
fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Returns the score of an endpoint. An endpoint with twice the weight has the highest score for twice as many values.
#[expect(clippy::cast_precision_loss, reason = "53 bits of a hash are enough, and weights are small")]
fn score(key: BalanceKey, endpoint: &Endpoint) -> f64 {
    let uniform = ((mixed(key.0.get() ^ endpoint.hash) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -(endpoint.weight as f64) / uniform.ln()
}

impl Pool {
    /// Returns the endpoint for a value. Endpoints are left out if `fits` does not accept them, or if they exceed their share
    /// of the requests under way.
    pub(super) fn hashed(&self, key: BalanceKey, fits: impl Fn(&Endpoint) -> bool) -> Option<&Arc<Endpoint>> {
        let fitting = || self.endpoints.iter().filter(|endpoint| fits(endpoint));
        let (mut requests, mut weights) = (1.0, 0.0);
        for endpoint in fitting() {
            requests += f64::from(endpoint.in_flight());
            weights += weight(endpoint);
        }
        let has_room = |endpoint: &Endpoint| {
            let most = (FACTOR * requests * weight(endpoint) / weights).ceil();
            f64::from(endpoint.in_flight()) + 1.0 <= most
        };
        let scored = fitting().filter(|endpoint| has_room(endpoint)).map(|endpoint| (score(key, endpoint), endpoint));
        scored.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, endpoint)| endpoint)
    }
}

#[expect(clippy::cast_precision_loss, reason = "weights are small")]
fn weight(endpoint: &Endpoint) -> f64 {
    endpoint.weight as f64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::SocketAddr;

    use super::super::endpoint::{Attempt, ConnectOptions, WeightedAddress};
    use super::super::schedule::Schedule;
    use super::*;
    use base::time::Micros;
    use config::{Protocol, Scheme, UpstreamTimeouts};

    fn pool(weights: &[u64]) -> Pool {
        let second = Micros(1_000_000);
        let timeouts = UpstreamTimeouts {
            connect: second,
            first_byte: None,
            read: second,
            write: second,
            idle: second,
            total: None,
        };
        let connecting = ConnectOptions { timeouts, protocol: Protocol::Http1, tls: None };
        let endpoint = |(number, weight): (u8, &u64)| {
            let address = SocketAddr::from(([192, 0, 2, number], 80));
            let host = address.ip().to_string();
            let address = WeightedAddress { address: address.into(), scheme: Scheme::Http, host, weight: *weight };
            Arc::new(Endpoint::new(address, &connecting, Arc::default()).unwrap())
        };
        Pool { endpoints: (1..).zip(weights).map(endpoint).collect(), schedule: Schedule::new(weights) }
    }

    fn chosen(pool: &Pool, key: usize) -> SocketAddr {
        pool.hashed(BalanceKey::new(format!("user-{key}").as_bytes()), |_| true).unwrap().address.inet().unwrap()
    }

    const KEYS: usize = 20_000;

    #[test]
    fn each_endpoint_has_its_share_of_the_values() {
        for weights in [&[1, 1, 1][..], &[1; 16], &[4, 1, 3], &[27_720, 13_860]] {
            let pool = pool(weights);
            let mut counts = HashMap::<SocketAddr, u32>::new();
            (0..KEYS).for_each(|key| *counts.entry(chosen(&pool, key)).or_default() += 1);
            let total: f64 = pool.endpoints.iter().map(|endpoint| weight(endpoint)).sum();
            for endpoint in &pool.endpoints {
                let fair = f64::from(u32::try_from(KEYS).unwrap()) * weight(endpoint) / total;
                let had = f64::from(counts[&endpoint.address.inet().unwrap()]);
                assert!((had / fair - 1.0).abs() < 0.1, "{weights:?}: {had} in place of {fair}");
            }
        }
    }

    #[test]
    fn an_endpoint_that_leaves_moves_only_its_own_values() {
        let whole = pool(&[1, 2, 1, 1]);
        let gone = whole.endpoints[1].address.inet().unwrap();
        for key in 0..1000 {
            let before = chosen(&whole, key);
            let hash = BalanceKey::new(format!("user-{key}").as_bytes());
            let remains = |endpoint: &Endpoint| endpoint.address.inet() != Some(gone);
            let after = whole.hashed(hash, remains).unwrap().address.inet().unwrap();
            assert!(after == before || before == gone, "user-{key}");
        }
    }

    #[test]
    fn no_endpoint_has_more_than_a_quarter_above_its_share_under_way() {
        let pool = pool(&[1; 5]);
        let mut attempts = Vec::new();
        for requests in 1..=100u32 {
            // All requests have the same value.
            let endpoint = pool.hashed(BalanceKey::new(b"one"), |_| true).unwrap();
            attempts.push(Attempt::new(Arc::clone(endpoint)));
            let most = (FACTOR * f64::from(requests) / 5.0).ceil();
            assert!(pool.endpoints.iter().all(|endpoint| f64::from(endpoint.in_flight()) <= most), "{requests}");
        }
        // When the load is gone, the first endpoint is chosen again.
        let first = attempts[0].endpoint.address.clone();
        attempts.clear();
        assert_eq!(pool.hashed(BalanceKey::new(b"one"), |_| true).unwrap().address, first);
    }
}
