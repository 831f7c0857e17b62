//! Finds prices that the client itself names, without bounds that make that fair.

use super::File;
use super::location::{Finding, Location};
use crate::limit::rule::{Action, Limit, Price};

/// A request may say that it costs next to nothing, or all that there is.
pub fn client_chosen_cost(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for standing in file.rules().filter(|standing| standing.is_enforced()) {
        let Action::Charge(limits) = &standing.rule.action else { continue };
        for limit in limits {
            let spot = numbers(&standing.spot, limit);
            let Price::Asked { attribute, default, min, max } = &limit.price else { continue };
            if min < default {
                let what = format!("with {attribute} a request pays as little as {min}, and {default} without it");
                found.push(
                    spot.key("min_cost").finding(what, format!("set min_cost to {default}, or default_cost to {min}")),
                );
            }
            if max.is_none() {
                let what = format!("missing: by {attribute} one request may take the whole bucket");
                found.push(spot.key("max_cost").finding(what, "set max_cost to the dearest request that there is"));
            }
        }
    }
    found
}

/// Where the numbers of a limit stand.
pub fn numbers<'t>(rule: &Location<'t>, limit: &Limit) -> Location<'t> {
    match &*limit.name {
        "" => rule.key("algorithm_config"),
        name => rule.key("limits").key(name),
    }
}
