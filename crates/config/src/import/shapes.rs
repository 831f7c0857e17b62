//! Converts a tree of descriptors to a list of rules. The first rule that matches decides.
//!
//! A *shape* is the sequence of keys of a descriptor's entries. Each shape gets its own rules, in the order in which
//! the service searches the nodes. The service may stop at a node without a limit although a later node matches too.
//! For this case, a rule with the action `allow` ends the policy.

use std::borrow::Cow;

use super::Losses;
use super::names::give_names;
use super::tree::{Domain, LimitName, Node, NodeLimit, NodeMode, PatternCounting};
use request::sent_descriptor::{DOMAIN, ENTRIES, attribute_name};

/// A policy with the rules of one domain of an envoyproxy/ratelimit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImportedPolicy {
    pub name: String,
    pub domain: String,
    pub rules: Vec<ImportedRule>,
}

/// A rule for all descriptors whose entries have the same keys in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImportedRule {
    pub name: String,
    /// The name that the imported file gives to the limit. `None` if the file gives no name.
    pub limit_name: Option<LimitName>,
    /// The keys of the descriptor's entries, in order, joined with `/`.
    pub shape: String,
    /// The conditions on the values of entries, each with the name of its entry.
    pub values: Vec<(String, ValueCondition)>,
    /// The names of the entries by whose values the rule counts: each combination of values has its own bucket.
    pub counted: Vec<String>,
    pub action: ImportedAction,
    pub mode: NodeMode,
    /// The name of the file that the rule was imported from.
    pub file: String,
    pub line: usize,
}

/// A condition on the value of a descriptor's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueCondition {
    Text(String),
    Prefix(String),
    Suffix(String),
    Regex(String),
    /// The entry may have any value. Distinguishes the entry `a/b` from the two entries `a` and `b`.
    Present,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImportedAction {
    Allow,
    /// Refuses every request, because the imported limit is 0.
    Deny,
    Charge {
        limit: u64,
        window: &'static str,
    },
}

/// Whether a descriptor that matches an earlier node may also match a later rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    Nothing,
    Perhaps,
}

/// Whether the nodes below one node match every value of the shape's remaining entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    Whole,
    Partial,
}

/// Converts each domain to one policy that makes the same decisions. Parts that cannot be converted are added to
/// `losses`.
pub(super) fn policies(domains: &[Domain], losses: &mut Losses) -> Vec<ImportedPolicy> {
    let mut policies: Vec<_> = domains.iter().map(|domain| policy(domain, losses)).collect();
    give_names(&mut policies, losses);
    policies
}

/// Converts a domain to a policy. Its rules do not have their final names yet.
fn policy(domain: &Domain, losses: &mut Losses) -> ImportedPolicy {
    let mut shapes: Vec<Vec<&str>> = Vec::new();
    add_shapes(&domain.nodes, &mut Vec::new(), &mut shapes, losses);
    let mut rules = Vec::new();
    for shape in &shapes {
        let mut walk = Walk { shape, path: Vec::new(), rules: &mut rules };
        walk.level(&domain.nodes, 0, Later::Nothing);
    }
    ImportedPolicy { name: domain.name.clone(), domain: domain.name.clone(), rules }
}

/// Collects the shapes that end at a node with a limit.
fn add_shapes<'n>(nodes: &'n [Node], above: &mut Vec<&'n str>, shapes: &mut Vec<Vec<&'n str>>, losses: &mut Losses) {
    for node in nodes {
        if let Some(why) = unwritable(node, above) {
            losses.add(&node.place.file, node.place.position, &node.place.path, why);
            continue;
        }
        above.push(&node.key);
        if node.limit.is_some() && !shapes.contains(above) {
            shapes.push(above.clone());
        }
        add_shapes(&node.children, above, shapes, losses);
        above.pop();
    }
}

/// Returns why a node cannot be written as a rule. `None` if it can.
fn unwritable(node: &Node, above: &[&str]) -> Option<String> {
    let key = node.key.escape_debug();
    let names = attribute_names(&[above, &[&*node.key]].concat());
    if let Some((own, others)) = names.split_last()
        && others.contains(own)
    {
        return Some(format!(
            "not carried over: `descriptor:{}` is two entries; give one another key",
            own.escape_debug()
        ));
    }
    if node.key.contains('*') {
        return Some(format!("not carried over: `{key}` is a pattern of keys"));
    }
    if [DOMAIN, ENTRIES].contains(&&*node.key) {
        return Some(format!("not carried over: `descriptor:{key}` is not an entry; give the entry another key"));
    }
    let is_written = node.key.trim() == node.key && !node.key.contains('|');
    (!is_written).then(|| format!("not carried over: `{key}` cannot be a limit key, with its space or `|`"))
}

/// Returns the names of the attributes that stand for entries with these keys.
fn attribute_names<'k>(keys: &[&'k str]) -> Vec<Cow<'k, str>> {
    let before = |index: usize, key: &str| keys.iter().take(index).filter(|other| **other == key).count();
    keys.iter().enumerate().map(|(index, key)| attribute_name(key, before(index, key))).collect()
}

/// A walk over the nodes of one shape.
struct Walk<'w, 'n> {
    shape: &'w [&'n str],
    /// The nodes from the root to the current node.
    path: Vec<&'n Node>,
    rules: &'w mut Vec<ImportedRule>,
}

impl<'n> Walk<'_, 'n> {
    fn level(&mut self, nodes: &'n [Node], depth: usize, later: Later) -> Coverage {
        let Some(key) = self.shape.get(depth) else { return Coverage::Partial };
        let of_key = || nodes.iter().filter(|node| node.key == *key);
        let exact = of_key().filter(|node| node.value.is_some() && !node.is_pattern());
        let patterns = of_key().filter(|node| node.is_pattern());
        let any = of_key().filter(|node| node.value.is_none());
        let candidates: Vec<&Node> = exact.chain(patterns).chain(any).collect();
        let mut coverage = Coverage::Partial;
        for (index, node) in candidates.iter().enumerate() {
            let later = if index + 1 < candidates.len() { Later::Perhaps } else { later };
            self.path.push(node);
            let below = if depth + 1 == self.shape.len() {
                self.leaf(node, later);
                Coverage::Whole
            } else {
                let below = self.level(&node.children, depth + 1, later);
                if below == Coverage::Partial && later == Later::Perhaps {
                    self.stop();
                }
                below
            };
            self.path.pop();
            if below == Coverage::Whole && node.value.as_deref().is_none_or(|value| value.bytes().all(|b| b == b'*')) {
                coverage = Coverage::Whole;
            }
        }
        coverage
    }

    fn leaf(&mut self, node: &Node, later: Later) {
        let action = match node.limit {
            None => {
                if later == Later::Perhaps {
                    self.stop();
                }
                return;
            }
            Some(NodeLimit::Unlimited) => return self.add(ImportedAction::Allow, NodeMode::Enforced, ""),
            Some(NodeLimit::Requests { count: 0, .. }) => ImportedAction::Deny,
            Some(NodeLimit::Requests { count, window }) => ImportedAction::Charge { limit: count, window },
        };
        self.add(action, node.mode, "");
        // A shadow rule does not end the policy, so another rule must end it.
        if node.mode == NodeMode::Shadow && later == Later::Perhaps {
            self.stop();
        }
    }

    /// Ends the policy for descriptors that match the current path.
    fn stop(&mut self) {
        self.add(ImportedAction::Allow, NodeMode::Enforced, ".none");
    }

    fn add(&mut self, action: ImportedAction, mode: NodeMode, suffix: &str) {
        let Some(last) = self.path.last() else { return };
        let is_charged = matches!(action, ImportedAction::Charge { .. });
        let (mut values, mut counted) = (Vec::new(), Vec::new());
        let attributes = attribute_names(self.shape);
        for (node, attribute) in self.path.iter().zip(&attributes) {
            let condition = node.value.as_deref().and_then(condition);
            let is_counted = match (&node.value, node.counting) {
                (None, _) => true,
                (Some(_), PatternCounting::Each) => node.is_pattern(),
                (Some(_), PatternCounting::Together) => false,
            };
            if is_charged && is_counted {
                counted.push(attribute.to_string());
            }
            let condition = condition
                .or_else(|| (node.key.contains('/') && !(is_charged && is_counted)).then_some(ValueCondition::Present));
            values.extend(condition.map(|condition| (attribute.to_string(), condition)));
        }
        // An entry whose name contains `/` must be present, to distinguish the entry `a/b` from the entries `a` and
        // `b`.
        for attribute in attributes.iter().skip(self.path.len()).filter(|name| name.contains('/')) {
            values.push((attribute.to_string(), ValueCondition::Present));
        }
        let names: Vec<String> = self.path.iter().map(|node| name(node)).collect();
        self.rules.push(ImportedRule {
            name: format!("{}{suffix}", names.join(".")),
            limit_name: last.limit_name.clone().filter(|_| suffix.is_empty()),
            shape: self.shape.join("/"),
            values,
            counted,
            action,
            mode,
            file: last.place.file.clone(),
            line: last.place.position.line,
        });
    }
}

fn name(node: &Node) -> String {
    match &node.value {
        Some(value) => format!("{}_{value}", node.key),
        None => node.key.clone(),
    }
}

/// Makes the condition for a value. `None` for a pattern that matches every value.
fn condition(value: &str) -> Option<ValueCondition> {
    let parts: Vec<&str> = value.split('*').collect();
    Some(match &parts[..] {
        [exact] => ValueCondition::Text((*exact).to_owned()),
        all if all.iter().all(|part| part.is_empty()) => return None,
        [prefix, ""] => ValueCondition::Prefix((*prefix).to_owned()),
        ["", suffix] => ValueCondition::Suffix((*suffix).to_owned()),
        all => {
            let escaped: Vec<String> = all.iter().map(|part| regex::escape(part)).collect();
            ValueCondition::Regex(format!("(?s)^{}$", escaped.join(".*")))
        }
    })
}
