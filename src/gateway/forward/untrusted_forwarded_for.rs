//! Decides when to log that a peer keeps sending an `X-Forwarded-For` which is ignored: once for each peer.
//!
//! Mostly it is a proxy that is missing in `client_ip.trusted_proxies`, and then all of its clients share one bucket. Any
//! client can send the field, so the number of peers that are remembered is bounded; once it is reached, no others are logged.

use std::net::IpAddr;

use parking_lot::RwLock;

/// Peers are remembered for as long as the process runs.
const MAX_PEERS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct UntrustedForwardedFor(RwLock<Vec<Sender>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sender {
    address: IpAddr,
    /// Whether it has sent the field more than once. A single request may be an accident; a peer that repeats it does it
    /// with every request.
    again: bool,
}

impl UntrustedForwardedFor {
    /// Whether to log a warning about this peer now. Called for each request with `X-Forwarded-For` from a peer that is not
    /// trusted. The answer is yes only for the second such request of a peer.
    pub(crate) fn should_log(&self, peer: IpAddr) -> bool {
        // Nearly always there is nothing to write, and then no thread waits for another.
        {
            let senders = self.0.read();
            match senders.iter().find(|sender| sender.address == peer) {
                Some(sender) if sender.again => return false,
                None if senders.len() >= MAX_PEERS => return false,
                _ => {}
            }
        }
        let mut senders = self.0.write();
        if let Some(sender) = senders.iter_mut().find(|sender| sender.address == peer) {
            return !std::mem::replace(&mut sender.again, true);
        }
        if senders.len() < MAX_PEERS {
            senders.push(Sender { address: peer, again: false });
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    #[test]
    fn only_the_second_request_of_a_peer_is_logged() {
        let peers = UntrustedForwardedFor::default();
        let logged = |number| peers.should_log(peer(number));
        assert_eq!(
            [logged(1), logged(2), logged(1), logged(1), logged(2), logged(2), logged(3)],
            [false, false, true, false, true, false, false]
        );
    }

    #[test]
    fn the_number_of_remembered_peers_is_bounded() {
        let peers = UntrustedForwardedFor::default();
        for number in 0..10_000 {
            assert!(!peers.should_log(peer(number)));
        }
        assert_eq!(peers.0.read().len(), MAX_PEERS);
        let logged = (0..10_000).filter(|number| peers.should_log(peer(*number))).count();
        assert_eq!(logged, MAX_PEERS);
        assert!((0..10_000).all(|number| !peers.should_log(peer(number))));
    }
}
