//! Finds costs that clients choose themselves, without bounds against abuse.

use super::file::File;
use super::location::Finding;
use rules::rule::{Action, Price};
use rules::settled_price::{Reserve, SettledPrice, SettledSource};

/// Finds limits whose cost the client chooses without sufficient bounds, such as a tiny cost.
pub(super) fn client_chosen_cost(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules().filter(|located| located.is_enforced()) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        for limit in limits {
            let location = located.numbers(limit);
            let (Some(attribute), default, min, max) = (match &limit.price {
                Price::FromRequest { attribute, default, min, max } => (Some(attribute), default, min, max),
                Price::Settled(SettledPrice {
                    source: SettledSource::CountOn { .. },
                    reserve: Reserve::FromRequest { attributes, default, min, max, .. },
                    ..
                }) => (attributes.first(), default, min, max),
                Price::Fixed(_) | Price::Settled(_) => continue,
            }) else {
                continue;
            };
            if min < default {
                let what = format!("with {attribute} a request pays as little as {min}, and {default} without it");
                found.push(
                    location
                        .key("min_cost")
                        .finding(what, format!("set min_cost to {default}, or default_cost to {min}")),
                );
            }
            let most = limit.algorithm.ceiling();
            // A number in the client's credential may give the client a bucket that holds more than `most`.
            if let Some(max) = max.filter(|max| *max > most && limit.claimed.is_none()) {
                let what = format!(
                    "is {max}, and the bucket holds {most}: a request that names more than that is refused, however full it is"
                );
                found.push(location.key("max_cost").finding(what, format!("set max_cost to {most} at most")));
            }
            if max.is_none() {
                let what = format!("missing: by {attribute} one request may take the whole bucket");
                found.push(location.key("max_cost").finding(what, "set max_cost to the dearest request that there is"));
            }
        }
    }
    found
}
