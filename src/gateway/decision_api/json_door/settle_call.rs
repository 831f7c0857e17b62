//! Reads the body of a call of `/settle`: strict JSON, in which no name is unknown or occurs twice.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Number;

use super::take_call::{InvalidCall, present, read};
use ledger::cost::{Cost, ExtraDecimals};
use ledger::money;
use rules::settled_price::Unit;

/// The largest number of limits that a call may name.
const MOST_LIMITS: usize = 64;

/// A call that says what a take has cost, and gives back what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleCall {
    pub hold_id: String,
    #[serde(default, deserialize_with = "present")]
    pub cost: Option<SettledCosts>,
}

/// The cost of a take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettledCosts {
    /// The cost at every limit.
    Every(SettledAmount),
    /// The costs by the names of limits.
    ByLimit(Vec<(String, SettledAmount)>),
}

/// A number of at least 0, with at most nine decimals. Its meaning depends on the unit of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledAmount {
    /// As a number of requests or tokens. `None` if it has more than three decimals.
    number: Option<Cost>,
    /// As an amount in USD.
    dollars: Cost,
}

impl SettledAmount {
    fn parse(text: &str) -> Option<SettledAmount> {
        Some(SettledAmount {
            dollars: money::parse(text)?,
            number: Cost::parse(text.as_bytes(), ExtraDecimals::Refuse),
        })
    }

    /// Returns the cost at a limit with this unit. `None` if the number has more decimals than such a limit counts.
    pub(super) fn cost(self, unit: Unit) -> Option<Cost> {
        match unit {
            Unit::Requests | Unit::Tokens => self.number,
            Unit::Dollars => Some(self.dollars),
        }
    }
}

impl SettleCall {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// If the body is not a JSON object of this form.
    pub(super) fn read(body: &[u8]) -> Result<SettleCall, InvalidCall> {
        read(body)
    }
}

impl SettledCosts {
    /// Returns the cost at the limit with this name. `None` if the call does not say it.
    pub(super) fn of(&self, limit: &str) -> Option<SettledAmount> {
        match self {
            SettledCosts::Every(cost) => Some(*cost),
            SettledCosts::ByLimit(costs) => costs.iter().find(|(name, _)| name == limit).map(|(_, cost)| *cost),
        }
    }

    /// Returns the names of the limits whose costs the call says.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let costs = match self {
            SettledCosts::Every(_) => &[][..],
            SettledCosts::ByLimit(costs) => costs,
        };
        costs.iter().map(|(name, _)| &**name)
    }
}

impl<'de> Deserialize<'de> for SettledAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SettledAmount, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let mut text = number.to_string();
        // A small number is written with an exponent, which amounts do not have.
        if let Some(small) = number.as_f64().filter(|_| text.contains("e-")) {
            text = small.to_string();
        }
        SettledAmount::parse(&text).ok_or_else(|| D::Error::custom(Fault(&text)))
    }
}

/// Says that a cost is no such number.
struct Fault<'t>(&'t str);

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`cost` must be a number with at most three decimals, or nine of USD, is {}", self.0)
    }
}

impl<'de> Deserialize<'de> for SettledCosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SettledCosts, D::Error> {
        deserializer.deserialize_any(CostsVisitor)
    }
}

struct CostsVisitor;

impl<'de> Visitor<'de> for CostsVisitor {
    type Value = SettledCosts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or an object of the names of limits and numbers")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<SettledCosts, E> {
        let text = number.to_string();
        SettledAmount::parse(&text).map(SettledCosts::Every).ok_or_else(|| E::custom(Fault(&text)))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<SettledCosts, E> {
        Err(E::custom(Fault(&number.to_string())))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<SettledCosts, E> {
        let amount = SettledAmount::deserialize(serde::de::value::F64Deserializer::new(number))?;
        Ok(SettledCosts::Every(amount))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<SettledCosts, A::Error> {
        let mut costs: Vec<(String, SettledAmount)> = Vec::new();
        while let Some(name) = members.next_key::<String>()? {
            if costs.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format_args!("`cost` must have each name once, has {name:?} twice")));
            }
            if costs.len() == MOST_LIMITS {
                return Err(A::Error::custom(format_args!("`cost` must have at most {MOST_LIMITS} names")));
            }
            costs.push((name, members.next_value::<SettledAmount>()?));
        }
        Ok(SettledCosts::ByLimit(costs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_one_number_or_one_for_each_limit() {
        let cost = |body: &str| SettleCall::read(body.as_bytes()).unwrap().cost;
        assert_eq!(cost(r#"{"hold_id": "a"}"#), None);
        // The same number is a number of tokens at one limit, and an amount in USD at another.
        for (number, tokens, dollars) in [
            ("0", Some(0), 0),
            ("12", Some(12_000), 12_000_000_000),
            ("1.5", Some(1_500), 1_500_000_000),
            ("0.125", Some(125), 125_000_000),
            ("2.0", Some(2_000), 2_000_000_000),
            ("0.0001", None, 100_000),
            ("0.000000001", None, 1),
            ("4.5e-7", None, 450),
        ] {
            let Some(SettledCosts::Every(amount)) = cost(&format!(r#"{{"hold_id": "a", "cost": {number}}}"#)) else {
                panic!("{number}")
            };
            let found = [Unit::Tokens, Unit::Requests, Unit::Dollars].map(|unit| amount.cost(unit));
            let [tokens, dollars] = [tokens, Some(dollars)].map(|cost| cost.map(Cost::from_thousandths));
            assert_eq!(found, [tokens, tokens, dollars], "{number}");
        }
        let costs = cost(r#"{"cost": {"a.day": 3, "b": 0.5}, "hold_id": "x"}"#).unwrap();
        let of = |limit| costs.of(limit).and_then(|amount| amount.cost(Unit::Requests));
        let expected = (Some(Cost::from_tokens(3)), Some(Cost::from_thousandths(500)), None);
        assert_eq!((of("a.day"), of("b"), of("c")), expected);
        assert_eq!(costs.names().collect::<Vec<_>>(), ["a.day", "b"]);
    }

    #[test]
    fn everything_else_is_an_error() {
        for (body, fault) in [
            ("[]", "the body must be a JSON object"),
            ("{}", "missing field `hold_id`"),
            (r#"{"hold_id": 7}"#, "invalid type: integer `7`"),
            (r#"{"hold_id": "a", "id": "b"}"#, "unknown field `id`"),
            (r#"{"hold_id": "a", "cost": null}"#, "invalid type: null"),
            (r#"{"hold_id": "a", "cost": "1"}"#, "invalid type: string"),
            (r#"{"hold_id": "a", "cost": -1}"#, "`cost` must be a number"),
            (r#"{"hold_id": "a", "cost": 0.0000000001}"#, "`cost` must be a number"),
            (r#"{"hold_id": "a", "cost": 1e300}"#, "`cost` must be a number"),
            (r#"{"hold_id": "a", "cost": {"a": -1}}"#, "`cost` must be a number"),
            (r#"{"hold_id": "a", "cost": {"a": 1, "a": 1}}"#, "`cost` must have each name once"),
        ] {
            let InvalidCall(found) = SettleCall::read(body.as_bytes()).unwrap_err();
            assert!(found.starts_with(fault), "{body}: {found}");
        }
    }
}
