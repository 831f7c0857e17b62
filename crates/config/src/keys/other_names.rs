//! Knows the names that other programs use for a key, for the hint about an unknown key.

use crate::language::key::Mapping;
use request::attribute::Attribute;

/// Returns a hint for a key of another program: how gateway.yaml writes the same setting.
pub(crate) fn other_name(mapping: &Mapping, key: &str) -> Option<&'static str> {
    let is_attribute = || Attribute::parse(key).is_ok();
    Some(match (mapping.heading?, key) {
        ("key", "port" | "address" | "bind") => "write `listen: 0.0.0.0:8080`",
        ("key", "tls") => "write it in an entry of `listeners`; for an upstream, in one of `upstreams`",
        ("key", "timeout" | "timeouts") => "write `upstream_timeouts`",
        ("key", "log_level") => "write `log: {level: info}`",
        ("key", "metrics") => "`admin` is the address of `/metrics`",
        ("key", "match" | "limit_keys" | "algorithm" | "algorithm_config") => "write it in an entry of `rules`",
        ("key of a rule", "shadow") => "write `mode: shadow`, or other numbers as `shadow` in `algorithm_config`",
        ("key of a rule", "key" | "keys") => "write `limit_keys`",
        ("key of a rule" | "key of a policy" | "key of a route", _) if is_attribute() => "write it in `match`",
        ("key of a `concurrency` limit", "cost_source" | "fixed_cost" | "default_cost" | "min_cost" | "max_cost") => {
            "a request holds one slot: it has no cost"
        }
        ("key of a `concurrency` limit", "window" | "rate" | "rps" | "burst") => {
            "slots are counted at the same time, not over a time: a slot is free when its request ends"
        }
        ("key in `store`", "type" | "kind" | "backend" | "driver") => {
            "the store's key says it: `memory`, `redis` or `postgres`"
        }
        ("key in `redis`", "host" | "port" | "address") => "write `url: redis://HOST:6379`",
        ("key in `redis`", "db" | "database") => "write it at the end of the URL: `url: redis://HOST:6379/1`",
        ("key in `redis`", "user") => "write `username`",
        _ => return None,
    })
}
