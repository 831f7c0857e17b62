//! Notices peers that keep sending an `X-Forwarded-For` which is not believed, and says once how to believe it.
//!
//! It is mostly a proxy that nobody told us of, and then all of its clients share one bucket. Anybody can send the field,
//! so what is remembered is bounded, and once it is full nothing more is said.

use std::net::IpAddr;

use parking_lot::RwLock;

/// Peers are remembered for as long as the process runs.
const MOST: usize = 64;

#[derive(Debug, Default)]
pub struct Hearsay(RwLock<Vec<Sender>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sender {
    address: IpAddr,
    /// One request may be anybody's idea; who does it twice does it always.
    again: bool,
}

impl Hearsay {
    /// To be called for a request of a peer that is not trusted, when it has the field. Whether to say so now.
    pub fn is_news(&self, peer: IpAddr) -> bool {
        // Nearly always there is nothing to write, and no thread has to wait for another.
        {
            let senders = self.0.read();
            match senders.iter().find(|sender| sender.address == peer) {
                Some(sender) if sender.again => return false,
                None if senders.len() >= MOST => return false,
                _ => {}
            }
        }
        let mut senders = self.0.write();
        if let Some(sender) = senders.iter_mut().find(|sender| sender.address == peer) {
            return !std::mem::replace(&mut sender.again, true);
        }
        if senders.len() < MOST {
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
    fn the_second_request_of_a_peer_is_news_and_no_other() {
        let hearsay = Hearsay::default();
        let said = |number| hearsay.is_news(peer(number));
        assert_eq!(
            [said(1), said(2), said(1), said(1), said(2), said(2), said(3)],
            [false, false, true, false, true, false, false]
        );
    }

    #[test]
    fn so_many_peers_are_remembered_and_no_more() {
        let hearsay = Hearsay::default();
        for number in 0..10_000 {
            assert!(!hearsay.is_news(peer(number)));
        }
        assert_eq!(hearsay.0.read().len(), MOST);
        let news = (0..10_000).filter(|number| hearsay.is_news(peer(*number))).count();
        assert_eq!(news, MOST);
        assert!((0..10_000).all(|number| !hearsay.is_news(peer(number))));
    }
}
