//! Finds values that do less, or more, than they seem to do.

use ipnet::IpNet;

use super::constraints::Constraints;
use super::file::File;
use super::location::Finding;
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::rule::{Action, Condition, OnStoreFailure};

/// Finds networks with bits after the prefix, such as `10.1.2.3/8`, which may be meant as a single address.
pub(super) fn host_bits(file: &File<'_>) -> Vec<Finding> {
    let hint = "write the network itself, or the address alone";
    file.config.remarks.host_bits.iter().map(|remark| Finding::of_remark(remark, hint)).collect()
}

/// Finds an empty list of rules, with which the gateway limits nothing.
pub(super) fn no_rules(file: &File<'_>) -> Vec<Finding> {
    let hint = "add a rule; a plain proxy needs no `rules`";
    let what = "is empty: nothing is limited";
    match (file.root.has("rules"), file.root.has("policies")) {
        (true, _) if file.policies.iter().all(|policy| policy.rules.is_empty()) => {
            vec![file.root.key("rules").finding(what, hint)]
        }
        (_, true) if file.policies.is_empty() => vec![file.root.key("policies").finding(what, hint)],
        (_, true) => {
            let empty = file.policies.iter().enumerate().filter(|(_, policy)| policy.rules.is_empty());
            let rules = |index| file.root.key("policies").member(index).key("rules");
            empty
                .map(|(index, _)| {
                    rules(index).finding("is empty: the policy limits nothing", "add a rule, or remove it")
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Finds exemptions that contain every address or every request. Such an exemption turns all limits off.
pub(super) fn exempt_everybody(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, conditions) in file.exempt.iter().enumerate() {
        if conditions.iter().all(holds_always) {
            let what = "exempts every request: no limit counts any of them";
            found.push(file.root.key("exempt").member(index).finding(what, "name the requests that are meant"));
        }
        if let [Condition { attribute: Attribute::Address, expectation: Expectation::Cidr(networks) }] = &conditions[..]
            && let Some(everybody) = networks.iter().find(|network| network.prefix_len() == 0)
        {
            let version = if matches!(everybody, IpNet::V4(_)) { "IPv4" } else { "IPv6" };
            let what = format!("exempts {everybody}, which is every {version} client: no limit counts them");
            found.push(file.root.key("exempt").member(index).finding(what, "name the networks that are meant"));
        }
    }
    found
}

fn holds_always(condition: &Condition) -> bool {
    let is_every_path = |text: &Text| matches!(text, Text::Subtree(root) if root.is_empty());
    let names_every_path =
        |one: &Expectation| matches!(one, Expectation::AnyOf(texts) if texts.iter().any(is_every_path));
    Constraints::default().implies(condition)
        || (condition.attribute == Attribute::Path && condition.expectation.operators().iter().all(names_every_path))
}

/// Finds a shared store without `gateways`, if a limit has `on_store_failure: local`. While the store fails, each
/// gateway then grants the whole limit by itself.
pub(super) fn undivided_share(file: &File<'_>) -> Vec<Finding> {
    let store = file.root.key("store");
    if !file.config.store.is_shared() || store.has("gateways") {
        return Vec::new();
    }
    let is_local = |action: &Action| match action {
        Action::Charge(limits) => limits.iter().any(|limit| limit.on_store_failure == OnStoreFailure::Local),
        Action::Allow | Action::Deny => false,
    };
    let Some(rule) = file.rules().find(|rule| rule.is_enforced() && is_local(&rule.rule.action)) else {
        return Vec::new();
    };
    let what = format!(
        "has no `gateways`: a gateway that starts while the store is away counts `{}` alone, each to the whole limit",
        rule.rule.name
    );
    vec![store.finding(what, "say how many gateways there are at least, or `gateways: 1` if there is only one")]
}
