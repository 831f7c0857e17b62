//! Compares the upstreams of two configurations.

use crate::config::Config;
use crate::keys::upstreams::upstream::Upstream;

impl Config {
    /// Describes the upstreams that are new, removed or changed since `before`, one text for each upstream.
    pub fn changed_upstreams(&self, before: &Config) -> Vec<String> {
        let named = |upstreams: &'_ [Upstream], name: &str| upstreams.iter().position(|upstream| upstream.name == name);
        let known = |new: &Upstream| named(&before.upstreams, &new.name).and_then(|index| before.upstreams.get(index));
        let change = |new: &Upstream| match known(new) {
            None => Some(format!("{}: it was not there before", new.name)),
            Some(old) => {
                let parts = changed_parts(old, new);
                (!parts.is_empty()).then(|| format!("{}: other {}", new.name, parts.join(", ")))
            }
        };
        let gone = before.upstreams.iter().filter(|old| named(&self.upstreams, &old.name).is_none());
        let gone = gone.map(|old| format!("{}: it is gone", old.name));
        self.upstreams.iter().filter_map(change).chain(gone).collect()
    }
}

/// Returns the keys of an upstream whose values differ.
fn changed_parts(old: &Upstream, new: &Upstream) -> Vec<&'static str> {
    let Upstream {
        name: _,
        endpoints,
        protocol,
        tls,
        balance,
        timeouts,
        retries,
        ejection,
        health,
        panic_below,
        max_connections,
    } = new;
    let parts = [
        ("endpoints", *endpoints != old.endpoints),
        ("protocol", *protocol != old.protocol),
        ("tls", *tls != old.tls),
        ("balance", *balance != old.balance),
        ("timeouts", *timeouts != old.timeouts),
        ("retries", *retries != old.retries),
        ("ejection", *ejection != old.ejection),
        ("health", *health != old.health),
        ("panic_below", *panic_below != old.panic_below),
        ("max_connections", *max_connections != old.max_connections),
    ];
    parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::language::environment::Environment;

    fn config(upstreams: &str) -> Config {
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        let text = format!("upstreams: {{{upstreams}}}\nroutes: [{{name: all, upstream: a}}]\n");
        Config::parse("gateway.yaml", text.as_bytes(), surroundings).unwrap()
    }

    #[test]
    fn upstreams_that_differ_are_named_with_what_of_them() {
        let a = "a: {endpoints: [http://h], balance: round_robin}";
        let both = format!("{a}, b: {{endpoints: [http://i]}}");
        let check = |before: &str, after: &str, expected: &[&str]| {
            assert_eq!(config(after).changed_upstreams(&config(before)), expected);
        };
        check(&both, &both, &[]);
        check(a, &both, &["b: it was not there before"]);
        check(&both, a, &["b: it is gone"]);
        check(a, "a: {endpoints: [http://h]}", &[]);
        check(
            a,
            "a: {endpoints: [{url: http://h, weight: 2}], timeouts: {read: 1s}, retries: {max: 0}, max_connections: 5}",
            &["a: other endpoints, timeouts, retries, max_connections"],
        );
        check(
            a,
            "a: {endpoints: [http://h], ejection: false, panic_below: 1%, balance: least_requests}",
            &["a: other balance, ejection, panic_below"],
        );
    }
}
