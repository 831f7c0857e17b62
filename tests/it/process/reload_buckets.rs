//! Changes of gateway.yaml that keep, refill or reset buckets.

use std::path::Path;
use std::process::Command;

use super::reload::{burst, occurrences, remaining};
use crate::support::{Gateway, Redis, Upstream, eventually};

/// Runs a test in memory, and then in Redis.
fn on_both_stores(play: impl Fn(&str)) {
    play("");
    let redis = Redis::start();
    play(&redis.patient_store());
}

#[test]
fn spent_tokens_stay_spent_when_numbers_change() {
    on_both_stores(|store| {
        let upstream = Upstream::start();
        let with = |rules: String| format!("{store}{rules}");
        let gateway = Gateway::start(&upstream, &with(burst(10)));
        for left in [9, 8, 7] {
            assert_eq!(remaining(&gateway, "/?u=a"), left);
        }
        gateway.reload(&upstream, &with(burst(12)));
        assert_eq!((remaining(&gateway, "/?u=a"), remaining(&gateway, "/?u=b")), (8, 11));
        gateway.reload(&upstream, &with(burst(4)));
        // Four are spent already.
        let refused = gateway.client().get("/?u=a", &[]);
        assert_eq!((refused.status, refused.number("ratelimit-limit")), (429, 4));
        // A refusal that was known here without asking does not outlive its numbers.
        gateway.reload(&upstream, &with(burst(6)));
        assert_eq!(remaining(&gateway, "/?u=a"), 1);
        assert_eq!(occurrences(&gateway, "buckets are reset"), 0);
        let line =
            "INFO limits have other numbers, their buckets are kept limits=1 which=\"policy default, limit r: was ";
        eventually("each change is logged", || occurrences(&gateway, line) == 3);
    });
}

/// The current year ends at its own end or at the end of the next day, whichever is earlier. Then days count.
#[test]
fn a_window_that_is_replaced_ends_at_the_earlier_of_two_ends() {
    on_both_stores(|store| {
        let upstream = Upstream::start();
        let with = |window: &str| {
            let numbers = format!("{{limit: 5, window: {window}, timezone: Asia/Kathmandu}}");
            let rule =
                format!("name: r, limit_keys: [\"query:u\"], algorithm: fixed_window, algorithm_config: {numbers}");
            format!("{store}rules: [{{{rule}}}]\n")
        };
        let gateway = Gateway::start(&upstream, &with("year"));
        assert_eq!([remaining(&gateway, "/?u=a"), remaining(&gateway, "/?u=a")], [4, 3]);
        gateway.reload(&upstream, &with("day"));
        let answer = gateway.client().get("/?u=a", &[]);
        assert_eq!(answer.number("ratelimit-remaining"), 2);
        // Today and tomorrow.
        assert!(answer.number("ratelimit-reset") <= 2 * 86_400, "{answer:?}");
        let line =
            "was 5/year Asia/Kathmandu, is 5/day Asia/Kathmandu; what was spent counts until the running period ends";
        eventually("it is logged", || gateway.has_logged(line));
        assert_eq!(occurrences(&gateway, "buckets are reset"), 0);
    });
}

#[test]
fn after_a_reload_cached_refusals_are_checked_in_redis_again() {
    let redis = Redis::start();
    let upstream = Upstream::start();
    let with = |rules: String| format!("{}{rules}", redis.patient_store());
    let gateway = Gateway::start(&upstream, &with(burst(1)));
    let status = || gateway.client().get("/?u=a", &[]).status;
    assert_eq!([status(), status()], [200, 429]);
    let calls = || gateway.metric("rate_limiter_store_calls_total", &[]);
    let mut before = calls();
    // It is known for a second: a busy machine may take longer.
    eventually("a refusal is known", || {
        assert_eq!(status(), 429);
        std::mem::replace(&mut before, calls()) == before
    });
    gateway.reload(&upstream, &format!("headers: []\n{}", with(burst(1))));
    assert_eq!(status(), 429);
    gateway.expect("rate_limiter_store_calls_total", &[], before + 1.0);
}

#[test]
fn buckets_that_are_reset_are_named() {
    on_both_stores(|store| {
        let upstream = Upstream::start();
        let gateway = Gateway::start(&upstream, &format!("{store}{}", burst(10)));
        assert_eq!(remaining(&gateway, "/?u=a"), 9);
        gateway.reload(&upstream, &format!("{store}{}", burst(10).replace("name: r", "name: s")));
        assert_eq!(remaining(&gateway, "/?u=a"), 9);
        eventually("it is logged", || occurrences(&gateway, "buckets are reset") == 1);
        gateway.expect_logged(
            "WARN buckets are reset limits=1 which=\"policy default, limit s: it was not there before\"",
        );
        gateway.reload(&upstream, &format!("{store}{}", burst(10).replace("query:u", "header:u").replace("r,", "s,")));
        let line = "policy default, limit s: limit_keys were [query:u], are [header:u]";
        eventually("it is logged", || gateway.has_logged(line));
        // The first one's is where it was.
        gateway.reload(&upstream, &format!("{store}{}", burst(10)));
        assert_eq!(remaining(&gateway, "/?u=a"), 8);
    });
}

#[test]
fn new_rules_are_counted_from_the_start_and_old_ones_go_on() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &burst(10));
    assert_eq!(remaining(&gateway, "/?u=a"), 9);
    let added = burst(10).trim_end().trim_end_matches(']').to_owned()
        + ", {name: s, limit_keys: [], algorithm_config: {rps: 1, burst: 1}}]";
    gateway.reload(&upstream, &added);
    assert_eq!(gateway.metric("rate_limiter_requests_total", &["rule=\"s\""]), 0.0);
    assert_eq!(remaining(&gateway, "/?u=a"), 8);
    gateway.expect("rate_limiter_requests_total", &["rule=\"r\""], 2.0);
}

#[test]
fn check_names_the_buckets_that_are_reset() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, rest: &str| {
        let file = folder.path().join(name);
        let allowed = "check: {allow: [unverified_key, open_policy, double_first_period]}";
        std::fs::write(&file, format!("upstream: http://a\n{rest}\n{allowed}\n")).unwrap();
        file
    };
    let (old, new) = (write("old.yaml", &burst(1)), write("new.yaml", &burst(2).replace("name: r", "name: s")));
    let check = |against: &Path, file: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.arg("check").arg("--against").args([against, file]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let reset = "buckets reset: policy default, limit s: it was not there before\ngone: policy default, limit r\nok\n";
    assert_eq!(check(&old, &new), (Some(0), reset.to_owned(), String::new()));
    let kept =
        "buckets kept: policy default, limit r: was 1/day burst 1, is 1/day burst 2; what was spent stays spent\nok\n";
    assert_eq!(check(&old, &write("numbers.yaml", &burst(2))), (Some(0), kept.to_owned(), String::new()));
    let wrong = write("wrong.yaml", "a: 1");
    let report = format!("{}:2:1: a: unknown key\n1 problem\n", wrong.display());
    for (against, file) in [(&wrong, &new), (&new, &wrong)] {
        assert_eq!(check(against, file), (Some(1), String::new(), report.clone()));
    }
}
