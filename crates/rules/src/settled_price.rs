//! Defines the price of a limit whose costs are known only when a request has ended. While the request is under way, an amount
//! is reserved.

use std::fmt;

use http::HeaderName;
use ledger::cost::Cost;

/// The price of a request at a [budget](ledger::algorithm::budget): what is reserved, and where the true cost stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledPrice {
    pub source: SettledSource,
    pub reserve: Reserve,
    /// The cost of a request whose response names no cost. May be 0. `None` if the file has no `default_cost`.
    pub default_cost: Option<Cost>,
}

/// Where the cost of a request stands when the request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettledSource {
    /// In this field of the response's head.
    ResponseHeader(HeaderName),
}

/// Displays the source as gateway.yaml names it.
impl fmt::Display for SettledSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettledSource::ResponseHeader(name) => write!(f, "response_header:{name}"),
        }
    }
}

/// The amount that is held while a request is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    Fixed(Cost),
}
