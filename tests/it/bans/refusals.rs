//! The refusals of a banned client: status, reason, fields, and counts.

use serde_json::json;

use super::{guess, limit, reason, send, upstream};
use crate::support::http2::Http2Client;
use crate::support::{Gateway, access_log, eventually, now};

#[test]
fn a_ban_refuses_until_its_end_and_the_next_one_is_longer() {
    let upstream = upstream();
    let config = limit("for: [2s, 1h], forget_after: 1d") + "\naccess_log: {to: access.jsonl}";
    let gateway = Gateway::start(&upstream, &config);
    guess(&gateway, "ann");
    let sent = upstream.count();
    let first = send(&gateway, "ann", 200);
    assert_eq!((first.status, reason(&first).as_deref(), first.number("retry-after")), (429, Some("banned"), 2));
    assert_eq!(first.field("ratelimit").as_deref(), Some("\"guesses\";r=0;t=2"));
    assert_eq!((first.number("ratelimit-remaining"), first.number("ratelimit-reset")), (0, 2));
    assert_eq!(first.field("cache-control").as_deref(), Some("no-store"));
    assert_eq!(first.json()["violated-policies"], json!(["guesses"]));
    assert_eq!(first.json()["status"], json!(429));
    // Another user is not concerned.
    assert_eq!(send(&gateway, "bob", 200).status, 200);
    let (begun, mut knocks) = (now(), 0);
    eventually("the ban ends", || {
        let knock = send(&gateway, "ann", 200);
        knocks += u32::from(reason(&knock).as_deref() == Some("banned"));
        reason(&knock).as_deref() == Some("fixed_window_exceeded")
    });
    assert!(knocks > 2 && begun.elapsed().as_millis() > 1500, "{knocks} in {:?}", begun.elapsed());
    // What was spent is still spent. Without anything new, no ban begins.
    for _ in 0..3 {
        assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("fixed_window_exceeded"));
    }
    assert_eq!(upstream.count(), sent + 1);
    gateway.expect("rate_limiter_bans_total", &["rule=\"guesses\"", "step=\"1\""], 1.0);
    gateway.expect("rate_limiter_bans_total", &["rule=\"guesses\"", "step=\"2\""], 0.0);
    let refused = gateway.metric("rate_limiter_rejected_total", &["rule=\"guesses\"", "reason=\"banned\""]);
    assert!(refused == f64::from(knocks + 1), "{refused} of {knocks}");
    assert!(gateway.metric("tollgate_refused_requests_total", &["reason=\"banned\""]) == refused);
    gateway.expect_logged("ban began");
    let is_banned = |line: &serde_json::Value| line["reason"] == "banned";
    eventually("the line is written", || access_log::lines(&gateway).iter().any(is_banned));
    let banned = access_log::lines(&gateway).into_iter().find(is_banned).unwrap();
    assert_eq!((&banned["code"], &banned["rule"]), (&json!(429), &json!("guesses")));
    let bucket = banned["bucket"].as_str().unwrap();
    assert!(gateway.has_logged(bucket), "{}", gateway.errors());
}

#[test]
fn the_line_of_a_ban_has_the_values_that_the_access_log_may_have() {
    let upstream = upstream();
    for (values, expected) in [("[path, header:x-user]", true), ("[path]", false)] {
        let config = limit("for: [1h]") + &format!("\naccess_log: {{to: access.jsonl, values: {values}}}");
        let gateway = Gateway::start(&upstream, &config);
        guess(&gateway, "secret-ann");
        assert_eq!(reason(&send(&gateway, "secret-ann", 200)).as_deref(), Some("banned"));
        gateway.expect_logged("ban began");
        let errors = gateway.errors();
        let line = errors.lines().find(|line| line.contains("ban began")).unwrap();
        assert!(line.contains(" bucket=") && line.contains("header:x-user=secret-ann") == expected, "{line}");
        assert!(expected || !errors.contains("secret-ann"), "{errors}");
    }
}

#[test]
fn a_ban_with_403_does_not_say_when_to_come_back() {
    let upstream = upstream();
    let config = limit("for: [1h], status: 403") + "\nllm: {error_format: openai, other: free}";
    let gateway = Gateway::start(&upstream, &config);
    guess(&gateway, "ann");
    for _ in 0..2 {
        let banned = send(&gateway, "ann", 200);
        assert_eq!((banned.status, reason(&banned).as_deref()), (403, Some("banned")));
        assert_eq!(banned.field("retry-after"), None);
        assert_eq!(banned.field("x-should-retry").as_deref(), Some("false"));
        assert_eq!(banned.json()["error"]["code"], json!("banned"));
        assert_eq!(banned.json()["error"]["message"], json!("Such requests are banned for some time."));
    }
}

#[test]
fn a_banned_call_of_grpc_is_refused_in_grpcs_way() {
    let upstream = upstream();
    for (status, expected) in [("429", "8"), ("403", "7")] {
        let config = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\n".to_owned();
        let gateway = Gateway::start(&upstream, &(config + &limit(&format!("for: [1h], status: {status}"))));
        guess(&gateway, "ann");
        let call = [("content-type", "application/grpc"), ("te", "trailers"), ("x-user", "ann")];
        let refused = Http2Client::connect(gateway.http).send("POST", "/a/b", &call, &[]);
        assert_eq!((refused.status, refused.field("grpc-status")), (200, expected));
        assert_eq!(refused.field("x-tollgate-reason"), "banned");
    }
}

#[test]
fn the_formats_of_models_name_the_limit_that_bans() {
    let upstream = upstream();
    for format in ["openai", "anthropic"] {
        let config = limit("for: [30s]") + &format!("\nllm: {{error_format: {format}, other: free}}");
        let gateway = Gateway::start(&upstream, &config);
        guess(&gateway, "ann");
        let banned = send(&gateway, "ann", 200);
        assert_eq!((banned.status, banned.field("x-should-retry").as_deref()), (429, Some("true")));
        let error = &banned.json()["error"];
        assert_eq!(error["type"], json!("rate_limit_error"));
        assert_eq!(error["message"], json!("The limit guesses bans further requests. Please try again in 30 s."));
    }
}
