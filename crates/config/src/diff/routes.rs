//! Compares the routes of two configurations.

use crate::config::Config;
use request::attribute::Attribute;
use rules::route::route_set::Route;
use rules::route::target::Target;

impl Config {
    /// Describes the routes that are new, removed, changed or reordered since `before`. Each text also names the limits
    /// whose buckets start full, because they count by a changed route or its upstream.
    pub fn changed_routes(&self, before: &Config) -> Vec<String> {
        let (old, new) = (before.routes.routes(), self.routes.routes());
        let named = |routes: &'_ [Route], name: &str| routes.iter().position(|route| route.name == name);
        let mut changed = Vec::new();
        for route in new {
            let known = named(old, &route.name).and_then(|index| old.get(index));
            let Some(known) = known else {
                let by_route = self.limits_by(&[Attribute::Route]);
                changed.push(format!("{}: it was not there before{}", route.name, full_buckets(&by_route)));
                continue;
            };
            let parts = [
                ("match", conditions(known) != conditions(route)),
                ("upstream", target(before, known) != target(self, route)),
                ("changes", known.forwarding != route.forwarding),
            ];
            let parts: Vec<&str> = parts.iter().filter(|(_, differs)| *differs).map(|(part, _)| *part).collect();
            if parts.is_empty() {
                continue;
            }
            let by_upstream =
                if parts.contains(&"upstream") { self.limits_by(&[Attribute::Upstream]) } else { Vec::new() };
            changed.push(format!("{}: other {}{}", route.name, parts.join(", "), full_buckets(&by_upstream)));
        }
        changed.extend(
            old.iter()
                .filter(|route| named(new, &route.name).is_none())
                .map(|route| format!("{}: it is gone", route.name)),
        );
        let order = |routes: &'_ [Route], others: &[Route]| -> Vec<String> {
            let common = routes.iter().filter(|route| named(others, &route.name).is_some());
            common.map(|route| route.name.clone()).collect()
        };
        if order(old, new) != order(new, old) {
            changed.push("they have another order".to_owned());
        }
        changed
    }

    /// Returns the names of limits that count by one of these attributes.
    fn limits_by(&self, attributes: &[Attribute]) -> Vec<String> {
        let rules = self.rules.source().policies.iter();
        let rules = rules.flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
        let counts = |attribute: &Attribute| attributes.contains(attribute.source());
        rules
            .filter(|(_, rule)| rule.keys.iter().flat_map(|key| &key.alternatives).any(counts))
            .map(|(policy, rule)| format!("policy {}, rule {}", policy.name, rule.name))
            .collect()
    }
}

fn full_buckets(limits: &[String]) -> String {
    if limits.is_empty() { String::new() } else { format!("; its buckets start full in {}", limits.join("; ")) }
}

/// Returns the conditions of a route as they are written in the file, without their positions.
fn conditions(route: &Route) -> Vec<String> {
    let condition = |condition: &rules::rule::Condition| format!("{}: {}", condition.attribute, condition.expectation);
    let mut conditions: Vec<String> = route.conditions.iter().map(condition).collect();
    conditions.sort();
    conditions
}

/// Returns the target of a route, with the names of upstreams.
fn target(config: &Config, route: &Route) -> String {
    match &route.target {
        Target::Upstream(id) => config.upstream(*id).map_or_else(String::new, |upstream| upstream.name.clone()),
        Target::Split(split) => {
            let mut shares: Vec<String> =
                split.shares().iter().map(|share| format!("{} {}", share.name, share.weight)).collect();
            shares.sort();
            format!("{} by {:?}", shares.join(", "), split.by())
        }
        Target::Answer(answer) => format!("{answer:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::language::environment::Environment;

    fn config(routes: &str) -> Config {
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        let rules = "{name: each, limit_keys: [route], algorithm_config: {rps: 1, burst: 5}}, \
                     {name: ups, limit_keys: [\"header:a|upstream\"], algorithm_config: {rps: 1, burst: 5}}";
        let text = format!(
            "upstreams: {{b: {{endpoints: [http://b]}}, a: {{endpoints: [http://a]}}}}\nroutes: [{routes}]\nrules: [{rules}]"
        );
        Config::parse("gateway.yaml", text.as_bytes(), surroundings).unwrap()
    }

    #[track_caller]
    fn check(before: &str, after: &str, expected: &[&str]) {
        assert_eq!(config(after).changed_routes(&config(before)), expected);
    }

    #[test]
    fn routes_that_differ_are_named_with_what_starts_full() {
        let v1 = "{name: v1, match: {path: /v1/*, host: {regex: a}}, upstream: a}";
        let rest = "{name: rest, upstream: b}";
        let both = format!("{v1}, {rest}");
        check(&both, &both, &[]);
        check(&both, &format!("{rest}, {v1}"), &["they have another order"]);
        check(v1, &both, &["rest: it was not there before; its buckets start full in policy default, rule each"]);
        check(&both, v1, &["rest: it is gone"]);
        check(&both, &both.replace("regex: a", "regex: b"), &["v1: other match"]);
        check(&both, &both.replace("upstream: a}", "upstream: a, rewrite: {host: x}}"), &["v1: other changes"]);
        let ups = "v1: other upstream; its buckets start full in policy default, rule ups";
        check(&both, &both.replace("upstream: a}", "upstream: b}"), &[ups]);
        check(&both, &both.replace("upstream: a}", "upstream: {a: 9, b: 1}}"), &[ups]);
        check(&both, &both.replace("upstream: a}", "respond: {status: 200}}"), &[ups]);
        let split = both.replace("upstream: a}", "upstream: {a: 9, b: 1}}");
        check(&split, &split.replace("a: 9, b: 1", "b: 1, a: 9"), &[]);
        check(&split, &split.replace("a: 9, b: 1", "b: 1, a: 8"), &[ups]);
    }
}
