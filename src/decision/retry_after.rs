//! Computes `Retry-After`: the wait, spread so that clients do not all return at once.

use crate::base::time::Micros;

/// How much `Retry-After` is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// Of the wait, in millionths.
    pub share: u32,
    pub max: Micros,
}

/// In seconds, rounded up: the wait plus a share of it that is fixed for the bucket (`BucketKey::spread`). So every
/// gateway gives the same client the same answer, and different clients do not return together.
pub fn retry_after(spread: u32, wait: Micros, jitter: Jitter) -> u64 {
    let most = u128::from(wait.0) * u128::from(jitter.share) / 1_000_000;
    let extra = (most * u128::from(spread)) >> 32;
    let extra = Micros(u64::try_from(extra).unwrap_or(u64::MAX)).min(jitter.max);
    wait.plus(extra).ceil_seconds()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Jitter = Jitter { share: 500_000, max: Micros(30_000_000) };

    #[track_caller]
    fn check(spread: u32, wait_seconds: u64, jitter: Jitter, seconds: u64) {
        assert_eq!(retry_after(spread, Micros(wait_seconds * 1_000_000), jitter), seconds);
    }

    #[test]
    fn the_spread_adds_less_than_its_share_and_never_more_than_its_maximum() {
        check(0, 10, HALF, 10);
        check(1 << 31, 10, HALF, 13);
        check(u32::MAX, 10, HALF, 15);
        check(u32::MAX, 3_600, HALF, 3_630);
        check(u32::MAX, 10, Jitter { share: 0, ..HALF }, 10);
        check(u32::MAX, 0, HALF, 0);
    }
}
