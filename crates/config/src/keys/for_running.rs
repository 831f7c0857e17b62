//! Lists the values that may be unknown on a host where the gateway does not run. No rule depends on these values.

/// Whether the value at this path may be unknown while the file is only examined.
pub(crate) fn is_for_running(path: &str) -> bool {
    const KEYS: [&str; 15] = [
        "listen",
        "listeners",
        "admin",
        "threads",
        "upstream",
        "upstreams",
        "upstream_timeouts",
        "store",
        "limits",
        "drain",
        "log",
        "hash_key",
        "hash_key_file",
        "headers",
        "retry_after_jitter",
    ];
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (first, rest) = path.split_at(end);
    if KEYS.contains(&first) {
        return true;
    }
    // The keys after the first key of the path. An index directly after the first key, such as `[0]`, is left out.
    let keys: Vec<&str> = rest.split('.').skip(1).collect();
    match (first, keys.as_slice()) {
        ("jwt", keys) => keys.contains(&"keys"),
        ("access_log" | "records", ["to"]) => true,
        ("cors", [key]) => key.starts_with("origins["),
        ("error_pages", ["content_type"] | ["headers", _, ..]) => true,
        ("routes", ["request_headers" | "response_headers", "set", ..]) => true,
        ("routes", ["rewrite" | "redirect", "host"]) => true,
        ("routes", ["respond", "body" | "content_type"] | ["respond", "headers", _, ..]) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_decide_rules_must_be_known_to_examine_a_file() {
        for path in [
            "upstream",
            "upstreams.api.endpoints[0]",
            "store.redis.url",
            "listeners[0].address",
            "jwt.keys.secret",
            "jwt.issuers[1].keys.secret",
            "headers[0]",
            "retry_after_jitter.share",
            "access_log.to",
            "records.to",
            "cors[0].origins[1]",
            "error_pages[0].content_type",
            "routes[0].request_headers.set.x-api-secret",
            "routes[0].response_headers.set.a.b",
            "routes[0].redirect.host",
            "routes[12].respond.headers.x-a",
        ] {
            assert!(is_for_running(path), "{path}");
        }
        for path in [
            "rules[0].match.path",
            "policies[0].rules[0].limits.day.rate",
            "exempt[0].path",
            "jwt.issuer",
            "jwt.audience[0]",
            "storey",
            "access_log.attributes[0]",
            "records.meters[0]",
            "cors[0].match.host",
            "error_pages[0].match.path",
            "routes[0].match.path",
            "routes[0].upstream",
            "routes[0].rewrite.strip_prefix",
        ] {
            assert!(!is_for_running(path), "{path}");
        }
    }
}
