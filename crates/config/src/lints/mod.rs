//! Finds parts of a file that are valid but unwise, such as limits that a client can evade, and rules without effect.
//!
//! A lint is a name and a function, both listed in [`LINTS`]. docs/warnings.md explains each lint. Lints examine only
//! keys without problems. They report only what is certain, because wrong warnings teach people to ignore all warnings.

mod access;
pub(crate) mod bans;
mod budgets;
mod certificates;
mod client_chosen_cost;
pub(super) mod constraints;
mod doors;
mod double_first_period;
mod example;
mod expired_rule;
mod file;
mod forgotten_period;
mod impossible_value;
mod large_log;
pub(crate) mod location;
mod missing_head;
mod open_policy;
mod preflights;
mod proxies;
mod queues;
mod readable_secret;
mod regions;
mod route_changes;
mod routes;
mod rule_order;
pub(crate) mod several_buckets;
mod several_nodes;
mod stranded_share;
mod texts;
mod transport;
mod unknown_value;
mod unlisted_value;
mod unreachable_limit;
mod unverified_key;
pub(crate) mod valid_rest;
mod without_effect;

use crate::config::Config;
use crate::language::tree::Node;
use crate::language::warning::Warning;
use file::File;
use location::Finding;

type Lint = fn(&File<'_>) -> Vec<Finding>;

/// All lints, each with its name. A name never changes, because files use the name to turn the lint off.
pub const LINTS: [(&str, Lint); 54] = [
    ("unverified_key", unverified_key::unverified_key),
    ("open_policy", open_policy::open_policy),
    ("missing_head", missing_head::missing_head),
    ("unreachable_rule", rule_order::unreachable_rule),
    ("late_deny", rule_order::late_deny),
    ("unreachable_limit", unreachable_limit::unreachable_limit),
    ("impossible_value", impossible_value::impossible_value),
    ("unlisted_value", unlisted_value::unlisted_value),
    ("client_chosen_cost", client_chosen_cost::client_chosen_cost),
    ("charged_afterwards", budgets::charged_afterwards),
    ("shared_ban", bans::shared_ban),
    ("forced_ban", bans::forced_ban),
    ("shared_reset", bans::shared_reset),
    ("double_first_period", double_first_period::double_first_period),
    ("forgotten_period", forgotten_period::forgotten_period),
    ("large_log", large_log::large_log),
    ("expired_rule", expired_rule::expired_rule),
    ("expired_certificate", certificates::expired_certificate),
    ("unused_queue", queues::unused_queue),
    ("short_drain", queues::short_drain),
    ("short_first_byte", budgets::short_first_byte),
    ("unpriced_model", budgets::unpriced_model),
    ("missing_at_door", doors::missing_at_door),
    ("queue_at_door", doors::queue_at_door),
    ("slots_at_door", doors::slots_at_door),
    ("public_admin", access::public_admin),
    ("trust_everyone", proxies::trust_everyone),
    ("open_proxy_protocol", proxies::open_proxy_protocol),
    ("exempt_proxy", proxies::exempt_proxy),
    ("guessable_names", access::guessable_names),
    ("readable_secret", readable_secret::readable_secret),
    ("clear_claim", access::clear_claim),
    ("unlogged_attribute", access::unlogged_attribute),
    ("cleartext_password", transport::cleartext_password),
    ("unverified_server", transport::unverified_server),
    ("unreachable_route", routes::unreachable_route),
    ("unused_upstream", routes::unused_upstream),
    ("own_address", routes::own_address),
    ("redirect_loop", route_changes::redirect_loop),
    ("changed_identity", route_changes::changed_identity),
    ("several_nodes", several_nodes::several_nodes),
    ("stranded_share", stranded_share::stranded_share),
    ("region_in_memory", regions::region_in_memory),
    ("home_durability", regions::home_durability),
    ("home_local", regions::home_local),
    ("global_without_store", regions::global_without_store),
    ("short_answer", regions::short_answer),
    ("home_unused", regions::home_unused),
    ("refused_preflight", preflights::refused_preflight),
    ("host_bits", without_effect::host_bits),
    ("no_rules", without_effect::no_rules),
    ("exempt_everybody", without_effect::exempt_everybody),
    ("undivided_share", without_effect::undivided_share),
    ("unknown_value", unknown_value::unknown_value),
];

/// Runs all lints except those in `allowed`. Returns their warnings in the order of the file.
pub fn warnings(config: &Config, allowed: &[&str], tree: &Node) -> Vec<Warning> {
    let file = File::new(config, tree);
    let wanted = LINTS.iter().filter(|(name, _)| !allowed.contains(name));
    let mut warnings: Vec<Warning> =
        wanted.flat_map(|(name, lint)| lint(&file).into_iter().map(|finding| finding.named(name))).collect();
    warnings.sort_by_key(|warning| warning.position);
    warnings
}
