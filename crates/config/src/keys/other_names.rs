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
        ("key", "admin_write") => "write it in `admin`: `admin: {address: 127.0.0.1:9901, write: …}`",
        ("key", "log_level") => "write `log: {level: info}`",
        ("key", "metrics") => "`admin` is the address of `/metrics`",
        ("key", "match" | "limit_keys" | "algorithm" | "algorithm_config") => "write it in an entry of `rules`",
        ("key", "default" | "default_action" | "fallback") => "write `otherwise` in an entry of `policies`",
        ("key of a policy", "default" | "default_action" | "fallback") => "write `otherwise`",
        ("key of a rule", "enabled" | "disabled" | "active") => {
            "a rule in the file is in force: take it out, or let it only count with `mode: shadow`"
        }
        ("key of a rule", "shadow") => "write `mode: shadow`, or other numbers as `shadow` in `algorithm_config`",
        ("key of a rule", "key" | "keys") => "write `limit_keys`",
        ("key of a rule" | "key of a policy" | "key of a route", _) if is_attribute() => "write it in `match`",
        ("key of a `token_bucket`" | "key of a `leaky_bucket`", name) if per(name).is_some() => per(name)?.0,
        ("key of a `fixed_window`" | "key of a `sliding_window`" | "key of a `sliding_log`", name)
            if per(name).is_some() =>
        {
            per(name)?.1
        }
        ("key of a `token_bucket`", "capacity" | "size" | "bucket_size" | "max_tokens") => "write `burst`",
        ("key of a `token_bucket`" | "key of a `leaky_bucket`", "refill_rate" | "fill_rate" | "leak_rate") => {
            "write `rps`, or `rate` with a period, such as `rate: 100/min`"
        }
        ("key of a `token_bucket`" | "key of a `leaky_bucket`", "per" | "unit" | "period" | "interval") => {
            "the period is a part of the rate: `rate: 100/min`"
        }
        (
            "key of a `fixed_window`" | "key of a `sliding_window`" | "key of a `sliding_log`",
            "per" | "unit" | "period" | "interval",
        ) => "write `window`, such as `window: 1m`",
        ("key of a `token_bucket`", "limit" | "window") => {
            "`limit` and `window` belong to `algorithm: fixed_window` or `sliding_window`; here it is `rate: 100/min`"
        }
        ("key of a `token_bucket`", "queue" | "max_wait" | "delay_after") => "it belongs to `algorithm: leaky_bucket`",
        (
            "key of a `fixed_window`" | "key of a `sliding_window`" | "key of a `sliding_log`",
            "rps" | "tokens_per_second" | "burst",
        ) => "a rate with a burst belongs to `algorithm: token_bucket`; a window has a `limit`",
        ("key of a `leaky_bucket`", "burst") => "write `queue`: how many requests may wait",
        ("operator", "starts_with" | "startsWith" | "begins_with") => "write `prefix`",
        ("operator", "ends_with" | "endsWith") => "write `suffix`",
        ("operator", "equals" | "equal" | "eq" | "exact" | "is" | "any_of" | "one_of") => {
            "write the text or the list itself, or `in` with a list"
        }
        ("operator", "regexp" | "pattern" | "matches" | "contains") => "write `regex`",
        ("operator", "exists") => "write `present`",
        ("operator", "ne" | "not_in" | "not_equals") => "write `not`",
        ("key in `lease`", "return_after") => "write `store.home.return_after`",
        ("key in `redis`", "gateways") => "write it beside `redis`, not in it",
        ("key in `postgres`", "gateways") => "write it beside `postgres`, not in it",
        ("key in `tls` of a listener", "certificate" | "cert" | "key" | "cert_file" | "key_file") => {
            "write `certificates: [{cert_file: FILE, key_file: FILE}]`"
        }
        ("key of a `fixed_window`", "rate") => {
            "did you mean `limit` and `window`, such as `limit: 100, window: month`?"
        }
        ("key of a `sliding_window`" | "key of a `sliding_log`", "rate") => {
            "did you mean `limit` and `window`, such as `limit: 100, window: 1m`?"
        }
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

/// Returns the hints for a name like `requests_per_second`: in a bucket, which has a rate, and in a window.
fn per(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "requests_per_second" | "per_second" | "rate_per_second" | "qps" | "tps" => {
            ("did you mean `rps`?", "did you mean `limit` with `window: 1s`?")
        }
        "requests_per_minute" | "per_minute" | "rate_per_minute" | "rpm" => {
            ("did you mean `rate: N/min`?", "did you mean `limit` with `window: 1m`?")
        }
        "requests_per_hour" | "per_hour" | "rate_per_hour" => {
            ("did you mean `rate: N/hour`?", "did you mean `limit` with `window: 1h`?")
        }
        "requests_per_day" | "per_day" | "rate_per_day" => {
            ("did you mean `rate: N/day`?", "did you mean `limit` with `window: 1d`?")
        }
        "requests_per_month" | "per_month" => {
            let hint = "did you mean `algorithm: fixed_window` with `limit` and `window: month`?";
            (hint, hint)
        }
        _ => return None,
    })
}
