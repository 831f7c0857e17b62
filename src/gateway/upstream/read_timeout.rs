//! Decides which connection enforces the upstream read timeout (`upstream_timeouts.read`) of a request: exactly one does.
//!
//! Pingora's own timer at the connection to the upstream can enforce it, for every protocol of the client; but it is made again
//! each time that the proxy begins to wait, one and a half times for a request. An HTTP/1 client connection has a timer that
//! outlives its requests, and is polled for as long as the proxy waits: it enforces the timeout at a lower cost, if the request
//! is complete. While a body is still being sent, both sides may be slow, and only Pingora's timer distinguishes them.
//!
//! A stream of HTTP/2 can do it too: it borrows a timer of its connection and gets the timeout through its session.
//!
//! A request for an upgrade has two timeouts: the head of the response has the read timeout, which the client's connection
//! enforces, and the tunnel after it may be idle for longer, which Pingora's timer enforces.
//!
//! So a connection offers to enforce the timeout, and the proxy moves it there or leaves it at Pingora's. Neither has to know
//! the conditions of the other.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use pingora::upstreams::peer::PeerOptions;

use base::time::Micros;

/// The read timeout of the current request on one client connection, if that connection enforces it.
///
/// Written and read by the tasks of one connection only.
#[derive(Debug)]
pub struct DelegatedReadTimeout(AtomicU64);

const NOT_OFFERED: u64 = u64::MAX;
const OFFERED: u64 = u64::MAX - 1;
/// The flag that marks the value as the idle timeout of a tunnel.
const TUNNEL: u64 = 1 << 63;

/// Whether a connection can enforce the timeout for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Offered,
    NotOffered,
}

impl DelegatedReadTimeout {
    /// Begins a new request: the delegation of the one before no longer applies.
    pub fn begin(&self, offer: Offer) {
        let state = match offer {
            Offer::Offered => OFFERED,
            Offer::NotOffered => NOT_OFFERED,
        };
        self.0.store(state, Ordering::Relaxed);
    }

    /// Moves the timeout from the connection to the upstream to the client's, if that has offered to enforce it.
    pub fn take_from(&self, upstream: &mut PeerOptions) {
        if self.0.load(Ordering::Relaxed) == NOT_OFFERED {
            return;
        }
        if let Some(timeout) = upstream.read_timeout.take() {
            let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
            self.0.store(micros.min(TUNNEL - 1), Ordering::Relaxed);
        }
    }

    /// Notes that the upgrade was accepted: from now on only that the client reads is enforced here.
    pub fn begin_tunnel(&self, idle: Micros) {
        self.0.store(TUNNEL | idle.0.min(TUNNEL / 2), Ordering::Relaxed);
    }

    /// How long the client of a tunnel may read nothing; `None` for other requests.
    pub fn tunnel(&self) -> Option<Micros> {
        let state = self.0.load(Ordering::Relaxed);
        state.checked_sub(TUNNEL).filter(|_| state < OFFERED).map(Micros)
    }

    /// The timeout that the client's connection must enforce; `None` if none was delegated.
    pub fn get(&self) -> Option<Micros> {
        let state = self.0.load(Ordering::Relaxed);
        (state < TUNNEL).then_some(Micros(state))
    }
}

impl Default for DelegatedReadTimeout {
    fn default() -> DelegatedReadTimeout {
        DelegatedReadTimeout(AtomicU64::new(NOT_OFFERED))
    }
}

/// The upstream has sent nothing for the read timeout, or the request has taken longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimedOut;

impl From<UpstreamTimedOut> for io::Error {
    fn from(timed_out: UpstreamTimedOut) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, timed_out)
    }
}

impl fmt::Display for UpstreamTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the upstream was waited for too long")
    }
}

impl std::error::Error for UpstreamTimedOut {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn either_the_connection_enforces_the_timeout_or_the_upstream_does() {
        let timeout = DelegatedReadTimeout::default();
        let take = |offer| {
            timeout.begin(offer);
            assert_eq!(timeout.get(), None);
            let mut options = PeerOptions::new();
            options.read_timeout = Some(Duration::from_millis(1500));
            timeout.take_from(&mut options);
            (timeout.get(), options.read_timeout)
        };
        for _ in 0..2 {
            assert_eq!(take(Offer::Offered), (Some(Micros(1_500_000)), None));
            assert_eq!(take(Offer::NotOffered), (None, Some(Duration::from_millis(1500))));
        }
    }

    #[test]
    fn a_tunnel_has_a_timeout_of_its_own() {
        let timeout = DelegatedReadTimeout::default();
        timeout.begin(Offer::Offered);
        assert_eq!(timeout.tunnel(), None);
        let mut options = PeerOptions::new();
        options.read_timeout = Some(Duration::from_secs(1));
        timeout.take_from(&mut options);
        assert_eq!((timeout.get(), timeout.tunnel()), (Some(Micros(1_000_000)), None));
        timeout.begin_tunnel(Micros(300_000_000));
        assert_eq!((timeout.get(), timeout.tunnel()), (None, Some(Micros(300_000_000))));
        timeout.begin(Offer::NotOffered);
        assert_eq!((timeout.get(), timeout.tunnel()), (None, None));
    }

    #[test]
    fn a_second_attempt_at_the_upstream_keeps_the_timeout() {
        let timeout = DelegatedReadTimeout::default();
        timeout.begin(Offer::Offered);
        for _ in 0..2 {
            let mut options = PeerOptions::new();
            options.read_timeout = Some(Duration::from_secs(1));
            timeout.take_from(&mut options);
            assert_eq!((timeout.get(), options.read_timeout), (Some(Micros(1_000_000)), None));
        }
    }
}
