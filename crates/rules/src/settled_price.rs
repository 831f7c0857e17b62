//! Defines the price of a limit whose costs are known only when a request has ended. Until then, an amount is reserved.

use std::fmt;

use http::HeaderName;
use ledger::cost::Cost;
use ledger::money::{self, Amount, AmountFormat};
use llm::prices::NanoDollars;
use request::model_request::ModelRequest;

pub use super::json_place::JsonPlace;
pub use super::reserve::{ExpectedTokens, InputEstimate, LearnedCosts, LearnedReserve, Reserve};
pub use super::upstream_results::{UpstreamResult, UpstreamResults};
pub use super::weights::Weights;

/// The price of a request at a [budget](ledger::algorithm::budget): what is reserved, and where the true cost is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledPrice {
    pub source: SettledSource,
    pub reserve: Reserve,
    /// The cost of a request whose response names no cost. May be 0. `None` for the sources of language models if the
    /// file has no `default_cost`: then an estimate is the cost.
    pub default_cost: Option<Cost>,
}

impl SettledPrice {
    pub fn unit(&self) -> Unit {
        self.source.unit()
    }

    /// Returns whether the response tells the cost. With `count_on`, the cost is known before the response, and the
    /// result of the request only decides whether this cost counts.
    pub fn is_told_by_response(&self) -> bool {
        !matches!(self.source, SettledSource::CountOn { .. })
    }

    /// Returns the tokens that an estimate counts for content that a request only refers to, and for the output of a
    /// request that names no maximum. The reserve counts the same number.
    pub fn default_output(&self) -> u64 {
        match self.reserve {
            Reserve::Worst { default_output } => default_output,
            Reserve::Fixed(_) | Reserve::FromRequest { .. } | Reserve::Learned(_) => ModelRequest::DEFAULT_OUTPUT,
        }
    }

    /// Returns the most that these tokens can cost at a limit that counts tokens, and 0 at other limits. A cost in
    /// money is determined elsewhere, with the price of the model.
    pub fn most_cost(&self, tokens: ExpectedTokens) -> Cost {
        match &self.source {
            SettledSource::LlmTokens(weights) => weights.most_cost(tokens),
            SettledSource::LlmCost
            | SettledSource::ResponseHeader(_)
            | SettledSource::ResponseJson(_)
            | SettledSource::CountOn { .. } => Cost::default(),
        }
    }
}

/// Displays the source, the reserve and the default cost.
impl fmt::Display for SettledPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettledPrice { source, reserve, default_cost } = self;
        match source {
            SettledSource::CountOn { counted, resets } => {
                write!(f, "counts on {counted}")?;
                if !resets.is_empty() {
                    write!(f, ", resets on {resets}")?;
                }
            }
            _ => write!(f, "cost from {source}")?,
        }
        if let SettledSource::LlmTokens(weights) = source {
            write!(f, " ({weights})")?;
        }
        match reserve {
            Reserve::Fixed(cost) => write!(f, ", reserve {}", self.unit().amount(*cost))?,
            _ => write!(f, ", reserve {reserve}")?,
        }
        default_cost.iter().try_for_each(|cost| write!(f, ", otherwise {}", self.unit().amount(*cost)))
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Requests, or the costs that requests or their responses name.
    Requests,
    /// Tokens of language models, weighted by their kind.
    Tokens,
    /// Money: 10⁻⁹ USD is one thousandth of a [`Cost`].
    Dollars,
}

impl Unit {
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Requests => "requests",
            Unit::Tokens => "tokens",
            Unit::Dollars => "usd",
        }
    }

    /// Returns a cost at a limit with this unit as a number of units. The number may be inexact, so it is only for
    /// metrics and for people.
    #[expect(clippy::cast_precision_loss, reason = "no precision is lost below 2^53 thousandths")]
    pub fn number(self, cost: Cost) -> f64 {
        let thousandths = cost.thousandths() as f64;
        match self {
            Unit::Requests | Unit::Tokens => thousandths / 1e3,
            Unit::Dollars => thousandths / 1e9,
        }
    }

    /// Returns an amount of money as the cost at a limit that counts [`Unit::Dollars`].
    pub const fn cost_of(money: NanoDollars) -> Cost {
        Cost::from_thousandths(money.0)
    }

    /// Returns the cost of this number of units. At a limit that counts money, a unit is one USD. A cost that is too
    /// large becomes the largest cost.
    pub const fn times(self, number: Cost) -> Cost {
        match self {
            Unit::Requests | Unit::Tokens => number,
            Unit::Dollars => money::from_dollars(number),
        }
    }

    /// Returns an amount as the whole number in response fields, rounded down. An amount of money is in US cents.
    pub const fn whole(self, amount: Cost) -> u64 {
        match self {
            Unit::Requests | Unit::Tokens => amount.whole(),
            Unit::Dollars => money::cents(amount),
        }
    }

    /// Returns how amounts in this unit are displayed.
    pub const fn format(self) -> AmountFormat {
        match self {
            Unit::Requests | Unit::Tokens => AmountFormat::Number,
            Unit::Dollars => AmountFormat::Dollars,
        }
    }

    /// Returns an amount in this unit in the form in which it is displayed, such as `20` or `0.0045 USD`.
    pub const fn amount(self, amount: Cost) -> Amount {
        self.format().of(amount)
    }

    /// Returns the noun that follows an amount in messages. Empty for money, which [`Unit::amount`] displays with its
    /// currency.
    pub const fn noun(self) -> &'static str {
        match self {
            Unit::Requests => "requests",
            Unit::Tokens => "tokens",
            Unit::Dollars => "",
        }
    }
}

/// Where the true cost of a request is read when the request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettledSource {
    /// In this field of the response's head.
    ResponseHeader(HeaderName),
    /// In the response's JSON body, at this place.
    ResponseJson(JsonPlace),
    /// The tokens that the response of a language model names, weighted by their kind.
    LlmTokens(Weights),
    /// The price of the tokens that the response of a language model names, by the table of prices. The limit counts
    /// [`Unit::Dollars`].
    LlmCost,
    /// A request with a result in `counted` costs what is reserved. Any other result costs nothing. A result in `resets` also
    /// forgets what was spent of the bucket.
    CountOn { counted: UpstreamResults, resets: UpstreamResults },
}

impl SettledSource {
    /// Returns the unit of the costs.
    pub fn unit(&self) -> Unit {
        match self {
            SettledSource::LlmTokens(_) => Unit::Tokens,
            SettledSource::LlmCost => Unit::Dollars,
            SettledSource::ResponseHeader(_) | SettledSource::ResponseJson(_) | SettledSource::CountOn { .. } => {
                Unit::Requests
            }
        }
    }

    /// Returns whether the end of a request can also forget what was spent.
    pub fn resets(&self) -> bool {
        matches!(self, SettledSource::CountOn { resets, .. } if !resets.is_empty())
    }

    /// Returns whether the source reads requests to language models and their responses.
    pub fn is_llm(&self) -> bool {
        matches!(self, SettledSource::LlmTokens(_) | SettledSource::LlmCost)
    }
}

/// Displays the source as gateway.yaml names it.
impl fmt::Display for SettledSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettledSource::ResponseHeader(name) => write!(f, "response_header:{name}"),
            SettledSource::ResponseJson(place) => write!(f, "response_json:{place}"),
            SettledSource::LlmTokens(_) => f.write_str("llm_tokens"),
            SettledSource::LlmCost => f.write_str("llm_cost"),
            SettledSource::CountOn { counted, resets } if resets.is_empty() => write!(f, "count_on {counted}"),
            SettledSource::CountOn { counted, resets } => write!(f, "count_on {counted}, reset_on {resets}"),
        }
    }
}
