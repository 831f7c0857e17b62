//! Finds problems of budgets: costs can pass the limit, a timeout cuts the responses of models, or a model has no price.

use super::file::{File, LocatedRule};
use super::location::{Finding, Location};
use crate::keys::upstreams::upstream::Upstream;
use base::time::Micros;
use ledger::cost::Cost;
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::route::route_set::Route;
use rules::route::target::Target;
use rules::rule::{Action, Limit, Price};
use rules::settled_price::{Reserve, SettledPrice, Unit};

/// How long the first byte of a model's response may take, if the response is not streamed.
const LONG_ANSWER: Micros = Micros(300_000_000);

/// Finds budgets that reserve nothing while a request is under way.
pub(super) fn charged_afterwards(file: &File<'_>) -> Vec<Finding> {
    let nothing = |price: &SettledPrice| matches!(price.reserve, Reserve::Fixed(cost) if cost == Cost::default());
    let budgets = budgets(file).into_iter().filter(|(_, price)| nothing(price));
    let hint = "reserve what a request usually costs";
    let what = "is 0: while anything is left, every request is admitted, and all that are under way at the same time can \
                pass the limit by their whole costs";
    budgets.map(|(location, _)| location.key("reserve").finding(what, hint)).collect()
}

/// Finds limits on language models in a file whose timeouts cut a long response that is not streamed.
pub(super) fn short_first_byte(file: &File<'_>) -> Vec<Finding> {
    // All requests of the limit may take the route with the longest timeout. So only this timeout is compared.
    let timeouts = file.config.routes.routes().iter().filter_map(|route| first_byte(route, &file.config.upstreams));
    let Some(longest) = timeouts.max().filter(|longest| *longest < LONG_ANSWER) else { return Vec::new() };
    let models = budgets(file).into_iter().filter(|(_, price)| price.source.is_llm());
    let what = format!(
        "counts responses of models, whose first byte may take {} ms: a long response that is not streamed becomes a 504",
        longest.0 / 1000
    );
    let hint = "set first_byte in the timeouts of the upstream or route, to 5m or longer";
    models.map(|(location, _)| location.key("cost_source").finding(what.clone(), hint)).collect()
}

/// Finds rules with a limit on money whose `match` names a model without a price.
pub(super) fn unpriced_model(file: &File<'_>) -> Vec<Finding> {
    let Some(prices) = &file.config.prices else { return Vec::new() };
    let counts_money = |limit: &Limit| match &limit.price {
        Price::Settled(price) => price.unit() == Unit::Dollars,
        Price::Fixed(_) | Price::FromRequest { .. } => false,
    };
    let mut found = Vec::new();
    for located in file.rules().filter(LocatedRule::is_enforced) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        if !limits.iter().any(counts_money) {
            continue;
        }
        let conditions = located.rule.conditions.iter().filter(|condition| condition.attribute == Attribute::Model);
        let mut unpriced: Vec<&str> = conditions.flat_map(|condition| named(&condition.expectation)).collect();
        unpriced.retain(|model| prices.model(model).is_none());
        if !unpriced.is_empty() {
            let what = format!("has no price for {}: such requests are refused with 400", unpriced.join(", "));
            let hint = "add a line to the file of prices, or a `default`";
            found.push(located.location.key("match").key("llm:model").finding(what, hint));
        }
    }
    found
}

/// Returns the models that an expectation names by their whole names.
fn named(expectation: &Expectation) -> Vec<&str> {
    let texts = expectation.operators().iter().filter_map(|one| match one {
        Expectation::AnyOf(texts) => Some(texts),
        _ => None,
    });
    let names = texts.flatten().filter_map(|text| match text {
        Text::Exact(name) => std::str::from_utf8(name).ok(),
        Text::Subtree(_) | Text::Subdomain(_) => None,
    });
    names.collect()
}

/// Returns the enforced limits whose costs are settled when a request has ended, each with its location.
fn budgets<'f>(file: &File<'f>) -> Vec<(Location<'f>, &'f SettledPrice)> {
    let mut found = Vec::new();
    for located in file.rules().filter(LocatedRule::is_enforced) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        for limit in limits {
            if let Price::Settled(price) = &limit.price {
                found.push((located.numbers(limit), price));
            }
        }
    }
    found
}

/// Returns the longest time that the first byte of a response on this route may take. `None` if the route leads to no upstream.
fn first_byte(route: &Route, upstreams: &[Upstream]) -> Option<Micros> {
    let own = route.forwarding.as_ref().map(|forwarding| forwarding.overrides.timeouts).unwrap_or_default();
    let of_upstream = |upstream: &Upstream| {
        let timeouts = upstream.timeouts;
        own.first_byte.or(timeouts.first_byte).or(own.read).unwrap_or(timeouts.read)
    };
    if matches!(route.target, Target::Answer(_)) {
        return None;
    }
    let ids = route.upstreams();
    ids.iter().filter_map(|id| upstreams.get(usize::try_from(id.0).ok()?)).map(of_upstream).max()
}
