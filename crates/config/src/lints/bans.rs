//! Finds bans that one client can cause for others: for clients that share its address, or for the client whose name it
//! sends. Also finds counts of guesses that anybody can reset, and bans of buckets on several nodes of a cluster, which
//! are errors.

use super::constraints::Constraints;
use super::file::{File, LocatedRule};
use super::location::{Finding, Location};
use crate::config::Config;
use crate::language::tree::Node;
use request::attribute::Attribute;
use rules::rule::{Action, Limit, LimitKey, Price};

/// Finds bans of limits that distinguish only what many people share, such as addresses, or no clients at all.
pub(super) fn shared_ban(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (located, ban) in bans(file) {
        let mut attributes = located.rule.keys.iter().flat_map(|key| &key.alternatives).map(Attribute::source);
        let is_shared = |attribute| is_of_address(attribute) || is_of_target(attribute) || is_of_program(attribute);
        if !attributes.clone().all(is_shared) {
            continue;
        }
        let program = attributes.clone().find(|attribute| is_of_program(attribute));
        let (what, hint) = match (attributes.any(is_of_address), program) {
            (true, None) => (
                "bans an address, which many people may share: one of them can lock out all others".to_owned(),
                "add what distinguishes people to limit_keys, or give the limit no ban",
            ),
            (true, Some(program)) => (
                format!(
                    "bans an address with a {program}, which many people may share: one of them can lock out all others"
                ),
                "add what distinguishes people to limit_keys, or give the limit no ban",
            ),
            (false, None) => (
                "bans everybody as soon as one client is beyond the limit".to_owned(),
                "add what distinguishes clients to limit_keys",
            ),
            (false, Some(program)) => (
                format!("bans all clients with the same {program} as soon as one of them is beyond the limit"),
                "add what distinguishes clients to limit_keys",
            ),
        };
        found.push(ban.finding(what, hint));
    }
    found
}

/// Finds limits with `reset_on` that count by an address alone, or all requests.
pub(super) fn shared_reset(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules().filter(LocatedRule::is_enforced) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        let mut attributes = located.rule.keys.iter().flat_map(|key| &key.alternatives).map(Attribute::source);
        if !attributes.all(|attribute| is_of_address(attribute) || is_of_target(attribute)) {
            continue;
        }
        let resets = |limit: &&Limit| matches!(&limit.price, Price::Settled(price) if price.source.resets());
        for limit in limits.iter().filter(resets) {
            let what = "a client with one right password resets the count of wrong ones for all other names";
            let hint = "add the name of the user to limit_keys, or leave out reset_on";
            found.push(located.numbers(limit).key("reset_on").finding(what, hint));
        }
    }
    found
}

/// Finds bans of limits that count by a name. Anybody can send that name, and so get its owner banned.
pub(super) fn forced_ban(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (located, ban) in bans(file) {
        let constraints = Constraints::under(located.policy, located.rule);
        if located.rule.keys.iter().any(|key| file.is_of_sender(key)) {
            continue;
        }
        let Some(name) = file.picked_as_identity(&constraints, &located.rule.keys) else { continue };
        let what = format!("anybody can send the {name} of somebody else, and so have that one banned");
        let hint = "add ip:address, jwt:<claim> or key:id to limit_keys, or give the limit no ban";
        found.push(ban.finding(what, hint));
    }
    found
}

/// Finds enforced limits with a ban whose requests charge buckets on several nodes of a cluster. A ban begins only if
/// no other ban refuses the request. A node does not know the bans of other nodes.
pub(crate) fn divided_bans(config: &Config, tree: &Node) -> Vec<Finding> {
    let beside = config.limits_charged_with_others();
    let file = File::new(config, tree);
    let mut found = Vec::new();
    for index in 0..file.policies.len() {
        for located in file.rules_of(index).iter().filter(|located| located.is_enforced()) {
            let Action::Charge(limits) = &located.rule.action else { continue };
            let is_beside = config.rules.charged_by(index, located.index).iter().any(|id| beside.contains(id));
            for limit in limits.iter().filter(|limit| is_beside && limit.algorithm.ban().is_some()) {
                let what = "a request under this rule charges buckets on several nodes of the cluster, which cannot begin a \
                            ban together";
                found.push(located.ban(limit).finding(what, "set `place: together` in store.redis.cluster"));
            }
        }
    }
    found
}

impl File<'_> {
    /// Returns whether no other client can send the values of this limit key.
    fn is_of_sender(&self, key: &LimitKey) -> bool {
        key.alternatives.iter().all(|attribute| match attribute.source() {
            Attribute::Address
            | Attribute::Claim(_)
            | Attribute::Words(_)
            | Attribute::ClaimedAmount(_)
            | Attribute::KeyId
            | Attribute::TlsClient(_)
            // The proxy that sends this attribute is trusted.
            | Attribute::Descriptor(_) => true,
            source => self.is_known_key(source),
        })
    }
}

/// Returns the enforced limits with a ban, each with the location of its ban.
fn bans<'f>(file: &File<'f>) -> Vec<(LocatedRule<'f>, Location<'f>)> {
    let mut found = Vec::new();
    for located in file.rules().filter(LocatedRule::is_enforced) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        for limit in limits.iter().filter(|limit| limit.algorithm.ban().is_some()) {
            found.push((located.clone(), located.ban(limit)));
        }
    }
    found
}

impl<'f> LocatedRule<'f> {
    /// Returns the location of the ban of this limit.
    pub fn ban(&self, limit: &Limit) -> Location<'f> {
        match &*limit.name {
            "" => self.location.key("ban"),
            name => self.location.key("limits").key(name).key("ban"),
        }
    }
}

fn is_of_address(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::Address)
}

/// Returns whether the value is the same for many people: a plan, or a header field that tells the program or its settings.
/// Other values are names that a client has for itself, such as those of an account or a session.
fn is_of_program(attribute: &Attribute) -> bool {
    const NAMES: [&str; 16] = [
        "accept",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "dnt",
        "host",
        "origin",
        "pragma",
        "priority",
        "referer",
        "te",
        "upgrade-insecure-requests",
        "user-agent",
        "x-requested-with",
    ];
    match attribute {
        Attribute::KeyPlan => true,
        Attribute::Header(name) => {
            let name = name.as_str();
            NAMES.contains(&name) || name.starts_with("accept-") || name.starts_with("sec-")
        }
        _ => false,
    }
}

/// Returns whether the value says what a request is for, and not who sends it.
fn is_of_target(attribute: &Attribute) -> bool {
    matches!(
        attribute,
        Attribute::Path
            | Attribute::PathSegment(_)
            | Attribute::Host
            | Attribute::TlsServerName
            | Attribute::Model
            | Attribute::Method
            | Attribute::Route
            | Attribute::Upstream
            | Attribute::Scheme
            | Attribute::Listener
            | Attribute::Door
    )
}
