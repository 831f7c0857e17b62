//! Computes charges to a token bucket: at most `burst` tokens, refilled continuously, counted in integers without
//! rounding.
//!
//! A rate is a fraction in lowest terms: thousandths of a token per microsecond. Its numerator is the number of
//! *units* that come back each microsecond. Its denominator is the number of units in a thousandth of a token. Every
//! amount is a whole number of units, so any window of length T grants at most `burst + rate·T`.
//!
//! The state is the amount *spent*, its unit, and the moment of the last charge. A full bucket has no state. If the
//! settings change, the spent amount stays spent, and the time since the last charge counts at the new rate.
//!
//! If requests have their own rates, all rates of the bucket are in one unit, so that the spent amount is never
//! converted.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

use std::fmt;

use smallvec::smallvec;

use super::rate;
pub use super::rate::{InvalidNumbers, Rate};
use super::step::{ChargeResult, EXACT, Entry, Level, MOST_AHEAD, Numbers, Quota, RequestNumbers, State, Step};
use crate::cost::Cost;
use crate::money::AmountFormat;
use base::time::{Micros, Timestamp};

pub const NAME: &str = "token_bucket";
pub(crate) const EXCEEDED: &str = "token_bucket_exceeded";

/// The unit for buckets whose requests have their own rates. Every rate of whole thousandths of a token per second is
/// a whole number of units per microsecond.
const COMMON_UNIT: u64 = 1_000_000;

/// The settings of one token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    burst: Cost,
    /// The number of units in a thousandth of a token.
    unit: u64,
    /// The number of units that come back each microsecond.
    refill: u64,
    /// The largest `refill` of all requests that may charge the same bucket.
    fastest: u64,
}

impl TokenBucket {
    /// Makes a token bucket. `burst` is in whole tokens.
    ///
    /// # Errors
    /// If the rate, its period or the burst is zero, or if the rate or the burst cannot be kept exactly.
    pub fn new(rate: Rate, burst: u64) -> Result<TokenBucket, InvalidNumbers> {
        TokenBucket::of_amount(rate, Cost::from_tokens(burst))
    }

    /// Makes a token bucket as [`TokenBucket::new`] does, but with a burst that may have thousandths.
    ///
    /// # Errors
    /// As [`TokenBucket::new`].
    pub fn of_amount(rate: Rate, burst: Cost) -> Result<TokenBucket, InvalidNumbers> {
        let (amount, period) = (rate.amount.thousandths(), rate.period.0);
        if amount == 0 || period == 0 || burst == Cost::default() {
            return Err(InvalidNumbers::Zero);
        }
        let divisor = rate::greatest_common_divisor(amount, period);
        let (refill, unit) = (amount / divisor, period / divisor);
        TokenBucket { burst, unit, refill, fastest: refill }.checked()
    }

    /// Makes a token bucket for requests that each have their own rate, at most `fastest` tokens per second. Its rate
    /// is `fastest` until `for_request` sets another one.
    ///
    /// # Errors
    ///
    /// If `fastest` or the burst is zero, or if the burst cannot be kept exactly at every such rate.
    pub fn with_rates_up_to(fastest: Cost, burst: u64) -> Result<TokenBucket, InvalidNumbers> {
        TokenBucket::of_rates_up_to(fastest, Cost::from_tokens(burst))
    }

    /// Makes a token bucket as [`TokenBucket::with_rates_up_to`] does, but with a burst that may have thousandths.
    ///
    /// # Errors
    /// As [`TokenBucket::with_rates_up_to`].
    pub fn of_rates_up_to(fastest: Cost, burst: Cost) -> Result<TokenBucket, InvalidNumbers> {
        if fastest == Cost::default() || burst == Cost::default() {
            return Err(InvalidNumbers::Zero);
        }
        let refill = fastest.thousandths();
        TokenBucket { burst, unit: COMMON_UNIT, refill, fastest: refill }.checked()
    }

    /// Returns this bucket, if all of its numbers can be kept exactly.
    fn checked(self) -> Result<TokenBucket, InvalidNumbers> {
        if self.refill > EXACT {
            return Err(InvalidNumbers::TooLarge { largest: Cost::default() });
        }
        let largest = Cost::from_thousandths(EXACT / self.unit);
        if self.burst > largest { Err(InvalidNumbers::TooLarge { largest }) } else { Ok(self) }
    }

    /// Returns the bucket for a request that may have its own rate and burst. The burst is at least the refill of one
    /// second and at least `least`, both rounded up to whole tokens. With a rate or burst of 0 every request is
    /// refused.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> TokenBucket {
        let bucket = self.at_rate(numbers.rate);
        let burst = numbers.ceiling.unwrap_or(self.burst);
        if bucket.burst == Cost::default() || burst == Cost::default() {
            return TokenBucket { burst: Cost::default(), ..*self };
        }
        TokenBucket { burst: burst.max(bucket.per_second().ceil()).max(least.ceil()), ..bucket }
    }

    /// Returns the bucket for a request that may have its own rate, in tokens per second. With a rate of 0 every
    /// request is refused.
    pub(super) fn at_rate(&self, rate: Option<Cost>) -> TokenBucket {
        let Some(rate) = rate else { return *self };
        // This division is exact, because buckets whose requests have their own rates are in the common unit.
        let refill = (u128::from(rate.thousandths()) * u128::from(self.unit)).div_ceil(u128::from(COMMON_UNIT));
        match u64::try_from(refill).unwrap_or(u64::MAX).min(self.fastest) {
            0 => TokenBucket { burst: Cost::default(), ..*self },
            refill => TokenBucket { refill, ..*self },
        }
    }

    /// Returns this bucket with its rate and burst divided by a number, the burst rounded down. `None` if nothing is left.
    pub(in crate::algorithm) fn divided(&self, by: u64) -> Option<TokenBucket> {
        let burst = Cost::from_thousandths(self.burst.thousandths().checked_div(by)?);
        let bucket = TokenBucket { burst, unit: self.unit.checked_mul(by)?, ..*self };
        bucket.checked().ok().filter(|_| burst > Cost::default())
    }

    /// Returns the rate as a fraction in lowest terms, or in the common unit: thousandths of a token, and microseconds.
    pub(in crate::algorithm) fn fraction(&self) -> [u64; 2] {
        [self.refill, self.unit]
    }

    /// Returns the amount that is refilled in a second, rounded up to thousandths.
    pub fn per_second(&self) -> Cost {
        let thousandths = (u128::from(self.refill) * 1_000_000).div_ceil(u128::from(self.unit));
        Cost::from_thousandths(u64::try_from(thousandths).unwrap_or(u64::MAX))
    }

    /// Returns this limit for a bucket that `other` may charge too. The higher of their fastest refills applies.
    #[must_use]
    pub fn alongside(self, other: &TokenBucket) -> TokenBucket {
        let theirs = (u128::from(other.fastest) * u128::from(self.unit)).div_ceil(u128::from(other.unit));
        TokenBucket { fastest: self.fastest.max(u64::try_from(theirs).unwrap_or(u64::MAX)), ..self }
    }

    /// Returns this limit with the fastest refill that any request of the bucket can have.
    pub fn at_fastest(&self) -> TokenBucket {
        TokenBucket { refill: self.fastest, ..*self }
    }

    pub fn burst(&self) -> Cost {
        self.burst
    }

    /// Returns this limit with a burst that is larger by this amount, up to the largest that is exact.
    pub(super) fn raised(&self, by: Cost) -> TokenBucket {
        let burst = self.burst.plus(by).min(Cost::from_thousandths(EXACT / self.unit));
        TokenBucket { burst, ..*self }
    }

    pub fn quota(&self) -> Quota {
        // `max(1)`, because header fields show at least one second.
        Quota { limit: self.burst.whole(), window: self.time_to_refill(self.capacity().max(1)) }
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share. The cost is multiplied by
    /// `of`, up to the largest exact cost.
    pub fn share(&self, cost: Cost, of: u64) -> (TokenBucket, Cost) {
        let cost = Cost::from_thousandths(cost.thousandths().saturating_mul(of).min(EXACT / self.unit));
        (TokenBucket { burst: self.burst.max(cost), ..*self }, cost)
    }

    /// Returns the settings of this limit as integers for its Lua twin.
    pub fn numbers(&self) -> Numbers {
        smallvec![self.capacity(), self.unit, self.refill]
    }

    /// Computes the result of charging `cost` to a bucket. `state` is the stored [`Entry::state`], or `None` for a
    /// full bucket. An invalid state counts as an empty bucket.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let (spent, since) = self.read(state, now);
        // After the clock was set back, nothing is refilled before the last charge.
        let ahead = since.since(now);
        let untouched = self.level(spent, ahead);
        if cost > self.burst {
            return Step { untouched, charge: ChargeResult::Never };
        }
        // `spent` is compared with `room`, because `spent + price` might not be exact in a double.
        let price = cost.thousandths() * self.unit;
        let room = self.capacity() - price;
        let charge = match spent.checked_sub(room) {
            Some(short @ 1..) => ChargeResult::Short { wait: ahead.plus(self.time_to_refill(short)) },
            _ => {
                let after = spent + price;
                let kept_until = since.plus(self.time_to_refill(after));
                ChargeResult::Fits {
                    level: self.level(after, ahead),
                    entry: Entry { state: smallvec![after, self.unit, since.0], kept_until },
                    delay: Micros(0),
                }
            }
        };
        Step { untouched, charge }
    }

    /// Charges an already spent cost, even if the bucket cannot pay it. The bucket then refuses until the debt is
    /// refilled.
    pub(super) fn overdraw(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        let (spent, since) = self.read(state, now);
        self.overdrawn(spent, cost, since)
    }

    /// Forgets what is spent, and charges a cost as [`TokenBucket::overdraw`] does.
    pub(super) fn overwrite(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        let (_, since) = self.read(state, now);
        self.overdrawn(0, cost, since)
    }

    fn overdrawn(&self, spent: u64, cost: Cost, since: Timestamp) -> Entry {
        let price = cost.thousandths().saturating_mul(self.unit).min(EXACT);
        let after = (spent + price).min(EXACT);
        Entry { state: smallvec![after, self.unit, since.0], kept_until: since.plus(self.time_to_refill(after)) }
    }

    /// Returns the amount spent at `now`, rounded up to a thousandth of a token.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.read(state, now).0.div_ceil(self.unit))
    }

    /// Returns the entry that a store must write at `now` in place of an invalid state, or of a state whose moment is
    /// too far ahead. `None` if the state needs no correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        if valid(state?).is_some_and(|(_, _, since)| since.since(now) <= MOST_AHEAD) {
            return None;
        }
        let (spent, since) = self.read(state, now);
        let kept_until = since.plus(self.time_to_refill(spent));
        Some(Entry { state: smallvec![spent, self.unit, since.0], kept_until })
    }

    /// Reads a state. Returns the amount spent, in this bucket's units, and the moment from which the bucket is
    /// refilled further: the later of `now` and the last charge.
    pub(super) fn read(&self, state: Option<&[u64]>, now: Timestamp) -> (u64, Timestamp) {
        let Some(state) = state else { return (0, now) };
        let Some((spent, unit, since)) = valid(state) else { return (self.capacity(), now) };
        let spent = self.convert(spent, unit);
        if since.since(now) > MOST_AHEAD {
            return (spent, now);
        }
        let back = now.since(since).0.saturating_mul(self.refill);
        (spent.saturating_sub(back), since.max(now))
    }

    /// Converts an amount from another bucket's units to the units of this bucket, rounded up to a whole unit. If the
    /// numbers are too large for this, the amount is rounded up to a thousandth of a token.
    fn convert(&self, spent: u64, unit: u64) -> u64 {
        if unit == self.unit {
            return spent;
        }
        let (thousandths, rest) = (spent / unit, spent % unit);
        let rest = match rest.checked_mul(self.unit) {
            Some(product) if product <= EXACT => product.div_ceil(unit),
            _ => self.unit,
        };
        thousandths.saturating_mul(self.unit).saturating_add(rest).min(EXACT)
    }

    pub(super) fn level(&self, spent: u64, ahead: Micros) -> Level {
        let left = self.capacity().saturating_sub(spent);
        let reset_after = if spent == 0 { Micros(0) } else { ahead.plus(self.time_to_refill(spent)) };
        Level { remaining: Cost::from_thousandths(left / self.unit), reset_after }
    }

    /// Returns the burst, in the bucket's units.
    pub(super) fn capacity(&self) -> u64 {
        self.burst.thousandths() * self.unit
    }

    pub(super) fn unit(&self) -> u64 {
        self.unit
    }

    /// Returns how many of the bucket's units are one token.
    pub(super) fn one(&self) -> u64 {
        1000 * self.unit
    }

    pub(super) fn refill(&self) -> u64 {
        self.refill
    }

    /// Returns the time in which this amount is refilled.
    pub(in crate::algorithm) fn time_to_gain(&self, amount: Cost) -> Micros {
        self.time_to_refill(amount.thousandths().saturating_mul(self.unit))
    }

    pub(super) fn time_to_refill(&self, units: u64) -> Micros {
        Micros(units.div_ceil(self.refill))
    }
}

/// Reads the amount spent, its unit, and the moment of the last charge. `None` for an invalid state.
pub(super) fn valid(state: &[u64]) -> Option<(u64, u64, Timestamp)> {
    let &[spent, unit, since] = state else { return None };
    let valid = unit > 0 && spent <= EXACT && unit <= EXACT && since <= EXACT;
    valid.then_some((spent, unit, Timestamp(since)))
}

/// Gives back up to `amount` of what was spent, and keeps the moment of the last charge. Returns the new state; `None` for an
/// invalid state.
pub fn give_back(state: &[u64], amount: Cost) -> Option<State> {
    let (spent, unit, since) = valid(state)?;
    Some(smallvec![spent.saturating_sub(amount.thousandths().saturating_mul(unit)), unit, since.0])
}

/// Displays the settings as `10/s burst 20`, `10000/day burst 10000` or `0.35/33s burst 7`.
impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, AmountFormat::Number)
    }
}

impl TokenBucket {
    /// Writes the rate and the burst, with amounts in this format: `10/s burst 20`.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, format: AmountFormat) -> fmt::Result {
        rate::write(f, self.refill, self.unit, format)?;
        write!(f, " burst {}", format.of(self.burst))
    }
}

#[cfg(test)]
mod tests;
