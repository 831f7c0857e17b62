//! Finds problems of budgets: costs can pass the limit, a timeout cuts the responses of models, or a model has no price.

use super::constraints::Constraints;
use super::file::{File, LocatedRule};
use super::location::{Finding, Location};
use crate::keys::upstreams::upstream::Upstream;
use base::time::Micros;
use ledger::cost::Cost;
use llm::formats::Endpoint;
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::route::route_set::Route;
use rules::rule::{Action, Condition, Limit, Price};
use rules::settled_price::{Reserve, SettledPrice, Unit};

/// How long the first byte of a model's response may take, if the response is not streamed.
const LONG_ANSWER: Micros = Micros(300_000_000);

/// The largest number of models that one finding names.
const MOST_NAMED: usize = 5;

/// Finds budgets that reserve nothing while a request is under way.
pub(super) fn charged_afterwards(file: &File<'_>) -> Vec<Finding> {
    let nothing = |price: &SettledPrice| matches!(price.reserve, Reserve::Fixed(cost) if cost == Cost::default());
    let budgets = budgets(file).into_iter().filter(|(_, price)| nothing(price));
    let hint = "reserve what a request usually costs";
    let what = "is 0: while anything is left, every request is admitted, and all that are under way at the same time can \
                pass the limit by their whole costs";
    budgets.map(|(location, _)| location.key("reserve").finding(what, hint)).collect()
}

/// Finds limits on language models whose requests may take a route that times out before a response that is not
/// streamed begins.
pub(super) fn short_first_byte(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules().filter(LocatedRule::is_enforced) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        let counts_models = |limit: &&Limit| matches!(&limit.price, Price::Settled(price) if price.source.is_llm());
        let mut of_models = limits.iter().filter(counts_models).peekable();
        if of_models.peek().is_none() {
            continue;
        }
        let Some((shortest, route)) = shortest_first_byte(file, &located).filter(|(time, _)| *time < LONG_ANSWER)
        else {
            continue;
        };
        let on = match file.config.routes.routes() {
            [_] => String::new(),
            _ => format!(" on route `{}`", route.name),
        };
        let what = format!(
            "counts responses of models, whose first byte may take {} ms{on}: a long response that is not streamed becomes a 504",
            shortest.0 / 1000
        );
        let hint = "set first_byte in the timeouts of the upstream or route, to 5m or longer";
        found.extend(of_models.map(|limit| located.numbers(limit).key("cost_source").finding(what.clone(), hint)));
    }
    found
}

/// Returns the shortest timeout for the first byte of a response, among the routes of requests to models under this
/// rule. `None` if there is no such route.
fn shortest_first_byte<'f>(file: &File<'f>, located: &LocatedRule<'f>) -> Option<(Micros, &'f Route)> {
    let is = |attribute: Attribute, text: &str| {
        let expectation = Expectation::AnyOf(vec![Text::exact(text)]);
        Condition { attribute, expectation }
    };
    // Only POST requests cost tokens.
    let post = is(Attribute::Method, "POST");
    let constraints = Constraints::under(located.policy, located.rule).and(&Constraints::of([&post]));
    let mut shortest: Option<(Micros, &Route)> = None;
    for route in file.config.routes.routes() {
        let is_other = route.conditions.iter().any(|one| constraints.excludes(one) || excludes_models(one));
        if is_other || constraints.excludes(&is(Attribute::Route, &route.name)) {
            continue;
        }
        let is_met = |upstream: &&Upstream| !constraints.excludes(&is(Attribute::Upstream, &upstream.name));
        let times = upstreams(route, file).filter(is_met).map(|upstream| (first_byte(route, upstream), route));
        shortest = shortest.into_iter().chain(times).min_by_key(|(time, _)| *time);
        // This route takes all remaining requests under this rule.
        if route.conditions.iter().all(|condition| constraints.implies(condition)) {
            break;
        }
    }
    shortest
}

/// Whether no request to a model meets the condition, because it lists only paths without a known format.
fn excludes_models(condition: &Condition) -> bool {
    let is_no_format = |text: &Text| matches!(text, Text::Exact(path) if Endpoint::of_path(path).is_none());
    condition.attribute == Attribute::Path
        && condition.expectation.operators().iter().any(|operator| match operator {
            Expectation::AnyOf(texts) => texts.iter().all(is_no_format),
            _ => false,
        })
}

/// Finds limits on money that a request to a model without a price can meet, because `match` of the rule or of its
/// policy names the model.
pub(super) fn unpriced_model(file: &File<'_>) -> Vec<Finding> {
    let Some(prices) = &file.config.prices else { return Vec::new() };
    let counts_money = |limit: &Limit| match &limit.price {
        Price::Settled(price) => price.unit() == Unit::Dollars,
        Price::Fixed(_) | Price::FromRequest { .. } => false,
    };
    let unpriced = |conditions: &[Condition], others: &[Condition], location: Location<'_>| {
        let others = Constraints::of(others);
        let mut models: Vec<String> = Vec::new();
        for condition in conditions.iter().filter(|condition| condition.attribute == Attribute::Model) {
            let refused = named(&condition.expectation).into_iter().filter(|model| prices.model(model).is_none());
            models.extend(refused.map(str::to_owned));
        }
        models.retain(|model| {
            let expectation = Expectation::AnyOf(vec![Text::exact(model)]);
            !others.excludes(&Condition { attribute: Attribute::Model, expectation })
        });
        let first = models.get(..MOST_NAMED).unwrap_or(&models).join(", ");
        let more = match models.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!models.is_empty()).then(|| {
            let what = format!("has no price for {first}{more}: such requests are refused with 400");
            location.key("match").key("llm:model").finding(what, "add a line to the file of prices, or a `default`")
        })
    };
    let mut found = Vec::new();
    for (index, policy) in file.policies.iter().enumerate() {
        let rules = file.rules_of(index).into_iter().filter(LocatedRule::is_enforced);
        let mut is_of_policy_found = false;
        for LocatedRule { rule, location, .. } in rules {
            let Action::Charge(limits) = &rule.action else { continue };
            if !limits.iter().any(counts_money) {
                continue;
            }
            if !is_of_policy_found {
                let of_policy = file.root.key("policies").member(index);
                let finding = unpriced(&policy.conditions, &rule.conditions, of_policy);
                is_of_policy_found = finding.is_some();
                found.extend(finding);
            }
            found.extend(unpriced(&rule.conditions, &policy.conditions, location));
        }
    }
    found
}

/// Returns the models that an expectation names by their whole names.
fn named(expectation: &Expectation) -> Vec<&str> {
    let mut names: Vec<&[u8]> = Vec::new();
    for operator in expectation.operators() {
        match operator {
            Expectation::AnyOf(texts) => names.extend(texts.iter().filter_map(|text| match text {
                Text::Exact(name) => Some(&name[..]),
                Text::Subtree(_) | Text::Subdomain(_) => None,
            })),
            Expectation::InFile(list) => names.extend(list.texts()),
            _ => {}
        }
    }
    names.into_iter().filter_map(|name| std::str::from_utf8(name).ok()).collect()
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

/// Returns the upstreams to which a route leads.
fn upstreams<'f>(route: &Route, file: &File<'f>) -> impl Iterator<Item = &'f Upstream> {
    let all = &file.config.upstreams;
    route.upstreams().into_iter().filter_map(|id| all.get(usize::try_from(id.0).ok()?))
}

/// Returns how long the first byte of a response may take on this route to this upstream.
fn first_byte(route: &Route, upstream: &Upstream) -> Micros {
    let own = route.forwarding.as_ref().map(|forwarding| forwarding.overrides.timeouts).unwrap_or_default();
    let timeouts = upstream.timeouts;
    own.first_byte.or(timeouts.first_byte).or(own.read).unwrap_or(timeouts.read)
}
