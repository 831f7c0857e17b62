//! Computes `Retry-After`: the wait plus jitter, so that clients do not all return at once.

use base::time::Micros;
use ledger::algorithm::Algorithm;

/// The shortest window for which [`Jitter::max_period`] is used.
const LONG: Micros = Micros(3_600_000_000);

/// The settings for the time that `Retry-After` adds to the wait, so that clients do not return together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// The longest time that is added to the wait, in millionths of the wait.
    pub share: u32,
    pub max: Micros,
    /// The longest time that is added for a window of an hour or more. It replaces `share` and `max`, because all
    /// clients of the window wait for the same moment.
    pub max_period: Micros,
}

/// Computes `Retry-After` in whole seconds, rounded up: the wait, plus an added time that depends on `spread`. `spread`
/// is fixed for the bucket (`BucketKey::spread`), so every gateway gives the same client the same answer.
pub fn retry_after(spread: u32, wait: Micros, jitter: Jitter) -> u64 {
    let most = u128::from(wait.0) * u128::from(jitter.share) / 1_000_000;
    wait.plus(part(most, spread).min(jitter.max)).ceil_seconds()
}

/// Computes `Retry-After` for a limit with this algorithm. For a window of an hour or more, the added time does not
/// depend on the wait.
pub(crate) fn retry_after_limit(algorithm: &Algorithm, spread: u32, wait: Micros, jitter: Jitter) -> u64 {
    match algorithm.window() {
        Some(window) if window.shortest() >= LONG => {
            wait.plus(part(u128::from(jitter.max_period.0), spread)).ceil_seconds()
        }
        _ => retry_after(spread, wait, jitter),
    }
}

/// Computes `Retry-After` for a budget of which other requests hold too much: 1 to 5 seconds, depending on `spread`. Nobody knows
/// when these requests end.
pub(crate) fn retry_after_held(spread: u32) -> u64 {
    1 + ((u64::from(spread) * 5) >> 32)
}

fn part(most: u128, spread: u32) -> Micros {
    Micros(u64::try_from((most * u128::from(spread)) >> 32).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};

    const HALF: Jitter = Jitter { share: 500_000, max: Micros(30_000_000), max_period: Micros(60_000_000) };

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

    #[test]
    fn what_is_held_is_asked_for_again_within_five_seconds() {
        let eighth = 1 << 29;
        assert_eq!([0, 1, 2, 4, 6, 7].map(|part| retry_after_held(part * eighth)), [1, 1, 2, 3, 4, 5]);
        assert_eq!(retry_after_held(u32::MAX), 5);
    }

    #[test]
    fn the_spread_of_a_period_does_not_shrink_with_the_wait() {
        let window = |seconds: u64| {
            let window = Window::Epoch(Micros(seconds * 1_000_000));
            Algorithm::FixedWindow(FixedWindow::new(1, window).unwrap())
        };
        let wait = |spread, seconds| retry_after_limit(&window(seconds), spread, Micros(1_000_000), HALF);
        assert_eq!((wait(0, 3_600), wait(1 << 31, 3_600), wait(u32::MAX, 86_400)), (1, 31, 61));
        assert_eq!(wait(u32::MAX, 3_599), 2);
    }
}
