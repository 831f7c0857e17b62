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
    /// The request names the amount, and `min` and `max` bound it.
    FromRequest {
        /// The attributes that name the amount. The first of them that the request has is used.
        attributes: Vec<Attribute>,
        plus: InputEstimate,
        /// The amount of a request that names no amount.
        default: Cost,
        min: Cost,
        max: Option<Cost>,
    },
    /// The most that the request can cost, from its own maximum of output tokens and the estimate of its input tokens.
    Worst {
        /// The tokens of output of a request that names no maximum of output.
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

/// A reserve that is learned from the costs of earlier requests. It is at least `min`. Above `min`, it is at most what
/// the request can cost, and at most what a full bucket holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedReserve {
    /// The share of earlier requests that have cost at most the amount, in thousandths, from 1 to 1000.
    pub quantile: u16,
    /// Requests with the same value of this attribute are learned together. `None`: all requests of the limit.
    pub by: Option<Attribute>,
    pub min: Cost,
    /// The largest amount. `None` without this setting.
    pub max: Option<Cost>,
    /// The amount that is reserved until enough requests have ended to learn from.
    pub default: Cost,
}

/// The costs of earlier requests, from which reserves are learned.
pub trait LearnedCosts: fmt::Debug {
    /// Looks at the last requests of a limit that had this value of the attribute [`LearnedReserve::by`]. Returns the
    /// cost that `quantile` thousandths of them did not exceed. `None` if too few of them have ended.
    fn quantile(&self, limit: LimitId, quantile: u16, by: Option<&[u8]>) -> Option<Cost>;
}

/// The tokens that a request to a language model is expected to use, before its response is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedTokens {
    /// The estimate of the tokens in the request.
    pub input: u64,
    /// The most tokens that the response can have.
    pub output: u64,
}

impl ExpectedTokens {
    /// Returns the most tokens that a request and its response can have. `default_output` is used for a request without
    /// a maximum of output, and for content that the request only refers to. Returns `None` if `default_output` is
    /// needed and is `None`.
    pub fn most(request: &ModelRequest, default_output: Option<u64>) -> Option<ExpectedTokens> {
        let is_bounded = request.body.max_output.is_some() && !request.body.has_content_elsewhere;
        let default = if is_bounded { 0 } else { default_output? };
        Some(ExpectedTokens { input: request.input_estimate(default), output: request.body.most_output(default) })
    }

    /// Estimates the tokens of the request, without content that the request only refers to.
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

    /// Returns the largest amount that a request may reserve, even if a full bucket holds less. `None` if there is no
    /// bound.
    pub fn most(&self) -> Option<Cost> {
        match self {
            Reserve::Fixed(cost) => Some(*cost),
            Reserve::FromRequest { default, min, max, .. } => max.map(|max| max.max(*min).max(*default)),
            Reserve::Worst { .. } => None,
            // Any amount above `min` is lowered to what a full bucket holds, so only `min` can be more than that.
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
