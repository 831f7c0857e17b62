//! Defines the amount that a budget holds while a request is under way.

use std::fmt;

use ledger::cost::Cost;
use request::attribute::Attribute;

/// The amount that is held while a request is under way, in the limit's unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    Fixed(Cost),
    /// The request names the amount, within bounds.
    FromRequest {
        /// The places of the amount. The first that the request has is used.
        attributes: Vec<Attribute>,
        /// Whether the estimate of the request's input is added.
        plus: InputEstimate,
        /// The amount of a request that names none.
        default: Cost,
        min: Cost,
        max: Option<Cost>,
    },
    /// The largest amount that the request can cost: its own maximum of output, and the estimate of its input.
    Worst {
        /// The tokens of output of a request that names no maximum.
        default_output: u64,
    },
    Learned(LearnedReserve),
}

/// Whether the estimate of a request's input is added to an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEstimate {
    Ignored,
    Added,
}

/// A reserve that is learned from the costs of earlier requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedReserve {
    /// The share of earlier requests that have cost at most the amount, in thousandths, from 1 to 1000.
    pub quantile: u16,
    /// Requests with the same value of this attribute are learned together. `None`: all requests of the limit.
    pub by: Option<Attribute>,
    pub min: Cost,
    /// The largest amount. `None`: what the request can cost at most.
    pub max: Option<Cost>,
    /// The amount until enough requests have ended.
    pub default: Cost,
}

impl Reserve {
    /// Returns the smallest amount that a request may reserve.
    pub fn least(&self) -> Cost {
        match self {
            Reserve::Fixed(cost) => *cost,
            Reserve::FromRequest { default, min, .. } => *default.min(min),
            // A request may ask for no output, and have no input.
            Reserve::Worst { .. } => Cost::default(),
            Reserve::Learned(learned) => learned.min.min(learned.default),
        }
    }

    /// Returns the largest amount that a request may reserve. `None` if there is no bound.
    pub fn most(&self) -> Option<Cost> {
        match self {
            Reserve::Fixed(cost) => Some(*cost),
            Reserve::FromRequest { default, min, max, .. } => max.map(|max| max.max(*min).max(*default)),
            Reserve::Worst { .. } => None,
            Reserve::Learned(learned) => learned.max.map(|max| max.max(learned.default)),
        }
    }

    /// Returns the attributes that name the amount.
    pub fn attributes(&self) -> &[Attribute] {
        match self {
            Reserve::FromRequest { attributes, .. } => attributes,
            Reserve::Fixed(_) | Reserve::Worst { .. } => &[],
            Reserve::Learned(learned) => learned.by.as_slice(),
        }
    }
}

/// Displays the amount, or where it comes from.
impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reserve::Fixed(cost) => write!(f, "{cost}"),
            Reserve::FromRequest { attributes, plus, default, .. } => {
                let names: Vec<String> = attributes.iter().map(ToString::to_string).collect();
                let plus = if *plus == InputEstimate::Added { " plus input" } else { "" };
                write!(f, "from {}{plus}, otherwise {default}", names.join("|"))
            }
            Reserve::Worst { default_output } => write!(f, "worst case, {default_output} tokens of output by default"),
            Reserve::Learned(learned) => {
                let LearnedReserve { quantile, by, default, .. } = learned;
                let (whole, part) = (quantile / 10, quantile % 10);
                let fraction = if part == 0 { String::new() } else { format!(".{part}") };
                write!(f, "learned, {whole}{fraction}%")?;
                by.iter().try_for_each(|by| write!(f, " by {by}"))?;
                write!(f, ", {default} at first")
            }
        }
    }
}
