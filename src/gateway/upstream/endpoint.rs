//! One address of an upstream: how to connect to it, and how it has done lately.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pingora::upstreams::peer::{HttpPeer, PeerOptions};

use super::Window;
use crate::base::time::Timestamp;
use crate::config;

/// The receive buffer of a narrow connection, in bytes; the kernel doubles it for its own overhead.
const NARROW: usize = 8 << 10;

/// An address that requests may be sent to.
#[derive(Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// The name or address in the configuration.
    pub host: String,
    /// Its share of the requests, against the weights of the other endpoints.
    pub weight: u64,
    peer: HttpPeer,
    /// The same with narrow connections.
    narrow: HttpPeer,
    /// Kept when the configuration or the addresses of the name change.
    pub condition: Arc<EndpointCondition>,
}

/// An address, with its share of the requests.
#[derive(Clone, Debug)]
pub struct WeightedAddress {
    pub address: SocketAddr,
    pub host: String,
    pub weight: u64,
}

/// How an endpoint does.
#[derive(Debug, Default)]
pub struct EndpointCondition {
    /// Requests that it has not finished yet; counted only where that is needed.
    in_flight: AtomicU32,
    /// Failures since the last success.
    pub(super) failures: AtomicU32,
    /// In microseconds; 0 if it is not ejected.
    pub(super) ejected_until: AtomicU64,
}

impl Endpoint {
    pub fn new(
        WeightedAddress { address, host, weight }: WeightedAddress,
        timeouts: &config::UpstreamTimeouts,
        condition: Arc<EndpointCondition>,
    ) -> Endpoint {
        let mut peer = HttpPeer::new(address, false, String::new());
        peer.options = options(timeouts);
        let mut narrow = peer.clone();
        narrow.options.tcp_recv_buf = Some(NARROW);
        // In a pool of its own: a narrow connection is not reused for a wide one.
        narrow.group_key = 1;
        Endpoint { address, host, weight, peer, narrow, condition }
    }

    /// What Pingora connects to.
    pub fn peer(&self, window: Window) -> Box<HttpPeer> {
        Box::new(match window {
            Window::Whole => self.peer.clone(),
            Window::Narrow => self.narrow.clone(),
        })
    }

    pub fn in_flight(&self) -> u32 {
        self.condition.in_flight.load(Ordering::Relaxed)
    }

    /// Whether it has not been ejected, or its time is over.
    pub fn is_available(&self, now: impl Fn() -> Timestamp) -> bool {
        match self.condition.ejected_until.load(Ordering::Relaxed) {
            0 => true,
            until => until <= now().0,
        }
    }
}

fn options(timeouts: &config::UpstreamTimeouts) -> PeerOptions {
    let mut options = PeerOptions::new();
    options.connection_timeout = Some(timeouts.connect.into());
    options.total_connection_timeout = Some(timeouts.connect.into());
    options.read_timeout = Some(timeouts.read.into());
    options.write_timeout = Some(timeouts.write.into());
    options.idle_timeout = Some(timeouts.idle.into());
    options
}

/// Whether the requests of an endpoint are counted while they last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    On,
    Off,
}

/// One request at one endpoint, until it is dropped.
#[derive(Debug)]
pub struct Attempt {
    pub endpoint: Arc<Endpoint>,
    counting: Counting,
}

impl Attempt {
    pub fn new(endpoint: Arc<Endpoint>, counting: Counting) -> Attempt {
        if counting == Counting::On {
            endpoint.condition.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Attempt { endpoint, counting }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.counting == Counting::On {
            self.endpoint.condition.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
