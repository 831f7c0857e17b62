//! Finds bans that somebody can bring upon others: clients that share an address, or the owner of a name that anybody can
//! send. Also finds bans that a cluster cannot begin in one act, which are errors.

use super::constraints::Constraints;
use super::file::{File, LocatedRule};
use super::location::{Finding, Location};
use crate::config::Config;
use crate::language::tree::Node;
use request::attribute::Attribute;
use rules::rule::{Action, Limit, LimitKey};

/// Finds bans of an address alone, and of all requests.
pub(super) fn shared_ban(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (located, ban) in bans(file) {
        let mut attributes = located.rule.keys.iter().flat_map(|key| &key.alternatives).map(Attribute::source);
        if !attributes.clone().all(|attribute| is_of_address(attribute) || is_of_target(attribute)) {
            continue;
        }
        if attributes.any(is_of_address) {
            let what = "bans an address, which many people may share: one of them can lock out all others";
            let hint = "add what distinguishes people to limit_keys, or give the limit no ban";
            found.push(ban.finding(what, hint));
        } else {
            let what = "bans everybody as soon as one client is beyond the limit";
            found.push(ban.finding(what, "add what distinguishes clients to limit_keys"));
        }
    }
    found
}

/// Finds bans of a name that anybody can send, so that anybody can have its owner banned.
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

/// Finds enforced limits with a ban whose requests charge buckets on several nodes of a cluster. A ban
/// begins only if no other ban refuses the request, which one node does not know of another.
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
    /// Returns whether another client cannot send the values of this limit key.
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
