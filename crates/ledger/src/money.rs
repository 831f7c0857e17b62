//! Reads and displays amounts of money, which a limit counts as costs: 10⁻⁹ USD is one thousandth of a [`Cost`].

use std::fmt;

use serde::{Serialize, Serializer};

use crate::cost::Cost;

/// The largest number of digits after the point in an amount of money.
pub const MAX_DECIMALS: usize = 9;

/// The parts of a dollar. One part is one thousandth of a cost.
const PARTS: u64 = 1_000_000_000;

/// The parts of a cent.
const CENT: u64 = PARTS / 100;

/// Parses an amount in USD: digits, or digits with a point between them. Zeros may follow the ninth digit after the point. An
/// amount that is too large saturates. `None` for any other text.
pub fn parse(text: &str) -> Option<Cost> {
    let (dollars, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let kept = decimals.trim_end_matches('0');
    if !is_digits(dollars) || !is_digits(decimals) || kept.len() > MAX_DECIMALS {
        return None;
    }
    let dollars: u64 = dollars.parse().unwrap_or(u64::MAX);
    let parts: u64 = format!("{kept:0<MAX_DECIMALS$}").parse().ok()?;
    Some(Cost::from_thousandths(dollars.saturating_mul(PARTS).saturating_add(parts)))
}

/// Returns this number of USD, which has up to three decimals, as a limit counts it. The result saturates.
pub const fn from_dollars(dollars: Cost) -> Cost {
    Cost::from_thousandths(dollars.thousandths().saturating_mul(PARTS / 1000))
}

/// Returns the amount in whole US cents, rounded down.
pub const fn cents(amount: Cost) -> u64 {
    amount.thousandths() / CENT
}

/// Returns the amount in USD, exact below 4 194 304 USD.
#[expect(clippy::cast_precision_loss, reason = "for reports; no precision is lost below 2^22 USD")]
pub const fn dollars(amount: Cost) -> f64 {
    amount.thousandths() as f64 / PARTS as f64
}

/// Returns the amount in USD as exact decimal text, such as `250.00` or `0.0045`. It has at least two decimals.
pub fn decimal(amount: Cost) -> String {
    let parts = amount.thousandths();
    let decimals = format!("{:0MAX_DECIMALS$}", parts % PARTS);
    format!("{}.{:0<2}", parts / PARTS, decimals.trim_end_matches('0'))
}

/// How the amounts of a limit are displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AmountFormat {
    /// A number, such as `20` or `0.5`.
    #[default]
    Number,
    /// An amount of money, such as `250.00 USD`.
    Dollars,
}

impl AmountFormat {
    /// Returns the cost as an amount that is displayed in this format.
    pub const fn of(self, cost: Cost) -> Amount {
        Amount { format: self, cost }
    }
}

/// An amount of a limit, with the format in which it is displayed. Only amounts in the same format can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    format: AmountFormat,
    cost: Cost,
}

/// Serializes the amount as a JSON number. An amount of money is in USD, and exact below 4 194 304 USD.
impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.format {
            AmountFormat::Number => self.cost.serialize(serializer),
            AmountFormat::Dollars => serializer.serialize_f64(dollars(self.cost)),
        }
    }
}

/// Displays a number such as `20`, or money such as `0.0045 USD`, which has at least two decimals.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            AmountFormat::Number => self.cost.fmt(f),
            AmountFormat::Dollars => write!(f, "{} USD", decimal(self.cost)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_and_printed_without_rounding() {
        for (text, parts, printed) in [
            ("250.00", 250_000_000_000, "250.00 USD"),
            ("0", 0, "0.00 USD"),
            ("007", 7_000_000_000, "7.00 USD"),
            ("0.0045", 4_500_000, "0.0045 USD"),
            ("0.000000001", 1, "0.000000001 USD"),
            ("12.5000000000000", 12_500_000_000, "12.50 USD"),
            ("18446744073.709551615", u64::MAX, "18446744073.709551615 USD"),
            ("99999999999999999999999.5", u64::MAX, "18446744073.709551615 USD"),
        ] {
            let amount = parse(text);
            assert_eq!(amount, Some(Cost::from_thousandths(parts)), "{text}");
            assert_eq!(AmountFormat::Dollars.of(amount.unwrap()).to_string(), printed);
        }
        for text in ["", ".", ".5", "5.", "-1", "+1", "1e3", "1,5", "0.0000000001", "1 ", "$1", "٣"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_converted_to_and_from_money() {
        assert_eq!(from_dollars(Cost::from_thousandths(2_500)), parse("2.5").unwrap());
        assert_eq!(from_dollars(Cost::from_thousandths(u64::MAX)), Cost::from_thousandths(u64::MAX));
        assert_eq!(cents(parse("2.509999999").unwrap()), 250);
        let json = |text| serde_json::to_string(&AmountFormat::Dollars.of(parse(text).unwrap())).unwrap();
        assert_eq!([json("0.000000001"), json("2.5"), json("4194303.999999999")], ["1e-9", "2.5", "4194303.999999999"]);
        assert_eq!(AmountFormat::Number.of(Cost::from_thousandths(500)).to_string(), "0.5");
    }
}
