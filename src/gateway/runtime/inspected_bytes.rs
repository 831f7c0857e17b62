//! Limits the bytes of request bodies that are held for the rules (`limits.inspect_total`).
//!
//! Beyond the limit, the client that holds most gets no more: the newest of its bodies that are still being read is given up. So
//! one client that sends many bodies slowly does not keep all others out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The bytes that all requests together hold of their bodies.
#[derive(Debug, Default)]
pub(crate) struct InspectedBytes(Mutex<Inspected>);

#[derive(Debug, Default)]
struct Inspected {
    /// The sum of `bodies`.
    bytes: usize,
    next: u64,
    /// The bodies in the order in which they began.
    bodies: BTreeMap<u64, InspectedBody>,
    /// The sum of each client that has a body.
    clients: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct InspectedBody {
    client: IpAddr,
    bytes: usize,
    /// Whether the whole body has been read: it is then kept until it has been sent.
    is_whole: bool,
    /// The sender is dropped to give the body up.
    _give_up: oneshot::Sender<()>,
}

/// The bytes that one request holds of its body. They are subtracted from the sum when this value is dropped.
#[derive(Debug)]
pub(crate) struct InspectedShare {
    all: Arc<InspectedBytes>,
    number: u64,
    given_up: Option<oneshot::Receiver<()>>,
}

/// The error for a request for which no memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InspectedFull;

impl InspectedBytes {
    /// Returns the share of a request that holds nothing yet.
    pub(crate) fn share(self: &Arc<InspectedBytes>, client: IpAddr) -> InspectedShare {
        let (give_up, given_up) = oneshot::channel();
        let mut inspected = self.0.lock();
        let number = inspected.next;
        inspected.next += 1;
        inspected.bodies.insert(number, InspectedBody { client, bytes: 0, is_whole: false, _give_up: give_up });
        InspectedShare { all: Arc::clone(self), number, given_up: Some(given_up) }
    }
}

impl Inspected {
    /// Raises the bytes of a body. Returns the earlier number. `None` if the body was given up.
    fn raise(&mut self, number: u64, bytes: usize) -> Option<usize> {
        let body = self.bodies.get_mut(&number)?;
        let before = body.bytes;
        let more = bytes.saturating_sub(before);
        body.bytes += more;
        self.bytes += more;
        *self.clients.entry(body.client).or_default() += more;
        Some(before)
    }

    fn lower(&mut self, number: u64, bytes: usize) {
        let Some(body) = self.bodies.get_mut(&number) else { return };
        let less = body.bytes.saturating_sub(bytes);
        body.bytes -= less;
        self.bytes -= less;
        if let Some(held) = self.clients.get_mut(&body.client) {
            *held -= less;
            if *held == 0 {
                self.clients.remove(&body.client);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        self.lower(number, 0);
        self.bodies.remove(&number);
    }

    /// Returns the newest body that is still being read, of the client that holds most.
    fn to_give_up(&self) -> Option<u64> {
        let being_read = self.bodies.iter().filter(|(_, body)| !body.is_whole && body.bytes > 0);
        let held = |body: &InspectedBody| self.clients.get(&body.client).copied();
        being_read.max_by_key(|(_, body)| held(body)).map(|(number, _)| *number)
    }
}

impl InspectedShare {
    /// Raises the share to this number of bytes. `most` is the bound of all shares together.
    ///
    /// # Errors
    /// If all shares together would be above `most`, and no other client holds more than this one. The share then stays as it is.
    pub(crate) fn raise_to(&mut self, bytes: usize, most: usize) -> Result<(), InspectedFull> {
        let mut inspected = self.all.0.lock();
        let before = inspected.raise(self.number, bytes).ok_or(InspectedFull)?;
        while inspected.bytes > most {
            match inspected.to_give_up() {
                Some(other) if other != self.number => inspected.remove(other),
                _ => {
                    inspected.lower(self.number, before);
                    return Err(InspectedFull);
                }
            }
        }
        Ok(())
    }

    /// Returns what ends when the body is given up, once.
    pub(crate) fn given_up(&mut self) -> impl Future<Output = InspectedFull> + use<> {
        let given_up = self.given_up.take();
        async move {
            match given_up {
                // The sender sends nothing, because its drop is the signal.
                Some(given_up) => _ = given_up.await,
                None => std::future::pending().await,
            }
            InspectedFull
        }
    }

    /// Says that the whole body has been read: it is not given up any more.
    ///
    /// # Errors
    /// If it was given up.
    pub(crate) fn keep(&mut self) -> Result<(), InspectedFull> {
        self.all.0.lock().bodies.get_mut(&self.number).ok_or(InspectedFull)?.is_whole = true;
        Ok(())
    }
}

impl Drop for InspectedShare {
    fn drop(&mut self) {
        self.all.0.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn is_empty(all: &InspectedBytes) -> bool {
        let inspected = all.0.lock();
        inspected.bytes == 0 && inspected.bodies.is_empty() && inspected.clients.is_empty()
    }

    #[test]
    fn all_shares_together_stay_below_the_bound_and_are_given_back() {
        let all = Arc::new(InspectedBytes::default());
        let (mut one, mut other) = (all.share(ONE), all.share(ONE));
        assert_eq!(one.raise_to(60, 100), Ok(()));
        assert_eq!(one.raise_to(50, 100), Ok(()), "a share is never lowered");
        assert_eq!(other.raise_to(41, 100), Err(InspectedFull));
        assert_eq!(other.raise_to(40, 100), Ok(()));
        assert_eq!(other.raise_to(41, 100), Err(InspectedFull));
        drop(one);
        assert_eq!(other.raise_to(100, 100), Ok(()));
        drop(other);
        assert!(is_empty(&all));
    }

    #[tokio::test]
    async fn the_newest_body_of_the_client_that_holds_most_is_given_up() {
        let all = Arc::new(InspectedBytes::default());
        let mut greedy = [(); 3].map(|()| all.share(ONE));
        for share in &mut greedy {
            assert_eq!(share.raise_to(30, 100), Ok(()));
        }
        let [first, second, third] = &mut greedy;
        assert_eq!(first.keep(), Ok(()), "a whole body is kept");
        let mut modest = all.share(OTHER);
        assert_eq!(modest.raise_to(20, 100), Ok(()));
        assert_eq!(third.given_up().await, InspectedFull);
        assert_eq!(third.raise_to(31, 100), Err(InspectedFull));
        assert_eq!(third.keep(), Err(InspectedFull));
        assert_eq!(second.raise_to(55, 100), Err(InspectedFull), "it is of the client that holds most");
        assert_eq!(modest.raise_to(50, 100), Ok(()));
        assert_eq!(second.given_up().await, InspectedFull);
        assert_eq!(modest.raise_to(71, 100), Err(InspectedFull), "what was read whole stays");
        drop((greedy, modest));
        assert!(is_empty(&all));
    }
}
