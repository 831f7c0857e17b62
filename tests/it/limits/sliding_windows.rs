//! Sliding windows end to end: the fields of responses, several gateways on one Redis, reloads, and the output for operators.

use crate::support::{Gateway, Redis, Upstream, tollgate};

/// A rule with a window of an hour. No grant leaves the window during a test.
fn hour(limit: u64, steps: u64, rest: &str) -> String {
    format!(
        "
rules:
  - name: plan
    limit_keys: [header:x-user]
    algorithm: sliding_window
    algorithm_config: {{limit: {limit}, window: 1h, steps: {steps}{rest}}}
    overrides: {{acme: {{limit: 4}}}}"
    )
}

fn codes(gateway: &Gateway, user: &str, count: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..count).map(|_| client.get("/", &[("X-User", user)]).status).collect()
}

#[test]
fn a_window_grants_its_limit_and_tells_what_is_left() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &hour(2, 2, ", shadow: {limit: 1}"));
    let mut client = gateway.client();
    let mut ask = |user: &str| client.get("/", &[("X-User", user)]);
    let granted = ask("a");
    assert_eq!(granted.field("ratelimit-policy").unwrap(), "\"plan\";q=2;w=3600");
    // It counts until an hour after the end of its step of half an hour.
    let t = |fields: &str, left: u64| -> u64 {
        fields.strip_prefix(&format!("\"plan\";r={left};t=")).unwrap_or_else(|| panic!("{fields}")).parse().unwrap()
    };
    let full_in = t(&granted.field("ratelimit").unwrap(), 1);
    assert!((3600..=5400).contains(&full_in), "{granted:?}");
    assert_eq!(ask("a").status, 200);
    let refused = ask("a");
    let reason = refused.field("x-tollgate-reason");
    assert_eq!((refused.status, reason.as_deref()), (429, Some("sliding_window_exceeded")));
    let wait = t(&refused.field("ratelimit").unwrap(), 0);
    assert!((3600..=5400).contains(&wait), "{refused:?}");
    let retry_after = refused.number("retry-after");
    assert!((wait..=wait + 30).contains(&retry_after), "{refused:?}");
    let body: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["plan"]));
    assert_eq!(body.get("resets_at"), None, "nothing comes back all at once: {body}");
    // An override has another limit in the same window, and the candidate refuses by itself.
    assert_eq!(
        [ask("acme"), ask("acme"), ask("acme"), ask("acme"), ask("acme")].map(|answer| answer.status),
        [200, 200, 200, 200, 429]
    );
    let shadow = gateway.metric("rate_limiter_rejected_total", &["sliding_window_exceeded", "shadow"]);
    assert_eq!(shadow, 4.0);
    let enforced = gateway.metric("rate_limiter_rejected_total", &["sliding_window_exceeded", "enforce"]);
    assert_eq!(enforced, 2.0);
}

#[test]
fn gateways_share_a_window_and_a_changed_file_keeps_what_was_granted() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let file = |limit, steps| format!("{}{}", redis.patient_store(), hour(limit, steps, ""));
    let one = Gateway::start(&upstream, &file(5, 10));
    let two = Gateway::start(&upstream, &file(5, 10));
    assert_eq!((codes(&one, "a", 2), codes(&two, "a", 1)), (vec![200, 200], vec![200]));
    // Other steps, and a larger limit: three of six are spent, for a gateway with the old file too.
    one.reload(&upstream, &file(6, 4));
    assert_eq!((codes(&one, "a", 1), codes(&two, "a", 2)), (vec![200], vec![200, 429]));
    assert_eq!(codes(&one, "a", 2), [200, 429]);
    two.reload(&upstream, &file(6, 4));
    assert_eq!((codes(&two, "a", 1), codes(&two, "b", 1)), (vec![429], vec![200]));
    assert!(!one.has_logged("buckets are reset"));

    let run = |command: &[&str], rest: &[&str]| {
        let file = one.file("gateway.yaml").display().to_string();
        let reported = tollgate(&[command, &["-c", &file], rest].concat());
        // Nothing on standard error, but a line for what was changed.
        let changes = usize::from(command.contains(&"reset"));
        assert_eq!((reported.code, reported.err.lines().count()), (Some(0), changes), "{}", reported.err);
        assert!(reported.err.lines().all(|line| line.contains(" bucket reset by an operator ")), "{}", reported.err);
        reported.out
    };
    let live = run(&["explain", "--live"], &["-H", "x-user: a", "http://api.example.com/"]);
    assert!(live.contains("6 in any 1h, in 4 steps"), "{live}");
    assert!(live.contains("sliding_window_exceeded"), "{live}");
    let shown = run(&["bucket", "show"], &["plan", "header:x-user=a"]);
    assert!(shown.contains("6 in any 1h, in 4 steps") && shown.contains("0 left of 6, full in "), "{shown}");
    assert!(shown.contains("a request of 1 passes in "), "{shown}");
    let reset = run(&["bucket", "reset"], &["plan", "header:x-user=a"]);
    assert!(reset.contains("had 0 of 6 left"), "{reset}");
    let shown = run(&["bucket", "show"], &["plan", "header:x-user=a"]);
    assert!(shown.contains("6 left of 6, full\n"), "{shown}");
}
