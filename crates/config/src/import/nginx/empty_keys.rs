//! Reads `map` and `geo` of nginx: for which requests the key of a zone is empty, so that nginx does not count them.

use super::super::gateway_yaml::scalar;
use super::syntax::Directive;
use super::zones::{attribute, only_variable};

/// The variables that `map` and `geo` define.
#[derive(Debug, Default)]
pub(super) struct Variables(Vec<Definition>);

/// A `map` or `geo`.
#[derive(Debug)]
struct Definition {
    name: String,
    /// The variable whose values are mapped. `None`: the address of the client, in networks.
    source: Option<String>,
    /// Values or networks, each with the new value.
    entries: Vec<(String, String)>,
}

/// The key of a zone that is empty for some requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MappedKey {
    /// The key of all other requests.
    pub key: String,
    /// The entries of `match` that have the requests with an empty key, one for a rule.
    pub exempt: Vec<String>,
}

/// Words in `map` and `geo` that are no values. Definitions with another one than `volatile` are not read.
const PARAMETERS: [&str; 6] = ["hostnames", "include", "ranges", "proxy", "delete", "proxy_recursive"];

impl Variables {
    pub(super) fn read(roots: &[Vec<Directive>]) -> Variables {
        let mut found = Variables::default();
        roots.iter().for_each(|root| found.add(root));
        found
    }

    fn add(&mut self, directives: &[Directive]) {
        for directive in directives {
            let Some(block) = &directive.block else { continue };
            let (name, source) = match (directive.name(), directive.arguments()) {
                ("map", [source, name]) => (name, only_variable(source).map(str::to_owned)),
                ("geo", [name]) => (name, None),
                ("http", _) => {
                    self.add(block);
                    continue;
                }
                _ => continue,
            };
            let is_read = block.iter().all(|entry| !PARAMETERS.contains(&entry.name()));
            let Some(name) = only_variable(name).filter(|_| is_read && (directive.name() == "geo" || source.is_some()))
            else {
                continue;
            };
            let entries = block.iter().filter(|entry| entry.name() != "volatile");
            let entries = entries.map(|entry| (entry.name().to_owned(), entry.argument().to_owned())).collect();
            self.0.push(Definition { name: name.to_owned(), source, entries });
        }
    }

    fn get(&self, name: &str) -> Option<&Definition> {
        self.0.iter().find(|definition| definition.name == name)
    }

    /// Returns the key of a zone if it is a variable of a `map` that is empty for some requests. `None` if the `map` says something
    /// else, or more than rules can say.
    pub(super) fn mapped(&self, key: &str) -> Option<MappedKey> {
        let map = self.get(only_variable(key)?)?;
        let source = map.source.as_deref()?;
        let (default, entries) = (map.default(), map.without_default());
        let key = map.entries.iter().map(|(_, value)| &**value).find(|value| !value.is_empty())?;
        if map.entries.iter().any(|(_, value)| !value.is_empty() && value != key) {
            return None;
        }
        let exempt = match self.get(source) {
            Some(geo) => vec![networks(geo, map)?],
            None => {
                let attribute = attribute(source)?;
                match (default.is_empty(), entries.iter().all(|(_, value)| value.is_empty() != default.is_empty())) {
                    (false, true) => values(&attribute, &entries)?,
                    (true, true) => vec![others(&attribute, &entries)?],
                    // Which of two patterns decides does not follow from the order of rules.
                    (_, false) => return None,
                }
            }
        };
        Some(MappedKey { key: key.to_owned(), exempt })
    }
}

impl Definition {
    fn default(&self) -> &str {
        self.entries.iter().find(|(value, _)| value == "default").map_or("", |(_, mapped)| mapped.as_str())
    }

    fn without_default(&self) -> Vec<&(String, String)> {
        self.entries.iter().filter(|(value, _)| value != "default").collect()
    }

    /// Returns what a value is mapped to. `None` if a regular expression would decide.
    fn of(&self, value: &str) -> Option<&str> {
        let entries = self.without_default();
        if entries.iter().any(|(pattern, _)| pattern.starts_with('~')) {
            return None;
        }
        let found = entries.into_iter().find(|(pattern, _)| pattern.eq_ignore_ascii_case(value));
        Some(found.map_or(self.default(), |(_, mapped)| mapped.as_str()))
    }
}

/// Returns the condition of networks for which the key is empty. `None` if networks within them could have a key.
fn networks(geo: &Definition, map: &Definition) -> Option<String> {
    if geo.source.is_some() || map.of(geo.default())?.is_empty() {
        return None;
    }
    let networks = geo.without_default();
    let mut exempt = Vec::new();
    for (network, value) in networks {
        if !map.of(value)?.is_empty() {
            return None;
        }
        exempt.push(scalar(network));
    }
    (!exempt.is_empty()).then(|| format!("\"ip:address\": {{cidr: [{}]}}", exempt.join(", ")))
}

/// Returns the conditions of these values: one for all texts, one for each regular expression, and one for a missing value.
fn values(attribute: &str, entries: &[&(String, String)]) -> Option<Vec<String>> {
    let (mut conditions, mut texts) = (Vec::new(), Vec::new());
    for (pattern, _) in entries {
        match pattern.strip_prefix('~') {
            None if pattern.is_empty() => conditions.push(format!("{}: {{present: false}}", scalar(attribute))),
            None => texts.push(text(attribute, pattern)?),
            Some(regex) => {
                let regex = regex.strip_prefix('*').map_or_else(|| regex.to_owned(), |regex| format!("(?i){regex}"));
                regex::bytes::Regex::new(&regex).ok()?;
                conditions.push(format!("{}: {{regex: {}}}", scalar(attribute), scalar(&regex)));
            }
        }
    }
    if !texts.is_empty() {
        conditions.insert(0, format!("{}: [{}]", folded(attribute), texts.join(", ")));
    }
    Some(conditions)
}

/// Returns the condition of all other values than these. `None` for a regular expression.
fn others(attribute: &str, entries: &[&(String, String)]) -> Option<String> {
    let is_text = |pattern: &str| !pattern.is_empty() && !pattern.starts_with('~');
    let texts: Option<Vec<String>> =
        entries.iter().map(|(pattern, _)| text(attribute, pattern).filter(|_| is_text(pattern))).collect();
    Some(format!("{}: {{not: [{}]}}", folded(attribute), texts?.join(", ")))
}

/// Returns a text of a `map`, which nginx compares without regard to capitals. `None` if it would mean more here.
fn text(attribute: &str, pattern: &str) -> Option<String> {
    let text = pattern.strip_prefix('\\').unwrap_or(pattern);
    let is_subtree = attribute == "path" && text.ends_with("/*") || attribute == "host" && text.starts_with("*.");
    (!is_subtree).then(|| scalar(&text.to_ascii_lowercase()))
}

/// Returns the attribute in lower case, as YAML. Hosts and addresses are compared in lower case anyway.
fn folded(attribute: &str) -> String {
    match attribute {
        "host" | "ip:address" => scalar(attribute),
        other => scalar(&format!("lower({other})")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[track_caller]
    fn mapped(text: &str) -> Option<(String, Vec<String>)> {
        let variables = Variables::read(&[parse("nginx.conf", text).unwrap()]);
        variables.mapped("$k").map(|mapped| (mapped.key, mapped.exempt))
    }

    #[test]
    fn requests_with_an_empty_key_are_conditions() {
        let address = |exempt: &[&str]| {
            Some(("$binary_remote_addr".to_owned(), exempt.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()))
        };
        let geo = "geo $g { default 1; 10.0.0.0/8 0; 192.0.2.7 0; }";
        let map = "map $g $k { 0 \"\"; 1 $binary_remote_addr; }";
        assert_eq!(
            mapped(&format!("http {{ {geo} {map} }}")),
            address(&["\"ip:address\": {cidr: [\"10.0.0.0/8\", \"192.0.2.7\"]}"])
        );
        assert_eq!(
            mapped("map $http_x_key $k { default $binary_remote_addr; Free ''; \"\" ''; ~^ab ''; ~*cd ''; }"),
            address(&[
                "\"lower(header:x-key)\": [\"free\"]",
                "\"header:x-key\": {present: false}",
                "\"header:x-key\": {regex: \"^ab\"}",
                "\"header:x-key\": {regex: \"(?i)cd\"}"
            ])
        );
        assert_eq!(
            mapped("map $request_method $k { POST $binary_remote_addr; PUT $binary_remote_addr; }"),
            address(&["\"lower(method)\": {not: [\"post\", \"put\"]}"])
        );
    }

    #[test]
    fn what_rules_cannot_say_is_no_condition() {
        for text in [
            "",
            "map $http_x $k { default $host; a $binary_remote_addr; }",
            "map $http_x $k { default $host; a ''; ~b $host; }",
            "map $unknown $k { default $host; a ''; }",
            "map $http_x$arg_y $k { default $host; a ''; }",
            "map $http_x $k { hostnames; default $host; a ''; }",
            "map $http_x $k { ~a $host; }",
            "map $uri $k { default $host; /a/* ''; }",
            "geo $g { default 0; 10.0.0.0/8 1; } map $g $k { 0 ''; 1 $host; }",
            "geo $g { default 1; 10.0.0.0/8 0; 10.1.0.0/16 1; } map $g $k { 0 ''; 1 $host; }",
        ] {
            assert_eq!(mapped(text), None, "{text}");
        }
    }
}
