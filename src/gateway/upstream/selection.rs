//! Selects the endpoint that a request is sent to.
//!
//! Ejected endpoints and those at which the request has failed already are left out, as long as others remain. If none is
//! available, all are used: an upstream that seems to be ill as a whole gets its requests nevertheless.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pingora::upstreams::peer::HttpPeer;

use super::endpoint::{Attempt, Endpoint};
use super::{Pool, Upstream, Window};
use crate::base::time::Timestamp;
use crate::config::Balance;

/// Where a request is sent.
#[derive(Debug)]
pub struct Selection {
    pub peer: Box<HttpPeer>,
    pub attempt: Attempt,
    pub alternatives: Alternatives,
}

/// How the turn of an endpoint comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// One after the other, for the first attempt of a request.
    Next,
    /// For a retry: if it took the next turn, the request after it would go to the endpoint that has just failed.
    Drawn,
}

/// Whether a request that fails at its endpoint may be sent to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternatives {
    None,
    Some,
}

impl Upstream {
    /// The endpoint for a request, which has failed already at those for which `failed_at` holds; `None` while no address is
    /// known. `now` is asked only if an endpoint has been ejected.
    pub fn select(
        &self,
        turn: Turn,
        failed_at: impl Fn(SocketAddr) -> bool,
        window: Window,
        now: impl Fn() -> Timestamp + Copy,
    ) -> Option<Selection> {
        let pool = self.pool.load();
        let (endpoint, alternatives) = match pool.endpoints.as_slice() {
            [only] => (only, Alternatives::None),
            _ if self.settings.retries.max == 0 => (self.balanced(&pool, turn, &failed_at, now)?, Alternatives::None),
            _ => (self.balanced(&pool, turn, &failed_at, now)?, Alternatives::Some),
        };
        let attempt = Attempt::new(Arc::clone(endpoint), self.counting());
        Some(Selection { peer: endpoint.peer(window), attempt, alternatives })
    }

    fn balanced<'p>(
        &self,
        pool: &'p Pool,
        turn: Turn,
        failed_at: &impl Fn(SocketAddr) -> bool,
        now: impl Fn() -> Timestamp + Copy,
    ) -> Option<&'p Arc<Endpoint>> {
        let is_new = |endpoint: &Endpoint| !failed_at(endpoint.address);
        let is_available = |endpoint: &Endpoint| endpoint.is_available(now);
        let first = self.take_turn(pool, turn, |endpoint| is_available(endpoint) && is_new(endpoint));
        let first = first.or_else(|| self.take_turn(pool, turn, is_available));
        let first =
            first.or_else(|| self.take_turn(pool, turn, is_new)).or_else(|| self.take_turn(pool, turn, |_| true))?;
        match self.settings.balance {
            Balance::RoundRobin => Some(first),
            Balance::LeastRequests => {
                let is_alternative = |other: &Endpoint| {
                    other.address != first.address && is_new(other) && (is_available(other) || !is_available(first))
                };
                let second = self.draw(pool, is_alternative);
                Some(second.filter(|second| load(second) < load(first)).unwrap_or(first))
            }
        }
    }

    /// The next endpoint in turn for which `fits` holds. For least requests the turns are drawn.
    fn take_turn<'p>(&self, pool: &'p Pool, turn: Turn, fits: impl Fn(&Endpoint) -> bool) -> Option<&'p Arc<Endpoint>> {
        if turn == Turn::Drawn || self.settings.balance == Balance::LeastRequests {
            return self.draw(pool, fits);
        }
        // Turns are taken one by one, so that those of an ejected endpoint are spread over all others.
        for _ in 0..pool.schedule.len() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            if let Some(endpoint) = pool.at_turn(turn).filter(|endpoint| fits(endpoint)) {
                return Some(endpoint);
            }
        }
        None
    }

    /// An endpoint for which `fits` holds, drawn by weight.
    fn draw<'p>(&self, pool: &'p Pool, fits: impl Fn(&Endpoint) -> bool) -> Option<&'p Arc<Endpoint>> {
        /// So many draws find one of two endpoints nearly always.
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

/// Requests under way at an endpoint, this one included, for its weight.
fn load(endpoint: &Endpoint) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "weights are small numbers")]
    let weight = endpoint.weight.max(1) as f64;
    f64::from(endpoint.in_flight().saturating_add(1)) / weight
}
