//! Takes numbers of a limit from the credentials of a request. The source is a claim in its token, or a column of the
//! key file.
//!
//! A number is parsed as a decimal text, never as a float, so it is exact. A number is limited to the bounds in the
//! configuration. If it cannot be read, the default in the configuration applies.

use std::fmt;

use smallvec::SmallVec;

use ledger::algorithm::{Algorithm, RequestNumbers};
use ledger::charge::LimitId;
use ledger::cost::{Cost, ExtraDecimals};
use ledger::money::{self, AmountFormat};
use request::attribute::Attribute;

/// The setting of a limit that credentials can set: the rate (`rps`), the burst or the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    Rps,
    Burst,
    Limit,
}

impl NumberKind {
    /// Returns the key of the setting in gateway.yaml.
    pub fn name(self) -> &'static str {
        match self {
            NumberKind::Rps => "rps",
            NumberKind::Burst => "burst",
            NumberKind::Limit => "limit",
        }
    }
}

/// A setting of a limit that is read from the credentials of each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedNumber {
    pub kind: NumberKind,
    /// How the number is read and displayed. Amounts of money may have up to nine decimals.
    pub format: AmountFormat,
    /// The source of the value: a claim as [`Attribute::ClaimedAmount`], or a column of the key file.
    pub from: Attribute,
    /// The value for a request without a valid value in its credentials.
    pub default: Cost,
    pub min: Cost,
    pub max: Cost,
}

/// The result of reading one setting from credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimResult {
    Read,
    /// The value was below `min` or above `max`, and was replaced by this bound.
    Cut,
    /// The credentials do not have the claim or column.
    Missing,
    /// The value is not a plain decimal, or not a whole number where the setting must be whole.
    Unreadable,
}

impl ClaimResult {
    pub const ALL: [ClaimResult; 4] =
        [ClaimResult::Read, ClaimResult::Cut, ClaimResult::Missing, ClaimResult::Unreadable];

    /// Returns the result as a label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ClaimResult::Read => "read",
            ClaimResult::Cut => "cut",
            ClaimResult::Missing => "missing",
            ClaimResult::Unreadable => "unreadable",
        }
    }
}

/// The results of reading settings from credentials, each with the limit that has the setting.
pub(crate) type ClaimResults = SmallVec<[(LimitId, ClaimResult); 2]>;

/// The value of a setting for one request, with the result of reading the setting from the credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedAmount {
    pub amount: Cost,
    pub result: ClaimResult,
}

impl ClaimedNumber {
    /// Describes the values that can be read as this setting, for messages.
    pub(crate) fn shape(&self) -> &'static str {
        match (self.format, self.kind) {
            (AmountFormat::Dollars, _) => "an amount of USD from 0 with at most 9 decimals",
            (AmountFormat::Number, NumberKind::Rps) => "a number from 0 with at most 3 decimals",
            (AmountFormat::Number, NumberKind::Burst | NumberKind::Limit) => "a whole number from 0",
        }
    }

    /// Parses `[0-9]+(\.[0-9]+)?`. A rate may have up to three decimals, an amount of money up to nine, and other
    /// numbers none. A number that is too large becomes the largest number.
    fn parse(&self, text: &[u8]) -> Option<Cost> {
        if self.format == AmountFormat::Dollars {
            return money::parse(std::str::from_utf8(text).ok()?);
        }
        let amount = Cost::parse(text, ExtraDecimals::Refuse)?;
        (self.kind == NumberKind::Rps || amount == amount.ceil()).then_some(amount)
    }

    /// Reads the setting for a request. `text` is the value of the claim or column, or `None` if it is missing.
    pub(crate) fn amount(&self, text: Option<&[u8]>) -> ClaimedAmount {
        let default = |result| ClaimedAmount { amount: self.default, result };
        let Some(text) = text else { return default(ClaimResult::Missing) };
        let Some(read) = self.parse(text) else { return default(ClaimResult::Unreadable) };
        let amount = read.bounded(self.min, Some(self.max));
        ClaimedAmount { amount, result: if amount == read { ClaimResult::Read } else { ClaimResult::Cut } }
    }
}

/// Displays `burst from jwt:limits.burst, 20 without it, 0 to 1000`.
impl fmt::Display for ClaimedNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClaimedNumber { kind, format, from, .. } = self;
        let [default, min, max] = [self.default, self.min, self.max].map(|amount| format.of(amount));
        write!(f, "{} from {from}, {default} without it, {min} to {max}", kind.name())
    }
}

/// The settings of a limit, at least one of which comes from credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedNumbers {
    /// The limit's algorithm, with the settings that are the same for all requests.
    pub base: Algorithm,
    /// The smallest cost of a request. A burst or limit from credentials is raised to this cost. 0 stays 0.
    pub least: Cost,
    /// The settings that come from credentials, at least one.
    pub numbers: Vec<ClaimedNumber>,
}

impl ClaimedNumbers {
    /// Returns the limit for a request. `amount` returns the value of each setting that comes from credentials.
    pub fn with<'n>(&'n self, mut amount: impl FnMut(&'n ClaimedNumber) -> Cost) -> Algorithm {
        let mut numbers = RequestNumbers::default();
        for number in &self.numbers {
            let of_request = match number.kind {
                NumberKind::Rps => &mut numbers.rate,
                NumberKind::Burst | NumberKind::Limit => &mut numbers.ceiling,
            };
            *of_request = Some(amount(number));
        }
        self.base.for_request(numbers, self.least)
    }

    /// Returns the limit for a request whose credentials set nothing.
    pub fn by_default(&self) -> Algorithm {
        self.with(|number| number.default)
    }

    /// Returns the limit for a request with the largest allowed value of each setting.
    pub fn largest(&self) -> Algorithm {
        self.with(|number| number.max)
    }
}

/// Displays `burst from jwt:limits.burst, 20 without it, 0 to 1000; rps from …`.
impl fmt::Display for ClaimedNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, number) in self.numbers.iter().enumerate() {
            write!(f, "{}{number}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::cost::ExtraDecimals;
    use proptest::prelude::*;
    use request::claim_list::amount_text;
    use serde_json::Value;

    #[track_caller]
    fn check(kind: NumberKind, text: &str, amount: &str, result: ClaimResult) {
        let number = ClaimedNumber {
            kind,
            format: AmountFormat::Number,
            from: Attribute::ClaimedAmount("n".to_owned()),
            default: Cost::from_tokens(7),
            min: Cost::default(),
            max: Cost::from_tokens(1000),
        };
        let found = number.amount(Some(text.as_bytes()));
        assert_eq!((found.amount.to_string().as_str(), found.result), (amount, result), "{text}");
    }

    #[test]
    fn a_number_is_a_plain_decimal_and_cut_to_its_bounds() {
        use ClaimResult::{Cut, Read, Unreadable};
        for kind in [NumberKind::Rps, NumberKind::Burst, NumberKind::Limit] {
            check(kind, "12", "12", Read);
            check(kind, "012.000", "12", Read);
            check(kind, "0", "0", Read);
            check(kind, "1000", "1000", Read);
            check(kind, "1001", "1000", Cut);
            check(kind, "9007199254740993", "1000", Cut);
            check(kind, "99999999999999999999999999", "1000", Cut);
            for text in ["", " 12", "12 ", "-1", "+1", "1e3", "1E3", "0x10", "1_000", "1,5", "nan", "Infinity", "١"] {
                check(kind, text, "7", Unreadable);
            }
            check(kind, "12.0005", "7", Unreadable);
        }
        check(NumberKind::Rps, "12.5", "12.5", Read);
        check(NumberKind::Rps, "0.001", "0.001", Read);
        check(NumberKind::Rps, "1000.001", "1000", Cut);
        check(NumberKind::Burst, "12.5", "7", Unreadable);
        check(NumberKind::Limit, "0.999", "7", Unreadable);
    }

    #[test]
    fn a_number_below_its_least_is_raised() {
        let number = ClaimedNumber {
            kind: NumberKind::Burst,
            format: AmountFormat::Number,
            from: Attribute::KeyColumn("burst".to_owned()),
            default: Cost::from_tokens(20),
            min: Cost::from_tokens(5),
            max: Cost::from_tokens(1000),
        };
        let amount = |text: Option<&str>| number.amount(text.map(str::as_bytes));
        let of = |tokens, result| ClaimedAmount { amount: Cost::from_tokens(tokens), result };
        assert_eq!(amount(Some("0")), of(5, ClaimResult::Cut));
        assert_eq!(amount(Some("5")), of(5, ClaimResult::Read));
        assert_eq!(amount(None), of(20, ClaimResult::Missing));
        assert_eq!(number.to_string(), "burst from key:burst, 20 without it, 5 to 1000");
    }

    #[test]
    fn an_amount_of_money_has_nine_decimals() {
        let dollars = |text| money::parse(text).unwrap();
        let number = ClaimedNumber {
            kind: NumberKind::Limit,
            format: AmountFormat::Dollars,
            from: Attribute::KeyColumn("usd".to_owned()),
            default: dollars("5"),
            min: dollars("0"),
            max: dollars("100"),
        };
        let amount = |text: &str| number.amount(Some(text.as_bytes()));
        assert_eq!(amount("12.5"), ClaimedAmount { amount: dollars("12.5"), result: ClaimResult::Read });
        assert_eq!(
            amount("0.000000001"),
            ClaimedAmount { amount: Cost::from_thousandths(1), result: ClaimResult::Read }
        );
        assert_eq!(amount("99999999999999999999"), ClaimedAmount { amount: dollars("100"), result: ClaimResult::Cut });
        for text in ["0.0000000001", "$5", "5 USD", "1e2"] {
            assert_eq!(amount(text), ClaimedAmount { amount: dollars("5"), result: ClaimResult::Unreadable }, "{text}");
        }
        assert_eq!(number.to_string(), "limit from key:usd, 5.00 USD without it, 0.00 USD to 100.00 USD");
    }

    proptest::proptest! {
        /// A number with three decimals is read exactly, if it is not too large.
        #[test]
        fn a_number_with_three_decimals_is_never_rounded(whole in 0..1_000_000_000_000u64, thousandths in 0..1000u64) {
            let written = format!("{whole}.{thousandths:03}");
            let claim: Value = serde_json::from_str(&written).unwrap();
            let read = amount_text(&claim).unwrap();
            let cost = |text: &str| Cost::parse(text.as_bytes(), ExtraDecimals::Refuse);
            proptest::prop_assert_eq!(cost(&read), cost(&written));
        }
    }

    proptest! {
        /// A number in a JSON claim keeps its exact value, whatever the form in which it is written.
        #[test]
        fn an_amount_of_up_to_fifteen_digits_is_exact(thousandths in 0u64..1_000_000_000_000_000, decimals in 3usize..8) {
            let (whole, rest) = (thousandths / 1000, thousandths % 1000);
            let written = format!("{whole}.{rest:03}{}", "0".repeat(decimals - 3));
            let expected = Some(Cost::from_thousandths(thousandths));
            for claim in [format!("\"{whole}.{rest:03}\""), format!("{thousandths}e-3"), written] {
                let claim: Value = serde_json::from_str(&claim).unwrap();
                let text = amount_text(&claim).unwrap();
                prop_assert_eq!(Cost::parse(text.as_bytes(), ExtraDecimals::Refuse), expected, "{}", claim);
            }
        }
    }
}
