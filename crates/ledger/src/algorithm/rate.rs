//! Represents the rate of a limit, and formats it for operators.

use std::fmt;

use crate::cost::Cost;
use crate::money::AmountFormat;
use base::time::Micros;

/// A rate at which tokens are refilled: `amount` per `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub amount: Cost,
    pub period: Micros,
}

/// The reason why the settings of a limit are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidNumbers {
    /// The rate, the period or the burst is zero.
    Zero,
    /// The burst cannot be kept exactly in 53 bits at this rate. `largest` is the largest possible burst, or 0 if the
    /// rate is too large.
    TooLarge { largest: Cost },
}

/// Formats a rate as `10/s`, `10000/day` or `0.35/33s`. The period is a second, a minute, an hour or a day: the
/// shortest for which the amount is whole thousandths, otherwise a number of seconds.
pub(super) fn write(f: &mut fmt::Formatter<'_>, refill: u64, unit: u64, format: AmountFormat) -> fmt::Result {
    const SECOND: u64 = 1_000_000;
    let amount = |period: u64| {
        let thousandths = u128::from(refill) * u128::from(period);
        let amount = (thousandths % u128::from(unit) == 0).then(|| thousandths / u128::from(unit));
        amount.and_then(|amount| u64::try_from(amount).ok()).map(Cost::from_thousandths)
    };
    let periods = [("s", SECOND), ("min", 60 * SECOND), ("hour", 3_600 * SECOND), ("day", 86_400 * SECOND)];
    match periods.iter().find_map(|(name, period)| Some((name, amount(*period)?))) {
        Some((name, amount)) => write!(f, "{}/{name}", format.of(amount)),
        None => {
            let period = SECOND.saturating_mul(unit / greatest_common_divisor(unit, SECOND));
            write!(f, "{}/{}s", format.of(amount(period).unwrap_or_default()), period / SECOND)
        }
    }
}

pub(super) fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
