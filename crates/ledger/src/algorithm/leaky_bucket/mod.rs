//! Computes charges to a leaky bucket: `rps` moments each second, and a queue of requests that wait for their moments.
//!
//! Requests take the free moments in the order in which the store is asked. A request waits for its moment in the
//! gateway. It does not wait if at most `delay_after` places are taken. Any window of length T contains at most `1 +
//! delay_after + rps·T` moments.
//!
//! The state is that of a token bucket: the amount *spent* is the number of places taken, which become free at the
//! rate. There are `1 + delay_after + queue` places, and requests in the first `1 + delay_after` places continue at
//! once.
//!
//! A place becomes free only at the rate, even if a waiting client leaves.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

use std::fmt;

use smallvec::smallvec;

use super::rate;
use super::step::{ChargeResult, Entry, Level, Numbers, Quota, RequestNumbers, Step};
use super::token_bucket::{InvalidNumbers, Rate, TokenBucket};
use crate::cost::Cost;
use crate::money::AmountFormat;
use base::time::{Micros, Timestamp};

pub const NAME: &str = "leaky_bucket";
pub(crate) const EXCEEDED: &str = "leaky_bucket_exceeded";

/// The largest `max_wait` that a leaky bucket can have.
pub const LONGEST_WAIT: Micros = Micros(3_600_000_000);

/// A leaky bucket with the settings of one limit: its rate, its queue and its longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// A token bucket whose tokens are the places. Its burst is `1 + delay_after + queue`.
    places: TokenBucket,
    delay_after: u32,
    /// The longest wait of all requests, in milliseconds. 32 bits keep a charge small in memory.
    max_wait: u32,
    /// The longest wait that this request accepts, in milliseconds. At most `max_wait`.
    patience: u32,
}

/// The settings from which a [`LeakyBucket`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub rate: Rate,
    pub queue: u32,
    /// The longest time that a request may wait, in whole milliseconds; at most [`LONGEST_WAIT`].
    pub max_wait: Micros,
    pub delay_after: u32,
}

impl LeakyBucket {
    /// Makes a leaky bucket with these settings.
    ///
    /// # Errors
    ///
    /// If the rate is zero. If the places cannot be kept exactly in 53 bits, the error has the largest possible
    /// number.
    pub fn new(Settings { rate, queue, max_wait, delay_after }: Settings) -> Result<LeakyBucket, InvalidNumbers> {
        let places = TokenBucket::new(rate, 1 + u64::from(delay_after) + u64::from(queue))?;
        Ok(LeakyBucket::with_places(places, max_wait, delay_after))
    }

    /// Makes a leaky bucket for requests that each have their own rate, at most `fastest` per second. Its rate is
    /// `fastest` until `for_request` sets another one. The rate in the settings is not used.
    ///
    /// # Errors
    ///
    /// If `fastest` is zero. If the places cannot be kept exactly at every rate, the error has the largest possible
    /// number.
    pub fn with_rates_up_to(fastest: Cost, settings: Settings) -> Result<LeakyBucket, InvalidNumbers> {
        let Settings { queue, max_wait, delay_after, .. } = settings;
        let places = TokenBucket::with_rates_up_to(fastest, 1 + u64::from(delay_after) + u64::from(queue))?;
        Ok(LeakyBucket::with_places(places, max_wait, delay_after))
    }

    fn with_places(places: TokenBucket, max_wait: Micros, delay_after: u32) -> LeakyBucket {
        let max_wait = millis(max_wait.min(LONGEST_WAIT));
        LeakyBucket { places, delay_after, max_wait, patience: max_wait }
    }

    /// Returns the leaky bucket for a request that may have its own rate. With a rate of 0 every request is refused.
    pub fn for_request(&self, numbers: RequestNumbers) -> LeakyBucket {
        LeakyBucket { places: self.places.at_rate(numbers.rate), ..*self }
    }

    /// Returns the leaky bucket for a request that cannot wait longer than `most`, rounded down to milliseconds.
    pub fn within(&self, most: Micros) -> LeakyBucket {
        LeakyBucket { patience: self.max_wait.min(millis(most)), ..*self }
    }

    /// Returns the number of places: `1 + delay_after + queue`. No request can cost more than this.
    pub fn places(&self) -> Cost {
        self.places.burst()
    }

    pub fn delay_after(&self) -> u32 {
        self.delay_after
    }

    pub fn queue(&self) -> u64 {
        self.places().whole().saturating_sub(1 + u64::from(self.delay_after))
    }

    pub fn max_wait(&self) -> Micros {
        micros(self.max_wait)
    }

    /// Returns how many requests of cost 1 can wait at the same time within `max_wait`.
    pub fn reachable_queue(&self) -> u64 {
        let reach = self.reach(self.max_wait) / self.places.one();
        reach.saturating_sub(u64::from(self.delay_after)).min(self.queue())
    }

    /// Returns the quota as clients see it: the number of places, and the time in which all places become free.
    pub fn quota(&self) -> Quota {
        self.places.quota()
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share. The cost is multiplied by
    /// `of`.
    pub fn share(&self, cost: Cost, of: u64) -> (LeakyBucket, Cost) {
        let (places, cost) = self.places.share(cost, of);
        (LeakyBucket { places, ..*self }, cost)
    }

    /// Returns the number of places that are taken at `now`.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        self.places.spent(state, now)
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        self.places.correction(state, now)
    }

    /// Returns this limit for a bucket that `other` may charge too. The higher of their fastest rates applies.
    #[must_use]
    pub fn alongside(self, other: &LeakyBucket) -> LeakyBucket {
        LeakyBucket { places: self.places.alongside(&other.places), ..self }
    }

    /// Returns this limit with the fastest rate that any request of the bucket can have.
    pub fn at_fastest(&self) -> LeakyBucket {
        LeakyBucket { places: self.places.at_fastest(), ..*self }
    }

    /// Returns the settings of this limit as integers for its Lua twin.
    pub fn numbers(&self) -> Numbers {
        let mut numbers = self.places.numbers();
        numbers.push(self.reach(self.patience));
        numbers
    }

    /// Computes the result of charging `cost` to a bucket. `state` is the stored [`Entry::state`], or `None` if all
    /// places are free. An invalid state counts as a bucket without a free place.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let (taken, since) = self.places.read(state, now);
        // After the clock was set back, no place becomes free before the last charge.
        let ahead = since.since(now);
        let untouched = self.level(taken, ahead);
        if cost > self.places() {
            return Step { untouched, charge: ChargeResult::Never };
        }
        let price = cost.thousandths() * self.places.unit();
        // A request with a cost below 1 also needs a whole free place.
        let room = self.places.capacity() - price.max(self.places.one());
        let most_ahead = room.min(self.reach(self.patience));
        let charge = match taken.checked_sub(most_ahead) {
            Some(short @ 1..) => ChargeResult::Short { wait: ahead.plus(self.places.time_to_refill(short)) },
            _ => {
                let after = taken + price;
                ChargeResult::Fits {
                    level: self.level(after, ahead),
                    entry: Entry {
                        state: smallvec![after, self.places.unit(), since.0],
                        kept_until: since.plus(self.places.time_to_refill(after)),
                    },
                    delay: self.places.time_to_refill(taken.saturating_sub(self.at_once())),
                }
            }
        };
        Step { untouched, charge }
    }

    /// Returns how much may be in the queue if the next request is not to wait, in units of a place.
    fn at_once(&self) -> u64 {
        // The product is less than the capacity, which is below 2^53.
        u64::from(self.delay_after) * self.places.one()
    }

    /// Returns how much may be in the queue if the next request is to wait for at most `wait` milliseconds, in units of
    /// a place.
    fn reach(&self, wait: u32) -> u64 {
        let waited = micros(wait).0.saturating_mul(self.places.refill());
        self.at_once().saturating_add(waited).min(self.places.capacity())
    }

    /// Returns the level of a bucket. Its `remaining` is the number of places that requests of cost 1 could take
    /// within `max_wait`.
    fn level(&self, taken: u64, ahead: Micros) -> Level {
        let usable = self.reach(self.max_wait).saturating_add(self.places.one()).min(self.places.capacity());
        let free = usable.saturating_sub(taken) / self.places.unit();
        Level { remaining: Cost::from_thousandths(free), ..self.places.level(taken, ahead) }
    }
}

fn millis(micros: Micros) -> u32 {
    u32::try_from(micros.0 / 1_000).unwrap_or(u32::MAX)
}

fn micros(millis: u32) -> Micros {
    Micros(u64::from(millis) * 1_000)
}

/// Displays the settings as `5/s queue 10 max_wait 2s`, or as `10/min queue 5 max_wait 1m delay_after 2`.
impl fmt::Display for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        rate::write(f, self.places.refill(), self.places.unit(), AmountFormat::Number)?;
        write!(f, " queue {} max_wait ", self.queue())?;
        match self.max_wait {
            wait if wait.is_multiple_of(60_000) && wait > 0 => write!(f, "{}m", wait / 60_000)?,
            wait if wait.is_multiple_of(1_000) => write!(f, "{}s", wait / 1_000)?,
            wait => write!(f, "{wait}ms")?,
        }
        match self.delay_after {
            0 => Ok(()),
            first => write!(f, " delay_after {first}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::State;
    use proptest::prelude::*;

    const START: u64 = 1 << 50;

    fn bucket(thousandths: u64, period: u64, queue: u32, max_wait: u64, delay_after: u32) -> LeakyBucket {
        let rate = Rate { amount: Cost::from_thousandths(thousandths), period: Micros(period) };
        LeakyBucket::new(Settings { rate, queue, max_wait: Micros(max_wait), delay_after }).unwrap()
    }

    #[test]
    fn numbers_print_as_an_operator_would_write_them() {
        let second = 1_000_000;
        let cases = [
            (bucket(5_000, second, 10, 2 * second, 0), "5/s queue 10 max_wait 2s"),
            (bucket(10_000, 60 * second, 5, 60 * second, 2), "10/min queue 5 max_wait 1m delay_after 2"),
            (bucket(500, second, 0, 1_500_000, 0), "0.5/s queue 0 max_wait 1500ms"),
        ];
        for (bucket, printed) in cases {
            assert_eq!(bucket.to_string(), printed);
        }
    }

    #[test]
    fn a_request_with_a_rate_of_its_own_waits_at_that_rate() {
        let rate = Rate { amount: Cost::from_tokens(4), period: Micros(1_000_000) };
        let settings = Settings { rate, queue: 8, max_wait: Micros(2_000_000), delay_after: 0 };
        let fastest = LeakyBucket::with_rates_up_to(rate.amount, settings).unwrap();
        let at = |tokens: u64| {
            let rate = Some(Cost::from_tokens(tokens));
            fastest.for_request(RequestNumbers { rate, ..RequestNumbers::default() })
        };
        let taken = |bucket: LeakyBucket| [2000 * bucket.places.unit(), bucket.places.unit(), START];
        let charge = |bucket: LeakyBucket| bucket.step(Some(&taken(bucket)), Cost::ONE, Timestamp(START)).charge;
        for (rate, wait) in [(4, 500_000), (2, 1_000_000), (1, 2_000_000), (9, 500_000)] {
            assert!(
                matches!(charge(at(rate)), ChargeResult::Fits { delay: Micros(delay), .. } if delay == wait),
                "{rate}"
            );
        }
        assert_eq!(charge(at(0)), ChargeResult::Never);
        assert_eq!(at(2).at_fastest(), fastest);
        let largest = LeakyBucket::with_rates_up_to(rate.amount, Settings { queue: u32::MAX, ..settings });
        let Err(InvalidNumbers::TooLarge { largest }) = largest else { panic!("{largest:?}") };
        assert_eq!(largest.whole(), 9_007_199);
    }

    #[test]
    fn the_quota_is_all_places_and_the_time_in_which_they_leave() {
        let quota = bucket(2_000, 1_000_000, 7, 60_000_000, 2).quota();
        assert_eq!(quota, Quota { limit: 10, window: Micros(5_000_000) });
    }

    #[test]
    fn a_queue_is_as_long_as_its_last_request_may_wait() {
        for (queue, max_wait, reachable) in [(10, 20_000, 10), (10, 2_000, 10), (10, 1_999, 9), (10, 100, 0)] {
            assert_eq!(bucket(5_000, 1_000_000, queue, max_wait * 1_000, 3).reachable_queue(), reachable, "{max_wait}");
        }
    }

    #[test]
    fn an_impossible_state_is_a_bucket_without_a_free_place() {
        let bucket = bucket(1_000, 1_000_000, 1, 10_000_000, 0);
        for state in [&[][..], &[1, 2], &[0, 0, 0], &[1, 2, 3, 4], &[0, 1, 1 << 53]] {
            let step = bucket.step(Some(state), Cost::ONE, Timestamp(5));
            assert_eq!(step.charge, ChargeResult::Short { wait: Micros(1_000_000) }, "{state:?}");
        }
    }

    #[test]
    fn the_moments_of_equal_shares_are_those_of_the_whole() {
        let whole = bucket(10_000, 1_000_000, 11, 60_000_000, 0);
        for (of, admitted, apart) in [(1, 12, 100_000), (3, 4, 300_000), (5, 2, 500_000), (50, 1, 5_000_000)] {
            let (share, cost) = whole.share(Cost::ONE, of);
            let (mut state, mut delays) = (None::<State>, Vec::new());
            while let ChargeResult::Fits { entry, delay, .. } =
                share.step(state.as_deref(), cost, Timestamp(START)).charge
            {
                delays.push(delay.0);
                state = Some(entry.state);
            }
            let expected: Vec<u64> = (0..admitted).map(|place| place * apart).collect();
            assert_eq!(delays, expected, "{of}");
        }
    }

    /// Charges requests of cost 1 at these times. Returns the arrival and the moment of each admitted request.
    fn admitted(bucket: &LeakyBucket, arrivals: &[u64]) -> Vec<(u64, u64)> {
        let (mut state, mut admitted) = (None::<State>, Vec::new());
        for at in arrivals {
            if let ChargeResult::Fits { entry, delay, .. } =
                bucket.step(state.as_deref(), Cost::ONE, Timestamp(*at)).charge
            {
                admitted.push((*at, at + delay.0));
                state = Some(entry.state);
            }
        }
        admitted
    }

    fn buckets() -> impl Strategy<Value = LeakyBucket> {
        let periods = prop::sample::select(vec![1_000_000, 60_000_000, 900_000_000]);
        (1u64..20_000, periods, 0u32..20, 1u64..60_000, 0u32..6).prop_map(
            |(amount, period, queue, wait, delay_after)| bucket(amount, period, queue, wait * 1_000, delay_after),
        )
    }

    proptest! {
        /// Checks the number of moments in each window, their order, and the length of the queue.
        #[test]
        fn no_window_has_more_moments_than_it_may(
            bucket in buckets(),
            gaps in prop::collection::vec(prop_oneof![Just(0), 0u64..3_000_000, 0u64..100_000_000], 1..80),
        ) {
            let arrivals: Vec<u64> = gaps.iter().scan(START, |now, gap| { *now += gap; Some(*now) }).collect();
            let admitted = admitted(&bucket, &arrivals);
            let moments: Vec<u64> = admitted.iter().map(|(_, moment)| *moment).collect();
            prop_assert!(moments.is_sorted(), "overtaken: {moments:?}");
            // Waits are rounded up to a microsecond, so the window may be a microsecond longer.
            let (unit, refill) = (u128::from(bucket.places.unit()), u128::from(bucket.places.refill()));
            for (first, begin) in moments.iter().enumerate() {
                for (count, end) in (1u128..).zip(&moments[first..]) {
                    let most = 1000 * unit * u128::from(1 + bucket.delay_after) + refill * u128::from(end - begin + 1);
                    prop_assert!(count * 1000 * unit <= most, "{count} in {} us", end - begin);
                }
            }
            for at in &arrivals {
                let waiting = admitted.iter().filter(|(came, moment)| came <= at && at < moment).count();
                prop_assert!(waiting as u64 <= bucket.queue(), "{waiting} wait");
            }
        }

        /// The wait of a refusal ends exactly when the same request would be admitted.
        #[test]
        fn a_wait_is_exact(bucket in buckets(), taken in 1u64..30_000, cost in 1u64..30_000, most in 0u64..90_000_000) {
            let now = Timestamp(START);
            let capacity = bucket.places().thousandths();
            let (taken, cost) = (1 + taken % capacity, Cost::from_thousandths(1 + cost % capacity));
            let state = [taken * bucket.places.unit(), bucket.places.unit(), now.0];
            let bucket = bucket.within(Micros(most));
            let after = |wait: u64| bucket.step(Some(&state), cost, now.plus(Micros(wait))).charge;
            match after(0) {
                ChargeResult::Short { wait } => {
                    prop_assert!(matches!(after(wait.0), ChargeResult::Fits { .. }), "after {wait:?}");
                    prop_assert_eq!(after(wait.0 - 1), ChargeResult::Short { wait: Micros(1) });
                }
                ChargeResult::Fits { delay, .. } => {
                    prop_assert!(delay <= Micros(most.min(bucket.max_wait().0)), "{delay:?}");
                }
                ChargeResult::Never | ChargeResult::Held | ChargeResult::Banned { .. } => prop_assert!(false, "the cost is at most the places"),
            }
        }
    }
}
