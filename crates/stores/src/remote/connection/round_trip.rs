//! Measures how long calls on one connection usually take. The result decides when a further call is sent, and shows
//! whether `timeout` is too short.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::time::Micros;

/// The shortest gap between two calls.
const SHORTEST_GAP: Micros = Micros(1_000);
/// The number of consecutive slow calls after which `timeout` counts as too short.
const SLOW_CALLS: u32 = 8;

/// Measures how long the calls of one connection take.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// The longest time that a request waits for a decision.
    timeout: Micros,
    /// The largest number of calls that may be under way at once.
    at_once: u64,
    usual: AtomicU64,
    /// The number of consecutive calls that took longer than `timeout` allows.
    slow: AtomicU32,
    /// The duration of the fastest of these slow calls.
    fastest: AtomicU64,
}

/// The warning that calls take longer than `timeout` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong {
    /// The duration of the fastest of the last calls.
    pub fastest: Micros,
    /// The value of `timeout` that calls of this duration need.
    pub needed: Micros,
}

impl RoundTrip {
    pub(super) fn new(timeout: Micros, at_once: usize) -> RoundTrip {
        let (at_once, unknown) = (at_once as u64, AtomicU64::new(u64::MAX));
        RoundTrip { timeout, at_once, usual: unknown, slow: AtomicU32::new(0), fastest: AtomicU64::new(u64::MAX) }
    }

    /// Returns the longest wait of a request as a multiple of a call's duration: the numerator and denominator of a
    /// fraction. A request waits for the call before it, or for the gap, and then for its own call.
    fn parts(&self) -> (u64, u64) {
        if self.at_once > 1 { (self.at_once, self.at_once - 1) } else { (2, 1) }
    }

    /// Returns the longest duration of a call that `timeout` allows.
    fn most(&self) -> u64 {
        let (waited, call) = self.parts();
        self.timeout.0 / waited * call
    }

    fn usual(&self) -> u64 {
        self.usual.load(Ordering::Relaxed).min(self.most())
    }

    /// Returns the shortest time between the starts of two calls.
    pub(super) fn gap(&self) -> Micros {
        let (_, calls) = self.parts();
        SHORTEST_GAP.max(Micros(self.usual() / calls))
    }

    /// Whether calls usually take so long that the next call is sent before the answer.
    pub(super) fn is_long(&self) -> bool {
        self.usual() >= SHORTEST_GAP.0
    }

    /// Notes the duration of an answered call. Returns a warning after every `SLOW_CALLS` consecutive slow calls.
    pub(super) fn observe(&self, took: Micros) -> Option<TooLong> {
        // A slower call counts at once, a faster call gradually.
        let usual = self.usual.load(Ordering::Relaxed);
        let usual = if usual == u64::MAX { took.0 } else { took.0.max(usual - usual / 8 + took.0 / 8) };
        self.usual.store(usual, Ordering::Relaxed);
        if took.0 <= self.most() {
            if self.slow.load(Ordering::Relaxed) > 0 {
                self.slow.store(0, Ordering::Relaxed);
            }
            return None;
        }
        let slow = self.slow.load(Ordering::Relaxed) + 1;
        let fastest = if slow == 1 { took.0 } else { took.0.min(self.fastest.load(Ordering::Relaxed)) };
        self.slow.store(slow % SLOW_CALLS, Ordering::Relaxed);
        self.fastest.store(fastest, Ordering::Relaxed);
        let (waited, call) = self.parts();
        let needed = Micros(fastest.div_ceil(call).saturating_mul(waited));
        (slow == SLOW_CALLS).then_some(TooLong { fastest: Micros(fastest), needed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Micros = Micros(50_000);

    fn redis() -> RoundTrip {
        RoundTrip::new(TIMEOUT, 5)
    }

    #[test]
    fn a_further_call_leaves_after_a_quarter_of_the_usual_time_and_a_millisecond() {
        let round_trip = redis();
        // Before the first answer, calls are assumed to take 40 ms. The gap is a quarter of this time.
        assert_eq!((round_trip.gap(), round_trip.is_long()), (Micros(10_000), true));
        round_trip.observe(Micros(200));
        assert_eq!((round_trip.gap(), round_trip.is_long()), (Micros(1_000), false));
        round_trip.observe(Micros(30_000));
        assert_eq!((round_trip.gap(), round_trip.is_long()), (Micros(7_500), true));
        // A call of more than 40 ms counts as 40 ms.
        round_trip.observe(Micros(2_000_000));
        assert_eq!(round_trip.gap(), Micros(10_000));
        let calls = (1..100).find(|_| {
            round_trip.observe(Micros(200));
            !round_trip.is_long()
        });
        assert!(calls.is_some_and(|calls| calls < 80), "{calls:?}");
    }

    #[test]
    fn what_is_needed_is_said_when_the_fastest_of_some_calls_took_too_long() {
        let round_trip = redis();
        let too_long =
            |took: &[u64]| took.iter().filter_map(|took| round_trip.observe(Micros(*took))).collect::<Vec<_>>();
        assert_eq!(too_long(&[40_000; 20]), []);
        // A single call within `timeout` ends the series of slow calls.
        assert_eq!(too_long(&[45_000, 46_000, 47_000, 48_000, 44_000, 43_000, 42_000, 39_000, 45_000]), []);
        assert_eq!(too_long(&[40_000]), []);
        let slow = [46_000, 47_000, 48_000, 44_000, 43_000, 44_000, 48_000, 48_000];
        assert_eq!(too_long(&slow), [TooLong { fastest: Micros(43_000), needed: Micros(53_750) }]);
        assert_eq!(too_long(&[80_000; 16]).len(), 2);
    }

    #[test]
    fn where_one_call_is_made_at_a_time_there_is_room_for_two() {
        let round_trip = RoundTrip::new(TIMEOUT, 1);
        assert_eq!([25_000; 20].iter().filter_map(|took| round_trip.observe(Micros(*took))).count(), 0);
        let too_long: Vec<_> = [30_000; 8].iter().filter_map(|took| round_trip.observe(Micros(*took))).collect();
        assert_eq!(too_long, [TooLong { fastest: Micros(30_000), needed: Micros(60_000) }]);
    }
}
