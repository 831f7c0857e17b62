//! Decides when to log that the gateway ignores the `X-Forwarded-For` of a peer: once for each peer.
//!
//! Such a peer is mostly a proxy that is missing in `client_ip.trusted_proxies`, so all of its clients share one bucket. Any
//! client can send the field, so the number of remembered peers is limited. At the limit, no further peers are logged.

use std::net::IpAddr;

use parking_lot::RwLock;

/// The maximum number of peers that are remembered. They are remembered as long as the process runs.
const MAX_PEERS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct UntrustedForwardedFor(RwLock<Vec<Sender>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sender {
    address: IpAddr,
    /// Whether the peer has sent the field more than once. A single request may be an accident; a second one shows that the
    /// peer always sends the field.
    again: bool,
}

impl UntrustedForwardedFor {
    /// Whether to log a warning about this peer now. Called for each request with `X-Forwarded-For` from a peer that is not
    /// trusted. The answer is yes only for the second such request of a peer.
    pub(crate) fn should_log(&self, peer: IpAddr) -> bool {
        // Nearly always nothing changes, so a read lock is enough, and threads do not wait for each other.
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
