//! Reads `reserve`: the amount that a budget holds while a request is under way.

use serde_json::{Value, json};

use super::attribute::AttributeReader;
use super::cost::{Ceiling, at_most};
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Definition, Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use crate::language::value_types::{AMOUNT_OR_MONEY, AMOUNT_OR_MONEY_FROM_ZERO};
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use request::attribute::Attribute;
use rules::settled_price::{ExpectedTokens, InputEstimate, LearnedReserve, Reserve, SettledPrice, SettledSource};

/// The keys that choose the form of `reserve`. Exactly one of these keys must be present.
const FORMS: [&str; 3] = ["worst", "from", "learn"];

/// Each form, with the keys that must stand beside it, and the keys that may stand beside it.
const BESIDE: [(&str, &[&str], &[&str]); 3] = [
    ("worst", &[], &[]),
    ("from", &["default"], &["plus", "min", "max"]),
    ("learn", &["default", "min"], &["by", "max"]),
];

const PLACES: ValueKind<ParseText<Vec<Attribute>>> = ValueKind::new(
    "`request_json:<pointer>`, with `|` between alternatives",
    Shape::Text(Text::new(
        Scalars::Text,
        &[r"^request_json:/([^~|]|~[01])*(\|request_json:/([^~|]|~[01])*)*$"],
        "be request_json:<pointer>, with | between alternatives",
    )),
    |text| {
        let places = text.split('|').map(|place| match Attribute::parse(place) {
            Ok(Attribute::RequestJson(pointer)) => Some(Attribute::JsonAmount(pointer)),
            Ok(_) | Err(_) => None,
        });
        places.collect()
    },
);

/// A share of the requests in thousandths, so that `95%` is 950.
const QUANTILE: ValueKind<ParseText<u16>> = ValueKind::new(
    "`0.1%` to `100%`",
    Shape::Text(Text::new(
        Scalars::Spelling,
        &[r"^([1-9][0-9]?(\.[0-9])?|0\.[1-9]|100(\.0)?)%$"],
        "be a share from 0.1% to 100%",
    )),
    |text| {
        let share = Cost::parse(text.strip_suffix('%')?.as_bytes(), ledger::cost::ExtraDecimals::Refuse)?;
        u16::try_from(share.thousandths() / 100).ok()
    },
);

/// The shape of `by`: an attribute. A separate reserve is learned for each of its values.
const BY: Shape = Shape::Defined(&Definition { name: "attribute", shape: Shape::Scalar });

const PLUS: ValueKind<ReadField<InputEstimate>> =
    ValueKind::new("`input`", Shape::Words(&["input"]), |field| field.choice(&[("input", InputEstimate::Added)]));

const ABOVE_ZERO: Type = Type::Own { text: "above 0", shape: AMOUNT_OR_MONEY };

pub(crate) const RESERVE: Key = Key::depends(
    "reserve",
    Type::OwnOr { text: "number from 0, or mapping", shape: AMOUNT_OR_MONEY_FROM_ZERO, mapping: &RESERVE_OF_REQUEST },
    "required with a cost of the response",
    "What is held while the request is under way.",
);

static RESERVE_OF_REQUEST: Mapping = Mapping {
    heading: Some("key in `reserve`"),
    definition: Some("reserve"),
    keys: &[
        Key::optional(
            "worst",
            Type::Mapping(&WORST),
            "Of language models: the request's own maximum of output, and the estimate of its input.",
        ),
        Key::optional(
            "from",
            PLACES.declared(),
            "The places of a number in the request's JSON body. The first that is there counts.",
        ),
        Key::optional(
            "learn",
            QUANTILE.declared(),
            "What this share of the last 1000 requests has cost at most, as their responses name it.",
        ),
        Key::optional("plus", PLUS.declared(), "With `from`, of language models: adds the estimate of the input."),
        Key::optional(
            "by",
            Type::Own { text: "attribute", shape: BY },
            "With `learn`: requests with the same value of it are learned together.",
        ),
        Key::optional("min", ABOVE_ZERO, "A smaller amount is raised to this. `learn` needs it."),
        Key::optional(
            "max",
            Type::Own { text: "at least `min`", shape: AMOUNT_OR_MONEY },
            "A larger amount is lowered to this.",
        ),
        Key::optional(
            "default",
            ABOVE_ZERO,
            "The amount of a request that names none, and until 50 requests have been learned from.",
        ),
    ],
    constraints: one_form,
};

static WORST: Mapping = Mapping {
    heading: Some("key in `worst`"),
    definition: None,
    keys: &[Key::required(
        "default_output",
        Type::Whole { least: 1, most: 1_000_000_000 },
        "The tokens of output of a request that names no maximum.",
    )],
    constraints: unconstrained,
};

fn one_form() -> Value {
    let form = |(form, required, others): (&str, &[&str], &[&str])| {
        let needed: Vec<&str> = [form].iter().chain(required).copied().collect();
        let allowed = |name: &&str| needed.contains(name) || others.contains(name);
        let unwanted = RESERVE_OF_REQUEST.names().into_iter().filter(|name| !allowed(name));
        let unwanted: Value = unwanted.map(|name| (name.to_owned(), json!(false))).collect();
        json!({"required": needed, "properties": unwanted})
    };
    json!({"oneOf": BESIDE.map(form)})
}

#[derive(Clone, Copy)]
pub(crate) struct ReserveReader<'r> {
    /// Where the gateway finds the cost of a request that has ended.
    pub source: &'r SettledSource,
    /// The highest cost that a full bucket can pay. `None` if the limit is invalid.
    pub ceiling: Option<Ceiling>,
    /// Reads the attribute in `by`.
    pub attributes: Option<AttributeReader<'r>>,
}

impl ReserveReader<'_> {
    /// Returns how the file writes the amounts of the limit.
    fn format(self) -> AmountFormat {
        self.source.unit().format()
    }

    /// Reads `reserve` of a limit. `None` after reporting a problem.
    pub(crate) fn reserve(self, limit: &Section<'_>) -> Option<Reserve> {
        let Some(field) = limit.get("reserve") else {
            limit.wrong("reserve", "missing; what is held until the response names the cost. 0 charges afterwards");
            return None;
        };
        if !field.is_map() {
            return at_most(field.amount_from_zero(self.format())?, &field, self.ceiling).map(Reserve::Fixed);
        }
        let section = field.clone().section(&RESERVE_OF_REQUEST)?;
        let forms: Vec<&str> = FORMS.into_iter().filter(|form| section.has(form)).collect();
        let reserve = match *forms {
            [form] => self.of_form(form, &section),
            _ => {
                field.must("have one of worst, from and learn");
                None
            }
        };
        section.close();
        reserve
    }

    fn of_form(self, form: &str, section: &Section<'_>) -> Option<Reserve> {
        let mut alone = true;
        for (_, required, others) in BESIDE.iter().filter(|(other, ..)| *other == form) {
            for name in RESERVE_OF_REQUEST.names() {
                if name != form && !required.contains(&name) && !others.contains(&name) && section.has(name) {
                    section.unwanted(name, format_args!("must not stand beside `{form}`"));
                    alone = false;
                }
            }
        }
        let reserve = match form {
            "worst" => self.worst(section),
            "from" => self.named(section),
            _ => self.learned(section),
        };
        reserve.filter(|_| alone)
    }

    fn worst(self, section: &Section<'_>) -> Option<Reserve> {
        let field = section.get("worst")?;
        if !self.source.is_llm() {
            section.unwanted("worst", "must stand beside a `cost_source` of language models: it counts their tokens");
            return None;
        }
        let worst = field.section(&WORST)?;
        let default_output = worst.need("default_output").and_then(|field| {
            let tokens = field.whole(1..=1_000_000_000)?;
            let cost = self.cost_of(ExpectedTokens { input: 0, output: tokens });
            if let Some(Ceiling { cost: most, name, .. }) = self.ceiling.filter(|ceiling| cost > ceiling.cost) {
                field.must(format_args!("cost at most the {name} ({most}), and costs {cost}"));
                return None;
            }
            Some(tokens)
        });
        worst.close();
        default_output.map(|default_output| Reserve::Worst { default_output })
    }

    fn named(self, section: &Section<'_>) -> Option<Reserve> {
        let from = section.need("from").and_then(|field| PLACES.read(field));
        let plus = section.optional("plus", |field| {
            let plus = PLUS.read(field.clone())?;
            if !self.source.is_llm() {
                field.wrong("must stand beside a `cost_source` of language models: it is their input", None);
                return None;
            }
            Some(plus)
        });
        let bounds = self.bounds(section);
        if *self.source == SettledSource::LlmCost {
            section.unwanted("from", "must not stand beside `llm_cost`: a request names no amount of money");
            return None;
        }
        let (attributes, plus, Bounds { default, min, max }) = (from?, plus?, bounds?);
        let plus = plus.unwrap_or(InputEstimate::Ignored);
        Some(Reserve::FromRequest { attributes, plus, default, min: min.unwrap_or_default(), max })
    }

    fn learned(self, section: &Section<'_>) -> Option<Reserve> {
        let quantile = section.need("learn").and_then(|field| QUANTILE.read(field));
        let by = section.optional("by", |field| {
            let attribute = self.attributes?.attribute_of_rule(&field, field.written()?)?;
            if let Attribute::Words(_) = attribute.source() {
                field.wrong(format_args!("`{}` is for `match` alone", attribute.source()), None);
                return None;
            }
            Some(attribute)
        });
        let min = section.need("min");
        let bounds = self.bounds(section);
        let (quantile, by, Bounds { default, min, max }) = (quantile?, by?, min.and(bounds)?);
        Some(Reserve::Learned(LearnedReserve { quantile, by, min: min?, max, default }))
    }

    fn bounds(self, section: &Section<'_>) -> Option<Bounds> {
        let amount = |field: Field<'_>| {
            let amount = match self.format() {
                AmountFormat::Number => field.cost()?,
                AmountFormat::Dollars => field.money()?,
            };
            at_most(amount, &field, self.ceiling)
        };
        let default = section.need("default").and_then(|field| Some((amount(field.clone())?, field)));
        let min = section.optional("min", amount);
        let max = section.optional("max", |field| Some((amount(field.clone())?, field)));
        let ((default, field), min, max) = (default?, min?, max?);
        let least = min.unwrap_or_default();
        if let Some((max, of_max)) = &max
            && *max < least
        {
            of_max.must(format_args!("be at least min ({least})"));
            return None;
        }
        let max = max.map(|(max, _)| max);
        match max {
            Some(max) if default > max || default < least => {
                field.must(format_args!("be from min ({least}) to max ({max})"));
                None
            }
            None if default < least => {
                field.must(format_args!("be at least min ({least})"));
                None
            }
            Some(_) | None => Some(Bounds { default, min, max }),
        }
    }

    /// Returns the most that these tokens can cost.
    fn cost_of(self, tokens: ExpectedTokens) -> Cost {
        let (reserve, default_cost) = (Reserve::Fixed(Cost::default()), None);
        SettledPrice { source: self.source.clone(), reserve, default_cost }.most_cost(tokens)
    }
}

/// The bounds of a reserve. `default` is the reserve of a request for which `from` or `learn` finds no amount.
struct Bounds {
    default: Cost,
    min: Option<Cost>,
    max: Option<Cost>,
}
