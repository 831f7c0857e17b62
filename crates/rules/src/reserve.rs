//! Defines the amount that a budget holds while a request is under way.

use std::fmt;

use ledger::charge::LimitId;
use ledger::cost::Cost;
use request::attribute::Attribute;
use request::model_request::ModelRequest;

/// The amount that is held while a request is under way, in the limit's unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    Fixed(Cost),
    /// The request names the amount as a whole number, within bounds. At a limit with `count_on` the number may have decimals.
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
    /// The most that the request can cost: its own maximum of output, and the estimate of its input.
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

/// A reserve that is learned from the costs of earlier requests. It is never more than the request can cost, nor more than a
/// full bucket holds, but at least `min`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedReserve {
    /// The share of earlier requests that have cost at most the amount, in thousandths, from 1 to 1000.
    pub quantile: u16,
    /// Requests with the same value of this attribute are learned together. `None`: all requests of the limit.
    pub by: Option<Attribute>,
    pub min: Cost,
    /// The largest amount. `None`: there is no such setting.
    pub max: Option<Cost>,
    /// The amount until enough requests have ended.
    pub default: Cost,
}

/// The costs of earlier requests, from which reserves are learned.
pub trait LearnedCosts: fmt::Debug {
    /// Returns the cost that so many thousandths (`quantile`) of the last requests of a limit did not exceed. The requests had this
    /// value of the attribute `by`. `None` if too few requests have ended.
    fn quantile(&self, limit: LimitId, quantile: u16, by: Option<&[u8]>) -> Option<Cost>;
}

/// The tokens of a request to a language model before its response is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedTokens {
    /// The estimate of the tokens in the request.
    pub input: u64,
    /// The most tokens that the response can have.
    pub output: u64,
}

impl ExpectedTokens {
    /// Returns the most tokens that a request and its response can have. `default_output` is for a request without a maximum, and
    /// for content that the request only refers to. `None` if such a default is needed and is missing.
    pub fn most(request: &ModelRequest, default_output: Option<u64>) -> Option<ExpectedTokens> {
        let is_bounded = request.body.max_output.is_some() && !request.body.has_content_elsewhere;
        let default = if is_bounded { 0 } else { default_output? };
        Some(ExpectedTokens { input: request.input_estimate(default), output: request.body.most_output(default) })
    }

    /// Estimates the tokens of what a request sends itself.
    pub(crate) fn sent(request: &ModelRequest) -> ExpectedTokens {
        ExpectedTokens { input: request.input_estimate(0), output: 0 }
    }
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

    /// Returns the largest amount that a request may reserve, even if a full bucket holds less. `None` if there is no bound.
    pub fn most(&self) -> Option<Cost> {
        match self {
            Reserve::Fixed(cost) => Some(*cost),
            Reserve::FromRequest { default, min, max, .. } => max.map(|max| max.max(*min).max(*default)),
            Reserve::Worst { .. } => None,
            // A larger amount is lowered to what a full bucket holds.
            Reserve::Learned(learned) => Some(learned.min),
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
                write!(f, "from {}{plus} (without it {default})", names.join("|"))
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
