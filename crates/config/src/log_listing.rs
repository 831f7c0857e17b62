//! Says in which list of `access_log` attributes must stand, so that `tollgate replay` knows from a line what rules read.

use std::fmt;

use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::rule::{Condition, RuleSource};
use rules::rule_set::RuleSet;

/// What `access_log` must list. A pseudonym suffices for an attribute that rules count by, or compare with whole texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogListing {
    pub attributes: Vec<String>,
    pub values: Vec<String>,
}

/// The list in which an attribute must stand.
enum List {
    Attributes,
    Values,
    /// The list `values`, as `clear(…)`.
    Clear,
}

impl LogListing {
    /// Returns how the log must list those of `read` that it can list.
    pub fn of<'a>(rules: &RuleSet, read: impl IntoIterator<Item = &'a Attribute>) -> LogListing {
        let mut listing = LogListing::default();
        for attribute in read {
            let field = field(attribute);
            let (to, name) = match list(&field, rules) {
                Some(List::Attributes) => (&mut listing.attributes, field.to_string()),
                Some(List::Values) => (&mut listing.values, field.to_string()),
                Some(List::Clear) => (&mut listing.values, format!("clear({field})")),
                None => continue,
            };
            if !to.contains(&name) {
                to.push(name);
            }
        }
        listing
    }

    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty() && self.values.is_empty()
    }
}

/// Displays the keys of `access_log`, such as `attributes: [jwt:plan], values: [path]`.
impl fmt::Display for LogListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [("attributes", &self.attributes), ("values", &self.values)];
        let filled = lists.into_iter().filter(|(_, names)| !names.is_empty());
        let texts: Vec<String> = filled.map(|(key, names)| format!("{key}: [{}]", names.join(", "))).collect();
        f.write_str(&texts.join(", "))
    }
}

/// Returns the attributes that policies, rules and exemptions read, in the order of the file.
pub(crate) fn read_by(rules: &RuleSet) -> Vec<&Attribute> {
    let source = rules.source();
    let mut read: Vec<&Attribute> = conditions(source).map(|condition| &condition.attribute).collect();
    let of_rules = source.policies.iter().flat_map(|policy| &policy.rules);
    read.extend(of_rules.flat_map(|rule| &rule.keys).flat_map(|key| &key.alternatives));
    read.extend(numbers(rules));
    read
}

fn conditions(source: &RuleSource) -> impl Iterator<Item = &Condition> {
    let of_rules = source
        .policies
        .iter()
        .flat_map(|policy| policy.conditions.iter().chain(policy.rules.iter().flat_map(|rule| &rule.conditions)));
    source.exempt.iter().flatten().chain(of_rules)
}

/// Returns the attributes from which numbers of limits come.
fn numbers(rules: &RuleSet) -> impl Iterator<Item = &Attribute> {
    let claimed = rules.limits().iter().filter_map(|limit| limit.claimed.as_ref());
    claimed.flat_map(|claimed| &claimed.claimed.numbers).map(|number| &number.from)
}

/// Returns the attribute that a log can list, and from which the value of this one follows.
fn field(attribute: &Attribute) -> Attribute {
    match attribute.source() {
        Attribute::ClaimedAmount(claim) => Attribute::Claim(claim.clone()),
        Attribute::PathSegment(_) => Attribute::Path,
        other => other.clone(),
    }
}

/// Returns the list in which an attribute must stand. `None` if every line has it, or if no log can have it.
fn list(field: &Attribute, rules: &RuleSet) -> Option<List> {
    let needs_text = || needs_text(rules, field);
    match field {
        // Every line has these.
        Attribute::Method | Attribute::Door | Attribute::Route | Attribute::Upstream => None,
        // No log can have these.
        Attribute::Words(_)
        | Attribute::ClaimedAmount(_)
        | Attribute::RequestJson(_)
        | Attribute::JsonAmount(_)
        | Attribute::RequestForm(_)
        | Attribute::Model
        | Attribute::PathSegment(_)
        | Attribute::Folded(..) => None,
        Attribute::Path | Attribute::Host | Attribute::Scheme | Attribute::Listener => Some(List::Values),
        Attribute::Cookie(_) | Attribute::KeyColumn(_) => (!needs_text()).then_some(List::Attributes),
        Attribute::Claim(_) if needs_text() => Some(List::Clear),
        Attribute::Claim(_)
        | Attribute::KeyId
        | Attribute::KeyPlan
        | Attribute::Header(_)
        | Attribute::Query(_)
        | Attribute::Address
        | Attribute::TlsServerName
        | Attribute::TlsClient(_)
        | Attribute::Descriptor(_) => Some(if needs_text() { List::Values } else { List::Attributes }),
    }
}

/// Whether the pseudonym of this attribute leaves something open that its text would tell.
fn needs_text(rules: &RuleSet, attribute: &Attribute) -> bool {
    let is_it = |read: &Attribute| field(read) == *attribute;
    let source = rules.source();
    let compared = conditions(source).filter(|condition| is_it(&condition.attribute));
    let mut compared = compared.filter(|one| !one.attribute.folding().is_none() || is_by_text(&one.expectation));
    let keys = source.policies.iter().flat_map(|policy| &policy.rules).flat_map(|rule| &rule.keys);
    let mut keys = keys.flat_map(|key| &key.alternatives).filter(|part| !part.folding().is_none());
    compared.next().is_some() || keys.any(is_it) || numbers(rules).any(is_it)
}

/// Whether an expectation compares parts of a text. A network is compared with the whole address, which no line has.
fn is_by_text(expectation: &Expectation) -> bool {
    match expectation {
        Expectation::AnyOf(texts) | Expectation::Not(texts) => texts.iter().any(|text| !matches!(text, Text::Exact(_))),
        Expectation::Prefix(_) | Expectation::Suffix(_) | Expectation::Regex(_) | Expectation::InFile(_) => true,
        Expectation::Present(_) | Expectation::Cidr(_) | Expectation::CidrFile(_) => false,
        Expectation::All(each) => each.iter().any(is_by_text),
    }
}
