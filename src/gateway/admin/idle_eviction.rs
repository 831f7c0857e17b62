//! Bounds the admin listener's connections: at the limit, the longest-idle one is closed to admit a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::time::{Micros, Timestamp};

/// For how long one whose answer is made and sent keeps its seat before one that waits for a request.
const AHEAD: Micros = Micros(1_000_000);

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Waiting,
    Answering,
}

/// How things stood when a seat was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Free,
    /// Somebody has been told to get up.
    Taken,
}

/// Who sits is who stands in the list, and nothing else is counted: so no two are let in for the seat of one.
#[derive(Debug)]
pub struct ConnectionSlots {
    most: usize,
    seated: Mutex<Seated>,
}

#[derive(Debug, Default)]
struct Seated {
    /// Who gets up first stands first.
    by_turn: BTreeMap<Turn, Arc<Notify>>,
    last: u64,
}

/// Since when somebody keeps still; of the same moment, who came first.
type Turn = (Timestamp, u64);

/// One connection's seat, until it goes or has to get up.
#[derive(Debug)]
pub struct AdminSlot<'s> {
    seats: &'s ConnectionSlots,
    turn: Mutex<Turn>,
    called: Arc<Notify>,
}

impl ConnectionSlots {
    pub fn new(most: usize) -> ConnectionSlots {
        ConnectionSlots { most, seated: Mutex::default() }
    }

    /// Whoever comes is seated.
    pub fn take(&self, now: Timestamp) -> (AdminSlot<'_>, Found) {
        let mut seated = self.seated.lock();
        let mut found = Found::Free;
        if seated.by_turn.len() >= self.most
            && let Some((_, called)) = seated.by_turn.pop_first()
        {
            called.notify_one();
            found = Found::Taken;
        }
        let (turn, called) = (seated.turn(now, Activity::Waiting), Arc::new(Notify::new()));
        seated.by_turn.insert(turn, Arc::clone(&called));
        (AdminSlot { seats: self, turn: Mutex::new(turn), called }, found)
    }
}

impl Seated {
    fn turn(&mut self, now: Timestamp, doing: Activity) -> Turn {
        self.last += 1;
        let since = match doing {
            Activity::Waiting => now,
            Activity::Answering => now.plus(AHEAD),
        };
        (since, self.last)
    }
}

impl AdminSlot<'_> {
    /// Begins to do something else. Who has been told to get up is not seated again.
    pub fn begin(&self, doing: Activity, now: Timestamp) {
        let mut seated = self.seats.seated.lock();
        let mut turn = self.turn.lock();
        if let Some(called) = seated.by_turn.remove(&turn) {
            *turn = seated.turn(now, doing);
            seated.by_turn.insert(*turn, called);
        }
    }

    /// Waits until somebody else needs the seat.
    pub async fn needed(&self) {
        self.called.notified().await;
    }
}

impl Drop for AdminSlot<'_> {
    fn drop(&mut self) {
        self.seats.seated.lock().by_turn.remove(self.turn.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn is_needed(seat: &AdminSlot) -> bool {
        let waits = std::pin::pin!(seat.needed());
        waits.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    fn seated(seats: &ConnectionSlots) -> usize {
        seats.seated.lock().by_turn.len()
    }

    #[test]
    fn who_has_kept_still_longest_gets_up_whatever_it_waits_for() {
        let seats = ConnectionSlots::new(3);
        let [unread, silent, kept] = [0, 1, 2].map(|second| seats.take(at(second)).0);
        unread.begin(Activity::Answering, at(3));
        kept.begin(Activity::Answering, at(4));
        kept.begin(Activity::Waiting, at(5));
        let (first, found) = seats.take(at(60));
        assert_eq!((found, is_needed(&silent)), (Found::Taken, true));
        assert!(!is_needed(&unread) && !is_needed(&kept));
        // Of those two one is not read, and has begun before.
        let (second, _) = seats.take(at(60));
        assert!(is_needed(&unread) && !is_needed(&kept));
        let (_third, _) = seats.take(at(60));
        assert!(is_needed(&kept) && !is_needed(&first) && !is_needed(&second));
        assert_eq!(seated(&seats), 3);
    }

    #[test]
    fn a_flood_of_silent_connections_does_not_cut_off_an_answer() {
        let seats = ConnectionSlots::new(4);
        let (asks, _) = seats.take(at(10));
        asks.begin(Activity::Answering, at(10));
        let mut silent: Vec<AdminSlot> = (0..1000).map(|_| seats.take(at(10)).0).collect();
        assert!(!is_needed(&asks));
        assert_eq!(silent.iter().filter(|seat| is_needed(seat)).count(), 997);
        // A second later it has had its time.
        silent.push(seats.take(at(11)).0);
        assert!(!is_needed(&asks));
        silent.extend((0..3).map(|_| seats.take(at(11)).0));
        assert!(is_needed(&asks));
    }

    #[test]
    fn who_is_told_to_go_as_its_request_comes_leaves_no_seat_for_two() {
        let seats = ConnectionSlots::new(2);
        let [told, other] = [1, 2].map(|second| seats.take(at(second)).0);
        let (third, found) = seats.take(at(3));
        assert_eq!((found, seated(&seats)), (Found::Taken, 2));
        // It has not heard yet; its request does not seat it again, and its end frees no seat of another.
        told.begin(Activity::Answering, at(3));
        assert_eq!(seated(&seats), 2);
        drop(told);
        assert_eq!(seated(&seats), 2);
        // Nor has the call gone to anybody else.
        assert!(!is_needed(&other) && !is_needed(&third));
        drop(other);
        let (_fourth, found) = seats.take(at(4));
        assert_eq!((found, is_needed(&third)), (Found::Free, false));
    }

    #[test]
    fn a_seat_is_free_as_soon_as_its_connection_ends() {
        let seats = ConnectionSlots::new(1);
        for second in 0..10 {
            let (seat, found) = seats.take(at(second));
            assert_eq!(found, Found::Free);
            seat.begin(Activity::Answering, at(second));
            seat.begin(Activity::Waiting, at(second));
        }
        assert_eq!(seated(&seats), 0);
    }
}
