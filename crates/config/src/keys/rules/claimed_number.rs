//! Reads a number of a limit. Either the file gives the number, or credentials supply the number for each request.

use serde_json::json;

use crate::keys::rules::attribute::AttributeReader;
use crate::language::key::{Key, Mapping, Type};
use crate::language::reader::Field;
use crate::language::shape::{Definition, Shape};
use crate::language::value_types::{AMOUNT_OR_MONEY, AMOUNT_OR_MONEY_FROM_ZERO};
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use request::attribute::Attribute;
use rules::claimed_numbers::{ClaimedNumber, NumberKind};

const FROM_ZERO: Type = Type::Own { text: "number from 0", shape: AMOUNT_OR_MONEY_FROM_ZERO };

const VERIFIED_ATTRIBUTE: Shape = Shape::Defined(&Definition {
    name: "verified_attribute",
    shape: Shape::text(&[r"^(jwt|key):[\s\S]"], "be jwt:<claim> or key:<column>"),
});

pub(crate) static CLAIMED: Mapping = Mapping {
    heading: Some("key of a number from a credential"),
    definition: Some("claimed_number"),
    keys: &[
        Key::required(
            "from",
            Type::Own { text: "`jwt:<claim>`, `key:<column>`", shape: VERIFIED_ATTRIBUTE },
            "The claim or the column that holds it.",
        ),
        Key::required("default", FROM_ZERO, "The number of a request without it."),
        Key::default("min", FROM_ZERO, "0", "A smaller number is raised to this."),
        Key::required(
            "max",
            Type::Own { text: "above 0, at least `min`", shape: AMOUNT_OR_MONEY },
            "A larger number is lowered to this.",
        ),
    ],
    constraints: || json!({}),
};

/// A rate, burst or other value of a limit. Either the file gives the value, or credentials supply it for each request.
#[derive(Clone, Debug)]
pub(crate) struct Number<'t> {
    /// The value in the file. If credentials supply the value: the default in the file.
    pub amount: Cost,
    /// The place in the file at which problems of the value are reported.
    pub field: Field<'t>,
    /// The largest value that a request can have.
    pub largest: Cost,
    pub largest_field: Field<'t>,
    pub claimed: Option<ClaimedNumber>,
}

/// Reads rates, bursts and other values of limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberReader<'k> {
    /// Reads the attributes that supply numbers. `None` if numbers cannot come from credentials.
    attributes: Option<AttributeReader<'k>>,
    /// Whether the file writes amounts as numbers or in USD.
    pub format: AmountFormat,
}

impl<'k> NumberReader<'k> {
    /// Makes a reader for a limit whose values may come from credentials.
    pub(crate) fn new(attributes: AttributeReader<'k>) -> NumberReader<'k> {
        NumberReader { attributes: Some(attributes), format: AmountFormat::Number }
    }

    /// Makes a reader for values that the file itself must give, such as the values of an override.
    pub(crate) fn in_file() -> NumberReader<'static> {
        NumberReader { attributes: None, format: AmountFormat::Number }
    }

    /// Returns this reader for a limit whose amounts the file writes in this format.
    pub(crate) fn in_format(self, format: AmountFormat) -> NumberReader<'k> {
        NumberReader { format, ..self }
    }

    /// Returns the reader of the attributes that the file can use. `None` if numbers cannot come from credentials.
    pub(crate) fn attributes(self) -> Option<AttributeReader<'k>> {
        self.attributes
    }

    /// Reads a value of this kind, of at most `largest` whole tokens. `None` after reporting a problem.
    pub(crate) fn number<'t>(self, kind: NumberKind, largest: u64, field: Field<'t>) -> Option<Number<'t>> {
        if let Some(attributes) = self.attributes.filter(|_| field.is_map()) {
            return self.claimed(kind, largest, field, attributes);
        }
        let amount = self.above_zero(kind, largest, &field)?;
        Some(Number { amount, largest: amount, largest_field: field.clone(), field, claimed: None })
    }

    fn claimed<'t>(
        self,
        kind: NumberKind,
        largest: u64,
        field: Field<'t>,
        attributes: AttributeReader<'_>,
    ) -> Option<Number<'t>> {
        let section = field.section(&CLAIMED)?;
        let from = section.need("from").and_then(|field| from(&field, attributes));
        let default =
            section.need("default").and_then(|field| Some((self.at_least_zero(kind, largest, &field)?, field)));
        let min = section.value("min", |field| self.at_least_zero(kind, largest, &field));
        let max = section.need("max").and_then(|field| Some((self.above_zero(kind, largest, &field)?, field)));
        let contradictory = match (&min, &max, section.get("min")) {
            (Some(min), Some((max, _)), Some(field)) if min > max => {
                field.must(format_args!("be at most max ({})", self.format.of(*max)));
                true
            }
            _ => false,
        };
        section.close();
        let ((default, field), min, (max, largest_field)) = (default?, min?, max?);
        if contradictory {
            return None;
        }
        if !(min..=max).contains(&default) {
            let [min, max] = [min, max].map(|amount| self.format.of(amount));
            field.must(format_args!("be from min ({min}) to max ({max})"));
            return None;
        }
        let claimed = Some(ClaimedNumber { kind, format: self.format, from: from?, default, min, max });
        Some(Number { amount: default, field, largest: max, largest_field, claimed })
    }

    fn above_zero(self, kind: NumberKind, largest: u64, field: &Field<'_>) -> Option<Cost> {
        match (self.format, kind) {
            (AmountFormat::Dollars, _) => at_most(largest, field.money()?, field),
            (AmountFormat::Number, NumberKind::Rps) => field.cost(),
            (AmountFormat::Number, NumberKind::Burst | NumberKind::Limit) => {
                field.whole(1..=largest).map(Cost::from_tokens)
            }
        }
    }

    fn at_least_zero(self, kind: NumberKind, largest: u64, field: &Field<'_>) -> Option<Cost> {
        match (self.format, kind) {
            (AmountFormat::Dollars, _) => at_most(largest, field.amount_from_zero(self.format)?, field),
            (AmountFormat::Number, NumberKind::Rps) => field.cost_from_zero(),
            (AmountFormat::Number, NumberKind::Burst | NumberKind::Limit) => {
                field.whole(0..=largest).map(Cost::from_tokens)
            }
        }
    }
}

/// Returns this amount of money. `None` after reporting that it is above `largest`, a number of millionths of a USD.
fn at_most(largest: u64, amount: Cost, field: &Field<'_>) -> Option<Cost> {
    let largest = Cost::from_tokens(largest);
    if amount > largest {
        field.must(format_args!("be at most {}", AmountFormat::Dollars.of(largest)));
        return None;
    }
    Some(amount)
}

/// Reads the attribute that supplies a number. The attribute must be verified, because a client could choose the value
/// of any other attribute.
fn from(field: &Field<'_>, attributes: AttributeReader<'_>) -> Option<Attribute> {
    let text = field.text()?;
    let attribute = attributes.attribute(field, text)?;
    match attribute {
        Attribute::Claim(name) => Some(Attribute::ClaimedAmount(name)),
        column @ (Attribute::KeyId | Attribute::KeyPlan | Attribute::KeyColumn(_)) => Some(column),
        other => {
            let what =
                format_args!("`{other}`: a number must come from jwt:<claim> or key:<column>, which are verified");
            field.wrong(what, None);
            None
        }
    }
}
