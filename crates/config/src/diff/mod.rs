//! Compares two configurations: which changes need a restart, and which buckets start full again or get another rate or
//! size.

pub(crate) mod routes;
pub(crate) mod upstreams;

use std::fmt;

use crate::config::Config;
use crate::keys::listeners::Listener;
use crate::keys::store::home::Home;
use crate::language::problem::Problem;
use base::time::Timestamp;
use request::request::ONLY_LISTENER;
use rules::diff;
use rules::number_changes::{ChangedLimit, changed_limits};
use rules::rule::Mode;
use rules::rule_set::CompiledLimit;
use stores::redis::cluster::Place;

/// A reason why a new configuration makes buckets start full again: it uses other keys or another store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reset {
    Limit(diff::ResetLimit),
    /// The length of the IPv6 prefix that identifies one client has changed.
    Ipv6Prefix {
        was: u8,
        is: u8,
    },
    /// The number of token issuers has changed. With several issuers, a bucket that counts by claims has the issuer in
    /// its key.
    Issuers {
        was: usize,
        is: usize,
    },
    /// The home of limits over several regions is another store.
    Home,
    /// The buckets are in another store.
    Store,
    /// The cluster distributes the buckets over its nodes in another way, so the buckets have other keys.
    Place {
        was: Place,
        is: Place,
    },
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reset::Limit(limit) => limit.fmt(f),
            Reset::Ipv6Prefix { was, is } => {
                write!(f, "all buckets of IPv6 clients: client_ip.ipv6_prefix was {was}, is {is}")
            }
            Reset::Issuers { was, is } => write!(f, "all buckets by claims: jwt had {}, has {is}", issuers(*was)),
            Reset::Store => f.write_str("all buckets: they live in another store"),
            Reset::Home => f.write_str("all limits over several regions: their home is another store"),
            Reset::Place { was, is } => write!(f, "all buckets: place was {was}, is {is}"),
        }
    }
}

fn issuers(count: usize) -> String {
    match count {
        1 => "1 issuer".to_owned(),
        count => format!("{count} issuers"),
    }
}

impl Config {
    /// Returns the reasons why this configuration no longer uses buckets of `before`. Empty if all buckets stay in use.
    pub fn reset_buckets(&self, before: &Config) -> Vec<Reset> {
        let counts_by = |prefix: &str| {
            let keys = self.rules.limits().iter().flat_map(|limit| &limit.keys);
            keys.flat_map(|key| key.split('|'))
                .any(|part| part.trim_start_matches("lower(").trim_start_matches("trim(").starts_with(prefix))
        };
        let mut found = Vec::new();
        if !before.store.has_same_buckets(&self.store) {
            found.push(match before.store.other_place(&self.store) {
                Some((was, is)) => Reset::Place { was, is },
                None => Reset::Store,
            });
        }
        if let (Some(was), Some(is)) = (&before.home, &self.home)
            && !was.store.has_same_buckets(&is.store)
        {
            found.push(Reset::Home);
        }
        let (was, is) = (before.client_ip.ipv6_prefix, self.client_ip.ipv6_prefix);
        if was != is && counts_by("ip:address") {
            found.push(Reset::Ipv6Prefix { was, is });
        }
        let issuers = |config: &Config| config.jwt.as_ref().map_or(0, |jwt| jwt.issuers.len());
        let (was, is) = (issuers(before), issuers(self));
        // Without issuers, no bucket of `before` counted by claims.
        if was > 0 && (was > 1) != (is > 1) && counts_by("jwt:") {
            found.push(Reset::Issuers { was, is });
        }
        found.extend(diff::reset_limits(&before.rules, &self.rules).into_iter().map(Reset::Limit));
        found
    }

    /// Returns the limits of `before` that this configuration does not have. Requests are no longer limited by them.
    pub fn gone_limits(&self, before: &Config) -> Vec<String> {
        let is_it = |one: &CompiledLimit, other: &CompiledLimit| {
            (&one.policy, &one.name, one.mode) == (&other.policy, &other.name, other.mode)
        };
        let gone = before.rules.limits().iter().filter(|old| !self.rules.limits().iter().any(|new| is_it(old, new)));
        gone.map(|limit| {
            let mode = if limit.mode == Mode::Shadow { " (shadow)" } else { "" };
            format!("policy {}, limit {}{mode}", limit.policy, limit.name)
        })
        .collect()
    }

    /// Returns the names of the keys that have changed since `before` and take effect only after a restart.
    pub fn restart_keys(&self, before: &Config) -> Vec<&'static str> {
        let mut restart = Vec::new();
        let several = |listeners: &[Listener]| {
            let is_plain = |one: &Listener| one.is_plain() && one.name == ONLY_LISTENER;
            !listeners.iter().all(is_plain)
        };
        let mut pairs = self.listeners.iter().zip(&before.listeners);
        if self.listeners.len() != before.listeners.len() || !pairs.all(|(one, before)| one.is_reload_of(before)) {
            let named = several(&self.listeners) || several(&before.listeners);
            restart.push(if named { "listeners" } else { "listen" });
        }
        if self.admin != before.admin || self.admin_socket() != before.admin_socket() {
            restart.push("admin");
        }
        if self.threads != before.threads {
            restart.push("threads");
        }
        if self.store != before.store.with_login_of(&self.store) {
            restart.push("store");
        }
        restart.extend(match (&before.home, &self.home) {
            (None, None) => Vec::new(),
            (Some(before), Some(home)) => before.restart_keys(home),
            (None, Some(_)) | (Some(_), None) => vec!["store.home"],
        });
        restart
    }

    /// Returns the limits that use the same buckets as in `before`, but with another rate or size.
    pub fn changed_limits(&self, before: &Config) -> Vec<ChangedLimit> {
        // With another store, no bucket stays in use.
        let same_store = before.store.has_same_buckets(&self.store);
        if same_store { changed_limits(&before.rules, &self.rules) } else { Vec::new() }
    }

    /// Returns what has changed in `store.home` since `before` and takes effect with a reload.
    pub fn changed_home(&self, before: &Config) -> Vec<String> {
        let homes = before.home.as_ref().zip(self.home.as_ref());
        homes.map_or_else(Vec::new, |(before, after)| before.changes(after))
    }

    /// Returns this configuration with the values of `before` for keys that need a restart, and the names of the
    /// changed keys among these. A new certificate is used only if it is valid at `now`.
    pub fn as_reload_of(self, before: &Config, now: Timestamp) -> (Config, Vec<&'static str>) {
        let restart = self.restart_keys(before);
        let listeners = before.listeners.iter().enumerate().map(|(index, before)| {
            // The listener at the same index is tried first, because several listeners may have port 0.
            let mut candidates = self.listeners.get(index).into_iter().chain(&self.listeners);
            let same = candidates.find(|one| one.is_reload_of(before));
            same.map_or_else(|| before.clone(), |one| one.as_reload_of(before, now))
        });
        let (listeners, store) = (listeners.collect(), before.store.with_login_of(&self.store));
        let home = self.home_after(before.home.as_ref());
        // New tokens are applied, another socket needs a restart.
        let is_kept = self.admin_socket() == before.admin_socket();
        let admin_write = if is_kept { self.admin_write.clone() } else { before.admin_write.clone() };
        (Config { listeners, store, home, admin: before.admin, admin_write, threads: before.threads, ..self }, restart)
    }

    /// Returns why a process with this home, or without one, cannot use this configuration: its limits over several regions need
    /// another home. `None` if it can.
    pub fn needs_restart_for_home(&self, running: Option<&Home>) -> Option<Problem> {
        if !self.rules.limits().iter().any(|limit| limit.purse().is_some()) {
            return None;
        }
        let stays = "must stay as it was at the start of the process, since limits with `scope: global` live there";
        let (path, what) = match (running, &self.home) {
            (None, _) => ("store.home", "`scope: global` needs a home from the start of the process"),
            (Some(running), Some(home)) if !running.store.has_same_buckets(&home.store) => ("store.home", stays),
            (Some(running), Some(home)) if running.region != home.region => ("store.home.region", stays),
            _ => return None,
        };
        let (path, what) = (path.to_owned(), what.to_owned());
        Some(Problem {
            file: None,
            position: None,
            path,
            what,
            hint: Some("restart the gateway with this file".to_owned()),
        })
    }

    /// Returns the home in force after this configuration has replaced one with this home without a restart.
    pub fn home_after(&self, before: Option<&Home>) -> Option<Home> {
        match (before, &self.home) {
            (Some(home), Some(newer)) => Some(home.with_reload_of(newer)),
            (before, _) => before.cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::language::environment::Environment;

    fn config(rest: &str) -> Config {
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        Config::parse("gateway.yaml", format!("upstream: http://a\n{rest}").as_bytes(), surroundings).unwrap()
    }

    #[track_caller]
    fn check(before: &str, after: &str, restart: &[&str], reset: &[&str]) {
        let (before, after) = (config(before), config(after));
        let found: Vec<String> = after.reset_buckets(&before).iter().map(Reset::to_string).collect();
        assert_eq!(found, reset);
        let (reloaded, found) = after.as_reload_of(&before, Timestamp(0));
        assert_eq!(found, restart);
        assert_eq!(reloaded.restart_keys(&before), [""; 0]);
    }

    #[test]
    fn changes_that_need_a_restart_are_named_by_their_key() {
        check("listen: 127.0.0.1:1", "listen: 127.0.0.1:2", &["listen"], &[]);
        check("listen: 127.0.0.1:1", "listeners: [{address: 127.0.0.1:1, proxy_protocol: true}]", &["listeners"], &[]);
        check("admin: 127.0.0.1:1", "threads: 3", &["admin", "threads"], &[]);
        check("store: {memory: {max_buckets: 5}}", "", &["store"], &[]);
        check("store: {memory: {file: a.tgb}}", "store: {memory: {file: b.tgb}}", &["store"], &[]);
        let redis = |rest: &str| format!("store: {{redis: {{url: \"redis://a\"{rest}}}}}");
        check(&redis(""), &redis(", timeout: 1s"), &["store"], &[]);
        check(&redis(""), &redis(", username: u, password: x"), &[], &[]);
        check(&redis(", tls: {verify: false}"), &redis(""), &[], &[]);
        check(&redis(""), &redis(", password: x, timeout: 1s"), &["store"], &[]);
        check(&redis(""), &format!("{}\nheaders: []\ndrain: {{delay: 1s}}", redis("")), &[], &[]);
        let elsewhere = &["all buckets: they live in another store"];
        check(&redis(""), &redis(", prefix: b"), &["store"], elsewhere);
        check("", &redis(""), &["store"], elsewhere);
        let cluster =
            |nodes: &str, rest: &str| format!("store: {{redis: {{cluster: {{nodes: [{nodes}]{rest}}}, username: u}}}}");
        check(&cluster("a, b", ""), &cluster("b, c", ", place: spread"), &[], &[]);
        check(&cluster("a", ""), &cluster("a", "").replace("username: u", "username: v"), &[], &[]);
        check(&cluster("a", ""), &cluster("b", ""), &["store"], elsewhere);
        check(&cluster("a", ""), &cluster("a", "").replace("username: u", "prefix: b"), &["store"], elsewhere);
        check(&redis(""), &cluster("a", ""), &["store"], elsewhere);
        let tags = &["all buckets: place was spread over 16 hash_tags, is spread over 64 hash_tags"];
        check(&cluster("a", ""), &cluster("a", ", hash_tags: 64"), &["store"], tags);
        let together = &["all buckets: place was spread over 16 hash_tags, is together"];
        check(&cluster("a", ""), &cluster("a", ", place: together"), &["store"], together);
    }

    #[test]
    fn other_numbers_conditions_and_positions_change_no_bucket() {
        let rules = |policies: &str| format!("policies: [{policies}]");
        let one = "{name: p, rules: [{name: a, limit_keys: [\"query:u\", \"query:o\"], algorithm_config: {rps: 1, burst: 5}}]}";
        let other = "{name: q, rules: [{name: b, limit_keys: [], limits: {s: {rps: 1, burst: 5}, d: {rate: 9/day}}}]}";
        let both = rules(&format!("{one}, {other}"));
        let numbers = rules(&format!("{other}, {one}")).replace("rps: 1", "rps: 2").replace("9/day", "8/day");
        check(&both, &numbers, &[], &[]);
        check(&both, &both.replace("\"query:u\", \"query:o\"", "\"query:o\", \"query:u\""), &[], &[]);
        check(&both, &both.replace("name: a,", "name: a, match: {method: GET}, expose: true, status: 503,"), &[], &[]);
        check(&both, &rules(one), &[], &[]);
        let was_not = "it was not there before";
        let added = [format!("policy q, limit b.s: {was_not}"), format!("policy q, limit b.d: {was_not}")];
        check(&rules(one), &both, &[], &[&added[0], &added[1]]);
        check(&both, &both.replace("name: a", "name: c"), &[], &[&format!("policy p, limit c: {was_not}")]);
        check(&both, &both.replace("d: {rate", "e: {rate"), &[], &[&format!("policy q, limit b.e: {was_not}")]);
        let keys = "policy p, limit a: limit_keys were [query:o, query:u], are [query:u]";
        check(&both, &both.replace(", \"query:o\"", ""), &[], &[keys]);
        let shadow = "policy p, limit a (shadow): mode was enforce, is shadow";
        check(&both, &both.replace("name: a,", "name: a, mode: shadow,"), &[], &[shadow]);
        let candidate = format!("policy p, limit a (shadow): {was_not}");
        let beside = both.replace("burst: 5}}]}, {name: q", "burst: 5, shadow: {rps: 1, burst: 4}}}]}, {name: q");
        check(&both, &beside, &[], &[&candidate]);
    }

    #[test]
    fn numbers_from_credentials_change_no_bucket() {
        let file = |burst: &str| {
            let jwt = format!("jwt: {{algorithms: [HS256], keys: {{secret: {}}}}}", "s".repeat(32));
            format!("{jwt}\nrules: [{{name: a, limit_keys: [jwt:sub], algorithm_config: {{rps: 1, burst: {burst}}}}}]")
        };
        check(&file("5"), &file("{from: jwt:burst, default: 5, max: 9}"), &[], &[]);
        check(
            &file("{from: jwt:burst, default: 5, max: 9}"),
            &file("{from: jwt:limit, default: 9, max: 99}"),
            &[],
            &[],
        );
    }

    #[test]
    fn limits_with_other_numbers_are_named_with_what_stays() {
        let limits = |limits: &str, overrides: &str| {
            config(&format!("rules: [{{name: a, limit_keys: [\"query:u\"], {limits}, overrides: {{{overrides}}}}}]"))
        };
        let bucket = |numbers: &str, overrides: &str| limits(&format!("algorithm_config: {{{numbers}}}"), overrides);
        let month = |zone: &str, limit: u64| {
            let numbers = format!("{{limit: {limit}, window: month, timezone: {zone}}}");
            limits(&format!("algorithm: fixed_window, algorithm_config: {numbers}"), "x: {limit: 7}")
        };
        let check = |before: &Config, after: &Config, changed: &[&str]| {
            let found: Vec<String> = after.changed_limits(before).iter().map(ChangedLimit::to_string).collect();
            assert_eq!(found, changed);
        };
        let place = "policy default, limit a:";
        let spent = "what was spent stays spent";
        let ten = || bucket("rps: 1, burst: 10", "x: {rps: 1, burst: 5}, y: {rps: 1, burst: 6}");
        check(&ten(), &ten(), &[]);
        check(&ten(), &bucket("rps: 1, burst: 10", "y: {rps: 1, burst: 6}, x: {rps: 1, burst: 5}"), &[]);
        let overrides = format!("{place} overrides have other numbers; {spent}");
        check(&ten(), &bucket("rps: 1, burst: 10", "x: {rps: 1, burst: 5}"), &[&overrides]);
        let own = format!("{place} was 1/s burst 10, is 2/s burst 10; {spent}");
        check(&ten(), &bucket("rps: 2, burst: 10", ""), &[&own]);
        let limit = format!("{place} was 5/month UTC, is 6/month UTC; {spent}");
        check(&month("UTC", 5), &month("UTC", 6), &[&limit]);
        let window = format!(
            "{place} was 5/month UTC, is 5/month Asia/Tokyo; what was spent counts until the running period ends, or the \
             next one of the new window, whichever is earlier"
        );
        check(&month("UTC", 5), &month("Asia/Tokyo", 5), &[&window]);
        check(&month("UTC", 5), &ten(), &[]);
        let redis = config(
            "store: {redis: {url: \"redis://a\"}}\nrules: [{name: a, limit_keys: [], algorithm_config: {rps: 1, burst: 1}}]",
        );
        check(&config("rules: [{name: a, limit_keys: [], algorithm_config: {rps: 1, burst: 2}}]"), &redis, &[]);
    }

    #[test]
    fn a_meter_that_is_added_or_renamed_changes_buckets_and_another_rule_in_it_does_not() {
        let rule = |name: &str, meter: &str| {
            let meter = if meter.is_empty() { String::new() } else { format!(", meter: {meter}") };
            format!(
                "{{name: {name}, match: {{path: /{name}}}, limit_keys: [host], algorithm_config: {{rate: 9/s}}{meter}}}"
            )
        };
        let rules = |rules: &[(&str, &str)]| {
            let rules: Vec<_> = rules.iter().map(|(name, meter)| rule(name, meter)).collect();
            format!("rules: [{}]", rules.join(", "))
        };
        let plans = rules(&[("free", "m"), ("pro", "m")]);
        check(&plans, &rules(&[("team", "m"), ("free", "m"), ("plus", "m")]), &[], &[]);
        check(&plans, &format!("policies: [{{name: plans, {plans}}}]"), &[], &[]);
        let [free, pro] = ["policy default, limit free: meter was", "policy default, limit pro: meter was"];
        check(
            &plans,
            &plans.replace("meter: m", "meter: n"),
            &[],
            &[&format!("{free} m, is n"), &format!("{pro} m, is n")],
        );
        check(&rules(&[("free", ""), ("pro", "m")]), &plans, &[], &[&format!("{free} unset, is m")]);
        check(&plans, &rules(&[("free", ""), ("pro", "m")]), &[], &[&format!("{free} m, is unset")]);
        let keys = |limit: &str| format!("policy default, limit {limit}: limit_keys were [host], are [path]");
        let other = rules(&[("team", "m"), ("pro", "m")]).replace("[host]", "[path]");
        check(&plans, &other, &[], &[&keys("team"), &keys("pro")]);
        let shadow = "policy default, limit free (shadow): mode was enforce, is shadow";
        check(&plans, &plans.replacen("limit_keys", "mode: shadow, limit_keys", 1), &[], &[shadow]);
    }

    #[test]
    fn what_needs_a_restart_at_home_is_named() {
        let config_of = |home: &str| {
            config(&format!("store: {{redis: {{url: \"redis://a\"}}, home: {{regions: [eu, us], {home}}}}}\n"))
        };
        let redis = "redis: {url: \"redis://b\"}, region: eu";
        let before = config_of(redis);
        let with = |more: &str| {
            let (reloaded, keys) = config_of(more).as_reload_of(&before, Timestamp(0));
            (keys, reloaded.home == config_of(more).home)
        };
        assert_eq!(with(&format!("{redis}, return_after: 9s, on_failure: local")), (vec![], true));
        assert_eq!(with("redis: {url: \"redis://u:p@b\"}, region: eu"), (vec![], true));
        assert_eq!(with("redis: {url: \"redis://b\"}, region: us"), (vec!["store.home.region"], false));
        assert_eq!(with(&format!("{redis}, timeout: 9s")), (vec!["store.home.timeout"], false));
        assert_eq!(with(&format!("{redis}, breaker: {{failures: 9}}")), (vec!["store.home"], false));
        assert_eq!(with("redis: {url: \"redis://c\"}, region: eu"), (vec!["store.home"], false));
        let alone = config("store: {redis: {url: \"redis://a\"}}\n");
        assert_eq!(alone.restart_keys(&before), ["store.home"]);
        assert_eq!(before.restart_keys(&alone), ["store.home"]);
    }

    #[test]
    fn other_leases_and_another_return_after_are_named_as_such() {
        let file = |home: &str, lease: &str| {
            let home = format!("home: {{redis: {{url: \"redis://b\"}}, region: eu, {home}}}");
            config(&format!(
                "store: {{redis: {{url: \"redis://a\"}}, {home}}}\nrules: [{{name: a, scope: global, {lease}limit_keys: [host], \
                 algorithm_config: {{rps: 9, burst: 400}}, overrides: {{x: {{rps: 9, burst: 80}}, y: {{limit: unlimited}}}}}}]"
            ))
        };
        let check = |after: &Config, limits: &[&str], home: &[&str]| {
            let before = file("regions: [eu, us]", "");
            let found: Vec<String> = after.changed_limits(&before).iter().map(ChangedLimit::to_string).collect();
            assert_eq!(found, limits);
            assert_eq!(after.changed_home(&before), home);
        };
        let lease =
            |is| format!("policy default, limit a: the largest lease was 100, is {is}; what was spent stays spent");
        check(&file("regions: [eu, us]", ""), &[], &[]);
        check(&file("regions: [eu, us], return_after: 9s", ""), &[], &["return_after was unset, is 9s"]);
        check(&file("regions: [eu, us], on_failure: local", ""), &[], &["on_failure was deny, is local"]);
        check(&file("regions: [eu, us]", "lease: {share: 10%}, "), &[&lease(40)], &[]);
        let regions = "regions was [eu, us], is [eu, us, ap, sa]";
        check(&file("regions: [eu, us, ap, sa]", ""), &[&lease(80)], &[regions]);
    }

    #[test]
    fn a_limit_that_gets_or_loses_its_home_is_reset_for_its_scope() {
        let home = "home: {redis: {url: \"redis://b\"}, region: eu, regions: [eu, us]}";
        let file = |scope: &str| {
            let store = format!("store: {{redis: {{url: \"redis://a\"}}, {home}}}");
            format!("{store}\nrules: [{{name: a, {scope}limit_keys: [], algorithm_config: {{rps: 9, burst: 90}}}}]")
        };
        let global = file("scope: global, ");
        check(&file(""), &global, &[], &["policy default, limit a: scope was regional, is global"]);
        check(&global, &file(""), &[], &["policy default, limit a: scope was global, is regional"]);
        check(&global, &global.replace("burst: 90", "burst: 99"), &[], &[]);
    }

    #[test]
    fn buckets_are_reset_when_clients_are_identified_in_another_way() {
        let rules = "rules: [{name: a, limit_keys: [\"jwt:sub|ip:address\"], algorithm_config: {rps: 1, burst: 5}}]\n";
        let issuer =
            |name: &str| format!("{{issuer: {name}, algorithms: [HS256], keys: {{secret: {}}}}}", "s".repeat(32));
        let jwt = |issuers: &[&str], rest: &str| {
            let issuers: Vec<String> = issuers.iter().map(|name| issuer(name)).collect();
            format!("{rules}jwt: {{issuers: [{}]}}\n{rest}", issuers.join(", "))
        };
        check(&jwt(&["a"], ""), &jwt(&["b"], ""), &[], &[]);
        check(&jwt(&["a", "b"], ""), &jwt(&["c", "b", "a"], ""), &[], &[]);
        let reset = &["all buckets by claims: jwt had 1 issuer, has 2"];
        check(&jwt(&["a"], ""), &jwt(&["a", "b"], ""), &[], reset);
        let prefix = "client_ip: {ipv6_prefix: 56}";
        let reset = &["all buckets of IPv6 clients: client_ip.ipv6_prefix was 64, is 56"];
        check(&jwt(&["a"], ""), &jwt(&["a"], prefix), &[], reset);
        check("", prefix, &[], &[]);
    }
}
