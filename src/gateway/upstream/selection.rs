//! Selects the endpoint to which a request is sent.
//!
//! Endpoints that are down or ejected, or at which the request has already failed, are skipped while others remain. An
//! upstream whose endpoints all fail still gets requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::endpoint::{Attempt, Endpoint};
use super::failure::UpstreamError;
use super::hashing::BalanceKey;
use super::{Pool, Upstream};
use base::endpoint_address::EndpointAddress;
use base::time::Timestamp;
use config::Balance;

/// The values that determine which endpoint is selected for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub turn: Turn,
    /// The hash of the value that determines the endpoint. `None` if no value determines the endpoint.
    pub key: Option<BalanceKey>,
}

/// The way in which an endpoint is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The endpoints have turns one after the other. Used for the first attempt of a request.
    Next,
    /// An endpoint is selected at random. Used for a retry.
    Drawn,
}

impl Upstream {
    /// Selects the endpoint for a request, and begins the attempt. `failed_at` returns whether the request has already failed
    /// at an address. `now` is called only if an endpoint has been ejected.
    ///
    /// # Errors
    /// If no address is known, or if every endpoint already has the maximum number of requests.
    pub(crate) fn select(
        &self,
        choice: Choice,
        failed_at: impl Fn(&EndpointAddress) -> bool,
        now: impl Fn() -> Timestamp + Copy,
    ) -> Result<Attempt, UpstreamError> {
        let pool = self.pool.load();
        if choice.turn == Turn::Next {
            self.begin();
        }
        let endpoint = match pool.endpoints.as_slice() {
            [] => return Err(UpstreamError::Unresolved),
            // If there is only one endpoint, it is used even if it is down or ejected.
            [only] => only,
            _ => self.balanced(&pool, choice, &failed_at, now).ok_or(UpstreamError::Busy)?,
        };
        match self.settings.max_connections {
            None => Ok(Attempt::new(Arc::clone(endpoint))),
            // Another request may just have taken the last free place of the endpoint.
            Some(most) => Attempt::within(most, Arc::clone(endpoint)).ok_or(UpstreamError::Busy),
        }
    }

    /// Whether an endpoint with such an address is available, and may have one more request.
    pub(crate) fn has_available(
        &self,
        fits: impl Fn(&EndpointAddress) -> bool,
        now: impl Fn() -> Timestamp + Copy,
    ) -> bool {
        let is_available = |endpoint: &Arc<Endpoint>| endpoint.is_available(now) && self.has_room(endpoint);
        self.pool.load().endpoints.iter().any(|endpoint| fits(&endpoint.address) && is_available(endpoint))
    }

    /// Whether the endpoint may have one more request.
    fn has_room(&self, endpoint: &Endpoint) -> bool {
        self.settings.max_connections.is_none_or(|most| endpoint.in_flight() < most)
    }

    fn balanced<'p>(
        &self,
        pool: &'p Pool,
        choice: Choice,
        failed_at: &impl Fn(&EndpointAddress) -> bool,
        now: impl Fn() -> Timestamp + Copy,
    ) -> Option<&'p Arc<Endpoint>> {
        let is_new = |endpoint: &Endpoint| !failed_at(&endpoint.address) && self.has_room(endpoint);
        let is_available = |endpoint: &Endpoint| endpoint.is_available(now) && self.has_room(endpoint);
        let is_up = |endpoint: &Endpoint| endpoint.is_up() && self.has_room(endpoint);
        let first = match self.panics(pool, is_available) {
            true => None,
            false => {
                self.take_turn(pool, choice, |endpoint| is_available(endpoint) && is_new(endpoint)).or_else(|| {
                    let take = |fits: &dyn Fn(&Endpoint) -> bool| self.take_turn(pool, choice, fits);
                    let up = || take(&|endpoint| endpoint.is_up() && is_new(endpoint)).or_else(|| take(&is_up));
                    take(&is_available).or_else(up)
                })
            }
        };
        let first = first.or_else(|| self.take_turn(pool, choice, is_new));
        let first = first.or_else(|| self.take_turn(pool, choice, |endpoint| self.has_room(endpoint)))?;
        match self.settings.balance {
            Balance::RoundRobin | Balance::Hash(_) => Some(first),
            Balance::LeastRequests => {
                let is_alternative = |other: &Endpoint| {
                    other.address != first.address && is_new(other) && (is_available(other) || !is_available(first))
                };
                let second = self.draw(pool, is_alternative);
                Some(second.filter(|second| load(second) < load(first)).unwrap_or(first))
            }
        }
    }

    /// Whether so few endpoints are available that unavailable endpoints get requests too.
    fn panics(&self, pool: &Pool, is_available: impl Fn(&Endpoint) -> bool) -> bool {
        let below = usize::from(self.settings.panic_below);
        let available = || pool.endpoints.iter().filter(|endpoint| is_available(endpoint)).count();
        below > 0 && available().saturating_mul(100) < pool.endpoints.len().saturating_mul(below)
    }

    /// Returns an endpoint for which `fits` holds: the endpoint of the key, a random endpoint, or the next endpoint in
    /// turn.
    fn take_turn<'p>(
        &self,
        pool: &'p Pool,
        Choice { turn, key }: Choice,
        fits: impl Fn(&Endpoint) -> bool,
    ) -> Option<&'p Arc<Endpoint>> {
        if let Some(key) = key {
            return pool.hashed(key, fits);
        }
        if turn == Turn::Drawn || self.settings.balance == Balance::LeastRequests {
            return self.draw(pool, fits);
        }
        // Turns are taken one by one, so that the turns of an ejected endpoint are spread over all others.
        for _ in 0..pool.schedule.len() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            if let Some(endpoint) = pool.at_turn(turn).filter(|endpoint| fits(endpoint)) {
                return Some(endpoint);
            }
        }
        None
    }

    /// Returns a random endpoint for which `fits` holds. The probability is proportional to the weight.
    fn draw<'p>(&self, pool: &'p Pool, fits: impl Fn(&Endpoint) -> bool) -> Option<&'p Arc<Endpoint>> {
        /// The maximum number of random draws.
        const DRAWS: usize = 8;
        for _ in 0..DRAWS {
            if let Some(endpoint) = pool.at_turn(fastrand::usize(..)).filter(|endpoint| fits(endpoint)) {
                return Some(endpoint);
            }
        }
        let fitting = pool.endpoints.iter().filter(|endpoint| fits(endpoint));
        fastrand::choice(fitting.collect::<Vec<_>>())
    }
}

impl Pool {
    fn at_turn(&self, turn: usize) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(self.schedule.turn(turn)?)
    }
}

/// Returns the load of an endpoint: its requests under way and one more, divided by its weight.
fn load(endpoint: &Endpoint) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "weights are small numbers")]
    let weight = endpoint.weight.max(1) as f64;
    f64::from(endpoint.in_flight().saturating_add(1)) / weight
}
