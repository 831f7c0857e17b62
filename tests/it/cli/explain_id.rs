//! `tollgate explain --id` explains the answer to a request that is in the access log.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::support::{Gateway, Upstream, eventually, tollgate};

/// Returns the access log line of a refusal.
fn logged(id: &str, bucket: &str) -> String {
    let line = json!({
        "time": "2026-11-21T14:51:52.123456Z", "request_id": id, "kind": "refused", "route": "default", "method": "GET",
        "code": 429, "origin": "gateway", "duration_us": 210, "decision_us": 90, "request_bytes": 0,
        "response_bytes": 250, "reason": "token_bucket_exceeded", "policy": "default", "rule": "few", "cost": 1,
        "remaining": 0.25, "bucket": bucket, "retry_after": 52, "source": "cached",
    });
    format!("{line}\n")
}

#[test]
fn a_logged_request_is_explained_by_its_id() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "rules: [{name: few, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}]");
    gateway.client().get("/", &[]);
    let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
    let json = tollgate(&["explain", "-c", &file, "--json", "/"]).json();
    let bucket = json["policies"][0]["rules"][0]["charges"][0]["bucket"].as_str().unwrap().to_owned();
    let lines: String = (0..1000).map(|number| logged(&format!("r-{number}"), &bucket)).collect();
    let (plain, packed) = (gateway.file("access.jsonl"), gateway.file("access.jsonl.gz"));
    std::fs::write(&plain, format!("not a line\n{lines}")).unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(lines.as_bytes()).unwrap();
    std::fs::write(&packed, encoder.finish().unwrap()).unwrap();
    for (log, number) in [(&plain, 779), (&packed, 778)] {
        let log = log.display().to_string();
        let reported = tollgate(&["explain", "-c", &file, "--id", "r-777", "--log", &log, "--live", "--admin", &admin]);
        let expected = format!(
            "2026-11-21T14:51:52Z  request r-777  {log}:{number}\n\
             REFUSED 429 token_bucket_exceeded; GET to route default, decided in 90 us\n\
             by default/few  {file}:5\n  needs 1, had 0.25; bucket {bucket}\n  Retry-After 52\n  \
             decided by what the store had just shown\n  now: 1 left of 2 (the gateway at {admin})\n"
        );
        // What has come back since is some thousandths at most.
        let out = reported.out.replace("now: 1.001 left", "now: 1 left").replace("now: 1.002 left", "now: 1 left");
        assert_eq!((reported.code, out), (Some(0), expected), "{}", reported.err);
    }
    let log = packed.display().to_string();
    // Of those that begin so the one that is the whole id; otherwise the only one.
    let explain = |id: &str| tollgate(&["explain", "-c", &file, "--id", id, "--log", &log]);
    assert!(explain("r-77").out.contains("request r-77  "), "{:?}", explain("r-77"));
    let several = explain("r-");
    assert_eq!(several.code, Some(1));
    assert!(several.err.starts_with("r- begins the ids of at least 20 requests: r-0, r-1, r-10, "), "{}", several.err);
    std::fs::write(&plain, [logged("7c1e-4d", &bucket), logged("7c2f-4e", &bucket)].concat()).unwrap();
    let plain = plain.display().to_string();
    let explain = |id: &str| tollgate(&["explain", "-c", &file, "--id", id, "--log", &plain]);
    assert!(explain("7c2").out.contains("request 7c2f-4e  "), "{:?}", explain("7c2"));
    assert_eq!(explain("7c").err, "7c begins the ids of 2 requests: 7c1e-4d, 7c2f-4e\n");
    let missing = tollgate(&["explain", "-c", &file, "--id", "r-1000", "--log", &log]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.starts_with(&format!("no request r-1000 in 1000 lines of {log}\n  hint:")), "{}", missing.err);
    // What the file logs says nothing of a log that is named.
    assert!(!missing.err.contains("access_log"), "{}", missing.err);
    let other = tollgate(&["explain", "-c", &file, "--id", "r-1000", "--log", &file]);
    let expected = format!("{file}: must be an access log of a gateway, has no request_id in ");
    assert!(other.code == Some(1) && other.err.starts_with(&expected), "{other:?}");
}

#[test]
fn a_request_in_the_log_is_explained_by_the_id_of_its_response() {
    let log = "access_log: {to: access.jsonl, when: [refused], attributes: [header:x-plan, header:x-user]}\n";
    let rules = "
policies:
  - name: plan
    rules:
      - name: free
        match: {header:x-plan: free}
        limit_keys: [header:x-user]
        algorithm_config: {rate: 2/day}
  - {name: ceiling, rules: [{name: all, limit_keys: [], algorithm_config: {rate: 9/day}}]}
";
    let gateway = Gateway::start(&Upstream::start(), &format!("{log}{rules}"));
    let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
    let ask = |id: &str| gateway.client().get("/", &[("X-Plan", "free"), ("X-User", "ann"), ("X-Request-Id", id)]);
    assert_eq!([ask("a").status, ask("b").status], [200, 200]);
    let refused = ask("c-1");
    assert_eq!(refused.status, 429);
    eventually("it is written", || {
        std::fs::read_to_string(gateway.file("access.jsonl")).is_ok_and(|log| !log.is_empty())
    });
    let arguments = ["explain", "-c", &file, "--json", "-H", "x-plan: free", "-H", "x-user: ann", "/"];
    let json = tollgate(&arguments).json();
    let bucket = json["policies"][0]["rules"][0]["charges"][0]["bucket"].as_str().unwrap().to_owned();
    let reported = tollgate(&["explain", "-c", &file, "--id", "c-1", "--live", "--admin", &admin]);
    let retry = refused.number("retry-after");
    for part in [
        "request c-1  ",
        "REFUSED 429 token_bucket_exceeded; GET to route default",
        &format!("by plan/free  {file}:10\n  needs 1, had 0"),
        &format!("bucket {bucket}\n  Retry-After {retry}\n"),
        "limit plan/free  SHORT: cost 1, 0",
        "limit ceiling/all  could pay: cost 1, 7",
        "  now: 0",
        "  \"free\"\nheader:x-user  ",
    ] {
        assert!(reported.out.contains(part), "{part} is not in {reported:?}");
    }
    assert!(!reported.out.contains("ann"), "{reported:?}");
    let missing = tollgate(&["explain", "-c", &file, "--id", "a"]);
    let expected = "in 1 lines of";
    assert!(missing.err.contains(expected) && missing.err.contains("leaves out allowed, error"), "{missing:?}");
}
