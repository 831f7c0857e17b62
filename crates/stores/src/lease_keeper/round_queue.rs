//! The order of rounds: leases first, since requests wait for them, but resends and returns are never kept out.

use std::collections::VecDeque;

use super::MOST_IN_CALL;
use super::asked_purses::AskedPurses;
use super::rounds::Round;
use super::schedule::Due;
use base::time::Timestamp;

/// After so many rounds of leases, one of the others is next if any waits.
const LEASES_IN_A_ROW: u32 = 4;

/// The rounds that wait. The purses of leases stay in [`AskedPurses`] until their round begins, so that later requests join it.
#[derive(Debug, Default)]
pub(super) struct RoundQueue {
    others: VecDeque<Round>,
    /// How many rounds of leases have begun while others waited.
    leases: u32,
}

impl RoundQueue {
    /// Adds what is due, many words in one call.
    pub(super) fn add(&mut self, due: Due) {
        self.others.extend(due.resends.chunks(MOST_IN_CALL).map(|words| Round::Resend(words.to_vec())));
        self.others.extend(due.surpluses.chunks(MOST_IN_CALL).map(|purses| Round::Surplus(purses.to_vec())));
    }

    /// Removes and returns the next round. `None` if nothing is to be done now.
    pub(super) fn next(&mut self, asked: &mut AskedPurses, now: Timestamp) -> Option<Round> {
        if self.leases < LEASES_IN_A_ROW || self.others.is_empty() {
            let purses = asked.begin(now, MOST_IN_CALL);
            if !purses.is_empty() {
                self.leases = if self.others.is_empty() { 0 } else { self.leases + 1 };
                return Some(Round::Lease(purses));
            }
        }
        self.leases = 0;
        self.others.pop_front()
    }

    /// Forgets all rounds.
    pub(super) fn clear(&mut self) {
        *self = RoundQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::test_purse as purse;
    use super::*;
    use base::time::Micros;
    use ledger::cost::Cost;

    #[test]
    fn returns_have_a_turn_however_many_purses_are_asked_for() {
        let (mut queue, mut asked) = (RoundQueue::default(), AskedPurses::default());
        queue.add(Due { surpluses: vec![(purse(200), Micros(1)); MOST_IN_CALL + 1], ..Due::default() });
        let mut others = Vec::new();
        for round in 0..12 {
            asked.add_low(purse(round), Cost::ONE, Timestamp(0));
            match queue.next(&mut asked, Timestamp(u64::MAX)) {
                Some(Round::Lease(purses)) => assert!(!purses.is_empty()),
                Some(Round::Surplus(purses)) => others.push((round, purses.len())),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(others, [(4, MOST_IN_CALL), (9, 1)]);
    }

    #[test]
    fn the_purses_that_wait_longest_are_asked_for_first() {
        let (mut queue, mut asked) = (RoundQueue::default(), AskedPurses::default());
        for key in 0..=u8::try_from(MOST_IN_CALL).unwrap() {
            asked.add_low(purse(key), Cost::ONE, Timestamp(0));
        }
        let mut next = || match queue.next(&mut asked, Timestamp(u64::MAX)) {
            Some(Round::Lease(purses)) => purses.iter().map(|asked| asked.purse.key.0[0]).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(next().first(), Some(&0));
        assert_eq!(next(), [u8::try_from(MOST_IN_CALL).unwrap()]);
        assert!(queue.next(&mut asked, Timestamp(u64::MAX)).is_none() && asked.next_call().is_none());
    }
}
