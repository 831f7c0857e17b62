//! Limits the connections to the admin listener. At the limit, a new connection replaces the longest-idle connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use base::time::{Micros, Timestamp};

/// A connection whose request is being answered counts as idle only after this time.
const HEAD_START: Micros = Micros(1_000_000);

/// The activity of a connection: it waits for a request, or a request is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Waiting,
    Answering,
}

/// The way in which a connection was admitted: to a free connection slot, or in place of another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Free,
    /// The longest-idle connection was evicted to make room.
    Evicted,
}

/// Bounds the number of open connections. Their number is the size of `Occupancy::by_idle_time`, so an evicted
/// connection is not subtracted again when it closes.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    max: usize,
    occupied: Mutex<Occupancy>,
}

#[derive(Debug, Default)]
struct Occupancy {
    /// The connections in the order of eviction.
    by_idle_time: BTreeMap<IdleSince, Arc<Notify>>,
    last: u64,
}

/// The time since which a connection is idle. A serial number orders equal times.
type IdleSince = (Timestamp, u64);

/// The slot of one connection. The connection holds the slot until it closes or is evicted.
#[derive(Debug)]
pub(super) struct AdminSlot<'s> {
    slots: &'s ConnectionSlots,
    idle_since: Mutex<IdleSince>,
    evicted: Arc<Notify>,
}

impl ConnectionSlots {
    pub(super) fn new(max: usize) -> ConnectionSlots {
        ConnectionSlots { max, occupied: Mutex::default() }
    }

    /// Admits a connection at the time `now`. If no slot is free, the longest-idle connection is evicted.
    pub(super) fn take(&self, now: Timestamp) -> (AdminSlot<'_>, Admission) {
        let mut occupied = self.occupied.lock();
        let mut admission = Admission::Free;
        if occupied.by_idle_time.len() >= self.max
            && let Some((_, evicted)) = occupied.by_idle_time.pop_first()
        {
            evicted.notify_one();
            admission = Admission::Evicted;
        }
        let (idle_since, evicted) = (occupied.next_idle_since(now, Activity::Waiting), Arc::new(Notify::new()));
        occupied.by_idle_time.insert(idle_since, Arc::clone(&evicted));
        (AdminSlot { slots: self, idle_since: Mutex::new(idle_since), evicted }, admission)
    }
}

impl Occupancy {
    fn next_idle_since(&mut self, now: Timestamp, activity: Activity) -> IdleSince {
        self.last += 1;
        let since = match activity {
            Activity::Waiting => now,
            Activity::Answering => now.plus(HEAD_START),
        };
        (since, self.last)
    }
}

impl AdminSlot<'_> {
    /// Notes that the connection begins another activity at the time `now`. Does nothing if the connection was evicted.
    pub(super) fn begin(&self, activity: Activity, now: Timestamp) {
        let mut occupied = self.slots.occupied.lock();
        let mut idle_since = self.idle_since.lock();
        if let Some(evicted) = occupied.by_idle_time.remove(&idle_since) {
            *idle_since = occupied.next_idle_since(now, activity);
            occupied.by_idle_time.insert(*idle_since, evicted);
        }
    }

    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for AdminSlot<'_> {
    fn drop(&mut self) {
        self.slots.occupied.lock().by_idle_time.remove(self.idle_since.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn is_evicted(slot: &AdminSlot) -> bool {
        let waits = std::pin::pin!(slot.evicted());
        waits.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    fn occupied(slots: &ConnectionSlots) -> usize {
        slots.occupied.lock().by_idle_time.len()
    }

    #[test]
    fn the_longest_idle_connection_is_evicted_whatever_it_waits_for() {
        let slots = ConnectionSlots::new(3);
        let [unread, silent, kept] = [0, 1, 2].map(|second| slots.take(at(second)).0);
        unread.begin(Activity::Answering, at(3));
        kept.begin(Activity::Answering, at(4));
        kept.begin(Activity::Waiting, at(5));
        let (first, admission) = slots.take(at(60));
        assert_eq!((admission, is_evicted(&silent)), (Admission::Evicted, true));
        assert!(!is_evicted(&unread) && !is_evicted(&kept));
        // `unread` has been idle longer than `kept`.
        let (second, _) = slots.take(at(60));
        assert!(is_evicted(&unread) && !is_evicted(&kept));
        let (_third, _) = slots.take(at(60));
        assert!(is_evicted(&kept) && !is_evicted(&first) && !is_evicted(&second));
        assert_eq!(occupied(&slots), 3);
    }

    #[test]
    fn a_flood_of_silent_connections_does_not_cut_off_a_response() {
        let slots = ConnectionSlots::new(4);
        let (asks, _) = slots.take(at(10));
        asks.begin(Activity::Answering, at(10));
        let mut silent: Vec<AdminSlot> = (0..1000).map(|_| slots.take(at(10)).0).collect();
        assert!(!is_evicted(&asks));
        assert_eq!(silent.iter().filter(|slot| is_evicted(slot)).count(), 997);
        // A second later, the head start is over.
        silent.push(slots.take(at(11)).0);
        assert!(!is_evicted(&asks));
        silent.extend((0..3).map(|_| slots.take(at(11)).0));
        assert!(is_evicted(&asks));
    }

    #[test]
    fn an_eviction_during_a_request_frees_one_slot_only() {
        let slots = ConnectionSlots::new(2);
        let [evicted, other] = [1, 2].map(|second| slots.take(at(second)).0);
        let (third, admission) = slots.take(at(3));
        assert_eq!((admission, occupied(&slots)), (Admission::Evicted, 2));
        // The evicted connection goes on for a moment: its request takes no slot, and its end frees no slot.
        evicted.begin(Activity::Answering, at(3));
        assert_eq!(occupied(&slots), 2);
        drop(evicted);
        assert_eq!(occupied(&slots), 2);
        // No other connection was evicted instead.
        assert!(!is_evicted(&other) && !is_evicted(&third));
        drop(other);
        let (_fourth, admission) = slots.take(at(4));
        assert_eq!((admission, is_evicted(&third)), (Admission::Free, false));
    }

    #[test]
    fn a_slot_is_free_as_soon_as_its_connection_ends() {
        let slots = ConnectionSlots::new(1);
        for second in 0..10 {
            let (slot, admission) = slots.take(at(second));
            assert_eq!(admission, Admission::Free);
            slot.begin(Activity::Answering, at(second));
            slot.begin(Activity::Waiting, at(second));
        }
        assert_eq!(occupied(&slots), 0);
    }
}
